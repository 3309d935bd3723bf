"""Limits of a job under MPS."""

from __future__ import annotations

from lucid.binder.sharing import Fence, fence
from lucid.core.job import JobProfile


def test_memory_is_fenced_a_tenth_and_a_context_above_the_peak() -> None:
    assert fence(JobProfile(50, 20, 8000), 24576) == Fence(9312, 100)


def test_an_unmeasured_job_and_one_that_fills_the_card_are_not_fenced() -> None:
    assert fence(None, 24576) == Fence(None, 100)
    assert fence(JobProfile(50, 20, 22000), 24576).mem_mib is None
    assert fence(JobProfile(50, 20, 0), 24576).mem_mib is None
