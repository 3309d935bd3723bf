"""The duration model: fallbacks, explanations that add up, files, no leak, intervals, speed."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from examples import examples
from lucid.errors import ModelError, TraceError
from lucid.models.duration.evaluate import evaluate_duration, walk_forward
from lucid.models.duration.features import from_log, to_log
from lucid.models.duration.fit import fit_durations
from lucid.models.duration.gate import IntervalTracker, Record, residual, scale_of
from lucid.models.duration.history import DurationHistory
from lucid.models.duration.jobtable import JobTable
from lucid.models.duration.model import DurationModel
from scenes.models import HOUR, cluster, cluster_model, damaged, light  # noqa: F401 - of the whole module

pytest.importorskip("interpret")


@pytest.fixture(scope="module")
def jobs() -> JobTable:
    return cluster()


@pytest.fixture(scope="module")
def model() -> DurationModel:
    return cluster_model()


@pytest.fixture(scope="module")
def history(model: DurationModel, jobs: JobTable) -> DurationHistory:
    history = model.serve(DurationHistory())
    history.add(jobs.select(np.arange(600)))
    return history


def profiled(rows: int = 700, seed: int = 5, told: bool = True) -> JobTable:
    """Jobs that look alike at submission; where `told`, the busier their GPU, the longer they run. Those that end
    within five minutes are never measured."""
    jobs = cluster(rows, seed)
    rng = np.random.default_rng(seed)
    util = rng.uniform(5.0, 100.0, rows)
    duration = np.round(60.0 * np.exp(util / 20.0 if told else rng.uniform(0.0, 5.0, rows)))
    unseen = duration < 300.0
    seen = {
        name: np.where(unseen, np.nan, values)
        for name, values in (("gpu_util", util), ("mem_util", util / 2), ("gpu_mem_mib", np.full(rows, 4000.0)))
    }
    return structs.replace(jobs, duration_s=duration, end_s=jobs.submit_s + duration, profile=seen)


@pytest.fixture(scope="module")
def told() -> DurationModel:
    return fit_durations(profiled().select(np.arange(500)))


def test_what_was_measured_of_a_job_corrects_its_estimate_and_says_so(told: DurationModel) -> None:
    jobs, model = profiled(), told
    assert model.profiled_weight == 1.0
    later = jobs.select(np.arange(500, 700))
    later = later.select(np.isfinite(later.profile["gpu_util"]))
    history, blind = DurationHistory.from_jobs(jobs.select(np.arange(500))), structs.replace(later, profile={})

    def spread(table: JobTable) -> float:  # all of them outlive their estimates: that is not the tables' business
        return float((to_log(model.predict(table, history).point_s) - to_log(later.duration_s)).std())

    assert spread(later) < 0.5 * spread(blind)
    estimate_s, _, why = model.explain_facts(later.select([0]), history.facts(later.select([0])))
    assert "measured gpu_util" in [term.name for term in why.terms]
    assert why.intercept + math.fsum(term.score for term in why.terms) == pytest.approx(why.score, abs=1e-9)
    assert estimate_s == pytest.approx(model.predict(later.select([0]), history).point_s[0])
    again = DurationModel.from_json(json.loads(json.dumps(model.to_json())))
    assert np.array_equal(again.predict(later, history).point_s, model.predict(later, history).point_s)
    assert again.records == model.records != {}


def test_a_measurement_that_tells_nothing_changes_no_estimate_and_too_few_jobs_train_nothing() -> None:
    model = fit_durations(profiled(told=False).select(np.arange(500)))
    assert (model.profiled_tables, model.profiled_weight) == (None, 0.0)
    assert fit_durations(profiled().select(np.arange(50))).choice.name == "no model", "too few jobs"


def test_a_job_at_its_submission_is_not_taken_for_one_too_short_to_be_measured(told: DurationModel) -> None:
    blind = structs.replace(profiled(), profile={})
    past, later = blind.select(np.arange(500)), blind.select(np.arange(500, 700))
    found = [model.predict(later, DurationHistory.from_jobs(past)).point_s for model in (told, fit_durations(past))]
    assert np.array_equal(*found)


def test_new_user_is_given_the_mean_of_the_same_gpu_demand() -> None:
    submit_s, gpus, duration_s = np.arange(40) * 1e4, [1.0, 8.0] * 20, [90.0, 9990.0] * 20
    past = {"user": ["ann"] * 40, "gpus": gpus, "submit_s": submit_s, "duration_s": duration_s}
    history = DurationHistory.from_jobs(JobTable.from_columns(**past, end_s=submit_s + 9990.0))
    same = {"cpus": [4.0] * 2, "limit_s": [HOUR * 48] * 2, "submit_s": [1e7] * 2}
    estimate = DurationModel.untrained().predict(
        JobTable.from_columns(user=["new", "newer"], gpus=[1.0, 8.0], **same), history
    )
    assert estimate.point_s == pytest.approx([90.0, 9990.0])
    assert list(estimate.source) == ["demand mean"] * 2


@settings(max_examples=examples(200), deadline=None)
@given(row=st.integers(600, 899), limit=st.one_of(st.just(math.nan), st.floats(1.0, 1e6)))
def test_terms_and_intercept_sum_to_the_score(
    model: DurationModel, history: DurationHistory, jobs: JobTable, row: int, limit: float
) -> None:
    job = structs.replace(jobs.select([row]), limit_s=np.array([limit]))
    estimate_s, _, told = model.explain_facts(job, history.facts(job))
    assert told.intercept + sum(term.score for term in told.terms) == pytest.approx(told.score, abs=1e-9)
    assert estimate_s == model.predict(job, history).point_s[0]
    assert float(to_log(estimate_s)) == pytest.approx(told.score, abs=1e-6)


DAMAGE: dict[str, Any] = {
    "format": "x", "choice weight": math.inf, "choice name": 3, "choice": [], "default_log": None, "names": [1],
    "records": [1], "records user00": [1.0], "learned_until_s": "x", "interval low": 0.9,
    "interval residuals": ["a"], "interval longest_s": math.nan, "tables": {"format": "?"},
}  # fmt: skip


@pytest.mark.parametrize(("path", "value"), [*DAMAGE.items(), ("records user00", [-1.0] * len(Record().sums))])
def test_inconsistent_files_are_refused(model: DurationModel, path: str, value: Any) -> None:
    data = json.loads(json.dumps(damaged(model.to_json(), tuple(path.split()), value)))
    with pytest.raises(ModelError, match=r"m\.json.*train the model again"):
        DurationModel.from_json(data, source="m.json")


def test_the_limit_caps_the_estimate_and_its_interval(
    model: DurationModel, history: DurationHistory, jobs: JobTable
) -> None:
    given = {"gpus": np.ones(50), "limit_s": np.full(50, 120.0), "submit_s": np.full(50, 1e7)}
    estimate = model.predict(JobTable.from_columns(user=jobs.user[:50], **given), history)
    assert (estimate.point_s <= 120.0).all()
    assert (estimate.high_s <= 120.0).all()
    assert (estimate.low_s <= estimate.point_s).all()


def test_no_leak_changing_the_future_moves_no_earlier_estimate(jobs: JobTable) -> None:
    now = float(jobs.submit_s[800])
    future = jobs.end_s >= now
    duration_s = np.where(future, jobs.duration_s * 7 + 99, jobs.duration_s)
    changed = structs.replace(jobs, duration_s=duration_s, end_s=np.where(future, jobs.end_s + 1e6, jobs.end_s))
    ours, theirs = walk_forward(jobs, 500, refits=2), walk_forward(changed, 500, refits=2)
    before = jobs.submit_s[500:] <= now
    assert before.sum() > 250, "of both models"
    for name in ("point_s", "low_s", "high_s", "median_s"):
        np.testing.assert_array_equal(getattr(ours, name)[before], getattr(theirs, name)[before])


def test_remaining_time_grows_past_the_estimate_and_ends_at_the_limit(
    model: DurationModel, history: DurationHistory, jobs: JobTable
) -> None:
    chosen = jobs.select([700])
    one = model.predict(chosen, history)
    point, known = float(one.point_s[0]), (one.point_s, one.scale, chosen.limit_s)
    ran = (0.0, 0.5 * point, 5 * point, 47.99 * HOUR)
    fresh, half, late, last = (float(model.interval.remaining_s(*known, np.array([t]))[0]) for t in ran)
    assert 0.5 * point < fresh < 2 * point
    assert half < fresh
    assert late > 0.2 * point
    assert last <= 0.01 * HOUR + 1e-6


@pytest.mark.parametrize(("shift", "most"), [(0.0, 0.83), (1.5, 0.92)])
def test_intervals_reach_their_coverage_and_recover_from_a_shift(shift: float, most: float) -> None:
    # After the shift they may stay too wide, for they never leave out the user's own past; never too narrow.
    rng = np.random.default_rng(1)
    tracker = IntervalTracker(rng.normal(0, 2, 300))
    point, limit = np.full(1, 7.0), np.full(1, np.nan)
    scale = scale_of(point, np.full(1, 6.9), np.full(1, 7.1))
    inside = []
    for step in range(4000):
        low, high = tracker.bounds(point, scale, limit)
        truth = from_log(7.0 + 0.2 * rng.normal() + shift * 0.2 * (step > 1000))
        inside.append(bool(low[0] <= truth <= high[0]))
        gap = float(residual(np.atleast_1d(to_log(truth)), point, scale)[0])
        tracker.add(gap, duration_s=float(truth), below=bool(truth < low[0]), above=bool(truth > high[0]))
    assert 0.77 <= np.mean(inside[2000:]) <= most
    low, high = IntervalTracker().bounds(np.full(2, 5.0), np.ones((2, 2)), np.array([100.0, np.nan]))
    assert (low.tolist(), high.tolist()) == ([0.0, 0.0], [100.0, math.inf]), "without residuals it claims nothing"


def test_a_model_stored_without_its_longest_job_is_read_and_bounded_all_the_same(model: DurationModel) -> None:
    data = json.loads(json.dumps(model.to_json()))
    assert data["interval"].pop("longest_s") == cluster().duration_s[:600].max()
    data["interval"]["residuals"] = [95.0] * 20
    old, scale = DurationModel.from_json(data).interval, np.array([[1.0, 8.7]])
    high = old.bounds(to_log(np.array([40.0])), scale, np.array([np.nan]))[1]
    assert high[0] == pytest.approx(2 * 366 * 24 * HOUR, rel=1e-6), "twice a year, and no overflow"
    assert "longest_s" in old.to_json()


@pytest.mark.parametrize(("head", "row"), [("job_id,user,submit_time", "1,a,0,1"), ("job_id,submit_time", "1,0,1")])
def test_evaluation_refuses_rows_out_of_range(tmp_path: Path, head: str, row: str) -> None:
    path = tmp_path / "log.csv"
    path.write_text("\n".join([f"{head},duration", *[row] * 3, ""]), encoding="utf-8")
    with pytest.raises(TraceError, match="from 1 to 2"):
        evaluate_duration(path, 3)
