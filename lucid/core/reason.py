"""Reasons: the very comparisons that a policy branched on, kept with the decision.

Each class is one question, its fields the values compared, its truth the answer. A policy writes
``fits = FreeGpus(...)`` and ``if fits:``, then stores ``fits``; nothing is explained afterwards.
``lucid.cli.render`` turns them into words.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, ClassVar

__all__ = [
    "REASONS",
    "Allotted",
    "AsksForGpus",
    "Backfill",
    "BehindHead",
    "BestPartner",
    "CarryNode",
    "DistributedAlone",
    "EverFits",
    "FairOrder",
    "FairShare",
    "FreeGpus",
    "GpuMemory",
    "HomeHasRoom",
    "HomeWaits",
    "HostFits",
    "Interleaved",
    "NextRound",
    "NobodyWaits",
    "NotMeasured",
    "PairSpeed",
    "PartnerLeaves",
    "PartnerOutlasts",
    "PlainOrder",
    "Preempted",
    "Priority",
    "ProfileTime",
    "ProfilerPressure",
    "ProfilingFits",
    "Reason",
    "Requeueable",
    "Rescaled",
    "Reserved",
    "SameGpus",
    "SameUser",
    "SeenSpeed",
    "ShareScores",
    "Shareable",
    "SharedBy",
    "SharingLevel",
    "SkipsProfiling",
    "SlurmPriority",
    "Stable",
    "TooLarge",
    "UserAllows",
    "WaitedForProfiling",
    "reason_from_dict",
    "reason_to_dict",
]

REASONS: dict[str, type[Reason]] = {}


@dataclass(frozen=True, slots=True)
class Reason:
    """Base of all. ``bool(reason)`` is the outcome of the comparison."""

    kind: ClassVar[str] = ""

    def __init_subclass__(cls) -> None:
        # slots=True makes dataclass build the class twice; the second, final one wins
        cls.kind = cls.__name__
        REASONS[cls.__name__] = cls

    def __bool__(self) -> bool:
        return True


def reason_to_dict(reason: Reason) -> dict[str, Any]:
    """JSON form: the kind, the compared values, and the outcome."""
    values = {f.name: getattr(reason, f.name) for f in fields(reason)}
    return {"kind": reason.kind, **values, "holds": bool(reason)}


def reason_from_dict(data: dict[str, Any]) -> Reason:
    """The inverse of ``reason_to_dict``.

    Raises:
        KeyError: the kind is unknown.
    """
    cls = REASONS[data["kind"]]
    return cls(**{f.name: data[f.name] for f in fields(cls)})


@dataclass(frozen=True, slots=True)
class Priority(Reason):
    """The sort key of the queue: ``value`` (smaller first), made from an estimate and a GPU count."""

    rule: str
    value: float
    estimate_s: float
    gpus: int
    source: str


@dataclass(frozen=True, slots=True)
class FairOrder(Reason):
    """The place in line of policies that need no estimate: by time of submission."""

    submit_s: float


@dataclass(frozen=True, slots=True)
class FairShare(Reason):
    """What the account has used lately against its share: the fair-share ``factor`` (1/2 at its share) makes the
    priority value count ``times`` as much, at most ``bound`` times."""

    account: str
    factor: float
    times: float
    bound: float


@dataclass(frozen=True, slots=True)
class SlurmPriority(Reason):
    """The place in line by the sum of Slurm's factors, each from 0 to 1, times their weights; larger first."""

    value: float
    age: float
    size: float
    fair_share: float | None = None
    """``None`` where it has no weight, or nobody knows it."""


@dataclass(frozen=True, slots=True)
class Backfill(Reason):
    """Are there GPUs that stay free for ``limit_s``, the job's time limit, without a later start of any of the
    ``ahead`` jobs that come before it and have GPUs kept for them?"""

    ahead: int
    limit_s: float
    fits: bool

    def __bool__(self) -> bool:
        return self.fits


