"""Comparisons of computed times and shares: what should be equal may miss it by a rounding error.

A plan made anew at ``start + estimate`` may come out a hair before that time, and 3 x 0.7 s is short of 2.1 s.
"""

from __future__ import annotations

import math

__all__ = ["ROUNDING", "next_round_s", "past", "reached"]

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
