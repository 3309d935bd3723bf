"""Jobs as the cluster knows them: request, profile, progress, and the states waiting, running and ended.

``may_restart`` is the one rule on which jobs may be started over, for profiling runs, parted pairs and preemption."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final, Literal

from lucid.core.names import Shown, UserName
from lucid.core.placement import Placement, placement_gpus
from lucid.core.prediction import StageTimes
from lucid.core.reasons.profiling import Requeueable
from lucid.core.times import reached

_NEVER_RAN: Final = frozenset({"BOOT_FAIL", "LAUNCH_FAILED", "RECONFIG_FAIL", "REVOKED"})


class Stage(StrEnum):
    """The stage that a running job is in."""

    PROFILE = "profile"
    """On a profiling node, sampled, for at most T_prof."""
    MAIN = "main"
    """On the nodes of its own VC (or carried on in place), until it ends."""


@dataclass(frozen=True, slots=True)
class Elastic:
    """The limits of an elastic job, which can go on from a checkpoint on another number of GPUs.

    Batch sizes are in samples. ``batch``: total batch size as submitted, which the job keeps on any number of GPUs
    (in several passes where it does not fit). ``init_batch`` and ``most_batch``: the least and the largest total that
    a job with an agent may choose instead; progress is reckoned in samples at ``init_batch``. ``atomic_min``,
    ``atomic_max``: samples on one GPU in one pass. ``pinned``: an agent keeps ``batch`` too. ``epochs``: passes over
    the data that the user asked for; ``None`` where the user named no number. ``max_nodes``: the most nodes that it
    may stand on.

    Raises: ValueError: a limit is below 1, or a lower one above its upper one."""

    max_gpus: int
    min_gpus: int = 1
    batch: int = 1
    init_batch: int = 1
    most_batch: int = 1
    atomic_min: int = 1
    atomic_max: int = 1
    pinned: bool = False
    epochs: float | None = None
    max_nodes: int | None = None

    def __post_init__(self) -> None:
        pairs = (
            (self.min_gpus, self.max_gpus),
            (self.init_batch, self.most_batch),
            (self.atomic_min, self.atomic_max),
            (1, 1 if self.max_nodes is None else self.max_nodes),
        )
        if self.batch < 1 or any(not 1 <= low <= high for low, high in pairs):
            raise ValueError(f"{self}: limits must be at least 1, and each lower one at most its upper one")

    def on_nodes(self, sizes: Iterable[int]) -> Elastic:
        """The same limits on nodes with so many GPUs each: the job's largest number of nodes bounds its GPUs."""
        if self.max_nodes is None:
            return self
        most = sum(sorted(sizes, reverse=True)[: self.max_nodes])
        return self if most >= self.max_gpus else replace(self, max_gpus=max(most, self.min_gpus))

    def allows(self, sizes: Sequence[int]) -> bool:
        """Whether the job may have so many GPUs on so many nodes."""
        few = self.max_nodes is None or len(sizes) <= self.max_nodes
        return few and self.min_gpus <= sum(sizes) <= self.max_gpus


@dataclass(frozen=True, slots=True)
class Progress:
    """What an elastic job has reported of its training so far; nothing here is a forecast.

    ``epochs``: passes over its data. ``epoch_s``: seconds of one pass with the last batch used, by number of GPUs, in
    order of first use. ``losses``: validation loss after so many epochs, relative to the first. ``batch``: total
    batch size now, samples; 0 while it does not run. From a job with an agent also ``step_model``, the parameters of
    the agent's fitted model of its step time (Pollux's theta_sys), and ``gradient``, squared norm and variance of the
    gradient at the initial batch size."""

    epochs: float = 0.0
    epoch_s: tuple[tuple[int, float], ...] = ()
    losses: tuple[tuple[float, float], ...] = ()
    batch: int = 0
    step_model: tuple[float, ...] = ()
    gradient: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True)
