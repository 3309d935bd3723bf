"""When waiting jobs are expected to start, as lucidd foresaw it, and how that has changed since these pages run."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from lucid.live.plans.stored_starts import StartsAhead

__all__ = ["Ahead", "Forecasts"]

_POINTS = 24
"""Forecasts of one job's start that are remembered."""
_MOVED = 0.1
"""A forecast that differs by less, as a share of the wait, is no news."""
_LASTS_S = 600.0
"""A forecast that is older than the picture by more is shown no longer."""


@dataclass(frozen=True, slots=True)
class Ahead:
    """When waiting jobs are expected to start, as of ``at_s``. ``starts``: seconds until the start, early, likely and
    late, by job; ``None`` where no start is foreseen. ``ahead_s``, ``own_ahead_s``: as in ``Forecast``."""

    at_s: float
    ahead_s: float
    starts: Mapping[str, tuple[int, int, int] | None]
    own_ahead_s: Mapping[str, float] = field(default_factory=dict)

    def ahead_of(self, job_id: str) -> float:
        """How far ahead was planned where this job waits, s."""
        return self.own_ahead_s.get(job_id, self.ahead_s)

    def starts_in_s(self, job_id: str, now_s: float) -> tuple[int, int, int] | None:
        """The same as of ``now_s``."""
        found = self.starts.get(job_id)
        if found is None or found[1] == 0:
            return found
        passed = max(int(now_s - self.at_s), 0)
        early, likely, late = (max(value - passed, 1) for value in found)
        return early, likely, late


class Forecasts:
    """``ahead``: the last forecast of all starts; ``None`` where there is none, or it is too old."""

    def __init__(self) -> None:
        self.ahead: Ahead | None = None
        self._by_job: dict[str, deque[tuple[float, float, float, float]]] = {}

    def take(self, told: StartsAhead | None, now_s: float) -> None:
        """What holds of the picture of ``now_s``; ``None`` where lucidd has not foreseen all of it yet: what it
        foresaw before stands for a while. Jobs that wait no longer go."""
        if told is None:
            if self.ahead is not None and now_s - self.ahead.at_s > _LASTS_S:
                self.ahead = None
            return
        ahead = Ahead(told.at_s, told.ahead_s, told.starts_in_s, told.own_ahead_s)
        self.ahead = ahead
        for job_id in self._by_job.keys() - ahead.starts.keys():
            del self._by_job[job_id]
        for job_id, said in ahead.starts.items():
            if said is None:
                continue
            early, likely, late = (ahead.at_s + value for value in said)
            points = self._by_job.setdefault(job_id, deque(maxlen=_POINTS))
            if not points or abs(points[-1][2] - likely) > _MOVED * max(said[1], 60.0):
                points.append((ahead.at_s, early, likely, late))

    def of(self, job_id: str) -> Sequence[tuple[float, float, float, float]]:
        """When it was said, and the start: early, likely, late; oldest first."""
        return tuple(self._by_job.get(job_id, ()))
