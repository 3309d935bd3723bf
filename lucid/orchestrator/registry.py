"""Policies by name, Lucid's own and those of other packages, and what each needs of the cluster and of users.

A policy is imported when it is made: most need a solver or arrays, so a command that wants one policy, or names
alone, loads no other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal

from lucid.core.codec import to_json
from lucid.core.job import Pending, Running
from lucid.core.ports import Capability, Predictor
from lucid.core.prediction import Prediction
from lucid.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from lucid.config.policy import PolicySettings
    from lucid.orchestrator.policy import Policy, PolicyFactory


ENTRY_POINT_GROUP = "lucid.policies"
_ADDED: dict[str, PolicyFactory] = {}
"""Policies added by a program that uses Lucid as a library (``adding_policy``)."""
_LAST = float("inf")
_SOLVERS = ("scipy", "rustworkx", "threadpoolctl")


_Entries = Sequence[Pending | Running]
_Known = Mapping[str, Prediction]


def _duration(entries: _Entries, predictions: _Known, now_s: float) -> list[float]:  # noqa: ARG001
    return [found.duration_s if (found := predictions.get(entry.job.id)) else _LAST for entry in entries]


def _service(entries: _Entries, predictions: _Known, now_s: float) -> list[float]:
    return _times_gpus(entries, _duration(entries, predictions, now_s))


def _times_gpus(entries: _Entries, values: Iterable[float]) -> list[float]:
    return [value * entry.job.gpus if value < _LAST else _LAST for entry, value in zip(entries, values, strict=True)]


RESTART_OVERHEAD_S = 40.0
"""What srtf and srsf assume that one preemption costs."""


def _remaining(entries: _Entries, predictions: _Known, now_s: float) -> list[float]:
    from lucid.orchestrator.policies.queue import attained_s

    def left_s(entry: Pending | Running, found: Prediction | None) -> float:
        if found is None:
            return _LAST
        return found.duration_s + RESTART_OVERHEAD_S * entry.restarts - attained_s(entry, now_s)

    return [left_s(entry, predictions.get(entry.job.id)) for entry in entries]


def _remaining_service(entries: _Entries, predictions: _Known, now_s: float) -> list[float]:
    return _times_gpus(entries, _remaining(entries, predictions, now_s))


class Estimates(StrEnum):
    """What a policy needs to know of durations."""

    NONE = "none"
    GIVEN = "given"
    """Estimates, as good as they are."""
    LIMITS = "limits"
    """Users' time limits; where there are none, estimates times a factor."""
    TRUE = "true"
    """True durations, which only a replay has: the policy is defined on them."""


_Make = Callable[[Any, str, "PolicySettings", Predictor], "Policy"]
"""Makes a policy of its class, its name, the settings and the predictor."""


def _muri(by: Literal["ATTAINED", "REMAINING"], **changes: object) -> tuple[Estimates, str, _Make]:
    def make(of: Any, name: str, settings: PolicySettings, _predictor: Predictor) -> Policy:
        from lucid.orchestrator.policies.muri import policy

        chosen, same_user = settings.muri.changed(changes), settings.packing.same_user_only
        made: Policy = of(name, getattr(policy, by), chosen, same_user=same_user)
        return made

    return Estimates.TRUE if by == "REMAINING" else Estimates.NONE, "muri.policy:MuriPolicy", make