class Job:
    """What a user asked for. Fixed for the life of the job; holds nothing that Slurm could not report.

    ``rank`` is the place among jobs with the same ``submit_s`` (Slurm's job number order). ``min_nodes``: the least
    number of nodes that the job has to stand on; a job with 1 is put on as few as possible. ``cpus`` and ``mem_mib``
    are totals over the whole job; 0 means not asked for. ``elastic`` is ``None`` for a job that runs on exactly
    ``gpus`` GPUs; an elastic job needs CPUs and memory in proportion."""

    id: Shown
    vc: Shown
    gpus: int
    submit_s: float
    rank: int = 0
    user: UserName = ""
    account: str = ""
    name: str = ""
    cpus: int = 0
    mem_mib: int = 0
    time_limit_s: float | None = None
    amp: bool | None = None
    requeueable: bool = True
    long_cold_start: bool = False
    shareable: bool = True
    elastic: Elastic | None = None
    min_nodes: int = 1
    whole_because: Shown = ""
    """Why the job cannot share its GPUs, where that is not simply its user's wish; shown in its story."""
    restart_asked: bool = False
    """Whether the user said that the job may be started over (``--requeue``, or ``lucid:restart`` in its comment)."""
    most_switches: int = 0
    """The most switches that the user wants above the job's nodes (``--switches``); 0: no such wish."""
    switches_until_s: float | None = None
    """Until when the job waits for such nodes, Unix seconds; ``None``: for as long as it takes."""
    constraint: Shown = ""
    """What the user asks of the job's nodes, in the user's words, where some nodes of its partition do not meet it
    (``Partition.fitting``); empty: any node will do."""
    tier: int = 0
    """The site's word on the job's place (the priority of its QOS): jobs of a higher tier go before all others."""
    nice: int = 0
    """The user's word on the job's place among the user's own jobs (``--nice``): those with less of it go first."""
    takes_turns: bool = False
    """Whether the user said that the job takes turns with others on its GPUs (``lucid:turns`` in its comment)."""
    qos: Shown = ""
    """The job's QOS, where that decides which jobs it may preempt (``Yields.to``)."""
    array: Shown = ""
    """The array of which the job is a task: the tasks run the same program. Empty for any other job."""
    stays: Shown = ""
    """By what the job is kept in its partition, in words: it is moved neither to borrow nor to be profiled. Empty for
    any other job."""
    borrows: bool = True
    """Whether the job may start beyond its VC's quota. False where it would have to leave its partition for that."""


@dataclass(frozen=True, slots=True)
class TimeShares:
    """How a job alone on its GPUs spends its time, as measured from outside (lucid.profiler.shape): the shares (0-1)
    of its time at work in which it waited for storage, computed on CPUs, and computed on GPUs. They sum to less than
    1 where it waited for something else, to more where it does two of them at once. ``storage`` is ``None`` where the
    node does not report it; ``storage_by`` names the way of measuring. Use of the network is not measured."""

    storage: float | None
    cpu: float
    gpu: float
    storage_by: Shown = ""


@dataclass(frozen=True, slots=True)
class JobProfile:
    """What sampling one job alone showed, averaged over its GPUs.

    ``gpu_util`` and ``mem_util`` are percentages (0-100) of time in which a kernel ran, and in which device memory
    was read or written (NVML's definition). ``gpu_mem_mib`` is the peak on one GPU: measured, or predicted where
    ``mem_growing`` (lucid.profiler.summary). ``workload`` is an opaque label under which like jobs were measured
    before, if there is one. The fields after it are ``None`` where they were not measured."""

    gpu_util: float
    mem_util: float
    gpu_mem_mib: float
    amp: bool | None = None
    unstable: bool = False
    workload: str = ""
    gpu_util_p95: float | None = None
    """95th percentile of the utilisation, %: far above the mean for a job that works in bursts."""
    active_share: float | None = None
    """Share of time (0-1) in which the job's GPUs were at work at all."""
    sm_active: float | None = None
    """Mean share of the SMs at work, % (DCGM's SM_ACTIVE, NVML GPM's SM utilisation)."""
    dram_active: float | None = None
    """Mean share of DRAM bandwidth in use, % (DCGM's DRAM_ACTIVE, NVML GPM's DRAM utilisation)."""
    mem_growing: bool = False
    seen_speed: float | None = None
    """Measured speed of the job beside ``seen_beside`` (1 = as fast as alone; lucid.profiler.pair_watch)."""
    seen_beside: Shown | None = None
    """The partner beside which ``seen_speed`` was measured; with any other partner that speed says nothing."""
    shares: TimeShares | None = None
    """How the job spends its time, for a job on one node whose control group is known there."""


def sound_profile(profile: JobProfile) -> JobProfile:
    """The same profile, once its shares and sizes have been checked.

    Raises: ValueError: a value is not a share, or not a size."""
    for name in ("gpu_util", "mem_util"):
        if not 0 <= getattr(profile, name) <= 100:
            raise ValueError(f"{name} is {getattr(profile, name)}, not a percentage")
    if not 0 <= profile.gpu_mem_mib < 1 << 30:
        raise ValueError(f"gpu_mem_mib is {profile.gpu_mem_mib}, not a size of memory")
    shares = profile.shares
    if shares is not None and not all(0 <= part <= 1 for part in (shares.storage or 0, shares.cpu, shares.gpu)):
        raise ValueError(f"shares are {shares}, not shares of time")
    return profile


@dataclass(frozen=True, slots=True)
class Work:
    """What a job's executor last reported: ``done_s``, the work done by ``at_s`` in seconds of running alone on its
    GPUs, and ``speed``, the seconds of such work done in each second from ``at_s`` on."""

    done_s: float
    at_s: float
    speed: float = 1.0

    def by_s(self, now_s: float) -> float:
        """The work done by ``now_s``, if nothing has changed since."""
        return self.done_s + self.speed * max(now_s - self.at_s, 0.0)


