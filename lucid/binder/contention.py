"""The contention model: expected speeds of two jobs on the same GPUs, from profiles; and memory fences of pairs.

A stand-in where nothing has been measured. Each job is slowed by the work that falls into the time in which its
partner uses the same unit; for two jobs that use a unit independently with probability u and v, that is the product
u*v:

    speed = 1 / (1 + SM_COST * u_a * u_b + BANDWIDTH_COST * m_a * m_b)

with u the share of time a kernel runs and m the share of time device memory is busy (0..1). The two costs are the
least-squares fit, rounded to one digit, over both jobs of 1,388 published pairs on RTX 3090 (root mean square error
0.098 at a standard deviation of 0.125; of a pair's average 0.070 at 0.105; ``python -m benchmarks --only contention``
prints them): a guide to order of magnitude and to ranking, no measurement."""

from __future__ import annotations

from math import ceil
from typing import Final

from lucid.core.job import JobProfile
from lucid.core.prediction import score_of

SM_COST = 0.3
BANDWIDTH_COST = 0.4

_TYPICAL_PARTNER = JobProfile(gpu_util=60.0, mem_util=30.0, gpu_mem_mib=0.0)
"""The partner beside which share scores are judged: near the mean of the published single-job measurements."""


def contention_speeds(a: JobProfile, b: JobProfile) -> tuple[float, float]:
    """Expected normalised speeds of both; the model is symmetric, so they are equal."""
    speed = 1.0 / (1.0 + SM_COST * a.gpu_util * b.gpu_util * 1e-4 + BANDWIDTH_COST * a.mem_util * b.mem_util * 1e-4)
    return speed, speed


def contention_score(profile: JobProfile) -> int:
    """Share score by expected speed beside a typical partner."""
    return score_of(contention_speeds(profile, _TYPICAL_PARTNER)[0])


_SLACK_SHARE: Final = 1.1
_CONTEXT_MIB: Final = 512


def memory_limit_mib(profile: JobProfile | None, capacity_mib: float) -> int | None:
    """MiB that a job may take on each of its GPUs of ``capacity_mib`` (CUDA_MPS_PINNED_DEVICE_MEM_LIMIT); ``None``:
    no limit.

    The limit is the job's peak (predicted where it grows) and a tenth, and 512 MiB for its context. A job that takes
    more than its profile showed then fails by itself instead of taking its partner along. A job without a profile has
    no limit, since its need is unknown; nor is there one that would be the whole card."""
    if profile is None or profile.gpu_mem_mib <= 0:
        return None
    wanted = ceil(profile.gpu_mem_mib * _SLACK_SHARE) + _CONTEXT_MIB
    return wanted if wanted < capacity_mib else None
