"""Reasons of the queue: order, room, quotas, kept nodes, closed or unfit nodes, preemption."""

from __future__ import annotations

from msgspec import Struct

from lucid.core.names import Shown
from lucid.core.reason import REASONS, Reason
from lucid.core.times import reached


class Priority(Reason, Struct, frozen=True):
    """The sort key of the queue: ``value`` (smaller first), made from an estimate and a GPU count. ``tier`` and
    ``nice``, by which the site and the user set the job's place, go before it."""

    rule: Shown
    value: float
    estimate_s: float
    gpus: int
    source: Shown
    tier: int = 0
    nice: int = 0


class Boots(Reason, Struct, frozen=True):
    """The job waits for nodes that are not awake. ``node`` is the one that takes longest, about ``delay_s``: it is
    ``asleep``, or boots already. ``others``: how many more of its nodes sleep or boot."""

    node: Shown
    asleep: bool
    delay_s: float
    others: int = 0


class FairOrder(Reason, Struct, frozen=True):
    """The place in line of policies that need no estimate: by time of submission."""

    submit_s: float


class Unranked(Reason, Struct, frozen=True):
    """Did estimates fail to put short jobs before long ones, among the last ``jobs`` that ended in ``vc`` (in the
    whole cluster, if empty)? Jobs go in plain order then. ``gain``: the share of waiting that an order by estimates
    saves, of what true durations would save (0 for noise, -1 for the reverse order). ``needed``: the least gain that
    differs from chance. ``by``: "history" where the user's last jobs serve as estimates, since the given ones rank
    worse."""

    vc: Shown
    jobs: int
    gain: float
    needed: float
    by: Shown = ""

    def __bool__(self) -> bool:
        return self.gain < self.needed


class WaitOrder(Reason, Struct, frozen=True):
    """The place in line where most waiting jobs need more than ``above`` GPUs. First go the oldest, after
    ``oldest_after_s``; then jobs that have waited for the greatest multiple of their estimate; larger ones first."""

    above: int
    estimate_s: float
    gpus: int
    source: Shown
    oldest_after_s: float


class FairShare(Reason, Struct, frozen=True):
    """What the account has used lately against its share: the fair-share ``factor`` (1/2 at its share) makes the
    priority value count ``times`` as much, at most ``bound`` times."""

    account: str
    factor: float
    times: float
    bound: float


class SlurmPriority(Reason, Struct, frozen=True):
    """The place in line by the sum of Slurm's factors, each from 0 to 1, times their weights; larger first."""

    value: float
    age: float
    size: float
    fair_share: float | None = None
    """``None`` where it has no weight, or is not known."""


class Backfill(Reason, Struct, frozen=True):
    """Are there GPUs that stay free for ``limit_s``, the job's time limit, without delaying any of the ``ahead`` jobs
    that come before it and have GPUs kept for them?"""

    ahead: int
    limit_s: float
    fits: bool

    def __bool__(self) -> bool:
        return self.fits


class FreeGpus(Reason, Struct, frozen=True):
    """Is there a consolidated place? ``largest`` is the most free GPUs on one node, ``free`` the number of all free
    GPUs."""

    needed: int
    largest: int
    free: int
    found: bool

    def __bool__(self) -> bool:
        return self.found


class HostFits(Reason, Struct, frozen=True):
    """Do the nodes with enough free GPUs also have the CPUs and the host memory that the job asks for?"""

    cpus: int
    mem_mib: int
    found: bool

    def __bool__(self) -> bool:
        return self.found


class AsksForGpus(Reason, Struct, frozen=True):
    """Does the job ask for any GPU? A job without GPUs is Slurm's own business, and never started from here."""

    gpus: int

    def __bool__(self) -> bool:
        return self.gpus > 0


class TooLarge(Reason, Struct, frozen=True):
    """Does the job ask for more GPUs than the partition has, so that it can never run here?"""

    gpus: int
    partition_gpus: int

    def __bool__(self) -> bool:
        return self.gpus > self.partition_gpus


class EverFits(Reason, Struct, frozen=True):
    """Could the nodes of the partition hold the job if all were up and empty? Where nodes differ in size, or have
    limits of CPUs and host memory, enough GPUs in all may still be no place for it."""

    gpus: int
    cpus: int
    mem_mib: int
    possible: bool

    def __bool__(self) -> bool:
        return self.possible


