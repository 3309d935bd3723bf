"""Features of jobs, the table that holds them, and throughput."""

from __future__ import annotations

import itertools
import json
import math
import os
import warnings
from datetime import datetime, timedelta
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from builders import a_job
from examples import examples
from lucid.errors import ModelError, TraceError
from lucid.models.additive import AdditiveModel
from lucid.models.duration import features as names
from lucid.models.duration.features import FACT_NAMES, NameBuckets, from_log, to_log
from lucid.models.duration.history import DurationHistory
from lucid.models.duration.jobtable import JobTable, read_jobs
from lucid.models.kind import TooFew
from lucid.models.throughput.bins import BIN_S, Bins, bins_of_jobs, newest_columns, read_bins, throughput_columns
from lucid.models.throughput.fit import _lasting, fit_throughput
from lucid.models.throughput.model import ArrivalForecaster, TargetModel, ThroughputModel
from scenes.models import damaged, light_training

COUNT, MEDIAN, DEMAND = (FACT_NAMES.index(n) for n in ("user_count", "user_median", "demand_mean"))


def jobs_of(rows: list[tuple[str, float, float, float]]) -> JobTable:
    """Rows of user, submit, wait, duration."""
    user, submit, wait, duration = zip(*rows, strict=True)
    ends = [s + w + d for s, w, d in zip(submit, wait, duration, strict=True)]
    limits = [9e9] * len(rows)
    return JobTable.from_columns(user=user, submit_s=submit, end_s=ends, duration_s=duration, limit_s=limits)


seconds = (st.integers(0, most).map(float) for most in (50, 20, 40))
job_rows = st.lists(st.tuples(st.sampled_from(["ann", "bob", "cy"]), *seconds), min_size=1, max_size=25)


@settings(max_examples=examples(80), deadline=None)
@given(rows=job_rows)
def test_replay_sees_what_brute_force_sees(rows: list[tuple[str, float, float, float]]) -> None:
    jobs = jobs_of(rows).by_submit()
    facts = DurationHistory().replay(jobs)
    for row in range(len(jobs)):
        past = jobs.end_s < jobs.submit_s[row]
        own = past & (jobs.user == jobs.user[row])
        assert facts[row, COUNT] == own.sum()
        if own.any():
            assert from_log(facts[row, MEDIAN]) == pytest.approx(np.median(jobs.duration_s[own]), abs=1e-5)
        if past.any():
            assert facts[row, DEMAND] == pytest.approx(to_log(jobs.duration_s[past]).mean())


@given(rows=job_rows)
@settings(max_examples=examples(40), deadline=None)
def test_batched_facts_equal_the_replays_last_view(rows: list[tuple[str, float, float, float]]) -> None:
    late = [(user, 1e6, 0.0, 1.0) for user in ("ann", "new", "ann")]
    replayed = DurationHistory().replay(jobs_of([*rows, *late]))
    np.testing.assert_array_equal(
        DurationHistory.from_jobs(jobs_of(rows)).facts(jobs_of(late)), replayed[len(rows) :]
    )


def test_alike_names_share_a_bucket_strangers_have_none_and_there_are_not_too_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("sklearn")
    runs = [f"train-resnet-{i}" for i in range(30)] + [f"train-resnetx-{i}" for i in range(9)]
    buckets = NameBuckets.fit([*runs, *[f"postprocess_daily_{i}" for i in range(20)], "zz", None])
    asked = ["train-resnet-99", "TRAIN-RESNETX-1", "postprocess_daily_77", None, "quite another thing"]
    first, second, other, absent, strange = buckets(asked)
    assert first == second
    assert first.endswith("*")
    assert other not in (first, None)
    assert (absent, strange) == (None, None)
    monkeypatch.setattr(names, "SAMPLE", 20)
    monkeypatch.setattr(names, "KEPT", 50)
    stems = [f"job-{''.join(three)}" for three in itertools.product("abcdefghij", repeat=3)]
    assert len(NameBuckets.fit(stems).bucket_of) <= 50


SACCT = (
    "7|7|c|batch|normal|acct|g|1|ann|2|2017-01-01T00:00:10|2017-01-01T00:00:10|2017-01-01T00:01:00|"
    "2017-01-02T00:01:05|1-00:00:05|0:0|COMPLETED|2|8|8|{memory}|cpu=8,gres/gpu=3|cpu=8|{limit}|n1|train-1"
)


def write(path: Path, text: str) -> Path:
    path.write_text(text + "\n", encoding="utf-8")
    return path


