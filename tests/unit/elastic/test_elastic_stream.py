"""The stream of ``make demo-elastic`` and what the simulator expects of it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks.elastic_stream import (
    MODELS,
    NODE_GPUS,
    NODES,
    START_S,
    Small,
    apart,
    forecast,
    least_makespan_s,
    loss_noise,
    small_jobs,
)

ROOT = Path(__file__).resolve().parents[3]


def test_the_stream_is_what_its_description_says() -> None:
    jobs = small_jobs(400, 7, 8.0)
    assert jobs == small_jobs(400, 7, 8.0)
    share = sum(one.gpus == 1 for one in jobs) / len(jobs)
    assert share == pytest.approx(0.7, abs=0.06)
    assert {one.gpus for one in jobs} == {1, 2, 4}
    assert min(one.alone_s for one in jobs) > 50
    assert max(one.alone_s for one in jobs) < 250
    assert jobs[-1].at_s / 399 == pytest.approx(8.0, rel=0.15)


@pytest.mark.parametrize(("model", "worth"), [(MODELS[0], 3.1), (MODELS[1], 3.7)])
def test_eight_gpus_are_worth_what_the_page_says(model: object, worth: float) -> None:
    assert model.epoch_s(1) / model.epoch_s(8) == pytest.approx(worth, abs=0.1)  # type: ignore[attr-defined]


def test_the_bound_of_one_job_is_its_time_on_most_gpus() -> None:
    one = Small(3.0, 1, 10, MODELS[1], 1)
    assert least_makespan_s([one]) == pytest.approx(3.0 + one.epochs * one.model.epoch_s(8), abs=1.0)


def test_the_bound_of_many_jobs_is_their_work_over_all_gpus() -> None:
    jobs = [Small(0.0, 1, 20, MODELS[0], n) for n in range(2 * NODES * NODE_GPUS)]
    work_s = sum(one.epochs * one.model.epoch_s(1) for one in jobs)
    assert least_makespan_s(jobs) == pytest.approx(work_s / (NODES * NODE_GPUS), abs=1.0)


def test_no_policy_beats_the_bound_at_the_initial_batch() -> None:
    jobs = small_jobs(20, 5, 8.0)
    least_s = least_makespan_s(jobs) - 1.0
    assert all(least_s <= forecast(jobs, name, 5.0, 0.0).makespan_s for name in ("fifo", "elastic", "elastic-ef"))


def test_curves_are_apart_by_their_difference_where_both_are_known() -> None:
    assert apart([(1.0, 5.0), (2.0, 3.0), (9.0, 0.0)], [(1.0, 4.0), (3.0, 2.0)]) == pytest.approx(0.5**0.5)
    assert apart([(1.0, 5.0)], [(2.0, 5.0), (3.0, 5.0)]) == float("inf"), "nothing in common"


def test_another_order_of_the_points_changes_losses_a_little(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(ROOT / "tests/e2e"), *sys.path])
    assert 0.001 < loss_noise([Small(0.0, 1, 10, MODELS[0], 3)]) < 0.5


def test_the_forecast_of_a_job_alone_is_its_own_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(ROOT / "tests/e2e"), *sys.path])
    (one,) = small_jobs(1, 1, 8.0)
    fixed, elastic, pollux = (forecast([one], name, 10.0, 3.0).makespan_s for name in ("fifo", "elastic", "pollux"))
    assert fixed == pytest.approx(one.alone_s + START_S, rel=1e-6)
    assert elastic < fixed / 2, "all GPUs are its own"
    assert pollux < fixed
