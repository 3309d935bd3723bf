"""Comparisons of times that allow for rounding errors, and pauses that double with each failure.

Times that should be equal may differ by a rounding error: a plan made anew at ``start + estimate`` may come out a
hair before that time, and 3 x 0.7 s is short of 2.1 s."""

from __future__ import annotations

import math

DAY_S = 86400.0
ROUNDING = 1e-6
"""Differences up to this are none: in seconds, as a share, or as a part of an interval."""


def reached(value: float, bound: float) -> bool:
    """Whether the value is at least the bound."""
    return value >= bound - ROUNDING


def past(value: float, bound: float) -> bool:
    """Whether the value is greater than the bound."""
    return value > bound + ROUNDING


def next_round_s(now_s: float, interval_s: float) -> float:
    """The next multiple of the interval, or ``now_s`` itself if it is one."""
    at_s = math.ceil(now_s / interval_s - ROUNDING) * interval_s
    return at_s if past(at_s / interval_s, now_s / interval_s) else now_s


_ENOUGH = 64
"""Most doublings: 2^64 s is longer than anything waits. A float overflows at 2^1024, and a count of failures gets
there in days."""


def doubled_s(first_s: float, times: int, most_s: float) -> float:
    """``first_s`` doubled ``times`` times, at most ``most_s``."""
    return min(first_s * 2.0 ** min(times, _ENOUGH), most_s)
