"""Pauses that double stay pauses, however often: lucidd runs for months, and Slurm may be away for days."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fake_slurm import FakeSlurm, fake_node
from lucid.core.times import doubled_s
from lucid.daemon.barrier import FailureBarrier
from lucid.errors import ClusterUnavailable
from lucid.slurm.client import Breaker, guarded
from lucid.slurm.own.reasons import Obstacles

DAY_S = 86400.0
"""Files that raise a number above 1 to a power that is worked out, and why that never overflows."""


def test_the_breaker_keeps_its_pause_for_a_month_without_slurm() -> None:
    now = [0.0]
    breaker, asked = Breaker(lambda: now[0]), 0

    def silent() -> None:
        nonlocal asked
        asked += 1
        raise ClusterUnavailable("down")

    while now[0] < 30 * DAY_S:
        with pytest.raises(ClusterUnavailable):
            guarded(breaker, silent)
        assert breaker.open_s <= 300.0
        now[0] += max(breaker.open_s, 1.0)
    assert asked < 9000, "at most every five minutes"
    guarded(breaker, lambda: None)
    assert breaker.open_s == 0.0


def test_a_limit_that_bars_a_job_for_a_month_is_tried_every_ten_minutes() -> None:
    slurm = FakeSlurm([fake_node("n1", "a")])
    job = slurm.records[slurm.submit("1", "a")]
    found, now_s = Obstacles(), 0.0
    while now_s < 30 * DAY_S:
        now_s = found.met(job, "AssocGrpGRES", now_s).retry_s
    assert found.met(job, "AssocGrpGRES", 0.0).retry_s == 600.0


@pytest.mark.parametrize("error", [ValueError("own"), ClusterUnavailable("silent")])
def test_the_pause_after_a_failed_turn_is_bounded_whatever_the_count(error: Exception) -> None:
    barrier = FailureBarrier(1.0, lambda: 0.0, lambda _: None)
    barrier.failed = 10**7
    assert barrier.bad("cycle failed", error) <= 30.0


@given(st.floats(0.0, 1e6), st.integers(0, 10**12), st.floats(0.0, 1e9))
def test_a_pause_that_doubles_never_shrinks_and_never_exceeds_its_bound(
    first_s: float, times: int, most_s: float
) -> None:
    pause_s = doubled_s(first_s, times, most_s)
    assert math.isfinite(pause_s)
    assert min(first_s, most_s) <= pause_s <= most_s
    assert pause_s <= doubled_s(first_s, times + 1, most_s)
