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


def test_no_pause_grows_beyond_its_bound() -> None:
    """Without Slurm, with a limit that bars a job, and with turns that fail."""

    def silent() -> None:
        raise ClusterUnavailable("down")

    now, barred = [0.0], 0.0
    breaker, obstacles, slurm = Breaker(lambda: now[0]), Obstacles(), FakeSlurm([fake_node("n1", "a")])
    job = slurm.records[slurm.submit("1", "a")]
    for _ in range(2000):
        with pytest.raises(ClusterUnavailable):
            guarded(breaker, silent)
        assert breaker.open_s <= 300.0
        now[0] += max(breaker.open_s, 1.0)
        barred = obstacles.met(job, "AssocGrpGRES", now[0]).retry_s - now[0]
    assert now[0] > 1999 * 200.0
    assert barred == 600.0
    for error in (ValueError("own"), ClusterUnavailable("silent")):
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
