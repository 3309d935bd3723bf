"""What each job of a pair may take of its GPUs (what MPS is told when the job starts)."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Final

from lucid.core.job import JobProfile

__all__ = ["Fence", "fence"]

_SLACK_SHARE: Final = 1.1
_CONTEXT_MIB: Final = 512
_EXPECTED_CLIENTS: Final = 2


@dataclass(frozen=True, slots=True)
class Fence:
    """Limits of one job under MPS: device memory on each of its GPUs in MiB (CUDA_MPS_PINNED_DEVICE_MEM_LIMIT),
    and a ceiling on the share of SMs in percent (CUDA_MPS_ACTIVE_THREAD_PERCENTAGE; 100 is none). ``None``: not
    limited."""

    mem_mib: int | None
    threads_percent: int


def fence(profile: JobProfile | None, capacity_mib: float) -> Fence:
    """The limits of a job that may be shared.

    Memory: its peak (foretold where it grows) and a tenth, and 512 MiB for its context, so that a job which takes
    more than it showed fails by itself instead of taking its partner along; nothing for a job without a profile,
    for nobody knows what it needs, nor where the fence would be the whole card.

    SMs: no ceiling. NVIDIA's guide recommends 100 % / (0.5 n) for n clients, so that idle SMs of one serve the
    other; for the two of a pair that is 100.
    """
    threads = min(100, ceil(100 / (0.5 * _EXPECTED_CLIENTS)))
    if profile is None or profile.gpu_mem_mib <= 0:
        return Fence(None, threads)
    wanted = ceil(profile.gpu_mem_mib * _SLACK_SHARE) + _CONTEXT_MIB
    return Fence(wanted if wanted < capacity_mib else None, threads)
