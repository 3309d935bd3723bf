"""The memory limit of a job under MPS."""

from __future__ import annotations

from lucid.binder.contention import memory_limit_mib
from lucid.core.job import JobProfile


def test_the_memory_limit_is_a_tenth_and_a_context_above_the_peak() -> None:
    assert memory_limit_mib(JobProfile(50, 20, 8000), 24576) == 9312


def test_an_unmeasured_job_and_one_that_fills_the_card_have_no_memory_limit() -> None:
    assert memory_limit_mib(None, 24576) is None
    assert memory_limit_mib(JobProfile(50, 20, 22000), 24576) is None
    assert memory_limit_mib(JobProfile(50, 20, 0), 24576) is None