@dataclass(frozen=True, slots=True)
class FreeGpus(Reason):
    """Is there a consolidated place? ``largest`` is the most free GPUs on one node, ``free`` all free ones."""

    needed: int
    largest: int
    free: int
    found: bool

    def __bool__(self) -> bool:
        return self.found


@dataclass(frozen=True, slots=True)
class HostFits(Reason):
    """Do the nodes with enough free GPUs also have the CPUs and the host memory that the job asks for?"""

    cpus: int
    mem_mib: int
    found: bool

    def __bool__(self) -> bool:
        return self.found


@dataclass(frozen=True, slots=True)
class AsksForGpus(Reason):
    """Does the job ask for any GPU? One that does not is Slurm's own business, and never started from here."""

    gpus: int

    def __bool__(self) -> bool:
        return self.gpus > 0


@dataclass(frozen=True, slots=True)
class TooLarge(Reason):
    """Could the job ever run here? It asks for more GPUs than the partition has."""

    gpus: int
    partition_gpus: int

    def __bool__(self) -> bool:
        return self.gpus > self.partition_gpus


@dataclass(frozen=True, slots=True)
class EverFits(Reason):
    """Could the nodes of the partition hold the job if all were up and empty? Where nodes differ in size, or have
    limits of CPUs and host memory, enough GPUs in all may still be no place for it."""

    gpus: int
    cpus: int
    mem_mib: int
    possible: bool

    def __bool__(self) -> bool:
        return self.possible


@dataclass(frozen=True, slots=True)
class BehindHead(Reason):
    """This policy stops at the first job that does not fit; ``head`` is that job."""

    head: str


@dataclass(frozen=True, slots=True)
class NextRound(Reason):
    """This policy decides at fixed times only; the next one is ``at_s``."""

    at_s: float


@dataclass(frozen=True, slots=True)
class Preempted(Reason):
    """Jobs of higher priority fill the partition's GPUs: this one got none of the ``quota`` left over."""

    gpus: int
    quota: int

    def __bool__(self) -> bool:
        return self.gpus > self.quota


@dataclass(frozen=True, slots=True)
class Allotted(Reason):
    """Does the round give this elastic job GPUs? ``gpus`` of at most ``most``; ``value`` is what they are worth
    to it by ``rule``."""

    rule: str
    gpus: int
    most: int
    value: float

    def __bool__(self) -> bool:
        return self.gpus > 0


@dataclass(frozen=True, slots=True)
class Shareable(Reason):
    """May this job share its GPUs at all? Sharing capacity (GSS) 0 means that sharing is off."""

    score: int
    gss: int

    def __bool__(self) -> bool:
        return self.score <= self.gss and self.gss > 0


@dataclass(frozen=True, slots=True)
class UserAllows(Reason):
    """Has the user, or an earlier parting, ruled sharing out for this job?"""

    shareable: bool
    parted_before: bool

    def __bool__(self) -> bool:
        return self.shareable and not self.parted_before


@dataclass(frozen=True, slots=True)
class NotMeasured(Reason):
    """Has the job a profile? Without one nobody knows what it would do to a partner."""

    measured: bool

    def __bool__(self) -> bool:
        return self.measured


@dataclass(frozen=True, slots=True)
class SameGpus(Reason):
    """Packing rule 2 (L13): is there a running job with the same GPU demand that is alone on its GPUs?"""

    gpus: int
    candidates: int

    def __bool__(self) -> bool:
        return self.candidates > 0


@dataclass(frozen=True, slots=True)
class SameUser(Reason):
    """Are the running jobs that could be joined of the same user? ``others`` are not, and here only jobs of one
    user share GPUs."""

    user: str
    others: int

    def __bool__(self) -> bool:
        return self.others == 0


@dataclass(frozen=True, slots=True)
class ShareScores(Reason):
    """GPU sharing capacity (L11): do the share scores of the pair stay within GSS?"""

    own: int
    other: int
    gss: int

    def __bool__(self) -> bool:
        return self.own + self.other <= self.gss


