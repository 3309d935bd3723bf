"""How much device memory each job of a pair may take (what MPS is told when the job starts)."""

from __future__ import annotations

from math import ceil
from typing import Final

from lucid.core.job import JobProfile

__all__ = ["memory_limit_mib"]

_SLACK_SHARE: Final = 1.1
_CONTEXT_MIB: Final = 512


def memory_limit_mib(profile: JobProfile | None, capacity_mib: float) -> int | None:
    """MiB that a job may take on each of its GPUs of ``capacity_mib`` (CUDA_MPS_PINNED_DEVICE_MEM_LIMIT);
    ``None``: no limit.

    The limit is the job's peak (predicted where it grows) and a tenth, and 512 MiB for its context. A job that takes
    more than it showed then fails by itself instead of taking its partner along. A job without a profile has no
    limit, since its need is unknown, and none is set where it would be the whole card.
    """
    if profile is None or profile.gpu_mem_mib <= 0:
        return None
    wanted = ceil(profile.gpu_mem_mib * _SLACK_SHARE) + _CONTEXT_MIB
    return wanted if wanted < capacity_mib else None
