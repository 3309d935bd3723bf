"""Running statistics of finished jobs, as they stand now and as they stood at any earlier moment.

A job is judged by what was known when it was submitted, and that is asked for only when it has ended. So every
key keeps the statistics after each of its jobs: looking them up by time gives the same answer whether or not
anybody predicted the job meanwhile, and the same after a restart.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left, insort
from collections import deque
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


class Running:
    """Statistics of one key's log durations, in the order of `STAT_NAMES`."""

    __slots__ = ("_ends", "_fast", "_order", "_recent", "_slow", "_sorted", "_states", "stats")

    def __init__(self) -> None:
        self._order: deque[float] = deque()
        self._sorted: list[float] = []
        self._recent: deque[float] = deque(maxlen=_RECENT)
        self._slow = self._fast = math.nan
        self._ends = array("d")
        self._states = array("d")
        self.stats: tuple[float, ...] = EMPTY

    def add(self, value: float, end_s: float) -> None:
        """Add the log duration of a job that ended at `end_s`."""
        self._order.append(value)
        insort(self._sorted, value)
        self._recent.append(value)
        first = len(self._order) == 1
        self._slow = value if first else self._slow + _SLOW * (value - self._slow)
        self._fast = value if first else self._fast + _FAST * (value - self._fast)
        if len(self._order) > _WINDOW:
            del self._sorted[bisect_left(self._sorted, self._order.popleft())]
        recent, ordered = list(self._recent), self._sorted
        upper = _quantile(ordered, 0.75)
        self.stats = (
            float(len(ordered)),
            _median(ordered),
            upper,
            upper - _quantile(ordered, 0.25),
            value,
            _median(sorted(recent[-3:])),
            _median(sorted(recent)),
            self._slow,
            self._fast,
            _quantile(ordered, 0.1),
            _quantile(ordered, 0.9),
            end_s,
        )
        self._ends.append(end_s)
        self._states.extend(self.stats)
        if len(self._ends) > 2 * _WINDOW:
            del self._ends[:_WINDOW]
            del self._states[: _WINDOW * _WIDTH]

    def at(self, time_s: float) -> tuple[float, ...]:
        """The statistics of the jobs that had ended before `time_s` (`EMPTY`: none had)."""
        known = bisect_left(self._ends, time_s)
        return tuple(self._states[(known - 1) * _WIDTH : known * _WIDTH]) if known else EMPTY


class Near:
    """What users' jobs with a time limit like a given one took, each user with one voice.

    A voice is the median of one user's jobs whose limits lie in one half octave. The next new user is one more user,
    not one more job of a busy one.
    """

    def __init__(self) -> None:
        self._voices: dict[int, dict[str | None, list[float]]] = {}

    def add(self, user: str | None, limit_s: float, value: float) -> None:
        """Add one log duration of a job with this limit; without a limit nothing is kept."""
        if limit_s > 0.0 and math.isfinite(limit_s):
            insort(self._voices.setdefault(_octave(limit_s), {}).setdefault(user, []), value)

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
