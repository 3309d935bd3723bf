"""When people submit: by hour of the day, day of the week, and chance."""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate
from random import Random

from lucid.simulator.traces.synth.settings import SynthSettings

__all__ = ["HOURLY", "Rhythm", "working_hour"]

HOURLY = (
    *(0.34, 0.27, 0.22, 0.19, 0.18, 0.20, 0.26, 0.40),
    *(0.62, 0.95, 1.22, 1.25, 0.86, 1.04, 1.40, 1.50),
    *(1.48, 1.36, 0.98, 0.92, 0.95, 0.88, 0.70, 0.50),
)
"""Relative rate of submission by hour of a weekday: low at night, dips at noon and in the early evening."""


def working_hour(at_s: float) -> bool:
    """Between nine and seven on a weekday? Second 0 is a Monday, midnight."""
    return at_s // 86400 % 7 < 5 and 9 <= at_s % 86400 / 3600 < 19


class Rhythm:
    """Times of a non-homogeneous Poisson process whose rate is constant within each hour.

    Given how many there are, such times are independent draws from the rate taken as a density; that is how
    they are drawn, so that the number of jobs is exact.
    """

    def __init__(self, settings: SynthSettings, rng: Random) -> None:
        self._end_s = settings.days * 86400.0
        hours = -(-self._end_s // 3600)
        noise = [rng.lognormvariate(0.0, settings.day_noise) for _ in range(int(hours // 24) + 1)]
        rates = []
        for hour in range(int(hours)):
            day = hour // 24
            rate = HOURLY[hour % 24] * noise[day] * (settings.weekend if day % 7 >= 5 else 1.0)
            storm = settings.storm
            if storm is not None and storm.start_h <= hour < storm.start_h + storm.hours:
                rate *= storm.factor
            rates.append(rate * min(1.0, (self._end_s - hour * 3600) / 3600))
        self._sums = list(accumulate(rates))

    def draw(self, rng: Random) -> float:
        """One time, seconds from the start."""
        at = rng.random() * self._sums[-1]
        hour = min(bisect_right(self._sums, at), len(self._sums) - 1)
        before = self._sums[hour - 1] if hour else 0.0
        part = (at - before) / (self._sums[hour] - before) if self._sums[hour] > before else 0.0
        return hour * 3600.0 + part * min(3600.0, self._end_s - hour * 3600.0)
