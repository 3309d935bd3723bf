"""How busy a VC is about to be, from when its jobs came before: the plainest forecast of throughput."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping

from lucid.core.job import Job

__all__ = ["BIN_S", "ArrivalForecaster"]

BIN_S = 600.0
"""Ten minutes, the bin of the published throughput data."""

_HOUR = 6
_DAY, _WEEK = 24 * _HOUR, 7 * 24 * _HOUR
_RECENT = 2 * _HOUR


class ArrivalForecaster:
    """GPUs that each VC's users are about to submit, per hour.

    The larger of two rates: that of the last two hours, and the mean of the three hours around the same time of
    day yesterday and a week ago, as far as the past reaches. The larger one, because a forecast that is too low
    turns sharing off just when it is needed; so where either says that work is coming, work is coming.
    """

    def __init__(self) -> None:
        self._gpus: defaultdict[str, defaultdict[int, int]] = defaultdict(lambda: defaultdict(int))
        self._first: int | None = None
        self._made_for: int | None = None
        self._rates: Mapping[str, float] = {}

    def saw(self, job: Job) -> None:
        """Take in a job when it is first seen. Called once for each."""
        at = math.floor(job.submit_s / BIN_S)
        self._first = at if self._first is None else min(self._first, at)
        self._gpus[job.vc][at] += job.gpus

    def gpus_per_hour(self, now_s: float) -> Mapping[str, float]:
        """By VC, from whole bins before ``now_s`` alone; the same object until the next bin begins."""
        at = math.floor(now_s / BIN_S)
        if at != self._made_for:
            self._made_for = at
            self._rates = {vc: self._rate(bins, at) for vc, bins in self._gpus.items()}
            for bins in self._gpus.values():
                for old in [b for b in bins if b < at - _WEEK - 2 * _HOUR]:
                    del bins[old]
        return self._rates

    def _rate(self, bins: Mapping[int, int], at: int) -> float:
        recent = sum(bins.get(b, 0) for b in range(at - _RECENT, at)) * _HOUR / _RECENT
        first = self._first if self._first is not None else at
        before = [
            sum(bins.get(b, 0) for b in range(at - lag - _HOUR, at - lag + 2 * _HOUR)) / 3
            for lag in (_DAY, _WEEK)
            if at - lag - _HOUR >= first
        ]
        return max(recent, sum(before) / len(before) if before else 0.0)
