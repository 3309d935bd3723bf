"""Job, Pending, Running, Ended, JobProfile, Elastic.

Jobs, as far as the cluster can know them before they end.

Who may be started over: the one rule for profiling runs, parted pairs and preemption.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final, Literal

from lucid.core.names import Shown, UserName
from lucid.core.numbers import reached
from lucid.core.placement import Placement, placement_gpus
from lucid.core.prediction import StageTimes
from lucid.core.reasons.profiling import Requeueable

_NEVER_RAN: Final = frozenset({"BOOT_FAIL", "LAUNCH_FAILED", "RECONFIG_FAIL", "REVOKED"})


class Stage(StrEnum):
    """Which of its two lives a running job is in."""

    PROFILE = "profile"
    """On a profiling node, sampled, for at most T_prof."""
    MAIN = "main"
    """On the nodes of its own VC (or carried on in place), until it ends."""


@dataclass(frozen=True, slots=True)
class Elastic:
    """What a user says of a job that can go on elsewhere, and on another number of GPUs, from a checkpoint.

    Batch sizes are in samples. ``batch``: total batch size of the job as submitted, which it keeps whatever its
    GPUs (in several passes where it does not fit). ``init_batch`` and ``most_batch``: between which totals a job
    with an agent may choose instead; progress is reckoned in samples at ``init_batch``. ``atomic_min``,
    ``atomic_max``: samples on one GPU in one pass. ``pinned``: an agent keeps ``batch`` too.
    ``epochs``: passes over the data that the user asked for, if he said. ``max_nodes``: on so many nodes at the most.

    Raises:
        ValueError: a limit is below 1, or a lower one above its upper one.
    """

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
        """The same on nodes that can give it so many GPUs each: no more than its largest number of them can give."""
        if self.max_nodes is None:
            return self
        most = sum(sorted(sizes, reverse=True)[: self.max_nodes])
        return self if most >= self.max_gpus else replace(self, max_gpus=max(most, self.min_gpus))

    def allows(self, sizes: Sequence[int]) -> bool:
        """May it have so many GPUs on so many nodes?"""
        few = self.max_nodes is None or len(sizes) <= self.max_nodes
        return few and self.min_gpus <= sum(sizes) <= self.max_gpus


@dataclass(frozen=True, slots=True)
class Progress:
    """What an elastic job has reported of its training so far: observed, never what is still to come.

    ``epochs``: passes over its data. ``epoch_s``: seconds that such a pass takes with the last batch used there,
    by number of GPUs, in order of the first time. ``losses``: validation loss after so many epochs, relative to
    the first. ``batch``: total batch size now, samples; 0 while it does not run. Of a job with an agent:
    ``step_model``, the parameters of the model of its step time that the agent has fitted (Pollux's theta_sys),
    and ``gradient``, squared norm and variance of the gradient at the initial batch size.
    """

    epochs: float = 0.0
    epoch_s: tuple[tuple[int, float], ...] = ()
    losses: tuple[tuple[float, float], ...] = ()
    batch: int = 0
    step_model: tuple[float, ...] = ()
    gradient: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True)
class Job:
    """What a user asked for. Fixed for the life of the job; holds nothing that Slurm could not tell.

    ``rank`` is the place among jobs with the same ``submit_s`` (Slurm's job number order).
    ``min_nodes``: on how many nodes it has to stand at least; one that says 1 is put on as few as can be. ``cpus``
    and ``mem_mib`` are totals over the whole job; 0 means not asked for. ``elastic`` is ``None`` for
    a job that runs on exactly ``gpus`` GPUs or not at all; an elastic one needs CPUs and memory in proportion.
    """

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
    """Why it cannot share its GPUs, where that is not simply its user's wish: said in its story."""
    restart_asked: bool = False
    """Its user said that it may be started over (``--requeue``, or ``lucid:restart`` in its comment)."""
    most_switches: int = 0
    """Its user asked for nodes below so many switches at most (``--switches``); 0: no such wish."""
    switches_until_s: float | None = None
    """Until when that is waited for, Unix seconds; ``None``: for as long as it takes."""
    constraint: Shown = ""
    """What its user asks of its nodes, in the user's words, where not all nodes of its partition are such
    (``Partition.fitting``); empty: any node will do."""
    tier: int = 0
    """The site's word on its place: jobs of a higher tier go before all others (the priority of its QOS)."""
    nice: int = 0
    """Its user's word on its place among their own jobs (``--nice``): those with less of it go first."""
    takes_turns: bool = False
    """Its user said that it takes turns with others on its GPUs (``lucid:turns`` in its comment)."""
    qos: Shown = ""
    """Its QOS, where that decides whom it may preempt (``Yields.to``)."""
    array: Shown = ""
    """The array of which it is a task: the tasks run the same program. Empty for any other job."""


@dataclass(frozen=True, slots=True)
class TimeShares:
    """What a job alone on its GPUs does with its time, as measured from outside (lucid.profiler.shape): the shares
    (0-1) of its time at work in which it waited for storage, computed on CPUs, and computed on GPUs. They sum to less
    than 1 where it waited for something else, to more where it does two of them at once. ``storage`` is ``None``
    where its node does not tell, ``storage_by`` says by what it was measured. Use of the network is not measured."""

    storage: float | None
    cpu: float
    gpu: float
    storage_by: Shown = ""


@dataclass(frozen=True, slots=True)
class JobProfile:
    """What sampling one job alone showed, averaged over its GPUs.

    ``gpu_util`` and ``mem_util`` are percentages (0-100) of time in which a kernel ran, and in which device
    memory was read or written (NVML's definition); ``gpu_mem_mib`` is the peak on one GPU: seen, or where
    ``mem_growing`` the predicted one (lucid.profiler.summary).
    ``workload`` is an opaque label under which like jobs were measured before, if anybody knows one.
    The fields after it are ``None`` where they were not measured.
    """

    gpu_util: float
    mem_util: float
    gpu_mem_mib: float
    amp: bool | None = None
    unstable: bool = False
    workload: str = ""
    gpu_util_p95: float | None = None
    """95th percentile of the utilisation, %: far above the mean for a job that works in bursts."""
    active_share: float | None = None
    """Share of time (0-1) in which its GPUs were at work at all."""
    sm_active: float | None = None
    """Mean share of its SMs at work, % (DCGM's SM_ACTIVE, NVML GPM's SM utilisation)."""
    dram_active: float | None = None
    """Mean share of DRAM bandwidth in use, % (DCGM's DRAM_ACTIVE, NVML GPM's DRAM utilisation)."""
    mem_growing: bool = False
    seen_speed: float | None = None
    """Normalised speed at which the job was seen to run (1 = as fast as alone; lucid.profiler.pair_watch) …"""
    seen_beside: Shown | None = None
    """… beside this job; says nothing once the partner is another."""
    shares: TimeShares | None = None
    """Of a job on one node whose control group is known there."""


@dataclass(frozen=True, slots=True)
class Work:
    """What the executor of a job last reported of it: ``done_s``, the work done by ``at_s`` in seconds of running
    alone on its GPUs, and ``speed``, how much of that it does in a second from ``at_s`` on."""

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
    """Wall time of its earlier runs (0 for a job that never ran)."""
    restarts: int = 0
    alone: bool = False
    """True once it was parted from a partner by rule: it is not to be packed again."""
    progress: Progress | None = None
    """Of an elastic job."""
    work: Work | None = None
    """Where an executor reports it."""
    barred: Shown = ""
    """Slurm's own words for why it would not start this job at present; empty where nothing is known against it."""
    retry_s: float = 0.0
    """When a barred job is tried again, at the latest."""
    home_only: bool = False
    """It is to start in its own VC: it comes from a profiling node, or Slurm would not start it on one."""
    stages: StageTimes | None = None
    """What it, or an earlier job of its kind, reported of one iteration alone. In a replay the predictor knows it."""


@dataclass(frozen=True, slots=True)
class Yields:
    """How a running job gives way to jobs of the partition in which it is seen: it is preempted where they claim its
    GPUs. Times in Unix seconds."""

    from_s: float = 0.0
    """Not before then."""
    to: tuple[Shown, ...] | None = None
    """Only to jobs of these QOS; ``None``: to every job of the partition."""
    ends: bool = False
    """It is cancelled then, not put back into the queue."""
    saves: bool = False
    """It saves its work when it is told to stop, and goes on from there."""
    going: bool = False
    """Another job has claimed GPUs of it already."""

    @property
    def to_all(self) -> bool:
        """Does it give way to every job of the partition?"""
        return self.to is None

    def lets(self, job: Job, now_s: float) -> bool:
        """May this job preempt it now?"""
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
    """Ids of the jobs that take turns on these GPUs, itself among them; empty unless there are several."""
    work: Work | None = None
    restart_s: float | None = None
    """Of an elastic job: what a restart is expected to cost it, s, as measured; ``None`` in a replay, where policies
    go by their own settings."""
    stages: StageTimes | None = None
    """As of a pending job."""
    in_turns: tuple[float, int] | None = None
    """What it reported of its group: seconds of one iteration, waiting for turns included, and how many jobs take
    turns there."""
    yields: Yields | None = None
    """``None`` for a job that jobs of this partition may not preempt, as for the partition's own."""

    @property
    def gpus(self) -> int:
        """GPUs that it holds: those it asked for, unless it is elastic."""
        return self.job.gpus if self.job.elastic is None else placement_gpus(self.placement)

    def elapsed_s(self, now_s: float) -> float:
        """Wall seconds since this run began; 0 while its nodes boot, when ``start_s`` lies ahead."""
        return max(now_s - self.start_s, 0.0)


@dataclass(frozen=True, slots=True)
class Ended:
    """A job that has left the system, as accounting reports it."""

    job: Job
    end_s: float
    ran_s: float
    state: str = "COMPLETED"
    profile: JobProfile | None = None
    """What was measured of it, if it was."""

    @property
    def ran(self) -> bool:
        """Did its program run? One for which Slurm found no node, or that its node could not start, says nothing of
        how long such jobs take; neither does one that Slurm, which counts whole seconds, gives 0 s."""
        return self.ran_s > 0 and self.state not in _NEVER_RAN


Restarts = Literal["never", "asked", "allowed"]
"""``policy.profiling.restarts``: Lucid starts over no job; jobs that asked for it; all jobs that do not forbid it."""


def may_restart(job: Job, rule: Restarts) -> Requeueable:
    """May Lucid take this job off its GPUs and start it over?"""
    return Requeueable(job.requeueable, rule, job.restart_asked)
