"""Rounding of times; pauses that double.

Comparisons of computed times and shares: what should be equal may miss it by a rounding error.

A plan made anew at ``start + estimate`` may come out a hair before that time, and 3 x 0.7 s is short of 2.1 s.

Pauses that double with each failure: the one place where a count becomes a power.
"""

from __future__ import annotations

import math

ROUNDING = 1e-6
"""Differences up to this count as none: in seconds, as a share, or as a part of an interval."""


def reached(value: float, bound: float) -> bool:
    """Is the value at least the bound?"""
    return value >= bound - ROUNDING


def past(value: float, bound: float) -> bool:
    """Is the value greater than the bound?"""
    return value > bound + ROUNDING


def next_round_s(now_s: float, interval_s: float) -> float:
    """The next multiple of the interval; ``now_s`` itself at one."""
    at_s = math.ceil(now_s / interval_s - ROUNDING) * interval_s
    return at_s if past(at_s / interval_s, now_s / interval_s) else now_s


_ENOUGH = 64
"""2^64 s is longer than anything waits. A float overflows at 2^1024, and a count of failures gets there in days."""


def doubled_s(first_s: float, times: int, most_s: float) -> float:
    """``first_s`` doubled so many times; ``most_s`` at the most."""
    return min(first_s * 2.0 ** min(times, _ENOUGH), most_s)
