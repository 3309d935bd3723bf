"""Ranges of starts: learned from what came true, kept over a restart, and no part of any decision."""

from __future__ import annotations

import json
import random
from copy import deepcopy
from dataclasses import replace
from functools import cache

import pytest

from builders import a_trace, by
from lucid.orchestrator.forecast.ranges import StartTimes, Wait
from lucid.simulator.scenario import Scenario, simulate
from lucid.simulator.traces.presets import preset, vc_layout
from lucid.simulator.traces.synth import synthesise


def taught(factor: float, spread: float = 0.1, count: int = 200) -> StartTimes:
    """Waits that took ``factor`` times as long as planned, give or take."""
    return deepcopy(_taught(factor, spread, count))


@cache
def _taught(factor: float, spread: float, count: int) -> StartTimes:
    rng, times, now_s = random.Random(1), StartTimes(), 0.0
    for number in range(count):
        planned_s = rng.uniform(500.0, 2000.0)
        times.waits(str(number), Wait("vc", 1, planned_s), now_s)
        now_s += planned_s * factor * rng.uniform(1 - spread, 1 + spread)
        times.started(str(number), now_s)
    return times


def test_a_range_is_round_where_starts_of_like_waits_came_true() -> None:
    said = taught(3.0).range_of(Wait("vc", 1, 1000.0), 0.0)
    assert said.early_s < 3000.0 < said.late_s
    assert 2000.0 < said.likely_s < 4000.0, "planned 1000 s are outside the range"
    assert said.late_s < 8000.0
    untaught = StartTimes().range_of(Wait("vc", 1, 1000.0), 0.0)
    assert untaught.late_s - untaught.early_s > said.late_s - said.early_s
    assert untaught.likely_s == 1000.0


def test_likely_is_what_was_planned_where_the_range_allows_it() -> None:
    assert taught(1.0, 0.5).range_of(Wait("vc", 1, 777.0), 0.0).likely_s == 777.0


def test_waits_of_another_kind_say_nothing() -> None:
    times, fresh = taught(3.0), StartTimes()
    for wait in (Wait("vc", 1, 1000.0, profiling=True), Wait("vc", 1, 1000.0, foreseen=False)):
        assert times.range_of(wait, 0.0).early_s >= fresh.range_of(wait, 0.0).early_s * 0.5
        assert not times.knows(wait)
    assert times.knows(Wait("other", 8, 1.0))


def test_a_wait_that_goes_on_counts_as_at_least_so_long() -> None:
    """In a jam only short waits end; those that do not end lift the range."""
    times = taught(1.0, count=10)
    before = times.range_of(Wait("vc", 1, 1000.0), 20_000.0)
    for number in range(40):
        times.waits(f"stuck{number}", Wait("vc", 1, 1000.0), 20_000.0)
    after = times.range_of(Wait("vc", 1, 1000.0), 40_000.0)
    assert after.late_s > 1.5 * before.late_s


def test_eight_starts_in_ten_fall_inside_whatever_the_error() -> None:
    rng, times, now_s = random.Random(2), StartTimes(), 0.0
    for number in range(400):
        planned_s = rng.lognormvariate(7.0, 1.0)
        times.waits(str(number), Wait("vc", rng.choice([1, 4]), planned_s), now_s)
        now_s += planned_s * rng.lognormvariate(0.5, 1.2) + 61.0
        times.started(str(number), now_s)
    share, count = times.coverage()
    assert count == 200
    assert 0.75 <= share <= 0.85


def test_a_restart_loses_nothing() -> None:
    times = taught(2.0)
    times.waits("open", Wait("vc", 2, 50.0), 1e6)
    again = StartTimes.from_dict(json.loads(json.dumps(times.to_dict())))
    wait = Wait("vc", 2, 900.0)
    assert again.range_of(wait, 2e6) == times.range_of(wait, 2e6)
    assert again.open.keys() == {"open"}
    assert again.started("open", 1e6 + 7.0) == times.started("open", 1e6 + 7.0)


def test_what_is_remembered_is_bounded() -> None:
    times = taught(1.0, count=410)
    for number in range(410):
        times.waits(f"o{number}", Wait("vc", 1, 10.0), 0.0)
    assert len(tuple(times.known)) == 400
    assert len(times.open) == 400
    assert len(json.dumps(times.to_dict())) < 300_000


@pytest.mark.parametrize("policy", ["lucid", "backfill"])
def test_forecasts_leave_the_schedule_alone_and_hold(policy: str) -> None:
    trace = synthesise(preset("month-small"), 6)
    half = {vc: max(nodes // 2, 1) for vc, nodes in vc_layout("month-small").items()}  # so that many wait
    scenario = Scenario(replace(trace, jobs=trace.jobs[:250]), half)
    plain, watched = simulate(scenario, policy), simulate(scenario, policy, forecasts="all")
    assert plain.start_forecast is None
    assert [(o.job.id, o.start_s, o.end_s) for o in plain.outcomes] == [
        (o.job.id, o.start_s, o.end_s) for o in watched.outcomes
    ]
    found = watched.start_forecast
    assert found["jobs"] >= 250
    assert 0.0 <= found["within_10min"] <= 1.0
    assert found["waited"] > 20
    assert 0.0 <= found["coverage_80"] <= 1.0


def test_a_wait_past_its_range_is_a_miss_before_its_job_starts() -> None:
    """Otherwise nothing is learned in a jam until it is over."""
    times = taught(1.0, 0.5)
    for number in range(30):
        times.waits(f"stuck{number}", Wait("vc", 1, 1000.0), 1e7)
    fresh = StartTimes.from_dict(times.to_dict())
    for number in range(30):
        fresh.left(f"stuck{number}")
        times.waits("late", Wait("vc", 1, 1000.0), 1e7 + 1e5)
        times.left(f"stuck{number}")
    now, before = (one.range_of(Wait("vc", 1, 1000.0), 1e7 + 1e5) for one in (times, fresh))
    assert now.late_s > before.late_s * 1.1


def test_ranges_go_by_how_far_the_planned_paths_differ() -> None:
    rng, times, now_s = random.Random(3), StartTimes(), 0.0
    for number in range(300):
        sure = number % 2 == 0
        times.waits(str(number), Wait("vc", 1, 1000.0, spread=0.01 if sure else 3.0), now_s)
        now_s += 1000.0 * (rng.uniform(0.95, 1.05) if sure else rng.lognormvariate(0.0, 1.5))
        times.started(str(number), now_s)
    sure, unsure = (times.range_of(Wait("vc", 1, 1000.0, spread=by), now_s) for by in (0.01, 3.0))
    assert sure.late_s - sure.early_s < 0.5 * (unsure.late_s - unsure.early_s)


def test_every_wait_of_a_burst_is_forecast_and_counts_once() -> None:
    jobs = [by(f"j{number:02}", 4, 3000.0, 2.0 * number) for number in range(12)]
    found = simulate(Scenario(a_trace(*jobs), {"vc": 1}), "fifo", forecasts="all").start_forecast
    assert found["jobs"] == 12
    assert found["waited"] == 10
