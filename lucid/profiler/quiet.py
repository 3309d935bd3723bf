"""Since when a job does nothing: no kernel on its GPUs, and next to nothing on its CPUs and of its storage.

Stricter than the account of use (``lucid.profiler.use``): a job that loads its data, or compiles, is at work. And
quick to see that it wakes: beside another job under MPS nobody can tell whose kernels run, so CPU time tells it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from lucid.core.job import Idle
from lucid.profiler.samples import GpuSample
from lucid.profiler.shares import HostUse
from lucid.profiler.use import WORKING_UTIL, own_use

__all__ = ["QuietMeter"]

_WAKES: Final = 1.0
"""So much work wakes it: seconds of one core, of waiting for storage, or in which a GPU works."""
_FADES: Final = 0.1
"""So much of it is forgotten a second: a notebook that saves itself, or a health check, wakes nobody."""
_MOST: Final = 2.0
"""More is not remembered: 20 s without work, and it is quiet again."""
_BLIND_S: Final = 10.0
"""After so long without a reading of its CPUs or its GPUs it counts as awake."""


class QuietMeter:
    """Takes a run's samples as they come. ``earlier``: what a sampler before this one found of the same run."""

    def __init__(self, earlier: Idle | None = None) -> None:
        self._since_s = None if earlier is None else earlier.since_s
        self._mem_mib = None if earlier is None else earlier.mem_mib
        self._work = 0.0
        self._last_s: float | None = None
        self._seen_s: float | None = None

    @property
    def idle(self) -> Idle | None:
        """Since when it does nothing; ``None`` while it does something, or where that cannot be told."""
        if self._since_s is None or self._mem_mib is None:
            return None
        return Idle(self._since_s, self._mem_mib)

    def add(self, gpus: Sequence[GpuSample], host: HostUse | None, at_s: float) -> bool:
        """One sample. Did the job wake with it?"""
        step_s, self._last_s = at_s - (at_s if self._last_s is None else self._last_s), at_s
        held = [part.own_mib if part.own_mib is not None or part.shared else part.mem_mib for part in gpus]
        self._mem_mib = max((mib for mib in (*held, self._mem_mib) if mib is not None), default=None)
        was = self.idle is not None
        if self._seen_s is None:
            self._seen_s = at_s
        if host is None or any(part.lost for part in gpus) or not gpus:
            if at_s - self._seen_s > _BLIND_S:
                self._since_s = None
            return was and self.idle is None
        if not 0.0 <= at_s - self._seen_s <= _BLIND_S:
            self._since_s, step_s = None, 0.0
        self._seen_s = at_s
        works = any((own_use(part) or 0.0) > WORKING_UTIL for part in gpus)
        done = (host.busy_cores + (host.storage or 0.0) + works) * step_s
        self._work = min(max(self._work + done - _FADES * step_s, 0.0), _MOST)
        if self._work >= _WAKES:
            self._since_s = None
        elif self._since_s is None and not self._work and step_s > 0.0:
            self._since_s = at_s
        return was and self.idle is None
