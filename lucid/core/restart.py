"""Who may be started over: the one rule for profiling runs, parted pairs and preemption."""

from __future__ import annotations

from typing import Literal

from lucid.core.job import Job
from lucid.core.reason import Requeueable

__all__ = ["Restarts", "may_restart"]

Restarts = Literal["never", "asked", "allowed"]
"""``policy.profiling.restarts``: Lucid starts over no job; jobs that asked for it; all jobs that do not forbid it."""


def may_restart(job: Job, rule: Restarts) -> Requeueable:
    """May Lucid take this job off its GPUs and start it over?"""
    return Requeueable(job.requeueable, rule, job.restart_asked)
