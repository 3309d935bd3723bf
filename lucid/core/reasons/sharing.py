"""Reasons of sharing: which jobs may run on the same GPUs, which partner is best, and when a pair is parted."""

from __future__ import annotations

from msgspec import Struct

from lucid.core.names import Shown, UserName
from lucid.core.reason import Reason
from lucid.core.times import past, reached


class Shareable(Reason, Struct, frozen=True):
    """May this job share its GPUs at all? Sharing capacity (GSS) 0 means that sharing is off."""

    score: int
    gss: int

    def __bool__(self) -> bool:
        return self.score <= self.gss and self.gss > 0


class UserAllows(Reason, Struct, frozen=True):
    """Is sharing permitted for this job? The user, something else that the job asks for (``why``), or an earlier
    parting may rule it out."""

    shareable: bool
    parted_before: bool
    why: Shown = ""

    def __bool__(self) -> bool:
        return self.shareable and not self.parted_before


class InSlots(Reason, Struct, frozen=True):
    """Does the job start in slots, so that others may join it? It has to be on one node, willing and steady, and its
    share score at most ``most``. An unmeasured job starts in slots too: another may join it once it is measured,
    without a restart."""

    shareable: bool
    parted_before: bool
    nodes: int
    measured: bool
    unstable: bool
    score: int | None
    most: int

    def __bool__(self) -> bool:
        if self.most < 0 or self.nodes != 1 or not self.shareable or self.parted_before:
            return False
        if not self.measured:
            return True
        return not self.unstable and self.score is not None and self.score <= self.most


class PairHarm(Reason, Struct, frozen=True):
    """Does neither job lose more than ``most`` of its speed? Asked where neither may be started over, so that the
    pair cannot be parted. ``worst``: the lowest plausible speed of either."""

    partner: Shown
    worst: float
    most: float

    def __bool__(self) -> bool:
        return not past(1.0 - self.worst, self.most)


class PairWork(Reason, Struct, frozen=True):
    """Do both jobs together do at least ``least`` times the work of one (``together``)? Or has the job that would
    share waited (``waited_s``) as long as it then should (``needs_s``; ``None``: its partner ends before that)?"""

    partner: Shown
    together: float
    least: float
    waited_s: float
    needs_s: float | None

    def __bool__(self) -> bool:
        waited = self.needs_s is not None and reached(self.waited_s, self.needs_s)
        return waited or reached(self.together, self.least)


class NotMeasured(Reason, Struct, frozen=True):
    """Has the job a profile? Without one its effect on a partner is not known."""

    measured: bool

    def __bool__(self) -> bool:
        return self.measured


class SameGpus(Reason, Struct, frozen=True):
    """Packing rule 2 (L13): is there a running job with the same GPU demand that is alone on its GPUs?"""

    gpus: int
    candidates: int

    def __bool__(self) -> bool:
        return self.candidates > 0


class SameUser(Reason, Struct, frozen=True):
    """Do the running jobs that could be joined belong to the same user? ``others`` do not, and here only jobs of one
    user share GPUs."""

    user: UserName
    others: int

    def __bool__(self) -> bool:
        return self.others == 0


class ShareScores(Reason, Struct, frozen=True):
    """GPU sharing capacity (L11): do the share scores of the pair stay within GSS?"""

    own: int
    other: int
    gss: int

    def __bool__(self) -> bool:
        return self.own + self.other <= self.gss


class GpuMemory(Reason, Struct, frozen=True):
    """Packing rule 1 (L12): do both memory peaks fit on each GPU?"""

    partner: Shown
    own_mib: float
    other_mib: float
    capacity_mib: int | float  # as the node has it: whole

    def __bool__(self) -> bool:
        return self.own_mib + self.other_mib < self.capacity_mib


class Stable(Reason, Struct, frozen=True):
    """Packing rule 4 (L15): is the utilisation pattern of the job steady enough to share GPUs?"""

    job: Shown
    unstable: bool

    def __bool__(self) -> bool:
        return not self.unstable


