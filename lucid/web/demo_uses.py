"""What samplers would have told of the demonstration's jobs: most work, and some waste GPU-hours as people do."""

from __future__ import annotations

from pathlib import Path

from lucid.adapters.gpu.profile_files import write_summary
from lucid.core.job import Job
from lucid.profiler.summary import Summary
from lucid.profiler.use import GpuUse, IdleStretch

__all__ = ["DemoUses"]

_WORKS = 0.97
"""Share of an ordinary job's time in which its GPUs work."""
_LEAST_S = 1800.0
"""Shorter jobs waste nothing."""


class DemoUses:
    """Writes a summary of each job into the folder that samplers write to. Every 17th job stops working half-way,
    every 19th does nothing at first, and every 13th of several GPUs leaves one of them alone."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def write(self, job: Job, begin_s: float, end_s: float) -> None:
        """One run of a job, up to ``end_s``."""
        ran_s, number = end_s - begin_s, job.rank
        if ran_s <= 0:
            return
        stretch: tuple[float, float] | None = None
        if ran_s >= _LEAST_S and number % 17 == 0:
            stretch = begin_s + 0.55 * ran_s, end_s
        elif ran_s >= _LEAST_S and number % 19 == 0:
            stretch = begin_s, begin_s + 0.4 * ran_s
        uses = []
        for gpu in range(job.gpus):
            idle = stretch
            if gpu == job.gpus - 1 > 0 and number % 13 == 0 and ran_s >= _LEAST_S:
                idle = begin_s, end_s
            idle_s = 0.0 if idle is None else idle[1] - idle[0]
            stretches = () if idle is None else (IdleStretch(*idle),)
            uses.append(GpuUse(f"GPU-{gpu}", begin_s, end_s, ran_s, _WORKS * (ran_s - idle_s), stretches))
        gpus = tuple(use.gpu for use in uses)
        write_summary(self._folder, Summary(job.id, "demo", gpus, begin_s, end_s, int(ran_s), use=tuple(uses)))
