"""Jobs, as far as the cluster can know them before they end."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from lucid.core.placement import Placement

__all__ = ["Ended", "Job", "JobProfile", "Pending", "Running", "Stage"]


class Stage(StrEnum):
    """Which of its two lives a running job is in."""

    PROFILE = "profile"
    """On a profiling node, sampled, for at most T_prof."""
    MAIN = "main"
    """On the nodes of its own VC (or carried on in place), until it ends."""


@dataclass(frozen=True, slots=True)
class Job:
    """What a user asked for. Fixed for the life of the job; holds nothing that Slurm could not tell.

    ``rank`` is the place among jobs with the same ``submit_s`` (Slurm's job number order).
    ``cpus`` and ``mem_mib`` are totals over the whole job; 0 means not asked for.
    """

    id: str
    vc: str
    gpus: int
    submit_s: float
    rank: int = 0
    user: str = ""
    account: str = ""
    name: str = ""
    cpus: int = 0
    mem_mib: int = 0
    time_limit_s: float | None = None
    amp: bool | None = None
    requeueable: bool = True
    long_cold_start: bool = False
    shareable: bool = True


@dataclass(frozen=True, slots=True)
class JobProfile:
    """What sampling one job alone showed, averaged over its GPUs.

    ``gpu_util`` and ``mem_util`` are percentages (0-100) of time in which a kernel ran, and in which device
    memory was read or written (NVML's definition); ``gpu_mem_mib`` is the peak on one GPU: seen, or where
    ``mem_growing`` the one foretold (lucid.profiler.summary).
    ``workload`` is an opaque label under which like jobs were measured before, if anybody knows one.
    The fields after it are ``None`` where nobody measured them.
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


@dataclass(frozen=True, slots=True)
class Running:
    """A job on its GPUs. ``partner`` is the other job on exactly the same GPUs, if any."""

    job: Job
    start_s: float
    placement: Placement
    stage: Stage = Stage.MAIN
    profile: JobProfile | None = None
    ran_s: float = 0.0
    restarts: int = 0
    partner: str | None = None
    alone: bool = False

    def elapsed_s(self, now_s: float) -> float:
        """Wall seconds since this run began."""
        return now_s - self.start_s


@dataclass(frozen=True, slots=True)
class Ended:
    """A job that has left the system, as accounting reports it."""

    job: Job
    end_s: float
    ran_s: float
    state: str = "COMPLETED"
