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
from lucid.models.training import Action, Drift, Evidence, category_psi, due, error_ratio, psi

OPTION = FACT_NAMES.index("option")
OTHER = STATISTICS.index("request_median")


def judge(record: Record, *truths: float, median: float = 6.0, other: float = 6.0, tables: float = math.nan) -> None:
    """Jobs that take so long, one after the other; `other` is what the request's median says."""
    for truth in truths:
        at = float(len(record._times))
        said = [median] * len(STATISTICS)
        said[OTHER] = other
        record.add(said, tables, truth, math.inf, at, at)


def test_the_median_serves_until_another_has_proved_better() -> None:
    record = Record()
    judge(record, *[5.0] * (FEWEST_JUDGED - 1), other=5.0)
    assert record.choice.served == 0
    judge(record, 5.0, other=5.0)
    assert OPTIONS[record.choice.served] == "statistic"
    assert STATISTICS[record.choice.best] == "request_median"
    assert record.choice.ratio < 1.0
    worse = Record()
    judge(worse, *[5.0] * 50, median=5.1, tables=6.0)
    assert (worse.choice.served, worse.choice.ratio) == (0, 1.0)


WORSE = {
    "logs": ([9.0] + [6.0] * 7, [9.0] + [5.5] * 7),  # one long job makes up for many short ones in seconds
    "seconds": ([5.0, 5.0, 6.0], [5.0, 5.0, 7.0]),
    "misses": ([5.35] + [5.8] * 6, [4.6] + [5.8] * 6),
}


@pytest.mark.parametrize("worse", WORSE)
def test_what_is_worse_in_one_of_three_figures_does_not_replace_the_median(worse: str) -> None:
    """The median says 6.0 of every job. The mean of the two ratios is below 1 in every case."""
    record = Record()
    for truth, other in zip(*WORSE[worse], strict=True):
        judge(record, truth, other=other)
    sums = np.array(record.sums[: 3 * len(STATISTICS)]).reshape(3, len(STATISTICS))
    assert (sums[:2, OTHER] / sums[:2, 0]).mean() < 1.0
    assert [name for name, row in zip(WORSE, sums, strict=True) if row[OTHER] > row[0]] == [worse]
    assert (record.choice.best, record.choice.option, record.choice.served) == (0, 0, 0)


def test_tables_serve_only_a_user_on_whose_jobs_they_were_judged_often_enough() -> None:
    record = Record()
    judge(record, *[5.0] * 50)
    judge(record, *[5.0] * (FEWEST_BY_TABLES - 1), tables=5.0)
    assert record.choice.served == 0
    judge(record, 5.0, tables=5.0)
    assert OPTIONS[record.choice.served] == "tables"


def test_what_was_issued_and_lost_gives_way_to_the_median_though_an_option_looks_better() -> None:
    record = Record()
    judge(record, *[5.0] * 50, other=5.2)
    assert record.choice.served == record.choice.option != 0
    sums = record.sums
    sums[-6] *= 20.0  # of what was issued, over the longer memory
    lost = Record(sums).choice
    assert (lost.option, lost.served) == (record.choice.option, 0)


def anns(submit_s: np.ndarray, duration_s: np.ndarray, end_s: np.ndarray, cpus: float = 1.0) -> JobTable:
    size = len(submit_s)
    columns = {"submit_s": submit_s, "duration_s": duration_s, "end_s": end_s}
    return JobTable.from_columns(user=["ann"] * size, cpus=[cpus] * size, **columns)


def test_a_job_is_judged_by_what_was_known_at_its_submission() -> None:
    """A burst: fifty jobs submitted at once. Their own ends tell nothing of them when they were submitted."""
    five = np.arange(5) * 10.0
    history = DurationHistory.from_jobs(anns(five, np.full(5, 100.0), five + 1.0))
    before = history.records["ann"]
    history.add(anns(np.full(50, 100.0), np.full(50, 1900.0), 2000.0 + np.arange(50), 4.0))
    sums, statistics = history.records["ann"], len(STATISTICS)
    assert sums[:statistics] == pytest.approx([sums[0]] * statistics), "every statistic said 100 s of every one"
    assert sums[0] > before[0] + 10.0


@pytest.mark.parametrize(("off", "option"), [(0.0, "tables"), (-0.7, "statistic")])
def test_tables_are_judged_on_jobs_that_ended_after_they_had_learned(off: float, option: str) -> None:
    """They had learned until 500,000 s, and are wrong by exp(`off`). Every job takes 2 % longer than the last."""
    durations, submit, history = 100.0 * 1.02 ** np.arange(200), np.arange(200) * 20_000.0, DurationHistory()
    history.judge(lambda jobs, _: to_log(jobs.duration_s) + off, {}, 5e5)
    jobs = anns(submit, durations, submit + durations)
    facts = history.replay(jobs)
    early = jobs.submit_s <= 5e5
    assert (facts[early, OPTION] == 0).all()
    assert OPTIONS[int(facts[100, OPTION])] == option