_QUEUE, _PREEMPTIVE = "queue:QueuePolicy", "queue:PreemptiveQueuePolicy"
_ELASTIC, _OPTIMUS = "rounds.data_sharing:ElasticPolicy", "rounds.optimus:OptimusPolicy"
_OWN: dict[str, tuple[Estimates, str, _Make]] = {
    "fifo": (Estimates.NONE, _QUEUE, lambda of, name, _s, _p: of(name, "submission", None)),
    "backfill": (Estimates.LIMITS, "backfill:BackfillPolicy", lambda of, _, s, _p: of(s.backfill)),
    "sjf": (Estimates.TRUE, _QUEUE, lambda of, name, _s, _p: of(name, "duration", _duration)),
    "srtf": (Estimates.TRUE, _PREEMPTIVE, lambda of, name, _s, _p: of(name, "remaining time", _remaining)),
    "qssf": (Estimates.GIVEN, _QUEUE, lambda of, name, _s, _p: of(name, "duration x GPUs", _service)),
    "tiresias": (Estimates.NONE, "queue:TiresiasPolicy", lambda of, _, s, _p: of(s.tiresias)),
    "srsf": (
        Estimates.TRUE,
        _PREEMPTIVE,
        lambda of, name, _s, _p: of(name, "remaining time x GPUs", _remaining_service),
    ),
    "muri-s": _muri("REMAINING"),
    "muri-l": _muri("ATTAINED"),
    "muri-s-no-unpack": _muri("REMAINING", unpack=False),
    "muri-l-no-unpack": _muri("ATTAINED", unpack=False),
    "muri-l-no-matching": _muri("ATTAINED", unpack=False, matching="by_priority"),
    "muri-l-worst-order": _muri("ATTAINED", unpack=False, ordering="worst"),
    "muri-l-2": _muri("ATTAINED", unpack=False, group_size=2),
    "muri-l-3": _muri("ATTAINED", unpack=False, group_size=3),
    "elastic": (Estimates.TRUE, _ELASTIC, lambda of, name, _s, _p: of(name)),
    "elastic-fcfs": (Estimates.NONE, _ELASTIC, lambda of, name, _s, _p: of(name, "fcfs")),
    "elastic-ef": (Estimates.TRUE, _ELASTIC, lambda of, name, _s, _p: of(name, "ef")),
    "pollux": (Estimates.NONE, "rounds.pollux:PolluxPolicy", lambda of, _, s, _p: of(s.pollux)),
    "optimus": (Estimates.TRUE, _OPTIMUS, lambda of, name, s, _p: of(name, s.optimus, fitted=False)),
    "optimus-fitted": (Estimates.NONE, _OPTIMUS, lambda of, name, s, _p: of(name, s.optimus, fitted=True)),
    "optimus-drf": (Estimates.NONE, "rounds.optimus:DrfPolicy", lambda of, _, s, _p: of(s.optimus)),
    "lucid": (Estimates.GIVEN, "lucid.policy:LucidPolicy", lambda of, _, s, p: of(s, p)),
}
"""Lucid's own policies by name: what each needs to know of durations; its module under
``lucid.orchestrator.policies``, and its class; and how it is made."""


def _factory(name: str, where: str, make: _Make) -> PolicyFactory:
    """The factory of a policy of ours. It raises ConfigError where a solver is not installed that the policy uses."""

    def made(settings: PolicySettings, predictor: Predictor) -> Policy:
        module, _, kind = where.partition(":")
        solvers = _SOLVERS if module.startswith(("muri.", "rounds.")) else ()
        if lacking := [solver for solver in solvers if find_spec(solver) is None]:
            raise ConfigError(
                f"policy {name} needs {', '.join(lacking)}, of the extra 'peers': pip install "
                "'lucid-scheduler[peers]'"
            )
        return make(getattr(import_module(f"lucid.orchestrator.policies.{module}"), kind), name, settings, predictor)

    return made


BUILT_IN: dict[str, PolicyFactory] = {name: _factory(name, how[1], how[2]) for name, how in _OWN.items()}
ESTIMATES: dict[str, Estimates] = {name: how[0] for name, how in _OWN.items()}


_CODE = (
    (Capability.ADAPT, "an agent in the training loop, checkpoints"),
    (Capability.INTERLEAVE, "an executor that lets jobs take turns, checkpoints"),
    (Capability.RESIZE, "any number of GPUs, checkpoints"),
    (Capability.PREEMPT, "checkpoints"),
)
"""What users' programs must contain for a capability, the most demanding first."""


_WORDS = {
    "none": "no durations",
    "given": "estimated durations",
    "limits": "time limits",
    "true": "TRUE durations",
}