@dataclass(frozen=True, slots=True)
class GpuMemory(Reason):
    """Packing rule 1 (L12): do both memory peaks fit on each GPU?"""

    partner: str
    own_mib: float
    other_mib: float
    capacity_mib: float

    def __bool__(self) -> bool:
        return self.own_mib + self.other_mib < self.capacity_mib


@dataclass(frozen=True, slots=True)
class Stable(Reason):
    """Packing rule 4 (L15): is the utilisation pattern of the job steady enough to stand beside another?"""

    job: str
    unstable: bool

    def __bool__(self) -> bool:
        return not self.unstable


@dataclass(frozen=True, slots=True)
class DistributedAlone(Reason):
    """Packing rule 5 (L16): jobs over several nodes keep their GPUs to themselves."""

    gpus: int
    gpus_per_node: int

    def __bool__(self) -> bool:
        return self.gpus > self.gpus_per_node


@dataclass(frozen=True, slots=True)
class PartnerOutlasts(Reason):
    """Pairs are avoided where one is nearly done (L19): has the partner enough time left to be worth it?"""

    partner: str
    remaining_s: float
    least_s: float

    def __bool__(self) -> bool:
        # a wake at the time when this becomes true may come out a rounding error early
        return self.remaining_s >= self.least_s - 1e-6


@dataclass(frozen=True, slots=True)
class PartnerLeaves(Reason):
    """Would the guest end before the partner does, or does it gain enough by starting now?

    The published rule: own priority value at most ``ratio`` times the partner's.
    """

    partner: str
    own: float
    other: float
    ratio: float

    def __bool__(self) -> bool:
        return self.own <= self.ratio * self.other


@dataclass(frozen=True, slots=True)
class PairSpeed(Reason):
    """Expected normalised speeds of the pair, against the least that either may fall to."""

    partner: str
    own: float
    other: float
    floor: float
    source: str

    def __bool__(self) -> bool:
        return min(self.own, self.other) >= self.floor


@dataclass(frozen=True, slots=True)
class SharedBy(Reason):
    """May the pair run under MPS? It serves one user at a time, where it is there at all (``mps``); otherwise
    the two take turns (time-slicing), and nothing fences their memory."""

    partner: str
    same_user: bool
    mps: bool

    def __bool__(self) -> bool:
        return self.mps and self.same_user


@dataclass(frozen=True, slots=True)
class SeenSpeed(Reason):
    """Does the job still run fast enough beside its partner, as measured (not as expected)?"""

    job: str
    partner: str
    seen: float
    bound: float

    def __bool__(self) -> bool:
        return self.seen >= self.bound


@dataclass(frozen=True, slots=True)
class BestPartner(Reason):
    """Of ``candidates`` partners that pass every rule this one has the highest ``score`` (the sum of the pair's
    expected speeds); or, by the rule ``first``, it is the first that passes, and nobody looked further."""

    partner: str
    score: float
    candidates: int
    rule: str = "best"


@dataclass(frozen=True, slots=True)
class Rescaled(Reason):
    """Does a running job get more GPUs, because some are idle and nobody waits for them, or fewer, because
    ``waiting`` requests do?"""

    before: int
    after: int
    waiting: int

    def __bool__(self) -> bool:
        return self.after > self.before


@dataclass(frozen=True, slots=True)
class Interleaved(Reason):
    """Is a group faster together than its members one after the other? ``group`` names its ``jobs`` members; one
    round of all takes ``period_s``, one iteration of each alone ``alone_s`` in all."""

    jobs: int
    group: str
    period_s: float
    alone_s: float

    def __bool__(self) -> bool:
        return self.period_s <= self.alone_s


@dataclass(frozen=True, slots=True)
class Reserved(Reason):
    """Nodes are kept for a large job that has waited long. May others start there meanwhile?

    Those may that are expected to end by ``until_s``, when the nodes are expected to have drained; with
    ``strict`` none may. Compared is the longest time that such a job may take, ``room_s``; 0 when strict.
    """

    holder: str
    until_s: float
    room_s: float
    nodes: int
    strict: bool

    def __bool__(self) -> bool:
        return self.room_s > 0


