"""Settings of the report of waste: from when on idle GPUs are told of."""

from __future__ import annotations

from pydantic import Field

from lucid.config.base import Section

__all__ = ["EfficiencySettings"]


class EfficiencySettings(Section):
    """What `lucidctl efficiency` calls waste. Each bound is set so that ordinary work stays below it."""

    days: float = Field(7.0, gt=0)
    """How far back the report, /metrics and the page look, days: one week shows every weekday once."""
    idle_start_s: float = Field(1800.0, ge=300)
    """A GPU that did nothing from the start of its job for so long was idle from the start, s. Pulling a container,
    staging a data set and compiling take up to a quarter of an hour; half an hour is twice that."""
    idle_after_s: float = Field(3600.0, ge=300)
    """A GPU that worked and then did nothing for so long was idle after activity, s. Evaluations on the CPU and
    checkpoints to slow storage take up to half an hour; an hour is twice that."""
    empty_s: float = Field(1800.0, ge=300)
    """A GPU on which no process of its job stood for so long was allocated without a process, s."""
    least_measured: float = Field(0.5, gt=0, le=1)
    """If less than this share of a job's GPU time was measured, the job counts as not measured. No waste
    is reported for it."""
    least_gpu_h: float = Field(0.5, ge=0)
    """Less waste of one kind in one job is not told, GPU-hours."""
    light_util: float = Field(30.0, ge=0, le=100)
    """A job whose GPUs computed for less of the time than this, %, could have shared them: two such jobs leave
    part of a GPU free, and in 146 measured pairs of such jobs each kept 98 % of its speed on average."""
    light_mem: float = Field(0.4, gt=0, le=1)
    """… and only if its memory took at most this share of the GPU's, so that a partner's fits beside it."""
    limit_share: float = Field(0.1, gt=0, le=1)
    """A time limit is far too long where jobs of this user and name used less than this share of it …"""
    limit_jobs: int = Field(3, ge=1)
    """… each time, in at least so many jobs that completed: one short run says nothing of the next …"""
    limit_unused_h: float = Field(4.0, ge=0)
    """… and at least so many hours of the limit were left each time: shorter ones harm no other job's start."""
