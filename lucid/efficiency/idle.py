"""Jobs that run and whose GPUs have done nothing for an hour and more, by readings that are fresh."""

from __future__ import annotations

from lucid.efficiency.judge import JobUse

__all__ = ["idle_since"]

_FRESH_S = 120.0
"""The last reading is no older."""
_LEAST_MEASURED_S = 3600.0
"""Of each GPU."""
_LEAST_IDLE_S = 3600.0
"""Evaluations on the CPU and slow checkpoints take up to half of it."""


def idle_since(job: JobUse) -> float | None:
    """Since when no GPU of the job has done anything, Unix s. ``None``: one worked within the last hour, the job has
    ended, or too little was measured to say."""
    if not job.running or not job.use or len(job.use) < job.gpus:
        return None
    since_s = [job.begin_s]
    for use in job.use:
        if use.measured_s < _LEAST_MEASURED_S or not use.idle or job.end_s - use.idle[-1].end_s > _FRESH_S:
            return None
        since_s.append(use.idle[-1].begin_s)
    return max(since_s) if job.end_s - max(since_s) >= _LEAST_IDLE_S else None