def test_short_csv_orders_by_submission_and_ends_without_a_queue(tmp_path: Path) -> None:
    head = "job_id,user,submit_time,duration,nodes,tasks,time_limit,partition,qos,mem,gres"
    rows = "b,u,20,5,2,4,01:00:00,p,q,1G,gpu:2\na,u,10,7,1,4,01:00:00,p,q,,"
    table = read_jobs(write(tmp_path / "a.csv", f"{head}\n{rows}"))
    assert table.job_id.tolist() == ["a", "b"]
    assert table.end_s.tolist() == [17.0, 25.0]
    assert table.gpus.tolist() == [0.0, 4.0]
    np.testing.assert_equal(table.memory_mib, [math.nan, 2048.0])


def test_long_csv(tmp_path: Path) -> None:
    text = (
        "job_id,user,account,partition,qos,wallclock_req,nodes_req,processors_req,gpus_req,mem_req,"
        "submit_time,start_time,end_time,run_time,state,name\n"
        "1,u,a,p,q,60,1,2,0,0.0,2019-01-01 00:00:00,2019-01-01 00:00:30,2019-01-01 00:01:00,30,DONE,n"
    )
    table = read_jobs(write(tmp_path / "a.csv", text))
    assert table.end_s[0] - table.submit_s[0] == 60.0
    assert (table.duration_s[0], table.limit_s[0]) == (30.0, 60.0)
    line = SACCT.format(memory="1G", limit="1-00:00:00").replace("2017-01-01T00:01:00", "Unknown")
    table = read_jobs(write(tmp_path / "a.log", line))
    assert len(table) == 1, "one that never started keeps its row"
    assert math.isnan(table.duration_s[0])


def test_refusals_name_file_line_column_value_and_remedy(tmp_path: Path) -> None:
    path = write(tmp_path / "a.log", SACCT.format(memory="plenty", limit="1-00:00:00"))
    with pytest.raises(TraceError, match=r"a\.log, line 1, column 'ReqMem': 'plenty'.*correct or delete the row"):
        read_jobs(path)
    with pytest.raises(TraceError, match=r"line 1: not the first line of a log of jobs: .*sacct --parsable2"):
        read_jobs(write(tmp_path / "b.csv", "what,ever"))
    with pytest.raises(TraceError, match="cannot be read"):
        read_jobs(tmp_path / "none.csv")
    with pytest.raises(ModelError, match=r"\['colour'\]"):
        JobTable.from_columns(colour=["red"])
    with pytest.raises(ModelError, match="differ in length"):
        JobTable.from_columns(user=["a"], submit_s=[1.0, 2.0])


START = datetime(2024, 1, 1)
FLAT = TargetModel(AdditiveModel(3.0, "identity", ()), False, 50.0, 0.5)


def some(count: int, seed: int = 0, minutes: int = 60) -> Bins:
    """Hourly by default, so that a few hundred bins hold weeks; busy at noon."""
    rng, start = np.random.default_rng(seed), tuple(START + n * timedelta(minutes=minutes) for n in range(count))
    level = np.array([6 + 5 * np.sin((time.hour - 6) / 24 * 2 * np.pi) for time in start])
    jobs = rng.poisson(level).astype(float)
    return Bins(start, jobs, jobs * rng.integers(1, 9, count), {"ended": rng.poisson(level).astype(float)})


@cache
def trained() -> ThroughputModel:
    with light_training():
        return fit_throughput(some(1400), 1)


@pytest.mark.parametrize("age", [1, 3])
def test_inputs_do_not_move_when_the_future_changes(age: int) -> None:
    bins, later = some(900), np.where(np.arange(900) < 600, 0.0, 100.0)
    others = {"ended": bins.others["ended"] + later}
    changed = replace(bins, jobs=bins.jobs + later, gpus=bins.gpus + later, others=others)
    before, after = throughput_columns(bins, age), throughput_columns(changed, age)
    for name, column in before.items():
        np.testing.assert_array_equal(column[:600], after[name][:600], err_msg=name)
    moved = [name for name in before if (before[name][600:] != after[name][600:]).any()]
    assert set(moved) == set(before) - {"hour", "weekday"}


