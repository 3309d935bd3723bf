"""When a model of durations is fitted anew, and when it is used."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from lucid.cli.main import lucidctl
from lucid.errors import ModelError
from lucid.models.duration import evaluate
from lucid.models.duration.evaluate import worse_than_median
from lucid.models.duration.features import FACT_NAMES, FEWEST_NEAR, Near, to_log
from lucid.models.duration.gate import FEWEST_BY_TABLES, FEWEST_JUDGED, OPTIONS, STATISTICS, Record
from lucid.models.duration.history import DurationHistory
from lucid.models.duration.jobtable import JobTable
from lucid.models.duration.model import DurationModel
from lucid.models.kind import TooFew, split
from lucid.models.training import (
    Action,
    Drift,
    Evidence,
    category_psi,
    due,
    error_ratio,
    psi,
)

OPTION = FACT_NAMES.index("option")
OTHER = STATISTICS.index("request_median")


def judge(record: Record, jobs: int, *, median: float, other: float, tables: float, truth: float = 5.0) -> None:
    """`jobs` alike, one after the other; `other` is what the request's median says."""
    for _ in range(jobs):
        at = float(len(record._times))
        said = [median] * len(STATISTICS)
        said[OTHER] = other
        record.add(said, tables, truth, math.inf, at, at)


def test_the_median_serves_until_another_has_proved_better() -> None:
    record = Record()
    judge(record, FEWEST_JUDGED - 1, median=6.0, other=5.0, tables=math.nan)
    assert record.choice.served == 0
    judge(record, 1, median=6.0, other=5.0, tables=math.nan)
    assert OPTIONS[record.choice.served] == "statistic"
    assert STATISTICS[record.choice.best] == "request_median"
    assert record.choice.ratio < 1.0
    worse = Record()
    judge(worse, 50, median=5.1, other=6.0, tables=6.0)
    assert (worse.choice.served, worse.choice.ratio) == (0, 1.0)


@pytest.mark.parametrize(
    ("truths", "other", "worse"),
    [
        ([9.0] + [6.0] * 7, [9.0] + [5.5] * 7, "logs"),  # one long job makes up for many short ones in seconds
        ([5.0, 5.0, 6.0], [5.0, 5.0, 7.0], "seconds"),
        ([5.35] + [5.8] * 6, [4.6] + [5.8] * 6, "misses"),
    ],
)
def test_what_is_worse_in_one_of_three_figures_does_not_replace_the_median(
    truths: list[float], other: list[float], worse: str
) -> None:
    """The median says 6.0 of every job. The mean of the two ratios is below 1 in every case."""
    record = Record()
    for at, (truth, value) in enumerate(zip(truths, other, strict=True)):
        said = [6.0] * len(STATISTICS)
        said[OTHER] = value
        record.add(said, math.nan, truth, math.inf, float(at), float(at))
    sums = np.array(record.sums[: 3 * len(STATISTICS)]).reshape(3, len(STATISTICS))
    ratios = sums[:2, OTHER] / sums[:2, 0]
    assert ratios.mean() < 1.0
    figures = ("logs", "seconds", "misses")
    assert [name for name, own, median in zip(figures, sums[:, OTHER], sums[:, 0], strict=True) if own > median] == [
        worse
    ]
    assert (record.choice.best, record.choice.option, record.choice.served) == (0, 0, 0)


def test_tables_serve_only_a_user_on_whose_jobs_they_were_judged_often_enough() -> None:
    record = Record()
    judge(record, 50, median=6.0, other=6.0, tables=math.nan)
    judge(record, FEWEST_BY_TABLES - 1, median=6.0, other=6.0, tables=5.0)
    assert record.choice.served == 0
    judge(record, 1, median=6.0, other=6.0, tables=5.0)
    assert OPTIONS[record.choice.served] == "tables"


def test_what_was_issued_and_lost_gives_way_to_the_median_though_an_option_looks_better() -> None:
    record = Record()
    judge(record, 50, median=6.0, other=5.2, tables=math.nan)
    assert record.choice.served == record.choice.option != 0
    sums = record.sums
    sums[-6] *= 20.0  # of what was issued, over the longer memory
    lost = Record(sums).choice
    assert (lost.option, lost.served) == (record.choice.option, 0)


