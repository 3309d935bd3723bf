"""Policies by name, Lucid's own and those of other packages, and what each needs of the cluster and of users.

A policy is imported when it is made: most need a solver or arrays, so a command that wants one policy, or names
alone, loads no other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from importlib.util import find_spec
from typing import TYPE_CHECKING, Literal

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


def _fifo(settings: PolicySettings, predictor: Predictor) -> Policy:  # noqa: ARG001
    from lucid.orchestrator.policies.queue import QueuePolicy

    return QueuePolicy("fifo", "submission", None)


def _backfill(settings: PolicySettings, predictor: Predictor) -> Policy:  # noqa: ARG001
    from lucid.orchestrator.policies.backfill import BackfillPolicy

    return BackfillPolicy(settings.backfill)


def _sjf(settings: PolicySettings, predictor: Predictor) -> Policy:  # noqa: ARG001
    from lucid.orchestrator.policies.queue import QueuePolicy

    return QueuePolicy("sjf", "duration", _duration)


def _srtf(settings: PolicySettings, predictor: Predictor) -> Policy:  # noqa: ARG001
    from lucid.orchestrator.policies.queue import PreemptiveQueuePolicy

    return PreemptiveQueuePolicy("srtf", "remaining time", _remaining)


def _qssf(settings: PolicySettings, predictor: Predictor) -> Policy:  # noqa: ARG001
    from lucid.orchestrator.policies.queue import QueuePolicy

    return QueuePolicy("qssf", "duration x GPUs", _service)


def _tiresias(settings: PolicySettings, predictor: Predictor) -> Policy:  # noqa: ARG001
    from lucid.orchestrator.policies.queue import TiresiasPolicy

    return TiresiasPolicy(settings.tiresias)


def _srsf(settings: PolicySettings, predictor: Predictor) -> Policy:  # noqa: ARG001
    from lucid.orchestrator.policies.queue import PreemptiveQueuePolicy

    def keys(entries: _Entries, predictions: _Known, now_s: float) -> list[float]:
        return _times_gpus(entries, _remaining(entries, predictions, now_s))

    return PreemptiveQueuePolicy("srsf", "remaining time x GPUs", keys)


def _need_solvers(policy: str) -> None:
    """Check that the solvers are installed; called first by each factory of a policy that uses them.

    Raises: ConfigError: one is not installed."""
    if lacking := [solver for solver in _SOLVERS if find_spec(solver) is None]:
        raise ConfigError(
            f"policy {policy} needs {', '.join(lacking)}, of the extra 'peers': pip install 'lucid-scheduler[peers]'"
        )


def _muri(name: str, by: Literal["attained", "remaining"], **changes: object) -> PolicyFactory:
    def make(settings: PolicySettings, predictor: Predictor) -> Policy:  # noqa: ARG001
        _need_solvers(name)
        from lucid.orchestrator.policies.muri.policy import ATTAINED, REMAINING, MuriPolicy

        rule = ATTAINED if by == "attained" else REMAINING
        chosen = settings.muri.changed(changes)
        return MuriPolicy(name, rule, chosen, same_user=settings.packing.same_user_only)

    return make


def _elastic(settings: PolicySettings, predictor: Predictor) -> Policy:  # noqa: ARG001
    _need_solvers("elastic")
    from lucid.orchestrator.policies.rounds.data_sharing import ElasticPolicy

    return ElasticPolicy("elastic")


def _elastic_fcfs(settings: PolicySettings, predictor: Predictor) -> Policy:  # noqa: ARG001
    _need_solvers("elastic-fcfs")
    from lucid.orchestrator.policies.rounds.data_sharing import ElasticPolicy

    return ElasticPolicy("elastic-fcfs", "fcfs")


def _elastic_ef(settings: PolicySettings, predictor: Predictor) -> Policy:  # noqa: ARG001
    _need_solvers("elastic-ef")
    from lucid.orchestrator.policies.rounds.data_sharing import ElasticPolicy

    return ElasticPolicy("elastic-ef", "ef")


def _pollux(settings: PolicySettings, predictor: Predictor) -> Policy:  # noqa: ARG001
    _need_solvers("pollux")
    from lucid.orchestrator.policies.rounds.pollux import PolluxPolicy

    return PolluxPolicy(settings.pollux)


def _optimus(settings: PolicySettings, predictor: Predictor) -> Policy:  # noqa: ARG001
    _need_solvers("optimus")
    from lucid.orchestrator.policies.rounds.optimus import OptimusPolicy

    return OptimusPolicy("optimus", settings.optimus, fitted=False)


def _optimus_fitted(settings: PolicySettings, predictor: Predictor) -> Policy:  # noqa: ARG001
    _need_solvers("optimus-fitted")
    from lucid.orchestrator.policies.rounds.optimus import OptimusPolicy

    return OptimusPolicy("optimus-fitted", settings.optimus, fitted=True)


def _drf(settings: PolicySettings, predictor: Predictor) -> Policy:  # noqa: ARG001
    _need_solvers("optimus-drf")
    from lucid.orchestrator.policies.rounds.optimus import DrfPolicy

    return DrfPolicy(settings.optimus)


def _lucid(settings: PolicySettings, predictor: Predictor) -> Policy:
    from lucid.orchestrator.policies.lucid.policy import LucidPolicy

    return LucidPolicy(settings, predictor)


BUILT_IN: dict[str, PolicyFactory] = {
    "fifo": _fifo,
    "backfill": _backfill,
    "sjf": _sjf,
    "srtf": _srtf,
    "qssf": _qssf,
    "tiresias": _tiresias,
    "srsf": _srsf,
    "muri-s": _muri("muri-s", "remaining"),
    "muri-l": _muri("muri-l", "attained"),
    "muri-s-no-unpack": _muri("muri-s-no-unpack", "remaining", unpack=False),
    "muri-l-no-unpack": _muri("muri-l-no-unpack", "attained", unpack=False),
    "muri-l-no-matching": _muri("muri-l-no-matching", "attained", unpack=False, matching="by_priority"),
    "muri-l-worst-order": _muri("muri-l-worst-order", "attained", unpack=False, ordering="worst"),
    "muri-l-2": _muri("muri-l-2", "attained", unpack=False, group_size=2),
    "muri-l-3": _muri("muri-l-3", "attained", unpack=False, group_size=3),
    "elastic": _elastic,
    "elastic-fcfs": _elastic_fcfs,
    "elastic-ef": _elastic_ef,
    "pollux": _pollux,
    "optimus": _optimus,
    "optimus-fitted": _optimus_fitted,
    "optimus-drf": _drf,
    "lucid": _lucid,
}


class Estimates(StrEnum):
    """What a policy needs to know of durations."""

    NONE = "none"
    GIVEN = "given"
    """Estimates, as good as they are."""
    LIMITS = "limits"
    """Users' time limits; where there are none, estimates times a factor."""
    TRUE = "true"
    """True durations, which only a replay has: the policy is defined on them."""


ESTIMATES: dict[str, Estimates] = {
    "fifo": Estimates.NONE,
    "backfill": Estimates.LIMITS,
    "tiresias": Estimates.NONE,
    "pollux": Estimates.NONE,
    "optimus": Estimates.TRUE,
    "optimus-fitted": Estimates.NONE,
    "optimus-drf": Estimates.NONE,
    "sjf": Estimates.TRUE,
    "srtf": Estimates.TRUE,
    "srsf": Estimates.TRUE,
    "muri-s": Estimates.TRUE,
    "muri-s-no-unpack": Estimates.TRUE,
    "muri-l": Estimates.NONE,
    "muri-l-no-unpack": Estimates.NONE,
    "muri-l-no-matching": Estimates.NONE,
    "muri-l-worst-order": Estimates.NONE,
    "muri-l-2": Estimates.NONE,
    "muri-l-3": Estimates.NONE,
    "elastic": Estimates.TRUE,
    "elastic-fcfs": Estimates.NONE,
    "elastic-ef": Estimates.TRUE,
    "qssf": Estimates.GIVEN,
    "lucid": Estimates.GIVEN,
}


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
