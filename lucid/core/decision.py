"""What a policy decides: one decision for each pending job, and for running ones where it wants a change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Final

from lucid.core.frozen import frozen_dataclass
from lucid.core.placement import Placement, show_placement
from lucid.core.reason import Reason
from lucid.core.snapshot import Versioned


def earliest(*times_s: float | None) -> float | None:
    """The first of some times, of which ``None`` is never."""
    return min((time_s for time_s in times_s if time_s is not None), default=None)


@frozen_dataclass(frozen=True, slots=True)
class Start:
    """Start a pending job on exactly these GPUs. In the profiling partition this starts its profiling run."""

    placement: Placement
    reasons: tuple[Reason, ...]
    beside: str | None = None
    """The job that already runs on these GPUs and from now on shares them."""
    group: tuple[str, ...] = ()
    """Ids of all jobs that from now on take turns on these GPUs, itself among them; empty if it runs alone. The
    plan names the same group and GPUs for each of them."""
    slots: bool = False
    """Start it in one of the two slots of each of its GPUs, so that another job may join it; else on whole GPUs."""
    preempts: tuple[str, ...] = ()
    """The running jobs that have to give way to it (``Running.yields``): some of its GPUs are held by them, and by
    nobody else. Slurm stops them as it starts this job."""
    lost_gpu_s: tuple[float, ...] = ()
    """The GPU-seconds of work that each of these loses."""
    speeds: tuple[float, float] | None = None
    """Beside another job: the normalised speeds expected of the two, where the predictor has an opinion."""
    within_quota: bool = False
    """In a pool: its GPUs stay within its VC's quota. A job that joins another takes none of it."""


@frozen_dataclass(frozen=True, slots=True)
class Hold:
    """Leave a pending job waiting. One object may stand for many jobs that wait for the same reasons."""

    reasons: tuple[Reason, ...]


@frozen_dataclass(frozen=True, slots=True)
class Requeue:
    """Take a running job off its GPUs and put it back among the pending ones of its partition: a preemption,
    or (``part``) a packed job parted from its partner, which is then not packed again, unless it may be (``again``).
    """

    reasons: tuple[Reason, ...]
    part: bool = False


@frozen_dataclass(frozen=True, slots=True)
class Resize:
    """Let a running elastic job go on from a checkpoint on exactly these GPUs, more or fewer or elsewhere, at the
    cost of a restart."""

    placement: Placement
    reasons: tuple[Reason, ...]
    batch: tuple[int, int] | None = None
    """Samples a GPU a pass, and passes a step, where the policy chose them for the job."""


@frozen_dataclass(frozen=True, slots=True)
class Regroup:
    """Let a running job go on from a checkpoint in another interleaved group, or on other GPUs, or both."""

    placement: Placement
    reasons: tuple[Reason, ...]
    group: tuple[str, ...] = ()
    """As in ``Start``; empty if it runs alone from now on."""


@frozen_dataclass(frozen=True, slots=True)
class EndProfiling:
    """Take a profiled job off its profiling node and let it wait in its own VC, with its profile."""

    reasons: tuple[Reason, ...]


@frozen_dataclass(frozen=True, slots=True)
class Keep:
    """Let a profiled job carry on where it is, as a running job like any other."""

    reasons: tuple[Reason, ...]


Decision = Start | Hold | Requeue | Resize | Regroup | EndProfiling | Keep


_VERBS: Final[Mapping[type, str]] = {
    Start: "start",
    Hold: "hold",
    Requeue: "requeue",
    Resize: "resize",
    Regroup: "regroup",
    EndProfiling: "release",
    Keep: "keep",
}


def kind_of(decision: Decision) -> str:
    """As ``verb_of``, but ``requeue`` for a job that is parted, too."""
    return _VERBS[type(decision)]


def verb_of(decision: Decision) -> str:
    """One word for a decision, as records and JSON have it: ``start``, ``hold``, ``requeue``, ``part``, ``resize``,
    ``regroup``, ``release`` or ``keep``."""
    return "part" if isinstance(decision, Requeue) and decision.part else _VERBS[type(decision)]


@frozen_dataclass(frozen=True, slots=True)
class DecisionRow:
    """One decision on one job, as it was made: what a run and lucidd's store keep, and what is told of the job.

    ``verb``: as ``verb_of`` has it. ``placement``: as ``show_placement`` writes it. ``mode``: what lucidd might do in
    the partition; empty in a simulation."""

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


@frozen_dataclass(frozen=True, slots=True)
class Action:
    """A decision that changes something, addressed to its job."""

    job_id: str
    partition: str
    decision: Start | Requeue | Resize | Regroup | EndProfiling | Keep


@frozen_dataclass(frozen=True, slots=True, eq=False)
class PartitionPlan:
    """Decisions for one partition. ``decisions`` has every pending job (in queue order) and the running jobs
    that something happens to; ``actions`` are those that are not ``Hold``, in the order to apply them.
    ``wake_s``: when this plan should be made anew although nothing has changed by then; ``None``: never. Until then
    a plan made anew would decide the same, so the time up to ``wake_s`` is the time for which a plan may be kept.
    ``memory``: what the policy wants to find in the next snapshot, opaque to everybody else. A policy must do
    without it, too: after a restart there is none.
    ``error``: why no plan could be made, in words, and so all jobs wait; empty where one was made."""

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


class Parts(Versioned[PartitionPlan]):
    """Plans by partition, of which it is known who acts, who wants something to be remembered, and when the first of
    them is due: whoever asks need not go through all of them."""

    __slots__ = ("acting", "memory", "wake_s")

    acting: Sequence[str]
    memory: Mapping[str, object]
    wake_s: float | None


@frozen_dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """All decisions of one cycle, by partition name."""

    now_s: float
    partitions: Mapping[str, PartitionPlan] = field(default_factory=dict)

    @property
    def actions(self) -> list[Action]:
        """Everything to apply, in order."""
        parts = self.partitions
        acting = parts.acting if isinstance(parts, Parts) else parts
        return [action for name in acting for action in parts[name].actions]

    @property
    def memory(self) -> dict[str, object]:
        """What the partitions' plans want to find in the next snapshot."""
        if isinstance(self.partitions, Parts):
            return dict(self.partitions.memory)
        return {name: part.memory for name, part in self.partitions.items() if part.memory is not None}

    @property
    def wake_s(self) -> float | None:
        """The earliest wake of any partition."""
        if isinstance(self.partitions, Parts):
            return self.partitions.wake_s
        return earliest(*(part.wake_s for part in self.partitions.values()))

    def decision_of(self, job_id: str) -> Decision | None:
        """The decision for one job, or ``None`` if the plan says nothing of it."""
        for part in self.partitions.values():
            found = part.decisions.get(job_id)
            if found is not None:
                return found
        return None