@dataclass(frozen=True, slots=True)
class PolicyRequirements:
    """What a policy takes for granted. ``durations``: "none", "given" (estimates), "limits" (users' time limits, or
    estimates times a factor) or "true" (which only a replay has). ``preempts``: whether running jobs are stopped and
    resumed. ``resizes``: whether they are moved to more or fewer GPUs. ``changes_batch``: whether it changes the
    batch size users chose. ``code``: what users' programs must contain, empty for nothing."""

    durations: str
    preempts: bool
    resizes: bool
    changes_batch: bool
    code: str

    def text(self) -> str:
        """The requirements as one line: ``true durations, preempts; code: checkpoints``."""
        words = [_WORDS[self.durations]]
        words += ["preempts"] if self.preempts else []
        words += ["resizes"] if self.resizes else []
        words += ["changes batch sizes"] if self.changes_batch else []
        return f"{', '.join(words)}; code: {self.code or 'unchanged'}"

    def data(self) -> dict[str, object]:
        """The requirements as JSON."""
        made: dict[str, object] = to_json(self)
        return made


def requirements_of(policy: Policy) -> PolicyRequirements:
    """The requirements of a policy, by what it needs of a cluster and which durations it uses."""
    needs = policy.needs
    return PolicyRequirements(
        ESTIMATES.get(policy.name, Estimates.GIVEN).value,
        Capability.PREEMPT in needs,
        Capability.RESIZE in needs,
        Capability.ADAPT in needs,
        next((words for capability, words in _CODE if capability in needs), ""),
    )


def known_policies() -> dict[str, PolicyFactory]:
    """Every policy by name: Lucid's own, then those that installed packages add under the entry point group
    ``lucid.policies`` (they cannot replace ours)."""
    from importlib.metadata import entry_points

    found: dict[str, PolicyFactory] = {}
    for entry in entry_points(group=ENTRY_POINT_GROUP):
        found[entry.name] = _lazy(entry)
    return {**found, **_ADDED, **BUILT_IN}


def _lazy(entry: EntryPoint) -> PolicyFactory:
    def make(settings: PolicySettings, predictor: Predictor) -> Policy:
        return _load(entry)(settings, predictor)

    return make


def _load(entry: EntryPoint) -> PolicyFactory:
    try:
        factory: PolicyFactory = entry.load()
    except (ImportError, AttributeError) as error:
        package = entry.dist.name if entry.dist is not None else "an installed package"
        raise ConfigError(
            f"policy {entry.name!r} of {package} cannot be loaded ({entry.value}): {error}; repair or uninstall it"
        ) from None
    return factory


@contextmanager
def adding_policy(name: str, factory: PolicyFactory) -> Iterator[str]:
    """A context in which a policy of the calling program is known; yields its name.

    Raises: ConfigError: there is a policy of this name already."""
    if name in known_policies():
        raise ConfigError(f"there is a policy {name!r} already; give yours another name")
    _ADDED[name] = factory
    try:
        yield name
    finally:
        del _ADDED[name]


def import_policy(name: str) -> None:
    """Import the package that adds policy ``name``, if one does, so that its kinds of reason are known. Those of our
    own policies are known already.

    Raises: ConfigError: it cannot be imported."""

    if name in BUILT_IN:
        return
    from importlib.metadata import entry_points  # most commands never ask what is installed, and this takes 20 ms

    for entry in entry_points(group=ENTRY_POINT_GROUP, name=name):
        _load(entry)


def find_policy(name: str) -> PolicyFactory:
    """The factory of the policy called ``name``.

    Raises:
        ConfigError: there is none; the message lists those there are."""

    if name in BUILT_IN:  # looking up what is installed reads a file of every package: more time than ten plans
        return BUILT_IN[name]
    known = known_policies()
    if name not in known:
        raise ConfigError(f"no policy {name!r}{did_you_mean(name, known)}; known: {', '.join(sorted(known))}")
    return known[name]


def make_policy(name: str, settings: PolicySettings, predictor: Predictor) -> Policy:
    """The policy called ``name``.

    Raises:
        ConfigError: there is none, as ``find_policy``; the package that adds it cannot be imported; its factory lacks
            what it needs (ours: a solver); or it does not state its rules as they are read.
    """
    from lucid.orchestrator.policy import rules_of  # commands that only read plans do without it

    made = find_policy(name)(settings, predictor)
    rules_of(made)
    return made
