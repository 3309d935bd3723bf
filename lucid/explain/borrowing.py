"""Quotas and borrowing in words."""

from __future__ import annotations

from collections.abc import Mapping

from lucid.core import reason as why
from lucid.explain.quantities import duration

__all__ = ["borrows", "own_turn", "quota", "vc_words"]

_MOST_LENDERS = 3
"""Named in one line."""


def quota(r: why.Quota) -> str:
    """Whether the VC has GPUs of its quota left for the job."""
    holds = f"VC {r.vc} holds {r.held} of its quota of {r.quota} GPUs"
    if r:
        return f"{holds}: there is room for the {r.gpus} of this job"
    kept = f" and reserves {r.kept} for job {r.keeper}" if r.kept else ""
    return f"{holds}{kept}: no room for the {r.gpus} of this job"


def borrows(r: why.Borrows) -> str:
    """Whether the job may have GPUs of other VCs, and whose."""
    words = "may borrow, and no VC has idle GPUs of its quota"
    if r.lenders:
        named = ", ".join(r.lenders[:_MOST_LENDERS]) + (" and others" if len(r.lenders) > _MOST_LENDERS else "")
        gpus = f"{r.gpus} GPU{'' if r.gpus == 1 else 's'}" if r.gpus else "idle GPUs"
        words = f"borrows {gpus} of VC {named} until it ends"
    return words if r.estimate_s is None else f"{words}: estimate {duration(r.estimate_s)}"


def own_turn(r: why.OwnTurn) -> str:
    """Whether the job goes before all others because its VC's own GPUs are lent."""
    waited = f"VC {r.vc} stays within its quota with this job, which has waited {duration(r.waited_s)}"
    if r:
        return f"{waited} (policy.lending.turn_s: {duration(r.after_s)}): it goes before all others"
    return f"{waited}: it goes before all others from {duration(r.after_s)} on (policy.lending.turn_s)"


def vc_words(vc: str, found: Mapping[str, int]) -> str:
    """What a VC of a pool holds and has borrowed, with how many of its jobs wait; ``found`` in GPUs and jobs."""
    words = f"VC {vc} holds {found['held']} GPUs of its quota of {found['quota']}"
    if found["borrowed"]:
        words = f"VC {vc} holds its quota of {found['quota']} GPUs and borrows {found['borrowed']}"
    return f"{words}; {found['pending']} of its jobs wait" if found["pending"] else words