def test_a_model_of_the_format_before_is_read_as_medians_and_statistics() -> None:
    interval = DurationModel.untrained().interval.to_json()
    data = {"format": "lucid-duration/3", "default_log": 7.0, "trained_jobs": 300, "users": ["ann"]}
    model = DurationModel.from_json({**data, "interval": interval, "tables": {"format": "?"}}, source="m.json")
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
    own, median = (
        {"mae_s": mae_s, "within_2x": share, "spearman": 0.5, "per_user": {"mae_s": by_user_s, "within_2x": 0.5}}
        for mae_s, share, by_user_s in ((ours, within, per_user), (100.0, 0.6, 100.0))
    )
    of = {"coverage_80": 0.8, "users_tested": 3, "days_tested": 2, "jobs": 9, "jobs_of": "user"}
    return {**own, **of, "running_median": median, "choices": [], "sources": {}}


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
    facts: dict[str, object] = {"now": NOW, "trained": NOW - timedelta(days=1), "new_jobs": 200, "drift": CALM}
    return Evidence(**(facts | changes))  # type: ignore[arg-type]


REASONS: dict[str, tuple[Action, dict[str, object]]] = {
    "nothing calls": (Action.NOTHING, {}),
    "no version is in service": (Action.TRAIN, {"trained": None}),
    "7.0 days old, at most 7.0 days": (Action.TRAIN, {"trained": NOW - timedelta(days=7)}),
    "1000 jobs finished since": (Action.TRAIN, {"new_jobs": 1000}),
    "error is 1.10 of history means over 100 jobs": (Action.TRAIN, {"drift": Drift(1.1, 100)}),
    "nothing calls for training": (Action.NOTHING, {"drift": Drift(1.1, 99)}),
    "the version is suspended": (Action.FALL_BACK, {"drift": Drift(1.3, 100)}),
    "input user has moved: PSI 0.40": (Action.TRAIN, {"drift": Drift(None, 100, {"gpus": 0.3, "user": 0.4})}),
    "only 49 new jobs": (Action.NOTHING, {"trained": None, "new_jobs": 49}),
    "above 1.2": (Action.FALL_BACK, {"drift": Drift(1.3, 100), "new_jobs": 0}),
}


@pytest.mark.parametrize("reason", REASONS)
def test_each_reason_alone(reason: str) -> None:
    action, changes = REASONS[reason]
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


def test_psi_sees_shifts_missing_values_and_new_names() -> None:
    # Halves 50/50 against 25/75: (0.25 - 0.5) ln(1/2) + (0.75 - 0.5) ln(3/2)
    expected = -0.25 * np.log(0.5) + 0.25 * np.log(1.5)
    assert psi([1, 1, 2, 2], [1, 2, 2, 2], bins=2) == pytest.approx(expected)
    assert category_psi(["a", "b"], ["a", "b", "b", "b"]) == pytest.approx(expected)
    rng = np.random.default_rng(0)
    old = rng.normal(size=3000)
    assert psi(old, rng.normal(size=3000)) < 0.1
    for new in (rng.normal(loc=1, size=3000), np.where(rng.random(3000) < 0.5, np.nan, old)):
        assert psi(old, new) > 0.25
    assert psi(np.full(5, np.nan), old) > 0.25
    assert psi(old, []) == psi([], old) == category_psi([], ["a"]) == 0.0
    assert category_psi(["a", "b", None] * 100, ["c"] * 100) > 0.25


@given(st.lists(st.floats(-1e6, 1e6), min_size=1), st.lists(st.floats(-1e6, 1e6), min_size=1))
def test_psi_is_never_negative_and_zero_of_itself(old: list[float], new: list[float]) -> None:
    assert psi(old, new) >= 0
    assert psi(old, old) == 0
    assert category_psi([str(v) for v in old], [str(v) for v in new]) >= 0


@pytest.mark.parametrize("ended", [40, 60, 99])
def test_enough_to_judge_by_is_what_the_message_says(ended: int) -> None:
    assert split(np.arange(float(ended)), None, "jobs") == ended - 21.0
    with pytest.raises(TooFew, match=r"39 jobs are new, and 0 of them came last, .*at least 40 and 20 are needed"):
        split(np.zeros(39), None, "jobs")
