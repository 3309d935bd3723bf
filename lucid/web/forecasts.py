"""When waiting jobs are expected to start, as lucidd foresaw it, and how that has changed since these pages run."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from lucid.live.plans.stored_starts import StartsAhead

__all__ = ["Forecasts"]

_POINTS = 24
"""Forecasts of one job's start that are remembered."""
_MOVED = 0.1
"""A forecast that differs by less, as a share of the wait, is no news."""
_LASTS_S = 600.0
"""A forecast that is older than the picture by more is shown no longer."""


class Forecasts:
    """``ahead``: the last forecast of all starts; ``None`` where there is none, or it is too old."""

    def __init__(self) -> None:
        self.ahead: StartsAhead | None = None
        self._by_job: dict[str, deque[tuple[float, float, float, float]]] = {}

    def take(self, told: StartsAhead | None, now_s: float) -> None:
        """What holds of the picture of ``now_s``; ``None`` where lucidd has not foreseen all of it yet: what it
        foresaw before stands for a while. Jobs that wait no longer go."""
        if told is None:
            if self.ahead is not None and now_s - self.ahead.at_s > _LASTS_S:
                self.ahead = None
            return
        self.ahead = told
        for job_id in self._by_job.keys() - told.starts_in_s.keys():
            del self._by_job[job_id]
        for job_id, said in told.starts_in_s.items():
            if said is None:
                continue
            early, likely, late = (told.at_s + value for value in said)
            points = self._by_job.setdefault(job_id, deque(maxlen=_POINTS))
            if not points or abs(points[-1][2] - likely) > _MOVED * max(said[1], 60.0):
                points.append((told.at_s, early, likely, late))

    def of(self, job_id: str) -> Sequence[tuple[float, float, float, float]]:
        """When it was said, and the start: early, likely, late; oldest first."""
        return tuple(self._by_job.get(job_id, ()))
