"""How long jobs really run for: learned from what ended, for each user, and no estimate is lost over a restart."""

from __future__ import annotations

import json

from builders import a_job
from lucid.core.prediction import Prediction
from lucid.orchestrator.forecast.run_times import Draws, RunTimes

SAID = Prediction(1000.0, "test")


def taught(factor: float, count: int = 40) -> RunTimes:
    """Jobs of nobody in particular that ran ``factor`` times as long as estimated."""
    times = RunTimes()
    for _ in range(count):
        times.ended("", 1000.0 * factor, 1000.0)
    return times


def test_without_jobs_that_ended_the_estimate_holds() -> None:
    job = a_job("a", 1)
    assert RunTimes().remaining_s(job, SAID, 300.0, 0.5) == 700.0
    assert taught(0.1, count=4).remaining_s(job, SAID, 0.0, 0.5) == 1000.0


def test_estimates_are_corrected_by_what_came_true() -> None:
    job = a_job("a", 1)
    assert 90.0 < taught(0.1).remaining_s(job, SAID, 0.0, 0.5) < 110.0
    assert 4900.0 < taught(5.0).remaining_s(job, SAID, 0.0, 0.5) < 5100.0
    assert 3900.0 < taught(5.0).remaining_s(job, SAID, 1000.0, 0.5) < 4100.0
    assert taught(0.1).remaining_s(job, SAID, 500.0, 0.5) == 500.0, "no job ran so long: the estimate holds"


def test_a_users_own_jobs_count_for_more_and_a_time_limit_bounds_all() -> None:
    times = taught(1.0, count=200)
    for _ in range(20):
        times.ended("short", 50.0, 1000.0)
    assert times.remaining_s(a_job("a", 1, user="short"), SAID, 0.0, 0.5) < 60.0
    assert times.remaining_s(a_job("b", 1, user="other"), SAID, 0.0, 0.5) > 900.0
    assert taught(5.0).remaining_s(a_job("c", 1, time_limit_s=1200.0), SAID, 0.0, 0.5) == 1200.0


def test_of_many_jobs_some_end_early_and_each_keeps_its_share() -> None:
    times = RunTimes()
    for number in range(100):
        times.ended(f"u{number}", 10.0 * (number + 1), 1000.0)
    jobs = [a_job(f"j{number}", 1) for number in range(20)]
    draws = Draws(times, {job.id: SAID for job in jobs})
    first = [draws.remaining_s(job, 0.0) for job in jobs]
    assert 450.0 < first[0] < 550.0, "one job alone: the median"
    assert min(first) < 100.0
    assert max(first) > 900.0
    assert first == [draws.remaining_s(job, 0.0) for job in jobs]


def test_a_restart_loses_nothing() -> None:
    times = taught(3.0)
    times.ended("u", 77.0, 1000.0)
    again = RunTimes.from_dict(json.loads(json.dumps(times.to_dict())))
    assert again.to_dict() == times.to_dict()
    job = a_job("a", 1, user="u")
    assert abs(again.remaining_s(job, SAID, 0.0, 0.3) - times.remaining_s(job, SAID, 0.0, 0.3)) < 5.0


def test_what_is_remembered_is_bounded() -> None:
    times = RunTimes()
    for number in range(1000):
        times.ended(f"u{number}", 10.0, 10.0)
    kept = times.to_dict()
    assert len(kept["all"]) == 200
    assert [*kept["users"]] == [f"u{number}" for number in range(800, 1000)]
