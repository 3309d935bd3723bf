"""When jobs are said to start and to end."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from copy import deepcopy
from dataclasses import replace
from functools import cache
from math import exp, inf, log

import pytest

from lucid.core.prediction import Prediction
from lucid.orchestrator.forecast.ranges import StartTimes, Wait
from lucid.orchestrator.forecast.run_times import Draws, RunTimes
from lucid.orchestrator.forecast.samples import Like, Samples
from lucid.simulator.scenario import Scenario, simulate
from lucid.simulator.traces.presets import preset, vc_layout
from lucid.simulator.traces.synth import synthesise
from scenes.jobs import a_job, by
from scenes.replays import a_trace


@cache
def _taught(factor: float, spread: float, count: int) -> StartTimes:
    rng, times, now_s = random.Random(1), StartTimes(), 0.0
    for number in range(count):
        planned_s = rng.uniform(500.0, 2000.0)
        times.waits(str(number), Wait("vc", 1, planned_s), now_s)
        now_s += planned_s * factor * rng.uniform(1 - spread, 1 + spread)
        times.started(str(number), now_s)
    return times


def taught(factor: float, spread: float = 0.1, count: int = 200) -> StartTimes:
    """Waits that took ``factor`` times as long as planned, give or take."""
    return deepcopy(_taught(factor, spread, count))


def test_a_range_is_round_where_starts_of_like_waits_came_true() -> None:
    times, fresh = taught(3.0), StartTimes()
    said, untaught = (one.range_of(Wait("vc", 1, 1000.0), 0.0) for one in (times, fresh))
    assert said.early_s < 3000.0 < said.late_s < 8000.0
    assert 2000.0 < said.likely_s < 4000.0, "planned 1000 s are outside the range"
    assert untaught.late_s - untaught.early_s > said.late_s - said.early_s
    assert untaught.likely_s == 1000.0
    for wait in (Wait("vc", 1, 1000.0, profiling=True), Wait("vc", 1, 1000.0, foreseen=False)):
        assert times.range_of(wait, 0.0).early_s >= fresh.range_of(wait, 0.0).early_s * 0.5
        assert not times.knows(wait), "waits of another kind say nothing"
    assert times.knows(Wait("other", 8, 1.0))


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


def test_a_restart_loses_nothing_and_what_is_remembered_is_bounded() -> None:
    times, wait = taught(2.0), Wait("vc", 2, 900.0)
    times.waits("open", Wait("vc", 2, 50.0), 1e6)
    again = StartTimes.from_dict(json.loads(json.dumps(times.to_dict())))
    assert again.range_of(wait, 2e6) == times.range_of(wait, 2e6)
    assert again.open.keys() == {"open"}
    assert again.started("open", 1e6 + 7.0) == times.started("open", 1e6 + 7.0)
    times = taught(1.0, count=410)
    for number in range(410):
        times.waits(f"o{number}", Wait("vc", 1, 10.0), 0.0)
    assert (len(tuple(times.known)), len(times.open)) == (400, 400)
    assert len(json.dumps(times.to_dict())) < 300_000


def test_forecasts_leave_the_schedule_alone_and_hold() -> None:
    trace = synthesise(preset("month-small"), 6)
    half = {vc: max(nodes // 2, 1) for vc, nodes in vc_layout("month-small").items()}  # so that many wait
    scenario = Scenario(replace(trace, jobs=trace.jobs[:250]), half)
    plain, watched = simulate(scenario, "lucid"), simulate(scenario, "lucid", forecasts="all")
    assert plain.start_forecast is None
    one, other = ([(o.job.id, o.start_s, o.end_s) for o in found.outcomes] for found in (plain, watched))
    assert one == other
    told = watched.start_forecast
    assert (told["jobs"] >= 250, told["waited"] > 20) == (True, True)
    assert all(0.0 <= told[share] <= 1.0 for share in ("within_10min", "coverage_80"))


def test_a_wait_past_its_range_is_a_miss_before_its_job_starts() -> None:
    """Otherwise nothing is learned in a jam until it is over."""
    times, wait = taught(1.0, 0.5), Wait("vc", 1, 1000.0)
    for number in range(30):
        times.waits(f"stuck{number}", wait, 1e7)
    fresh = StartTimes.from_dict(times.to_dict())
    for number in range(30):
        fresh.left(f"stuck{number}")
        times.waits("late", wait, 1e7 + 1e5)
        times.left(f"stuck{number}")
    assert times.range_of(wait, 1e7 + 1e5).late_s > fresh.range_of(wait, 1e7 + 1e5).late_s * 1.1


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
    assert (found["jobs"], found["waited"]) == (12, 10)


FLOOR_S = 10.0
_Sample = tuple[float, float, bool]


def plain_range(
    over: list[tuple[Like, float]], on: list[tuple[Like, float]], like: Like, now_s: float
) -> tuple[float, float, float]:
    """The rule as docs/decisions/0025 states it, one sample after the other. ``over``: oldest first."""
    samples: list[_Sample] = []
    for age, (one, ratio) in enumerate(reversed(over)):
        samples.append((ratio, _likeness(one, like) * 0.5 ** (age / 500), True))
    for one, since_s in on:
        samples.append((log(max(now_s - since_s, 0.0) + FLOOR_S) - one.planned, _likeness(one, like) * 0.3, False))
    samples = [sample for sample in samples if sample[1]]
    blur = _blur(samples)
    spread = [(value + by * blur, weight / 5, seen) for value, weight, seen in samples for by in range(-2, 3)]
    prior = [-0.9 + 0.15 * step if like.foreseen else 0.2 * step for step in range(13)]
    spread += [(value, 2.0 / 13, True) for value in prior]
    spread.sort(key=lambda one: (one[0], not one[2]))
    above, at_risk, shares = 1.0, sum(weight for _, weight, _ in spread), list[tuple[float, float]]()
    for value, weight, seen in spread:
        if seen:
            above *= max(1.0 - weight / at_risk, 0.0) if at_risk > 0.0 else 0.0
            shares.append((value, 1.0 - above))
        at_risk -= weight
    last, before, best, early, late = shares[-1][1], 0.0, inf, 0.0, 0.0
    for begin, (value, share) in enumerate(shares):
        if begin and before + 0.8 > last + 1e-9:
            break
        end = next(value for value, share in shares if share >= min(before + 0.8, last) - 1e-9)
        if exp(end) - exp(value) < best:
            best, early, late = exp(end) - exp(value), value, end
        before = share
    middle = next((value for value, share in shares if share >= 0.5), shares[-1][0])
    return early, min(max(middle, early), late), late


def _likeness(one: Like, other: Like) -> float:
    apart = abs(one.planned - other.planned) / 3 + abs(one.size - other.size) + abs(one.spread - other.spread) / 3
    if one.kind != other.kind or apart >= 7.0:
        return 0.0
    return exp(-apart) * (1.0 if one.partition == other.partition else 0.5)


def _blur(samples: list[_Sample]) -> float:
    total, so_far, quarters = sum(weight for _, weight, _ in samples), 0.0, list[float]()
    if len(samples) <= 3:
        return 0.25
    for value, weight, _ in sorted(samples):
        so_far += weight
        while len(quarters) < 2 and so_far >= total * (0.25, 0.75)[len(quarters)] - 1e-12:
            quarters.append(value)
    count: float = total**2 / sum(weight * weight for _, weight, _ in samples)
    return min(max(0.8 * (quarters[-1] - quarters[0]) / count**0.2, 0.02), 0.25)


def a_like(rng: random.Random) -> Like:
    foreseen, profiling = rng.random() < 0.8, rng.random() < 0.2
    planned, spread = log(FLOOR_S + rng.lognormvariate(6.0, 2.0)), log(0.1 + rng.expovariate(1.0))
    return Like(foreseen, profiling, rng.choice("abc"), log(rng.choice((1, 2, 8, 64))), planned, spread)


@pytest.mark.parametrize("seed", range(6))
def test_columns_give_the_range_of_the_plain_rule(seed: int) -> None:
    """After any coming and going, to a millionth of the logarithm: sums are taken in another order."""
    rng = random.Random(seed)
    samples, over, on, now_s = Samples(40, 15), list[tuple[Like, float]](), dict[str, tuple[Like, float]](), 0.0
    for number in range(150):
        now_s += rng.expovariate(0.01)
        like = a_like(rng)
        if len(on) < 15:
            on[str(number)] = (like, now_s)
            samples.began(str(number), like, now_s)
        if on and rng.random() < 0.8:
            gone = rng.choice(sorted(on))
            began, since_s = on.pop(gone)
            samples.gone(gone)
            if rng.random() < 0.7:
                over.append((began, log(now_s - since_s + FLOOR_S) - began.planned))
                samples.over(*over[-1])
        if number % 15 == 0:
            asked = a_like(rng)
            expected = plain_range(over[-40:], list(on.values()), asked, now_s)
            assert samples.range_of(asked, now_s, FLOOR_S) == pytest.approx(expected, abs=1e-6)


def test_the_same_waits_many_times_are_no_trouble() -> None:
    like, samples = Like(True, False, "a", 0.0, log(110.0), 0.0), Samples(10, 2)
    for _ in range(12):
        samples.over(like, 0.5)
    for job_id in "abc":  # one more than there is room for
        samples.began(job_id, like, 0.0)
    found = samples.range_of(like, 50.0, FLOOR_S)
    assert found == pytest.approx(plain_range([(like, 0.5)] * 10, [(like, 0.0)] * 2, like, 50.0), abs=1e-6)


def test_forecasts_are_read_and_kept_without_numpy() -> None:
    """A command that prints no range does not wait until numpy is loaded."""
    code = (
        "import sys; from lucid.orchestrator.forecast.ranges import StartTimes, Wait; times = StartTimes();"
        "times.started('a', 1.0); StartTimes.from_dict(times.to_dict()); sys.exit('numpy' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


SAID = Prediction(1000.0, "test")


def taught_times(factor: float, count: int = 40) -> RunTimes:
    """Jobs of nobody in particular that ran ``factor`` times as long as estimated."""
    times = RunTimes()
    for _ in range(count):
        times.ended("", 1000.0 * factor, 1000.0)
    return times


def test_estimates_are_corrected_by_what_came_true_and_hold_where_nothing_did() -> None:
    job = a_job("a", 1)
    assert RunTimes().remaining_s(job, SAID, 300.0, 0.5) == 700.0
    assert taught_times(0.1, count=4).remaining_s(job, SAID, 0.0, 0.5) == 1000.0
    for factor, ran_s, left_s, off_s in ((0.1, 0, 100.0, 10.0), (5.0, 0, 5000.0, 100.0), (5.0, 1000, 4000.0, 100.0)):
        assert abs(taught_times(factor).remaining_s(job, SAID, ran_s, 0.5) - left_s) < off_s
    assert taught_times(0.1).remaining_s(job, SAID, 500.0, 0.5) == 500.0, "no job ran so long: the estimate holds"


def test_a_users_own_jobs_count_for_more_and_a_time_limit_bounds_all() -> None:
    times = taught_times(1.0, count=200)
    for _ in range(20):
        times.ended("short", 50.0, 1000.0)
    assert times.remaining_s(a_job("a", 1, user="short"), SAID, 0.0, 0.5) < 60.0
    assert times.remaining_s(a_job("b", 1, user="other"), SAID, 0.0, 0.5) > 900.0
    assert taught_times(5.0).remaining_s(a_job("c", 1, time_limit_s=1200.0), SAID, 0.0, 0.5) == 1200.0


def test_of_many_jobs_some_end_early_and_each_keeps_its_share() -> None:
    times, jobs = RunTimes(), [a_job(f"j{number}", 1) for number in range(20)]
    for number in range(100):
        times.ended(f"u{number}", 10.0 * (number + 1), 1000.0)
    draws = Draws(times, {job.id: SAID for job in jobs})
    first, again = ([draws.remaining_s(job, 0.0) for job in jobs] for _ in range(2))
    assert 450.0 < first[0] < 550.0, "one job alone: the median"
    assert min(first) < 100.0 < 900.0 < max(first)
    assert first == again


def test_a_restart_loses_no_run_time_and_those_that_are_remembered_are_bounded() -> None:
    times, job = taught_times(3.0), a_job("a", 1, user="u")
    times.ended("u", 77.0, 1000.0)
    again = RunTimes.from_dict(json.loads(json.dumps(times.to_dict())))
    assert again.to_dict() == times.to_dict()
    assert abs(again.remaining_s(job, SAID, 0.0, 0.3) - times.remaining_s(job, SAID, 0.0, 0.3)) < 5.0
    for number in range(1000):
        times.ended(f"u{number}", 10.0, 10.0)
    kept = times.to_dict()
    assert len(kept["all"]) == 200
    assert [*kept["users"]] == [f"u{number}" for number in range(800, 1000)]
