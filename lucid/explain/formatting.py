"""Durations, moments and counts in words."""

from __future__ import annotations

import time


def duration(seconds: float) -> str:
    """Seconds as people say them: ``80 s``, ``2.5 min``, ``12 min``, ``3.4 h``, ``5.2 d``. A unit begins where two
    digits tell enough: 80 s are not "1 min"."""
    for unit, size, least in (("d", 86400.0, 2 * 86400.0), ("h", 3600.0, 3600.0), ("min", 60.0, 120.0)):
        if abs(seconds) >= least:
            value = seconds / size
            whole = unit == "min" and abs(value) >= 10
            return f"{value:.0f} {unit}" if whole else f"{value:.1f} {unit}".replace(".0 min", " min")
    return f"{seconds:.0f} s"


_CLOCKS_AGREE_S = 5.0


def ago(seconds: float) -> str:
    """``2 min ago``. A stored time may be by another host's clock: where that is ahead, the difference is given
    instead of an age."""
    if seconds < -_CLOCKS_AGREE_S:
        return f"{duration(-seconds)} from now: the clock that wrote it and this one differ"
    return f"{duration(max(seconds, 0.0))} ago"


_UNIX_TIME_S = 1e9
"""Times from this on (2001) are Unix time: no trace is as long."""


def when(at_s: float) -> str:
    """A moment in words: for trace time day, hours, minutes and seconds since its start; for Unix time, which only a
    live daemon has, the date and the local time of day."""
    if at_s >= _UNIX_TIME_S:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at_s))
    days, rest = divmod(round(at_s), 86400)
    hours, rest = divmod(rest, 3600)
    minutes, seconds = divmod(rest, 60)
    return f"day {days} {hours:02}:{minutes:02}:{seconds:02}"


def gpus(count: int) -> str:
    """``1 GPU``, ``4 GPUs``."""
    return f"{count} GPU" if count == 1 else f"{count} GPUs"


def jobs(count: int, verb: str) -> str:
    """``1 job waits``, ``2 jobs wait``."""
    return f"1 job {verb}s" if count == 1 else f"{count} jobs {verb}"
