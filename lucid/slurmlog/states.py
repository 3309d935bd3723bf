"""States of Slurm jobs, as ``sacct`` and ``squeue`` of 24.11 to 26.05 name them."""

from __future__ import annotations

__all__ = ["ENDED", "NOT_ENDED", "is_state", "state_of"]

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
    """Is this a state (`state_of`), or the beginning of one that a narrow column cut off?"""
    return len(state) >= _SHORTEST and any(known.startswith(state) for known in (*ENDED, *NOT_ENDED))


_SHORTEST = 6
"""Letters: sacct's narrowest column that still tells states apart."""