def test_inputs_are_what_their_names_say() -> None:
    bins, row = some(700), 650
    columns, x, same_time_yesterday = throughput_columns(bins, 2), bins.jobs, row + 2 - 24
    assert columns["hour"][row] == bins.start[same_time_yesterday].hour
    assert columns["jobs_lag1"][row] == x[row - 1]
    assert columns["jobs_mean6"][row] == pytest.approx(x[row - 5 : row + 1].mean())
    assert columns["jobs_median18"][row] == np.median(x[row - 17 : row + 1])
    assert columns["jobs_std6"][row] == pytest.approx(x[row - 5 : row + 1].std(ddof=1))
    assert columns["jobs_day_ago"][row] == pytest.approx(x[same_time_yesterday - 2 : same_time_yesterday + 3].mean())
    weights = 0.5 ** (np.arange(16) / 2)
    assert columns["jobs_soft2"][row] == pytest.approx((weights * x[row - 15 : row + 1][::-1]).sum() / weights.sum())


def test_terms_are_the_score() -> None:
    bins = some(900, seed=2)
    for column, name in enumerate(("jobs", "gpus")):
        forecaster: TargetModel = getattr(trained(), name)
        score = forecaster.model.intercept + sum(t.score for t in trained().explain(bins, name))
        got = max(score, 0.0) ** 2 - 0.25 if forecaster.root else score
        assert max(got, 0.0) == pytest.approx(trained().predict(bins)[-1, column], abs=1e-9)
    with pytest.raises(ModelError, match="no target 'cpus'"):
        trained().explain(bins, "cpus")


def test_json_comes_back_equal_and_versions_written_before_are_read() -> None:
    data, bins = json.loads(json.dumps(trained().to_json())), some(800, seed=3)
    expected = trained().predict(bins)
    np.testing.assert_array_equal(ThroughputModel.from_json(data).predict(bins), expected)
    for target in ("jobs", "gpus"):
        del data[target]["mean_factor"]
    before = ThroughputModel.from_json(data)
    np.testing.assert_array_equal(before.predict(bins), expected)
    assert before.gpus.mean_factor == 1.0


DAMAGE = {
    "format": "x",
    "age": 0,
    "width_s": 0,
    "jobs": None,
    "gpus root": 1,
    "gpus persistence": -1,
    "jobs model": {},
}


@pytest.mark.parametrize(("where", "value"), [*DAMAGE.items(), ("age", True)])
def test_damage_is_refused_by_name(where: str, value: object) -> None:
    with pytest.raises(ModelError, match="somewhere"):
        ThroughputModel.from_json(damaged(trained().to_json(), tuple(where.split()), value), source="somewhere")


def test_a_burst_is_carried_beyond_the_tables() -> None:
    newest = np.array([10.0, 50.0, 150.0])
    assert FLAT.burst(newest).tolist() == [0.0, 0.0, 50.0]
    assert FLAT.predict({"x": newest}, newest).tolist() == [3.0, 3.0, 53.0]


@given(st.floats(0, 1e6), st.floats(-50, 50))
def test_a_forecast_is_never_negative(newest: float, intercept: float) -> None:
    for root in (True, False):
        one = replace(FLAT, model=AdditiveModel(intercept, "identity", ()), root=root)
        assert one.predict({"x": [newest]}, np.array([newest]))[0] >= 0


def test_the_rate_at_which_bursts_last_is_the_l1_slope() -> None:
    rng = np.random.default_rng(0)
    burst = rng.uniform(-1, 5, 400)
    coming = 0.6 * burst + rng.normal(scale=0.1, size=400)
    assert _lasting(burst, coming) == pytest.approx(0.6, abs=0.03)
    assert _lasting(burst, -coming) == 0.0
    assert _lasting(burst[:10], coming[:10]) == 0.0  # too few to tell


def test_too_little_data_and_wrong_ages_and_widths_are_refused() -> None:
    with pytest.raises(ModelError, match="when more have come"):
        fit_throughput(some(600), 1)
    for age in (0, 23):
        with pytest.raises(ModelError, match="age of the newest bin"):
            fit_throughput(some(600), age)
    with pytest.raises(ModelError, match="bins of 3600 s"):
        trained().predict(some(700, minutes=30))
    with pytest.raises(ModelError, match="equally many"):
        Bins((START, START), np.ones(2), np.ones(3))


def test_a_bad_bin_is_refused_with_its_line(tmp_path: Path) -> None:
    good = "time,submit_gpu_job,submit_gpu_num\n2024-01-01 00:00:00,1,8\n2024-01-01 00:10:00,2,9"
    assert read_bins(write(tmp_path / "bins.csv", good)).gpus.tolist() == [8.0, 9.0]
    for row, says in {
        "2024-01-01 00:00:00,1,x": "submit_gpu_num is 'x'",
        "2024-01-01 00:00:00,1,-1": "submit_gpu_num is",
        "yesterday,1,1": "time is 'yesterday'",
        "2024-01-01 00:30:00,1,1": "bin .* not one step",
    }.items():
        with pytest.raises(ModelError, match=f"line 4: {says}"):
            read_bins(write(tmp_path / "bins.csv", f"{good}\n{row}"))


