"""Quotas and borrowing in words."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from lucid.core import reason as why

__all__ = ["borrows", "quota", "vc_words"]

_MOST_LENDERS = 3
"""Named in one line."""


def quota(r: why.Quota) -> str:
    """Whether the VC has GPUs of its quota left for the job."""
    holds = f"VC {r.vc} holds {r.held} of its quota of {r.quota} GPUs"
    if r:
        return f"{holds}: there is room for the {r.gpus} of this job"
    kept = f" and keeps {r.kept} for job {r.keeper}" if r.kept else ""
    return f"{holds}{kept}: no room for the {r.gpus} of this job"


def borrows(r: why.Borrows, duration: Callable[[float], str]) -> str:
    """Whether the job may have GPUs of other VCs, and whose. ``duration`` says seconds in words."""
    if not r:
        return (
            f"may not borrow idle GPUs of other VCs: its estimate of {duration(r.estimate_s)} is longer than that of "
            f"jobs that may borrow, at most {duration(r.longest_s)} (policy.lending.longest_s)"
        )
    named = ", ".join(r.lenders[:_MOST_LENDERS]) + (" and others" if len(r.lenders) > _MOST_LENDERS else "")
    gpus = f"{r.gpus} GPU{'' if r.gpus == 1 else 's'}" if r.gpus else "idle GPUs"
    lent = "may borrow, and no VC has idle GPUs of its quota"
    if r.lenders:
        lent = f"borrows {gpus} of VC {named} until it ends"
    return f"{lent}: estimate {duration(r.estimate_s)}, at most {duration(r.longest_s)}"


def vc_words(vc: str, found: Mapping[str, int]) -> str:
    """What a VC of a pool holds and has borrowed, with how many of its jobs wait; ``found`` in GPUs and jobs."""
    words = f"VC {vc} holds {found['held']} GPUs of its quota of {found['quota']}"
    if found["borrowed"]:
        words = f"VC {vc} holds its quota of {found['quota']} GPUs and borrows {found['borrowed']}"
    return f"{words}; {found['pending']} of its jobs wait" if found["pending"] else words