class BehindHead(Reason, Struct, frozen=True):
    """This policy stops at the first job that does not fit; ``head`` is that job."""

    head: Shown


class NextRound(Reason, Struct, frozen=True):
    """This policy decides at fixed times only; the next one is ``at_s``."""

    at_s: float


class Preempted(Reason, Struct, frozen=True):
    """Jobs of higher priority fill the partition's GPUs: the job got none of the ``quota`` left over."""

    gpus: int
    quota: int

    def __bool__(self) -> bool:
        return self.gpus > self.quota


class Allotted(Reason, Struct, frozen=True):
    """Does the round give this elastic job GPUs? It gets ``gpus`` of at most ``most``; ``value`` is what they are
    worth to it by ``rule``. ``batch``: the total batch size that goes with them, where the policy chose it."""

    rule: Shown
    gpus: int
    most: int
    value: float
    batch: int | None = None

    def __bool__(self) -> bool:
        return self.gpus > 0


class Rescaled(Reason, Struct, frozen=True):
    """Does a running job get more GPUs, because some are idle and no job waits for them, or fewer, because
    ``waiting`` jobs need some?"""

    before: int
    after: int
    waiting: int

    def __bool__(self) -> bool:
        return self.after > self.before


class Reserved(Reason, Struct, frozen=True):
    """Nodes are kept for ``holder``, which has waited long. May this job start on them meanwhile?

    It may if it is expected to end by ``until_s``, when the nodes are expected to have drained, even if it takes
    ``times`` as long as estimated. ``room_s``: the longest estimate that such a job may have."""

    holder: Shown
    until_s: float
    room_s: float
    nodes: int
    times: float = 1.0

    def __bool__(self) -> bool:
        return self.room_s > 0


class LargeShare(Reason, Struct, frozen=True):
    """May nodes be kept for one more large job? Jobs as large hold ``held_gpus`` already, and with its ``gpus`` they
    would have more than ``most_share`` of the ``total_gpus``. Not if a smaller job, ``other``, has waited at least
    half as long: else an endless stream of large jobs would have the VC to itself."""

    gpus: int
    held_gpus: int
    total_gpus: int
    most_share: float
    other: Shown
    other_waited_s: float
    waited_s: float

    def __bool__(self) -> bool:
        return not reached(self.other_waited_s, self.waited_s / 2)


class Quota(Reason, Struct, frozen=True):
    """Would the job's VC, which holds ``held`` GPUs of the pool, stay within its ``quota`` with the job's ``gpus``?
    ``kept``: GPUs of the quota that are kept for ``keeper``, a job of the VC that has waited long."""

    vc: Shown
    gpus: int
    held: int
    quota: int
    kept: int = 0
    keeper: Shown = ""

    def __bool__(self) -> bool:
        return self.held + self.kept + self.gpus <= self.quota


class Borrows(Reason, Struct, frozen=True):
    """The job may start on GPUs beyond its VC's quota.
    ``lenders``: the VCs that hold less than their quota, those with the most idle GPUs first. ``gpus``: how many are
    beyond the quota."""

    estimate_s: float | None = None
    lenders: tuple[Shown, ...] = ()
    gpus: int = 0


REASONS["LargeBorrows"] = Borrows  # stored up to commit b7b0384e, without its estimate


class OwnTurn(Reason, Struct, frozen=True):
    """Has the job waited for so long (``waited_s``) that it goes before all others of the pool? It does from
    ``after_s`` on, since with it its VC ``vc`` stays within the quota: the GPUs that it waits for are lent."""

    vc: Shown
    waited_s: float
    after_s: float

    def __bool__(self) -> bool:
        return reached(self.waited_s, self.after_s)


class PlainOrder(Reason, Struct, frozen=True):
    """Has the job waited for so long beyond ``plain_s``, when plain Slurm order would have started it, that it goes
    before all others? ``turn_s``: when its turn comes. ``bound_s``: by when it is promised to start, as far as that
    can be promised."""

    plain_s: float
    now_s: float
    turn_s: float
    bound_s: float

    def __bool__(self) -> bool:
        return reached(self.now_s, self.turn_s)