@dataclass(frozen=True, slots=True)
class PlainOrder(Reason):
    """Has the job waited for so long beyond ``plain_s``, when plain Slurm order would have started it, that it goes
    before all others? ``turn_s`` is that time; by ``bound_s`` it is promised to start, as far as can be promised."""

    plain_s: float
    now_s: float
    turn_s: float
    bound_s: float

    def __bool__(self) -> bool:
        # a wake at the very time may come out a rounding error early
        return self.now_s >= self.turn_s - 1e-6


@dataclass(frozen=True, slots=True)
class SkipsProfiling(Reason):
    """Is the job above the profiling scale limit N_prof (L2)? Then it goes straight to its VC."""

    gpus: int
    n_prof: int

    def __bool__(self) -> bool:
        return self.gpus > self.n_prof


@dataclass(frozen=True, slots=True)
class ProfileTime(Reason):
    """Has the profiling run reached its limit T_prof (L2)?"""

    ran_s: float
    t_prof_s: float

    def __bool__(self) -> bool:
        # a wake at start + T_prof may come out a rounding error early
        return self.ran_s >= self.t_prof_s - 1e-6


@dataclass(frozen=True, slots=True)
class NobodyWaits(Reason):
    """May a profiled job keep its profiling node? ``waiting`` jobs want one."""

    waiting: int

    def __bool__(self) -> bool:
        return self.waiting == 0


@dataclass(frozen=True, slots=True)
class CarryNode(Reason):
    """Is this one of the profiling nodes on which jobs may carry on? The others stay clear for profiling, so
    that a job which wants a whole node never waits for one that carries on."""

    node: str
    may: bool

    def __bool__(self) -> bool:
        return self.may


@dataclass(frozen=True, slots=True)
class HomeWaits(Reason):
    """Do jobs already wait in the job's own VC? Only then is carrying on better than making room."""

    vc: str
    waiting: int

    def __bool__(self) -> bool:
        return self.waiting > 0


@dataclass(frozen=True, slots=True)
class Requeueable(Reason):
    """May the job be requeued at all? One submitted with ``--no-requeue``, or interactive, may not."""

    requeueable: bool

    def __bool__(self) -> bool:
        return self.requeueable


@dataclass(frozen=True, slots=True)
class ProfilerPressure(Reason):
    """Is there a burst? ``queue_s``: how long the profiling queue would take at the usual T_prof."""

    queue_s: float
    bound_s: float

    def __bool__(self) -> bool:
        return self.queue_s > self.bound_s


@dataclass(frozen=True, slots=True)
class HomeHasRoom(Reason):
    """Could the job start in its own VC at once, with nobody waiting there before it?"""

    vc: str
    free_gpus: int
    room: bool

    def __bool__(self) -> bool:
        return self.room


@dataclass(frozen=True, slots=True)
class SharingLevel(Reason):
    """Is the VC busy enough for sharing as configured? ``gss`` is the capacity in force, from idle GPUs, GPUs that
    wait, and GPUs forecast to be submitted per hour."""

    idle_gpus: int
    waiting_gpus: int
    gpus_per_hour: float
    gss: int
    default_gss: int

    def __bool__(self) -> bool:
        return self.gss >= self.default_gss


@dataclass(frozen=True, slots=True)
class ProfilingFits(Reason):
    """Could any profiling node that is up hold the job?"""

    gpus: int
    possible: bool

    def __bool__(self) -> bool:
        return self.possible


@dataclass(frozen=True, slots=True)
class WaitedForProfiling(Reason):
    """Has the job waited for a profiling node longer than it should? Fewest-GPUs-first could starve it."""

    waited_s: float
    most_s: float

    def __bool__(self) -> bool:
        return self.waited_s >= self.most_s - 1e-6