def test_a_job_is_judged_by_what_was_known_at_its_submission() -> None:
    """A burst: fifty jobs submitted at once. Their own ends tell nothing of them when they were submitted."""
    size = 50
    first = JobTable.from_columns(user=["ann"] * 5, submit_s=np.arange(5) * 10.0, end_s=np.arange(5) * 10.0 + 1.0,
                        duration_s=[100.0] * 5, cpus=[1.0] * 5)  # fmt: skip
    burst = JobTable.from_columns(user=["ann"] * size, submit_s=[100.0] * size, end_s=2000.0 + np.arange(size),
                        duration_s=[1900.0] * size, cpus=[4.0] * size)  # fmt: skip
    history = DurationHistory.from_jobs(first)
    before = history.records["ann"]
    history.add(burst)
    sums, statistics = history.records["ann"], len(STATISTICS)
    assert sums[:statistics] == pytest.approx([sums[0]] * statistics), "every statistic said 100 s of every one"
    assert sums[0] > before[0] + 10.0


def judging(off: float) -> DurationHistory:
    """A history that serves tables which had learned until 500,000 s and are wrong by a factor of exp(`off`)."""
    history = DurationHistory()
    history.judge(lambda jobs, _: to_log(jobs.duration_s) + off, {}, 5e5)
    return history


def drifting(size: int = 200) -> JobTable:
    """One user; every job takes 2 % longer than the one before."""
    durations = 100.0 * 1.02 ** np.arange(size)
    submit = np.arange(size) * 20_000.0
    return JobTable.from_columns(user=["ann"] * size, submit_s=submit, duration_s=durations, end_s=submit + durations)


@pytest.mark.parametrize(("off", "option"), [(0.0, "tables"), (-0.7, "statistic")])
def test_tables_are_judged_on_jobs_that_ended_after_they_had_learned(off: float, option: str) -> None:
    jobs = drifting()
    facts = judging(off).replay(jobs)
    early = jobs.submit_s <= 5e5
    assert (facts[early, OPTION] == 0).all()
    assert OPTIONS[int(facts[100, OPTION])] == option


def test_a_model_of_the_format_before_is_read_as_medians_and_statistics() -> None:
    data = {"format": "lucid-duration/3", "default_log": 7.0, "trained_jobs": 300, "users": ["ann"],
            "interval": DurationModel.untrained().interval.to_json(), "tables": {"format": "?"}}  # fmt: skip
    model = DurationModel.from_json(data, source="m.json")
    assert (model.trained_jobs, model.default_log, model.tables) == (300, 7.0, None)
    with pytest.raises(ModelError, match=r"m\.json.*train the model again"):
        DurationModel.from_json({"format": "lucid-duration/2"}, source="m.json")


def test_every_user_has_one_voice_near_a_time_limit() -> None:
    near = Near()
    for _ in range(500):
        near.add("busy", 3600.0, float(to_log(10.0)))
    for number in range(FEWEST_NEAR - 2):
        near.add(f"u{number}", 3600.0, float(to_log(3000.0)))
    assert near.median(3600.0) == (pytest.approx(math.nan, nan_ok=True), FEWEST_NEAR - 1)
    near.add("last", 3700.0, float(to_log(3000.0)))
    assert near.median(3600.0) == (pytest.approx(float(to_log(3000.0))), FEWEST_NEAR)
    assert math.isnan(near.median(40 * 3600.0)[0])
    assert math.isnan(near.median(math.nan)[0])


def figures(ours: float, within: float, per_user: float) -> dict[str, object]:
    own = {"mae_s": ours, "within_2x": within, "spearman": 0.5, "per_user": {"mae_s": per_user, "within_2x": 0.5}}
    median = {"mae_s": 100.0, "within_2x": 0.6, "spearman": 0.5, "per_user": {"mae_s": 100.0, "within_2x": 0.5}}
    return {**own, "running_median": median, "coverage_80": 0.8, "users_tested": 3, "days_tested": 2, "jobs": 9,
            "jobs_of": "user", "choices": [], "sources": {}}  # fmt: skip


@pytest.mark.parametrize(
    ("found", "sentences"),
    [((100.9, 0.595, 100.9), 0), ((101.1, 0.6, 100.0), 1), ((100.0, 0.58, 100.0), 1), ((100.0, 0.6, 102.0), 1)],
)
def test_worse_by_more_than_one_percent_is_said(found: tuple[float, float, float], sentences: int) -> None:
    assert len(worse_than_median(figures(*found))) == sentences


@pytest.mark.parametrize("flags", [[], ["--json"]])
@pytest.mark.parametrize(("mae", "status"), [(102.0, 1), (99.0, 0)])
def test_an_evaluation_that_is_worse_fails(
    monkeypatch: pytest.MonkeyPatch, flags: list[str], mae: float, status: int
) -> None:
    told = figures(mae, 0.6, 99.0)
    monkeypatch.setattr(evaluate, "evaluate_duration", lambda *_, **__: {**told, "worse": worse_than_median(told)})
    result = CliRunner().invoke(lucidctl, ["models", "evaluate", "duration", "x.csv", "--test-from", "1", *flags])
    assert result.exit_code == status, result.output
    assert ("worse than the running median by more than 1 %" in result.stderr) == bool(status)
    if flags:
        assert json.loads(result.stdout)["users_tested"] == 3


