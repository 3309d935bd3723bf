"""Slurm's own ways of writing durations, sizes and trackable resources (TRES)."""

from __future__ import annotations

import math
import re

__all__ = ["elapsed_s", "mem_mib", "tres"]

_NUMBER = "([0-9]{1,12})"
_ELAPSED = re.compile(rf"(?:{_NUMBER}-)?(?:{_NUMBER}:)?{_NUMBER}:{_NUMBER}(?:\.[0-9]+)?")
_DAYS_HOURS = re.compile(rf"{_NUMBER}-{_NUMBER}(?::{_NUMBER})?")
_SIZE = re.compile(r"([0-9]{1,15}(?:\.[0-9]*)?)([KMGTP]?)([nc]?)", re.IGNORECASE)
_MIB = {"K": 1 / 1024, "": 1.0, "M": 1.0, "G": 1024.0, "T": 1024.0**2, "P": 1024.0**3}


def elapsed_s(text: str) -> float | None:
    """Seconds of ``[days-][hours:]minutes:seconds`` or ``days-hours[:minutes]``; ``None`` if it is neither."""
    found = _DAYS_HOURS.fullmatch(text)
    if found:
        days, hours, minutes = (int(part or 0) for part in found.groups())
        return ((days * 24 + hours) * 60 + minutes) * 60.0
    found = _ELAPSED.fullmatch(text)
    if found:
        days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
        return ((days * 24 + hours) * 60 + minutes) * 60.0 + seconds
    return None


def mem_mib(text: str, nodes: int, cpus: int) -> int | None:
    """MiB over the whole job of ``48000Mn`` (per node), ``4Gc`` (per CPU) or ``16G`` (in all), rounded up;
    ``None`` if the text is no size."""
    found = _SIZE.fullmatch(text)
    if found is None:
        return None
    amount, unit, scope = found.groups()
    times = {"n": max(nodes, 1), "c": max(cpus, 1)}.get(scope.lower(), 1)
    return math.ceil(float(amount) * _MIB[unit.upper()] * times)


def tres(text: str) -> dict[str, str] | None:
    """``cpu=4,mem=16G,gres/gpu:a100=2`` as a mapping; ``None`` if a part of it has no ``=``."""
    pairs = [part.split("=", 1) for part in text.split(",") if part]
    if any(len(pair) != 2 for pair in pairs):
        return None
    return {pair[0].strip(): pair[1].strip() for pair in pairs}
