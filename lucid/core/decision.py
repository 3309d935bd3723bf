"""Decisions of a policy: one for each pending job, and one for each running job where it wants a change."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from msgspec import Struct, field

from lucid.core.codec import from_json, to_json
from lucid.core.placement import Placement, parse_placement, show_placement
from lucid.core.reason import Reason, reason_to_dict
from lucid.core.snapshot import ByName


def earliest(*times_s: float | None) -> float | None:
    """The first of some times; ``None`` stands for never."""
    return min([time_s for time_s in times_s if time_s is not None], default=None)


class Decided:
    """Base of all decisions."""

    __slots__ = ()

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Decision:
        """The decision that ``decision_to_dict`` wrote.

        Raises: KeyError: no such verb or kind of reason. ValueError: a field has another shape."""
        given = {**data, "part": True} if data["verb"] == "part" else dict(data)
        if "placement" in data:
            given["placement"] = parse_placement(data["placement"])
        return from_json(_KINDS[data["verb"]], given)


class Start(Decided, Struct, frozen=True, omit_defaults=True):
    """Start a pending job on exactly these GPUs. In the profiling partition this starts its profiling run."""

    placement: Placement
    reasons: tuple[Reason, ...]
    beside: str | None = None
    """The job that already runs on these GPUs, and shares them from now on."""
    group: tuple[str, ...] = ()
    """Ids of all jobs that take turns on these GPUs from now on, this job among them; empty if it runs alone. The
    plan names the same group and GPUs for each of them."""
    slots: bool = False
    """Start the job in one of the two slots of each of its GPUs, so that another may join it; else on whole GPUs."""
    preempts: tuple[str, ...] = ()
    """The running jobs that have to give way to this one (``Running.yields``): they alone hold some of its GPUs.
    Slurm stops them as it starts this job."""
    lost_gpu_s: tuple[float, ...] = ()
    """The GPU-seconds of work that each preempted job loses, in the order of ``preempts``."""
    speeds: tuple[float, float] | None = None
    """The normalised speeds expected of the two jobs of a pair, where the predictor has an opinion."""
    within_quota: bool = False
    """In a pool: the job's GPUs stay within its VC's quota. A job that joins another takes none of the quota."""


class Hold(Decided, Struct, frozen=True, omit_defaults=True):
    """Leave a pending job waiting. One object may stand for many jobs that wait for the same reasons."""

    reasons: tuple[Reason, ...]


class Requeue(Decided, Struct, frozen=True, omit_defaults=True):
    """Take a running job off its GPUs and put it back among the pending ones of its partition. This is a preemption,
    or (``part``) the parting of a pair, after which the job is packed again only if ``again`` is set."""

    reasons: tuple[Reason, ...]
    part: bool = False


class Resize(Decided, Struct, frozen=True, omit_defaults=True):
    """Let a running elastic job go on from a checkpoint on exactly these GPUs, at the cost of a restart."""

    placement: Placement
    reasons: tuple[Reason, ...]
    batch: tuple[int, int] | None = None
    """Samples per GPU and pass, and passes per step, where the policy chose them for the job."""


class Regroup(Decided, Struct, frozen=True, omit_defaults=True):
    """Let a running job go on from a checkpoint in another interleaved group, or on other GPUs, or both."""

    placement: Placement
    reasons: tuple[Reason, ...]
    group: tuple[str, ...] = ()
    """As in ``Start``; empty if it runs alone from now on."""


class EndProfiling(Decided, Struct, frozen=True, omit_defaults=True):
    """Take a profiled job off its profiling node and let it wait in its own VC, with its profile."""

    reasons: tuple[Reason, ...]


class Keep(Decided, Struct, frozen=True, omit_defaults=True):
    """Let a profiled job carry on where it is, as a running job like any other."""

    reasons: tuple[Reason, ...]


Decision = Start | Hold | Requeue | Resize | Regroup | EndProfiling | Keep


_VERBS: Final[Mapping[type[Decision], str]] = {
    Start: "start",
    Hold: "hold",
    Requeue: "requeue",
    Resize: "resize",
    Regroup: "regroup",
    EndProfiling: "release",
    Keep: "keep",
}


_KINDS: Final[Mapping[str, type[Decision]]] = {verb: kind for kind, verb in _VERBS.items()} | {"part": Requeue}


def kind_of(decision: Decision) -> str:
    """One word for a decision, as ``verb_of`` has it, but ``requeue`` for a parted job too."""
    return _VERBS[type(decision)]


def verb_of(decision: Decision) -> str:
    """One word for a decision, as records and JSON have it: ``start``, ``hold``, ``requeue``, ``part``, ``resize``,
    ``regroup``, ``release`` or ``keep``."""
    return "part" if isinstance(decision, Requeue) and decision.part else _VERBS[type(decision)]


def decision_to_dict(decision: Decision) -> dict[str, Any]:
    """A decision as JSON: verb, reasons, where the job is to run, and all fields that differ from their defaults."""
    data: dict[str, Any] = {"verb": verb_of(decision), "reasons": [reason_to_dict(r) for r in decision.reasons]}
    if isinstance(decision, Start | Resize | Regroup):
        data["placement"] = show_placement(decision.placement)
    if isinstance(decision, Start):
        data |= {"beside": None, "slots": False}
    return data | {key: value for key, value in to_json(decision).items() if key not in _OTHERWISE}


_OTHERWISE = frozenset({"placement", "reasons", "part"})


class DecisionRow(Struct, frozen=True):
    """One decision on one job, as a run and lucidd's store keep it.

    ``verb``: as ``verb_of`` has it. ``placement``: as ``show_placement`` writes it. ``mode``: what lucidd was allowed
    to do in the partition; empty in a simulation."""

    at_s: float
    job_id: str
    partition: str
    verb: str
    reasons: tuple[Reason, ...]
    placement: str = ""
    beside: str | None = None
    mode: str = ""


def row_of(at_s: float, job_id: str, partition: str, decision: Decision, mode: str = "") -> DecisionRow:
    """The row of a decision made at ``at_s``."""
    placement = show_placement(decision.placement) if isinstance(decision, Start | Resize | Regroup) else ""
    beside = decision.beside if isinstance(decision, Start) else None
    return DecisionRow(at_s, job_id, partition, verb_of(decision), decision.reasons, placement, beside, mode)


class Action(Struct, frozen=True):
    """A decision that changes something, addressed to its job."""

    job_id: str
    partition: str
    decision: Start | Requeue | Resize | Regroup | EndProfiling | Keep


class PartitionPlan(Struct, frozen=True, eq=False):
    """Decisions for one partition. ``decisions``: every pending job in queue order, and the running jobs that
    something happens to. ``actions``: the decisions that are not ``Hold``, in the order to apply them. ``wake_s``:
    until when a plan made anew would decide the same if nothing changes, so that this one may be kept; ``None``: for
    ever. ``memory``: what the policy wants to find in the next snapshot, opaque to everybody else; a policy must do
    without it after a restart. ``error``: why no plan could be made, so that all jobs wait; empty where one was made.
    """

    decisions: Mapping[str, Decision]
    actions: tuple[Action, ...] = ()
    wake_s: float | None = None
    memory: object = None
    error: str = ""

    @property
    def positions(self) -> dict[str, int]:
        """The place of each pending job in the queue, from 1: the order in which the policy served them."""
        waited = (job_id for job_id, made in self.decisions.items() if isinstance(made, Start | Hold))
        return {job_id: at for at, job_id in enumerate(waited, start=1)}


class Plans(ByName[PartitionPlan]):
    """The plans of all partitions by name, made from those before: what a ``Plan`` sums up of them need not be
    gathered from a thousand partitions in each cycle."""

    __slots__ = ("acting", "memory", "wake_s", "wakes")

    def __init__(self, plans: Mapping[str, PartitionPlan], before: Plans | None = None) -> None:
        """``plans``: those of all partitions; with ``before``, whose wakes they take, those of partitions that
        changed, acted or were due."""
        super().__init__(plans if before is None else before, None if before is None else plans)
        self.acting = [name for name, part in plans.items() if part.actions]
        self.memory: dict[str, object] = {} if before is None else before.memory.copy()
        self.wakes: dict[str, float] = {} if before is None else before.wakes
        for name, part in plans.items():
            if part.memory is not None:
                self.memory[name] = part.memory
            else:
                self.memory.pop(name, None)
            if part.wake_s is not None:
                self.wakes[name] = part.wake_s
            else:
                self.wakes.pop(name, None)
        self.wake_s = min(self.wakes.values(), default=None)


class Plan(Struct, frozen=True, eq=False):
    """All decisions of one cycle, by partition name."""

    now_s: float
    partitions: Mapping[str, PartitionPlan] = field(default_factory=dict)

    @property
    def actions(self) -> list[Action]:
        """Everything to apply, in order."""
        if isinstance(self.partitions, Plans):
            return [action for name in self.partitions.acting for action in self.partitions[name].actions]
        return [action for part in self.partitions.values() if part.actions for action in part.actions]

    @property
    def memory(self) -> dict[str, object]:
        """What the partitions' plans want to find in the next snapshot."""
        if isinstance(self.partitions, Plans):
            return self.partitions.memory
        return {name: part.memory for name, part in self.partitions.items() if part.memory is not None}

    @property
    def wake_s(self) -> float | None:
        """The earliest wake of any partition."""
        if isinstance(self.partitions, Plans):
            return self.partitions.wake_s
        found: float | None = None
        for part in self.partitions.values():
            if part.wake_s is not None and (found is None or part.wake_s < found):
                found = part.wake_s
        return found

    def decision_of(self, job_id: str) -> Decision | None:
        """The decision for one job, or ``None`` if the plan has none."""
        for part in self.partitions.values():
            found = part.decisions.get(job_id)
            if found is not None:
                return found
        return None
