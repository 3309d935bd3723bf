"""Pauses that double with each failure: the one place where a count becomes a power."""

from __future__ import annotations

__all__ = ["doubled_s"]

_ENOUGH = 64
"""2^64 s is longer than anything waits. A float overflows at 2^1024, and a count of failures gets there in days."""


def doubled_s(first_s: float, times: int, most_s: float) -> float:
    """``first_s`` doubled so many times; ``most_s`` at the most."""
    return min(first_s * 2.0 ** min(times, _ENOUGH), most_s)