class DistributedAlone(Reason, Struct, frozen=True):
    """Packing rule 5 (L16): a job over several nodes, because it needs or asks for so many, keeps its GPUs to
    itself."""

    gpus: int
    gpus_per_node: int
    nodes_asked: int = 1

    def __bool__(self) -> bool:
        return self.gpus > self.gpus_per_node or self.nodes_asked > 1


class PartnerOutlasts(Reason, Struct, frozen=True):
    """Pairs are avoided where one is nearly done (L19): has the partner enough time left to be worth it?"""

    partner: Shown
    remaining_s: float
    least_s: float

    def __bool__(self) -> bool:
        return reached(self.remaining_s, self.least_s)


class PartnerLeaves(Reason, Struct, frozen=True):
    """Would the guest end before the partner does, or does it gain enough by starting now?

    The published rule: own priority value at most ``ratio`` times the partner's."""

    partner: Shown
    own: float
    other: float
    ratio: float

    def __bool__(self) -> bool:
        return self.own <= self.ratio * self.other


class PairSpeed(Reason, Struct, frozen=True):
    """Do the expected normalised speeds of the pair stay above the least that either may fall to? Without speeds the
    predictor has no opinion, which stops no pair; or it ``failed``, which does."""

    partner: Shown
    own: float | None
    other: float | None
    floor: float
    source: Shown
    failed: bool = False

    def __bool__(self) -> bool:
        if self.own is None or self.other is None:
            return not self.failed
        return min(self.own, self.other) >= self.floor


class SharedBy(Reason, Struct, frozen=True):
    """May the pair run under MPS? It serves one user at a time, where it is there at all (``mps``); otherwise
    the two take turns (time-slicing), and nothing fences their memory."""

    partner: Shown
    same_user: bool
    mps: bool

    def __bool__(self) -> bool:
        return self.mps and self.same_user


class SeenSpeed(Reason, Struct, frozen=True):
    """Does the job still run fast enough beside its partner, as measured (not as expected)?"""

    job: Shown
    partner: Shown
    seen: float
    bound: float

    def __bool__(self) -> bool:
        return self.seen >= self.bound


class BestPartner(Reason, Struct, frozen=True):
    """Is this the partner to take? Of ``candidates`` partners that pass every rule it has the highest ``score`` (the
    sum of the pair's expected speeds; full speed where the predictor has no opinion). By the rule ``first`` it is the
    first that passes, and no other was compared."""

    partner: Shown
    score: float
    candidates: int
    rule: Shown = "best"


class Interleaved(Reason, Struct, frozen=True):
    """Is a group faster together than its members one after the other? ``group`` names its ``jobs`` members. One
    round of all takes ``period_s``; one iteration of each alone takes ``alone_s`` in sum. The group has to be
    ``least`` times as fast."""

    jobs: int
    group: Shown
    period_s: float
    alone_s: float
    least: float = 1.0

    def __bool__(self) -> bool:
        return self.least * self.period_s <= self.alone_s


class Overlaps(Reason, Struct, frozen=True):
    """Do two jobs that nobody makes wait for their turn want different resources most of the time? They want the same
    one for a share ``conflict`` of the time, which may be at most ``most``. Each is then expected to run at ``speed``
    of its speed alone. ``group`` names both."""

    group: Shown
    conflict: float
    most: float

    @property
    def speed(self) -> float:
        """Expected normalised speed of each job (lucid.orchestrator.policies.muri.interleave)."""
        return 1.0 / (1.0 + self.conflict)

    def __bool__(self) -> bool:
        return self.conflict <= self.most


class SlowBefore(Reason, Struct, frozen=True):
    """Did an earlier group of these kinds of job run as fast as promised? ``group`` names the jobs; ``seen`` and
    ``promised`` are normalised speeds of the earlier group. The reason is given only where the answer is no."""

    group: Shown
    seen: float
    promised: float

    def __bool__(self) -> bool:
        return self.seen >= self.promised


class Calm(Reason, Struct, frozen=True):
    """Has next to no job of the VC ``vc`` had to wait for a day, and for as long as this job is expected to run? Then
    this job shares GPUs only if it would wait otherwise."""

    vc: Shown
    calm_s: float
    needed_s: float

    def __bool__(self) -> bool:
        return reached(self.calm_s, self.needed_s)
