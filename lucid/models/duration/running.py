"""Running statistics of finished jobs, as they stand now and as they stood at any earlier moment.

A job is judged by what was known when it was submitted, and that is asked for only when it has ended. So every
key knows the statistics after each of its jobs: looking them up by time gives the same answer whether or not
anybody predicted the job meanwhile, and the same after a restart.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left, insort
from collections.abc import Sequence
from typing import Final

__all__ = ["EMPTY", "STAT_NAMES", "Near", "Running"]

STAT_NAMES: Final = (
    *("count", "median", "upper", "spread", "last", "median3", "median11", "slow_mean", "fast_mean"),
    *("low_decile", "high_decile", "last_end_s"),
)
EMPTY: Final = (0.0, *([math.nan] * (len(STAT_NAMES) - 1)))
NEAR: Final = 1
"""Half octaves of time limit below and above a job's own that count as near it."""
FEWEST_NEAR: Final = 8
"""Users who must have had a job near a time limit before their median is taken: of three the median is a guess."""
# Oldest durations beyond this many per key are forgotten: bounds memory and insertion on years of history.
_WINDOW: Final = 20_000
_RECENT: Final = 11
# Weight of the newest duration in the two running means of log durations: some 50 and some 10 jobs of memory.
_SLOW: Final = 0.02
_FAST: Final = 0.1
_WIDTH: Final = len(STAT_NAMES)
_NEWEST: Final = 64
"""Jobs of a key after each of which the statistics are kept, at the least: most jobs are of so short a life."""


class Running:
    """Statistics of one key's log durations, in the order of `STAT_NAMES`. Those after each of the newest jobs are
    kept, as far back as is asked for; earlier ones are worked out again."""

    __slots__ = ("_ends", "_fast", "_newest", "_slow", "_sorted", "_states", "_values", "stats")

    def __init__(self) -> None:
        self._values, self._sorted = array("d"), array("d")
        self._ends, self._slow, self._fast, self._states = array("d"), array("d"), array("d"), array("d")
        self._newest = _NEWEST
        self.stats: tuple[float, ...] = EMPTY

    def add(self, value: float, end_s: float) -> None:
        """Add the log duration of a job that ended at `end_s`."""
        slow = self._slow[-1] + _SLOW * (value - self._slow[-1]) if self._slow else value
        fast = self._fast[-1] + _FAST * (value - self._fast[-1]) if self._fast else value
        self._values.append(value)
        insort(self._sorted, value)
        if len(self._sorted) > _WINDOW:
            del self._sorted[bisect_left(self._sorted, self._values[-_WINDOW - 1])]
        self.stats = _stats(self._sorted, self._values[-_RECENT:], slow, fast, end_s)
        for kept, last in ((self._ends, end_s), (self._slow, slow), (self._fast, fast)):
            kept.append(last)
            if len(kept) > 2 * _WINDOW:
                del kept[:_WINDOW]
        if len(self._values) > 3 * _WINDOW:  # each statistic that can be asked for has its window
            del self._values[:_WINDOW]
        self._states.extend(self.stats)
        if len(self._states) > 2 * self._newest * _WIDTH:
            del self._states[: -self._newest * _WIDTH]

    def at(self, time_s: float) -> tuple[float, ...]:
        """The statistics of the jobs that had ended before `time_s` (`EMPTY`: none had)."""
        known = bisect_left(self._ends, time_s)
        if not known:
            return EMPTY
        since = len(self._ends) - known
        self._newest = max(self._newest, 2 * (since + 1))
        state = len(self._states) - (since + 1) * _WIDTH
        if state >= 0:
            return tuple(self._states[state : state + _WIDTH])
        upto = len(self._values) - since
        values = self._values[max(upto - _WINDOW, 0) : upto]
        return _stats(
            sorted(values), values[-_RECENT:], self._slow[known - 1], self._fast[known - 1], self._ends[known - 1]
        )


def _stats(
    ordered: Sequence[float], recent: Sequence[float], slow: float, fast: float, end_s: float
) -> tuple[float, ...]:
    upper = _quantile(ordered, 0.75)
    return (
        float(len(ordered)),
        _median(ordered),
        upper,
        upper - _quantile(ordered, 0.25),
        recent[-1],
        _median(sorted(recent[-3:])),
        _median(sorted(recent)),
        slow,
        fast,
        _quantile(ordered, 0.1),
        _quantile(ordered, 0.9),
        end_s,
    )


class Near:
    """What users' jobs with a time limit like a given one took, each user with one voice.

    A voice is the median of one user's jobs whose limits lie in one half octave. The next new user is one more user,
    not one more job of a busy one.
    """

    def __init__(self) -> None:
        self._voices: dict[int, dict[str | None, array[float]]] = {}

    def add(self, user: str | None, limit_s: float, value: float) -> None:
        """Add one log duration of a job with this limit; without a limit nothing is kept."""
        if limit_s > 0.0 and math.isfinite(limit_s):
            voice = self._voices.setdefault(_octave(limit_s), {}).setdefault(user, array("d"))
            insort(voice, value)
            if len(voice) > 2 * _WINDOW:
                del voice[::2]  # the median stays where it is

    def median(self, limit_s: float) -> tuple[float, float]:
        """The median over the voices near a limit, in logs, and how many users they are; NaN of fewer than eight."""
        if not (limit_s > 0.0 and math.isfinite(limit_s)):
            return math.nan, 0.0
        at = _octave(limit_s)
        near = [self._voices[place] for place in range(at - NEAR, at + NEAR + 1) if place in self._voices]
        users = float(len({user for voices in near for user in voices}))
        if users < FEWEST_NEAR:
            return math.nan, users
        return _median(sorted(_median(values) for voices in near for values in voices.values())), users


def _octave(limit_s: float) -> int:
    return round(2.0 * math.log2(limit_s))


def _median(ordered: Sequence[float]) -> float:
    # The mean of the middle two is taken in seconds, as the running-median baseline takes it.
    size = len(ordered)
    low, high = ordered[(size - 1) // 2], ordered[size // 2]
    return low if low == high else math.log(0.5 * (math.exp(low) + math.exp(high)))


def _quantile(ordered: Sequence[float], level: float) -> float:
    return ordered[min(int(level * len(ordered)), len(ordered) - 1)]
