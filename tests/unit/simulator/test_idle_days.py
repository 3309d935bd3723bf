"""Idle sessions and their guests over whole made-up days (scenes.idle)."""

from __future__ import annotations

import pytest

from lucid.simulator.idle_hosts import SEEN_S
from lucid.simulator.traces import Trace
from scenes.idle import a_day, play
from scenes.jobs import LIGHT, by
from scenes.replays import a_trace


def judged(days: list[Trace], guests: str) -> float:
    """The share of the idle GPU time in reach that had a guest; no session ran for longer than its guests' leaving
    takes, and jobs ended sooner on average than without hosts."""
    reach_s = hosted_s = gained_s = 0.0
    for day in days:
        made, without = play(day, guests=guests), play(day, host=False)
        assert (without.hosted_s, without.parted) == (0.0, 0)
        assert max(made.slowed_s, default=0.0) <= 10.0
        assert made.longer_s <= SEEN_S * len(made.slowed_s) + 1.0
        reach_s, hosted_s = reach_s + made.reach_s, hosted_s + made.hosted_s
        gained_s += without.mean_jct_s - made.mean_jct_s
    assert gained_s > 0.0
    return hosted_s / reach_s


def test_half_of_the_idle_time_in_reach_hosts_somebody() -> None:
    assert judged([a_day(seed) for seed in range(3)], "own") >= 0.5


@pytest.mark.slow
@pytest.mark.parametrize("guests", ["own", "others"])
def test_half_of_the_idle_time_of_fifty_days_hosts_somebody(guests: str) -> None:
    share = judged([a_day(seed) for seed in range(50)], guests)
    print(f"{guests}: {share:.2f}")
    assert share >= 0.5


def test_a_guest_has_the_gpu_until_its_host_goes_on_and_then_starts_over() -> None:
    """The session is idle from 100 s to 5000 s, and 1800 s later a host; there is one GPU."""
    session = by("s", 1, 20000.0, profile=LIGHT, user="ann", name="session")
    away = type(session)(session.job, session.duration_s, profile=LIGHT, idle=((100.0, 5000.0),))
    asks = {"profile": LIGHT, "user": "ann", "restart_asked": True}
    short, long = by("short", 1, 600.0, 10.0, **asks), by("long", 1, 9000.0, 20.0, **asks)
    made = play(a_trace(away, short, long), gpus=1)
    assert made.hosted_s == pytest.approx(5000.0 - 1900.0, abs=SEEN_S)
    assert len(made.slowed_s) == 1
    assert made.parted == 1, "the short one was done by then"
    assert made.longer_s == pytest.approx(0.0, abs=SEEN_S)
