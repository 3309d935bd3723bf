"""How busy a VC is about to be, from when its jobs came before: seasonal means, the plainest forecast."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping

from lucid.core.arrivals import ArrivalForecast
from lucid.core.job import Job
from lucid.models.throughput.bins import BIN_S

__all__ = ["ArrivalForecaster"]

_HOUR = 6
_DAY, _WEEK = 24 * _HOUR, 7 * 24 * _HOUR
_RECENT = 2 * _HOUR

Counts = Mapping[int, float]


class ArrivalForecaster:
    """GPUs that each VC's users are about to submit, per hour.

    The larger of two rates: that of the last two hours, and the mean of the three hours around the same time of
    day yesterday and a week ago, as far as the past reaches. The larger one, because a forecast that is too low
    turns sharing off just when it is needed; so where either says that work is coming, work is coming.

    ``profiled`` says which jobs go through profiling nodes: they are forecast by themselves as well.
    """

    name = "seasonal means"

    def __init__(self, profiled: Callable[[Job], bool] = lambda _: False) -> None:
        self._profiled = profiled
        self._gpus: defaultdict[str, defaultdict[int, float]] = defaultdict(lambda: defaultdict(float))
        self._to_profile: defaultdict[int, float] = defaultdict(float)
        self._first: int | None = None
        self._made_for: int | None = None
        self._made = ArrivalForecast(self.name)

    def saw(self, job: Job) -> None:
        """Take in a job when it is first seen. Called once for each."""
        at = math.floor(job.submit_s / BIN_S)
        self._first = at if self._first is None else min(self._first, at)
        self._gpus[job.vc][at] += job.gpus
        if self._profiled(job):
            self._to_profile[at] += job.gpus

    def forecast(self, now_s: float) -> ArrivalForecast:
        """From whole bins before ``now_s`` alone; the same object until the next bin begins."""
        at = math.floor(now_s / BIN_S)
        if at != self._made_for:
            self._made_for = at
            rates = {vc: self._rate(bins, at) for vc, bins in self._gpus.items()}
            self._made = ArrivalForecast(self.name, rates, self._rate(self._to_profile, at))
            for bins in (*self._gpus.values(), self._to_profile):
                for old in [b for b in bins if b < at - _WEEK - 2 * _HOUR]:
                    del bins[old]
        return self._made

    def week(self) -> tuple[dict[str, float], float]:
        """GPUs submitted in the week before the last forecast: by VC, and to profiling nodes."""
        return {vc: sum(bins.values()) for vc, bins in self._gpus.items()}, sum(self._to_profile.values())

    def _rate(self, bins: Counts, at: int) -> float:
        recent = sum(bins.get(b, 0) for b in range(at - _RECENT, at)) * _HOUR / _RECENT
        first = self._first if self._first is not None else at
        before = [
            sum(bins.get(b, 0) for b in range(at - lag - _HOUR, at - lag + 2 * _HOUR)) / 3
            for lag in (_DAY, _WEEK)
            if at - lag - _HOUR >= first
        ]
        return max(recent, sum(before) / len(before) if before else 0.0)