class SlurmBars(Reason, Struct, frozen=True):
    """Slurm would not start the job at present, in Slurm's own ``words`` (a limit, licences, a reservation). It is
    tried again at ``retry_s``, or earlier when something that it may wait for changes."""

    words: Shown
    retry_s: float


class Unplanned(Reason, Struct, frozen=True):
    """No plan could be made of the job's partition (a defect of Lucid or of its policy); ``words`` say why. They may
    hold anybody's names, so not everybody reads them."""

    words: str

    def __bool__(self) -> bool:
        return False


class Unsafe(Reason, Struct, frozen=True):
    """The decision planned for the job breaks a safety rule (a defect of Lucid), so it was not carried out."""

    words: Shown


class OtherNodes(Reason, Struct, frozen=True):
    """So many free GPUs are on nodes that the job's user does not ask for. ``asked``: what the user asks of nodes."""

    gpus: int
    asked: Shown

    def __bool__(self) -> bool:
        return self.gpus == 0


class NodesOut(Reason, Struct, frozen=True):
    """So many GPUs are on nodes on which nothing may start: ``words`` are the cluster's (reserved, drained, down).
    ``until_s``: when the first of them may be used again, Unix seconds, where known."""

    gpus: int
    words: Shown
    until_s: float | None = None


class GpusOut(Reason, Struct, frozen=True):
    """So many GPUs of nodes in use are left out of new starts. GPU ``index`` of ``node`` is out for longest, since
    ``since_s`` (Unix seconds), for ``words``; ``by``: the person who took it out."""

    gpus: int
    node: Shown
    index: int
    since_s: float
    words: Shown
    by: str = ""


class Closes(Reason, Struct, frozen=True):
    """Would the job, which may run for ``limit_s`` (``None``: without limit), end before the nodes with ``gpus`` free
    GPUs close? They close in ``room_s``, at ``from_s``, until ``until_s`` (``None``: not known), for ``words``."""

    gpus: int
    limit_s: float | None
    room_s: float
    from_s: float
    until_s: float | None
    words: Shown

    def __bool__(self) -> bool:
        return self.limit_s is not None and reached(self.room_s, self.limit_s)


class Spread(Reason, Struct, frozen=True):
    """Do the ``nodes`` of a start stand below one switch (or block) of the lowest level? ``one_s``: when one switch
    is expected to have room for the whole job, Unix seconds."""

    nodes: int
    switches: int
    one_s: float | None = None

    def __bool__(self) -> bool:
        return self.switches <= 1


class Switches(Reason, Struct, frozen=True):
    """Does the chosen place stand below at most the ``most`` switches that the job's user asked for? ``found``: the
    number of switches, 0 where there is no place. From ``until_s`` on (``None``: never) any number will do."""

    most: int
    found: int
    until_s: float | None
    now_s: float

    def __bool__(self) -> bool:
        return 0 < self.found <= self.most or (self.until_s is not None and reached(self.now_s, self.until_s))


class Victim(Struct, frozen=True):
    """A job that is preempted, and the GPU-seconds that it loses: all since it started, unless it saves its work."""

    job: Shown
    vc: Shown
    gpus: int
    lost_gpu_s: float
    saves: bool = False
    """Whether the job saves its work when Slurm signals it to stop, and goes on from there."""
    ends: bool = False
    """Whether the job is cancelled, not put back into the queue."""


class Claims(Reason, Struct, frozen=True):
    """The jobs that the start of a job preempts: of all sets that would do, the one that loses least. Work of jobs
    that would be cancelled counts first, then work of jobs that start over, then the number of jobs. Jobs that save
    their work lose none. ``gpus``: how many of its GPUs they hold. ``next_gpu_s``: what the best choice on another
    node would have lost, ``None`` where there is none."""

    gpus: int
    victims: tuple[Victim, ...]
    next_gpu_s: float | None = None

    @property
    def lost_gpu_s(self) -> float:
        """The GPU-seconds that all preempted jobs lose."""
        return sum(victim.lost_gpu_s for victim in self.victims)


class HeldBy(Reason, Struct, frozen=True):
    """So many GPUs of the partition are held by ``jobs`` jobs of another partition, ``vc``. ``yielding`` of these may
    be preempted by jobs of this one, the first from ``from_s`` on (Unix s); that did not suffice."""

    vc: Shown
    gpus: int
    jobs: int
    yielding: int = 0
    from_s: float = 0.0
