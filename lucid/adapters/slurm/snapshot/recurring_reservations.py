"""When a reservation comes again: Slurm moves a daily one on by a day of slurmctld's local time when it ends."""

from __future__ import annotations

import time
from collections.abc import Iterator

from lucid.adapters.slurm.records.reservations import Reservation

__all__ = ["times_of"]

_MOST = 12
_AHEAD_S = 15 * 86400.0
"""Of those that come again so many are looked at, so far ahead; the first always."""
_SATURDAY, _SUNDAY = 5, 6


def times_of(one: Reservation, now_s: float) -> list[tuple[float, float]]:
    """From when until when it lasts, Unix seconds, what is over left out."""
    found: list[tuple[float, float]] = []
    for start_s, end_s in _each(one):
        if len(found) >= _MOST or (found and start_s > now_s + _AHEAD_S):
            break
        if end_s > now_s:
            found.append((start_s, end_s))
    return found


def _each(one: Reservation) -> Iterator[tuple[float, float]]:
    yield one.start_s, one.end_s
    if not one.flags & {"HOURLY", "DAILY", "WEEKDAY", "WEEKEND", "WEEKLY"}:
        return
    days = hours = 0
    for _ in range(24 * 400):  # Slurm shows one that is in force or to come: more have never passed
        weekday = time.localtime(_later(one.start_s, days, hours)).tm_wday
        if "HOURLY" in one.flags:
            hours += 1
        elif "WEEKLY" in one.flags:
            days += 7
        elif "WEEKDAY" in one.flags:
            days += 3 if weekday == _SATURDAY - 1 else 2 if weekday == _SATURDAY else 1
        elif "WEEKEND" in one.flags:
            days += 1 if weekday == _SATURDAY else 6 if weekday == _SUNDAY else _SATURDAY - weekday
        else:
            days += 1
        yield _later(one.start_s, days, hours), _later(one.end_s, days, hours)


def _later(at_s: float, days: int, hours: int) -> float:
    """By the local calendar: a day is 23 hours long when the clocks go forward."""
    moment = time.localtime(at_s)
    moved = (*moment[:2], moment.tm_mday + days, moment.tm_hour + hours, *moment[4:8], -1)
    return time.mktime(moved)
