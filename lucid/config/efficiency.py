"""Settings of the report of waste: from when on idle GPUs are told of."""

from __future__ import annotations

from pydantic import Field

from lucid.config.base import Section, fixed

__all__ = ["EfficiencySettings"]


class EfficiencySettings(Section):
    """What `lucidctl efficiency` calls waste. Each bound is set so that ordinary work stays below it."""

    days: float = fixed(7.0, gt=0)
    """How far back the report, /metrics and the page look, days: one week shows every weekday once."""
    idle_start_s: float = fixed(1800.0, ge=300)
    """A GPU that did nothing from the start of its job for so long was idle from the start, s. Pulling a container,
    staging a data set and compiling take up to a quarter of an hour; half an hour is twice that."""
    idle_after_s: float = Field(3600.0, ge=300)
    """A GPU that worked and then did nothing for so long was idle after activity, s. Evaluations on the CPU and
    checkpoints to slow storage take up to half an hour; an hour is twice that."""
    empty_s: float = fixed(1800.0, ge=300)
    """A GPU on which no process of its job stood for so long was allocated without a process, s."""
    least_measured: float = fixed(0.5, gt=0, le=1)
    """If less than this share of a job's GPU time was measured, the job counts as not measured. No waste
    is reported for it."""
    least_gpu_h: float = fixed(0.5, ge=0)
    """Less waste of one kind in one job is not told, GPU-hours."""