NOW = datetime(2024, 5, 8, tzinfo=UTC)
CALM = Drift(0.8, 500, {"gpus": 0.05, "user": 0.02})


def evidence(**changes: object) -> Evidence:
    facts: dict[str, object] = {
        "now": NOW,
        "trained": NOW - timedelta(days=1),
        "new_jobs": 200,
        "drift": CALM,
    }
    return Evidence(**(facts | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "action", "reason"),
    [
        ({}, Action.NOTHING, "nothing calls"),
        ({"trained": None}, Action.TRAIN, "no version is in service"),
        ({"trained": NOW - timedelta(days=7)}, Action.TRAIN, "7.0 days old, at most 7.0 days"),
        ({"new_jobs": 1000}, Action.TRAIN, "1000 jobs finished since"),
        ({"drift": Drift(1.1, 100)}, Action.TRAIN, "error is 1.10 of history means over 100 jobs"),
        ({"drift": Drift(1.1, 99)}, Action.NOTHING, "nothing calls"),
        ({"drift": Drift(1.3, 100)}, Action.FALL_BACK, "the version is suspended"),
        (
            {"drift": Drift(None, 100, {"gpus": 0.3, "user": 0.4})},
            Action.TRAIN,
            "input user has moved: PSI 0.40",
        ),
        ({"trained": None, "new_jobs": 49}, Action.NOTHING, "only 49 new jobs"),
        ({"drift": Drift(1.3, 100), "new_jobs": 0}, Action.FALL_BACK, "above 1.2"),
    ],
)
def test_each_reason_alone(changes: dict[str, object], action: Action, reason: str) -> None:
    decision = due(evidence(**changes))
    assert decision.action is action
    assert any(reason in text for text in decision.reasons)


@given(st.integers(0, 5000), st.integers(0, 5000), st.floats(0, 3), st.floats(0, 2))
def test_more_evidence_never_calms(jobs: int, more: int, ratio: float, moved: float) -> None:
    order = [Action.NOTHING, Action.TRAIN, Action.FALL_BACK]
    one = due(evidence(new_jobs=jobs, drift=Drift(ratio, 500, {"x": moved})))
    two = due(evidence(new_jobs=jobs + more, drift=Drift(ratio + 0.1, 500, {"x": moved + 0.1})))
    assert order.index(two.action) >= order.index(one.action)


def test_error_ratio_compares_with_history() -> None:
    assert error_ratio([10, 20], [11, 21], [12, 22]) == 0.5
    assert error_ratio([10], [10], [10]) == 1.0
    assert error_ratio([10], [11], [10]) == float("inf")
    assert error_ratio([], [], []) is None
    with pytest.raises(ModelError, match="shapes"):
        error_ratio([1, 2], [1], [1, 2])


def test_psi_by_hand() -> None:
    # Halves 50/50 against 25/75: (0.25 - 0.5) ln(1/2) + (0.75 - 0.5) ln(3/2)
    expected = -0.25 * np.log(0.5) + 0.25 * np.log(1.5)
    assert psi([1, 1, 2, 2], [1, 2, 2, 2], bins=2) == pytest.approx(expected)
    assert category_psi(["a", "b"], ["a", "b", "b", "b"]) == pytest.approx(expected)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1), st.lists(st.floats(-1e6, 1e6), min_size=1))
def test_psi_is_never_negative_and_zero_of_itself(old: list[float], new: list[float]) -> None:
    assert psi(old, new) >= 0
    assert psi(old, old) == 0
    assert category_psi([str(v) for v in old], [str(v) for v in new]) >= 0


def test_psi_sees_shifts_missing_values_and_new_names() -> None:
    rng = np.random.default_rng(0)
    old = rng.normal(size=3000)
    assert psi(old, rng.normal(size=3000)) < 0.1
    assert psi(old, rng.normal(loc=1, size=3000)) > 0.25
    assert psi(old, np.where(rng.random(3000) < 0.5, np.nan, old)) > 0.25
    assert psi(np.full(5, np.nan), old) > 0.25
    assert psi(old, []) == psi([], old) == category_psi([], ["a"]) == 0.0
    assert category_psi(["a", "b", None] * 100, ["c"] * 100) > 0.25


@pytest.mark.parametrize("ended", [40, 60, 99])
def test_enough_to_judge_by_is_what_the_message_says(ended: int) -> None:
    assert split(np.arange(float(ended)), None, "jobs") == ended - 21.0
    with pytest.raises(TooFew, match=r"39 jobs are new, and 0 of them came last, .*at least 40 and 20 are needed"):
        split(np.zeros(39), None, "jobs")
