"""``LivePolicy``: the policy that lucidd runs, made here for lucidd and for ``lucidctl`` alike; and its memory.

Also which policies a live cluster can run at all. ``PolicyMemory`` keeps what plans leave for the next (the shadow of
a starvation bound, since when a VC is calm) over restarts."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct, field, to_builtins

from lucid.config.live import DaemonSettings
from lucid.config.load import Settings, library_folder, stored_policy
from lucid.config.policy import PolicySettings
from lucid.core.ports import Capability, Predictor
from lucid.daemon.modes import live_profiling, policy_settings
from lucid.errors import ConfigError, StoreError, did_you_mean
from lucid.left_out import LeftOut
from lucid.orchestrator.planner import Predictions, isolated, make_policies
from lucid.orchestrator.policy import Policy, rules_of
from lucid.orchestrator.registry import BUILT_IN, known_policies, make_policy
from lucid.store.sqlite import SqliteStore
from lucid.store.values import value_from_json, value_to_json

if TYPE_CHECKING:
    from lucid.daemon.learning.models import LiveModels
    from lucid.models.packing.pair_memory import PairMemory


_ABLATIONS = frozenset(name for name in BUILT_IN if name.startswith("muri-") and name not in ("muri-s", "muri-l"))


class LivePolicy(Struct, frozen=True):
    """The policy of lucidd without its predictor: its name, and its settings as this cluster can honour them. lucidd
    writes it beside every plan that it publishes."""

    name: str
    settings: PolicySettings
    own: Mapping[str, str] = field(default_factory=dict)
    """By partition, the policy's name where it has one of its own."""

    def make(self, predictor: Predictor) -> Policy:
        """The policy, which raises for no single partition; it asks ``predictor`` about pairs.

        Raises: ConfigError: there is no such policy."""
        return isolated(make_policies(self.name, self.own, self.settings, predictor))

    def to_dict(self) -> dict[str, Any]:
        """The policy as JSON."""
        own = {"own": dict(self.own)} if self.own else {}
        return {"name": self.name, **own, "settings": to_builtins(self.settings)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> LivePolicy:
        """The policy that ``to_dict`` wrote.

        Raises: ConfigError: another version of Lucid wrote it. KeyError, TypeError: the data is something else."""
        settings = stored_policy(data["settings"], "policy of the last plan")
        return cls(data["name"], settings, data.get("own", {}))


def live_policy(settings: Settings, able: frozenset[Capability]) -> LivePolicy:
    """The policy of a lucidd with these settings, on a cluster with these capabilities."""
    return LivePolicy(settings.daemon.policy, policy_settings(settings, able), settings.daemon.policies)


def live_models(settings: Settings, config: Path, memory: PairMemory, profiled_s: float) -> LiveModels:
    """The models of a lucidd whose configuration file is ``config``. ``profiled_s``: how long its policy profiles."""
    from lucid.daemon.learning.models import LiveModels

    return LiveModels(
        library_folder(settings, config.parent) or Path(settings.daemon.state_dir) / "models",
        first_guess_s=settings.daemon.first_guess_s,
        profiled_s=profiled_s,
        memory=memory,
    )


def live_predictor(settings: Settings, predictor: Predictor | LiveModels, left_out: LeftOut) -> Predictor:
    """The predictor that lucidd plans with, from which no exception of a model comes out."""
    from lucid.daemon.learning.models import LiveModels

    made = predictor.make() if isinstance(predictor, LiveModels) else predictor
    return Predictions(made, left_out, settings.daemon.first_guess_s)


def check_policy(settings: Settings, where: str) -> None:
    """Check the policies that the settings name. ``where``: the file of the settings.

    Raises: ConfigError: a policy is not known; it needs what no Slurm cluster with these settings offers; a partition
    cannot have a policy of its own; daemon.stay names no VC; or the settings do not say in full what VCs lend."""
    check_lending(settings, where)
    _check_one(settings, settings.daemon.policy, f"{where}: daemon.policy = {settings.daemon.policy!r}")
    daemon = settings.daemon
    for partition in daemon.stay:
        _check_is_vc(daemon, partition, f"{where}: daemon.stay names {partition!r}")
    for partition, name in daemon.policies.items():
        key = f"{where}: daemon.policies.{partition} = {name!r}"
        if partition == daemon.profiling_partition:
            raise ConfigError(f"{key}: this is the profiling partition, which daemon.policy uses; leave it out")
        _check_is_vc(daemon, partition, key)
        if partition in daemon.pool.quotas:
            raise ConfigError(
                f"{key}: this VC lends GPUs (daemon.pool.quotas), and one policy has to plan all that lend; leave it "
                "out here, or there"
            )
        _check_one(settings, name, key)


def _check_is_vc(daemon: DaemonSettings, partition: str, key: str) -> None:
    """Check that lucidd looks after a partition that a setting names. ``key``: the file and that setting."""
    if partition not in daemon.partitions:
        known = ", ".join(daemon.partitions)
        hint = did_you_mean(partition, daemon.partitions)
        raise ConfigError(f"{key}: not in daemon.partitions{hint} (there: {known}); say there what lucidd may do")


_TO_RESIZE = frozenset([Capability.RESIZE, Capability.ADAPT, Capability.PREEMPT])


def _check_one(settings: Settings, name: str, key: str) -> None:
    """Check one policy. ``key``: the file and the setting that names it."""
    able = _most(settings)
    if name not in known_policies():
        hint = did_you_mean(name, _runnable(settings, able))
        raise ConfigError(f"{key}: there is no such policy{hint}; {_known(settings, able)}")
    lacking, packs = {*_lacking(name, settings, able)}, settings.slurm.packs
    if not lacking:
        return
    if lacking == {Capability.PREEMPT} and packs:
        why = 'it stops running jobs, which then start over; that takes policy.profiling.restarts = "allowed"'
    elif packs and Capability.RESIZE in lacking and lacking <= _TO_RESIZE:
        why = (
            f"it resizes jobs, and lacks {Capability.RESIZE} here: set daemon.elastic.reports_dir to a folder where "
            "such jobs report their progress (lucid-report)"
        )
    elif Capability.INTERLEAVE in lacking:
        why = f"it forms groups of jobs that take turns, and lacks {Capability.INTERLEAVE} here: "
        why += _for_turns(name, settings)
    elif Capability.ORACLE in lacking and settings.daemon.elastic.reports_dir:
        why = (
            "it goes by the epochs and epoch times of each job as they will be, which only a replay knows "
            f"({Capability.ORACLE}); optimus-fitted learns them from reports"
        )
    else:
        why = f"it needs {', '.join(sorted(lacking))}, which Slurm does not offer Lucid with these settings, so it "
        why += "runs in simulations only"
    raise ConfigError(f"{key}: {why}; {_known(settings, able)}")


def _most(settings: Settings) -> frozenset[Capability]:
    """The capabilities that the cluster offers at most, whatever Slurm's version turns out to be."""
    if not settings.slurm.packs:
        return frozenset()
    able = {Capability.SHARE}
    if settings.daemon.profiling_partition:
        able.add(Capability.PROFILE)
    if live_profiling(settings).restarts == "allowed":
        able.add(Capability.PREEMPT)  # whom it preempts is started over
    if settings.daemon.elastic.reports_dir:
        able |= {Capability.RESIZE, Capability.ADAPT, Capability.INTERLEAVE}
    return frozenset(able)


def needs_of(settings: Settings) -> Callable[[str], frozenset[Capability]]:
    """A function that gives what the policy of a partition needs of the cluster, with these settings."""
    able = _most(settings)
    names = {settings.daemon.policy, *settings.daemon.policies.values()}
    needs = {name: _needs(name, settings, able) for name in names}
    return lambda partition: needs[settings.daemon.policy_of(partition)]


def _needs(name: str, settings: Settings, able: frozenset[Capability]) -> frozenset[Capability]:
    from lucid.models.history import HistoryPredictor

    return make_policy(name, policy_settings(settings, able), HistoryPredictor()).needs


def _lacking(name: str, settings: Settings, able: frozenset[Capability]) -> list[str]:
    needs = _needs(name, settings, able)
    if Capability.RESIZE in needs & able:
        able |= {Capability.PREEMPT}  # it stops elastic jobs only, whose users said that they go on from a checkpoint
    if name in _ABLATIONS:
        able -= {Capability.INTERLEAVE}
    if Capability.INTERLEAVE in needs & able:
        able |= {Capability.PREEMPT}  # on a real cluster it stops nobody
    return sorted(needs - able)


def _for_turns(name: str, settings: Settings) -> str:
    """What is missing for a policy that takes turns, and the remedy."""
    if name in _ABLATIONS:
        return "it is an ablation for the simulator; muri-s and muri-l run live"
    if not settings.slurm.packs:
        return "the client of slurm.client cannot start jobs on chosen GPUs; use command line or rest"
    return "set daemon.elastic.reports_dir to a folder where such jobs report their stage times (lucid-report)"


def _runnable(settings: Settings, able: frozenset[Capability]) -> list[str]:
    """Lucid's own policies that can run, and those of installed packages, which are not loaded to find out."""
    return [name for name in sorted(known_policies()) if name not in BUILT_IN or not _lacking(name, settings, able)]


def _known(settings: Settings, able: frozenset[Capability]) -> str:
    return f"lucidd can run: {', '.join(_runnable(settings, able))}"


_LOG = logging.getLogger("lucidd")
_VIEW: Final = "policy_memory"
_LEAST_EVERY_S: Final = 30.0
_COST: Final = 100.0
"""Storing the memory takes at most one part in so many of the daemon's time."""


class PolicyMemory:
    """Stores the memory of the policy called ``policy``, and of those in ``own``, by partition. A killed daemon loses
    the last half minute: a shadow goes on from when it was stored, with what is known by then."""

    def __init__(self, store: SqliteStore, policy: str, own: Mapping[str, str] | None = None) -> None:
        self._store = store
        self._policy, self._own = policy, dict(own or {})
        self._kept: Mapping[str, object] = {}
        self._due_s = 0.0
        self._start: Mapping[str, object] | None = None
        self._reported: set[str] = set()

    def start_with(self, memory: Mapping[str, object]) -> None:
        """Set what ``load`` returns in place of the memory in a new store: the memory of the cycles before."""
        self._start = memory

    def load(self) -> Mapping[str, object]:
        """The memory as last stored, by partition; none of a partition where another policy or version left it."""
        if self._start is not None:
            return self._start
        data = self._store.view(_VIEW)
        if not isinstance(data, dict):
            return {}
        policy, own = data.get("policy"), data.get("own", {})
        try:
            found = value_from_json(data.get("memory"))
            kept = {
                name: memory
                for name, memory in found.items()
                if own.get(name, policy) == self._own.get(name, self._policy)
            }
        except Exception as error:
            _LOG.warning("policy memory begins anew", extra={"facts": {"why": str(error)}})
            return {}
        self._kept = kept
        return self._kept

    def keep(self, memory: Mapping[str, object], *, now: bool = False) -> None:
        """Store the memory if that is due, or ``now``, and it has changed.

        Raises: StoreError: it cannot be written."""
        began_s = time.monotonic()
        if memory is self._kept or (began_s < self._due_s and not now) or not (memory or self._kept):
            return
        written = [[name, one] for name, left in memory.items() if (one := self._written(name, left)) is not None]
        self._store.put_view(_VIEW, {"policy": self._policy, "own": self._own, "memory": {"map": written}})
        self._kept = memory
        took_s = time.monotonic() - began_s
        self._due_s = began_s + took_s + max(_LEAST_EVERY_S, _COST * took_s)

    def _written(self, name: str, left: object) -> Any:
        """The memory of one partition as it is stored; ``None`` where it is of a kind that cannot be."""
        try:
            return value_to_json(left)
        except StoreError as error:
            if name not in self._reported:
                self._reported.add(name)
                facts = {"partition": name, "why": str(error)}
                _LOG.warning("what a plan leaves for the next is not kept over a restart", extra={"facts": facts})
            return None


POOL_EXAMPLE = '[daemon.pool]\npartition = "overflow"\nquotas = { vc-a = 8, vc-b = 4 }'


def check_lending(settings: Settings, where: str) -> None:
    """Check the settings of lending. ``where``: the file that they are from.

    Raises: ConfigError: VCs are to lend, and it is not said which, or no job could be moved where it borrows."""
    lending, pool, daemon = settings.policy.lending, settings.daemon.pool, settings.daemon
    if not (pool.partition or pool.quotas) and lending.mode == "off":
        return
    if not (pool.partition and pool.quotas):
        raise ConfigError(
            f"{where}: policy.lending needs both daemon.pool.partition (over all nodes of the VCs that lend) and "
            f"daemon.pool.quotas (GPUs of each VC), as in\n{POOL_EXAMPLE}"
        )
    if pool.partition in daemon.partitions or pool.partition == daemon.profiling_partition:
        raise ConfigError(
            f"{where}: daemon.pool.partition = {pool.partition!r} is a VC or the profiling partition, too: name a "
            "partition of its own, over all nodes of the VCs that lend (lucidctl slurm lending prints its line)"
        )
    for vc in pool.quotas:
        _check_is_vc(daemon, vc, f"{where}: daemon.pool.quotas.{vc}")
    from lucid.models.history import HistoryPredictor

    if lending.mode == "off" or settings.daemon.policy not in known_policies():
        return
    made = make_policy(settings.daemon.policy, settings.policy, HistoryPredictor())
    if not rules_of(made).quotas:
        raise ConfigError(
            f"{where}: daemon.policy = {settings.daemon.policy!r} knows no quotas, so it cannot run with "
            f"policy.lending.mode = {lending.mode!r}; use lucid, or mode off"
        )