@dataclass(frozen=True, slots=True)
class Pending:
    """A job that waits. ``since_s``: when this wait began (submission, requeue or preemption)."""

    job: Job
    since_s: float
    profile: JobProfile | None = None
    ran_s: float = 0.0
    """Wall time of the job's earlier runs (0 for a job that never ran)."""
    restarts: int = 0
    alone: bool = False
    """True once the job was parted from a partner by rule: it is not to be packed again."""
    progress: Progress | None = None
    """What the job has reported, if it is elastic."""
    work: Work | None = None
    """The work done so far, where an executor reports it."""
    barred: Shown = ""
    """Slurm's own words for why it would not start this job at present; empty where nothing is known to bar it."""
    retry_s: float = 0.0
    """The latest time at which a barred job is tried again."""
    home_only: bool = False
    """The job is to start in its own VC: it comes from a profiling node, Slurm would not start it on one, or it
    stays in its partition."""
    stages: StageTimes | None = None
    """The stage times of one iteration alone, as this job or an earlier one of its kind reported them. In a replay
    the predictor knows them."""


@dataclass(frozen=True, slots=True)
class Yields:
    """How a running job gives way to jobs of the partition in which it is listed: it is preempted where they claim
    its GPUs. Times in Unix seconds."""

    from_s: float = 0.0
    """The job is not preempted before this time."""
    to: tuple[Shown, ...] | None = None
    """The job gives way only to jobs of these QOS; ``None``: to every job of the partition."""
    ends: bool = False
    """The job is cancelled when it is preempted, not put back into the queue."""
    saves: bool = False
    """The job saves its work when Slurm signals it to stop, and goes on from there."""
    going: bool = False
    """Another job has claimed some of the job's GPUs already."""

    @property
    def to_all(self) -> bool:
        """Whether the job gives way to every job of the partition."""
        return self.to is None

    def lets(self, job: Job, now_s: float) -> bool:
        """Whether ``job`` may preempt the running job now."""
        return reached(now_s, self.from_s) and (self.to is None or job.qos in self.to)


@dataclass(frozen=True, slots=True)
class Running:
    """A job on its GPUs. ``partner`` is the other job on exactly the same GPUs, if any; members of a ``group`` are
    no partners."""

    job: Job
    start_s: float
    placement: Placement
    stage: Stage = Stage.MAIN
    profile: JobProfile | None = None
    ran_s: float = 0.0
    restarts: int = 0
    partner: Shown | None = None
    alone: bool = False
    progress: Progress | None = None
    group: tuple[Shown, ...] = ()
    """Ids of the jobs that take turns on these GPUs, this one among them; empty unless there are several."""
    work: Work | None = None
    restart_s: float | None = None
    """The expected cost of a restart of an elastic job, s, as measured; ``None`` in a replay, where policies go by
    their own settings."""
    stages: StageTimes | None = None
    """The stage times of one iteration alone, as for a pending job."""
    in_turns: tuple[float, int] | None = None
    """What the job reported of its group: seconds of one iteration, waiting for turns included, and how many jobs
    take turns there."""
    yields: Yields | None = None
    """How the job gives way; ``None`` for a job that jobs of this partition may not preempt, as for the partition's
    own."""

    @property
    def gpus(self) -> int:
        """The GPUs that the job holds: as many as it asked for, unless it is elastic."""
        return self.job.gpus if self.job.elastic is None else placement_gpus(self.placement)

    def elapsed_s(self, now_s: float) -> float:
        """Wall seconds since this run began; 0 while its nodes boot, when ``start_s`` lies ahead."""
        ran_s = now_s - self.start_s
        return ran_s if ran_s > 0.0 else 0.0


@dataclass(frozen=True, slots=True)
class Ended:
    """A job that has left the system, as accounting reports it."""

    job: Job
    end_s: float
    ran_s: float
    state: str = "COMPLETED"
    profile: JobProfile | None = None
    """The job's profile, if it was measured."""

    @property
    def ran(self) -> bool:
        """Whether the job's program ran, so that its duration says how long such jobs take. False where Slurm found
        no node for the job, where its node could not start it, and where Slurm, which counts whole seconds, reports 0
        s."""
        return self.ran_s > 0 and self.state not in _NEVER_RAN


Restarts = Literal["never", "asked", "allowed"]
"""``policy.profiling.restarts``: Lucid restarts no job; jobs that asked for it; all jobs that do not forbid it."""


def may_restart(job: Job, rule: Restarts) -> Requeueable:
    """Whether Lucid may take this job off its GPUs and start it over, as a reason."""
    return Requeueable(job.requeueable, rule, job.restart_asked)
