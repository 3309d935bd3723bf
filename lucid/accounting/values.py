"""How Slurm writes job numbers, durations, time limits, sizes, trackable resources (TRES) and job states.

States are those that ``sacct`` and ``squeue`` of 24.11 to 26.05 name."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

JOB_NUMBER = re.compile("[0-9]{1,12}([_+][0-9]{1,9})?")
"""The number of a job, a task of an array (``49469_3``), or a part of a heterogeneous job (``49469+1``)."""

NO_TIME = frozenset({"", "unknown", "none", "n/a"})
"""Words for an unknown time, in lower case."""
_NO_LIMIT = NO_TIME | {"unlimited", "infinite", "partition_limit", "invalid", "not_set"}

NO_LIMIT_S = 365 * 86400.0
"""Slurm's backfill scheduler writes this limit to a job that has none, nor its partition. Nobody asked for it."""

_NUMBER = "([0-9]{1,12})"
_ELAPSED = re.compile(rf"(?:{_NUMBER}-)?(?:{_NUMBER}:)?{_NUMBER}:{_NUMBER}(?:\.[0-9]+)?")
_DAYS_HOURS = re.compile(rf"{_NUMBER}-{_NUMBER}(?::{_NUMBER})?")
_SIZE = re.compile(r"([0-9]{1,15}(?:\.[0-9]*)?)([KMGTP]?)([nc]?)", re.IGNORECASE)
_MIB = {"K": 1 / 1024, "": 1.0, "M": 1.0, "G": 1024.0, "T": 1024.0**2, "P": 1024.0**3}
# Slurm keeps --mem-per-cpu as MiB with bit 31 set, and old versions of sacct print that number as it is.
_PER_CPU_BIT = 1 << 31


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


def limit_s(text: str) -> float | None:
    """Seconds of a time limit: as ``elapsed_s``, or whole minutes; infinity where there is no limit, ``None`` if the
    text is no time limit."""
    if text.lower() in _NO_LIMIT:
        return math.inf
    found = int(text) * 60.0 if re.fullmatch(_NUMBER, text) else elapsed_s(text)
    return math.inf if found is not None and found >= NO_LIMIT_S else found


def mem_mib(text: str, nodes: int, cpus: int, *, of: str = "") -> int | None:
    """MiB over the whole job of ``48000Mn`` (per node), ``4Gc`` (per CPU) or ``16G`` (in all), rounded up; ``None``
    if the text is not a size. ``of``: what a size without a letter is per: ``n`` (node), ``c`` (CPU) or the job."""
    found = _SIZE.fullmatch(text)
    if found is None:
        return None
    amount, unit, scope = found.groups()
    scope = scope or of
    if unit.upper() == "M" and float(amount) >= _PER_CPU_BIT:
        amount, scope = str(int(float(amount)) - _PER_CPU_BIT), "c"
    times = {"n": max(nodes, 1), "c": max(cpus, 1)}.get(scope.lower(), 1)
    return math.ceil(float(amount) * _MIB[unit.upper()] * times)


def tres(text: str) -> dict[str, str] | None:
    """``cpu=4,mem=16G,gres/gpu:a100=2`` as a mapping; ``None`` if a part of it has no ``=``."""
    pairs = [part.split("=", 1) for part in text.split(",") if part]
    if any(len(pair) != 2 for pair in pairs):
        return None
    return {pair[0].strip(): pair[1].strip() for pair in pairs}


def gres_count(counts: Mapping[str, int], name: str) -> int:
    """How many of a generic resource (``gpu``): ``gres/gpu`` counts them all, and entries of single types
    (``gres/gpu:a100``) repeat that where a site accounts for both."""
    typed = f"gres/{name}:"
    return counts.get(f"gres/{name}") or sum(count for key, count in counts.items() if key.startswith(typed))


ENDED = frozenset(
    [
        "BOOT_FAIL",
        "CANCELLED",
        "COMPLETED",
        "DEADLINE",
        "FAILED",
        "LAUNCH_FAILED",
        "NODE_FAIL",
        "OUT_OF_MEMORY",
        "PREEMPTED",
        "RECONFIG_FAIL",
        "REVOKED",
        "TIMEOUT",
    ]
)
"""States of jobs that have ended."""

NOT_ENDED = frozenset(
    [
        "COMPLETING",
        "CONFIGURING",
        "EXPEDITING",  # since 25.11
        "PENDING",
        "POWER_UP_NODE",
        "REQUEUED",
        "REQUEUE_FED",
        "REQUEUE_HOLD",
        "RESIZING",
        "RESV_DEL_HOLD",
        "RUNNING",
        "SIGNALING",
        "SPECIAL_EXIT",
        "STAGE_OUT",
        "STOPPED",
        "SUSPENDED",
        "UPDATE_DB",
    ]
)
"""States of jobs that run or wait. A run that ended with a requeue is among them: its job goes on."""


def state_of(text: str) -> str:
    """The state in a cell: ``CANCELLED by 1000`` names who cancelled, and a narrow column leaves ``CANCELLED+``."""
    return (text.split() or [""])[0].rstrip("+")


def is_state(state: str) -> bool:
    """Whether this is a state (`state_of`), or the beginning of one that a narrow column cut off."""
    return len(state) >= _SHORTEST and any(known.startswith(state) for known in (*ENDED, *NOT_ENDED))


_SHORTEST = 6
"""Letters of sacct's narrowest column that still distinguishes states."""
