"""Quotas and borrowing in words."""

from __future__ import annotations

from collections.abc import Callable

from lucid.core import reason as why

__all__ = ["borrows", "quota"]

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
            f"may not borrow idle GPUs of other VCs: estimate {duration(r.estimate_s)}, at most "
            f"{duration(r.longest_s)} (policy.lending.longest_s)"
        )
    named = ", ".join(r.lenders[:_MOST_LENDERS]) + (" and others" if len(r.lenders) > _MOST_LENDERS else "")
    lent = f"borrows idle GPUs of {named}" if r.lenders else "may borrow, and no VC has idle GPUs of its quota"
    return f"{lent}: estimate {duration(r.estimate_s)}, at most {duration(r.longest_s)}"