@settings(max_examples=examples(20), deadline=None)  # the first example trains the model
@given(st.integers(2, 300))
def test_short_histories_give_forecasts_too(count: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert np.isfinite(trained().predict(some(count))).all()


@pytest.mark.parity
@pytest.mark.slow
@pytest.mark.parametrize(("age", "jobs", "gpus"), [(1, 3.15, 34.0), (5, 3.8, 41.0)])
def test_figures_on_a_real_cluster(age: int, jobs: float, gpus: float) -> None:
    path = Path(os.environ.get("LUCID_SHARED", "../shared")) / "data" / "venus_throughput.csv"
    if not path.exists():
        pytest.skip(f"{path} is absent; set LUCID_SHARED")
    from lucid.models.throughput.forecaster import evaluate

    figures = evaluate(read_bins(path), datetime(2020, 9, 1), age)
    assert figures["mae_jobs"] <= jobs
    assert figures["mae_gpus"] <= gpus


def finished(hours: int, per_hour: int) -> JobTable:
    """Jobs of 2 GPUs that each run an hour."""
    submit = np.repeat(np.arange(hours) * 3600.0 + 1.7e9 // 3600 * 3600, per_hour)
    same = {"duration_s": [3600.0] * len(submit), "gpus": [2.0] * len(submit)}
    return JobTable.from_columns(submit_s=submit, end_s=submit + 3600.0, **same)


def test_bins_of_a_job_log_stop_before_those_whose_jobs_still_run() -> None:
    bins = bins_of_jobs(finished(48, 3), 3600.0)
    assert len(bins.start) == 47, "the newest hour is left out"
    assert bins.jobs.tolist() == [3.0] * 47
    assert bins.gpus.tolist() == [6.0] * 47
    assert bins.start[0].tzinfo is not None
    for jobs in (finished(1, 3), JobTable.from_columns(submit_s=[1.0], end_s=[9.0], duration_s=[8.0], gpus=[0.0])):
        with pytest.raises(TooFew):
            bins_of_jobs(jobs, 3600.0)


def test_expected_gpus_have_the_mean_of_what_came_although_forecasts_are_medians() -> None:
    model, bins = trained(), some(1400)
    expected = [model.gpus_per_hour(bins.upto(bins.start[at])) for at in range(600, 1400, 4)]
    medians = model.predict(bins)[599:1399:4, 1]
    assert abs(np.mean(expected) / bins.gpus[600:].mean() - 1) < 0.1
    assert np.mean(medians) < np.mean(expected)


@pytest.mark.parametrize("minutes", [10, 60])
@pytest.mark.parametrize("age", [1, 3])
def test_the_newest_row_alone_is_the_last_of_all(minutes: int, age: int) -> None:
    bins = some(22 * 24 * 60 // minutes, seed=5, minutes=minutes)
    newest = newest_columns(bins, age)
    for name, column in throughput_columns(bins, age).items():
        np.testing.assert_allclose(newest[name], column[-1:], rtol=1e-12, err_msg=name)


def test_the_forecast_is_the_larger_of_now_and_then() -> None:
    forecaster = ArrivalForecaster()
    for day in range(3):
        forecaster.observe(a_job(f"noon{day}", 12, (24 * day + 12) * 3600.0))
    forecaster.observe(a_job("odd", 4, (2 * 24 + 15) * 3600.0))
    for hour, gpus in ((3 * 24 + 12, 12 / 3), (2 * 24 + 16, 4 / 2), (3 * 24 + 18, 0.0)):
        assert forecaster.forecast(hour * 3600.0).per_hour("vc") == pytest.approx(gpus)


def test_the_forecast_is_of_whole_bins_and_the_same_object_within_one() -> None:
    forecaster = ArrivalForecaster()
    forecaster.observe(a_job("a", 6, 10.0))
    first = forecaster.forecast(BIN_S - 1)
    assert first.per_hour("vc") == 0.0  # its bin is not over
    assert forecaster.forecast(BIN_S).per_hour("vc") == pytest.approx(3.0)
    assert forecaster.forecast(BIN_S + 1) is forecaster.forecast(BIN_S + 2)
