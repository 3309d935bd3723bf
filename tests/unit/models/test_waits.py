"""Arrivals, and durations from the history of jobs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from builders import LIGHT, a_job
from lucid.core.job import Ended, Job
from lucid.core.prediction import JUMBO, Prediction
from lucid.left_out import LeftOut
from lucid.models.history import HistoryPredictor, PriorPredictor
from lucid.models.throughput.bins import BIN_S
from lucid.models.throughput.model import ArrivalForecaster
from lucid.orchestrator.planner import Predictions


def test_the_forecast_is_the_larger_of_now_and_then() -> None:
    hour = 3600.0
    forecaster = ArrivalForecaster()
    for day in range(3):
        forecaster.observe(a_job(f"noon{day}", 12, day * 24 * hour + 12 * hour))
    forecaster.observe(a_job("odd", 4, 2 * 24 * hour + 15 * hour))
    noon = 3 * 24 * hour + 12 * hour
    assert forecaster.forecast(noon).per_hour("vc") == pytest.approx(12 / 3)
    assert forecaster.forecast(2 * 24 * hour + 16 * hour).per_hour("vc") == pytest.approx(4 / 2)
    assert forecaster.forecast(noon + 6 * hour).per_hour("vc") == 0.0


def test_the_forecast_is_of_whole_bins_and_the_same_object_within_one() -> None:
    forecaster = ArrivalForecaster()
    forecaster.observe(a_job("a", 6, 10.0))
    first = forecaster.forecast(BIN_S - 1)
    assert first.per_hour("vc") == 0.0  # its bin is not over
    assert forecaster.forecast(BIN_S).per_hour("vc") == pytest.approx(3.0)
    assert forecaster.forecast(BIN_S + 1) is forecaster.forecast(BIN_S + 2)


def past(ran_s: float, **of: object) -> Ended:
    return Ended(a_job("past", **of), 0.0, ran_s)  # type: ignore[arg-type]


PAST = [
    past(100.0, user="ann", name="train", gpus=4, vc="a"),
    past(200.0, user="ann", name="other", gpus=2, vc="a"),
    past(400.0, user="bob", name="train", gpus=2, vc="b"),
    past(800.0, user="", name="", gpus=8, vc="b"),
]


def asked(job: Job) -> Prediction:
    predictor = HistoryPredictor()
    predictor.learn(PAST)
    return predictor.predict(job, None, 0.0)


@pytest.mark.parametrize(
    ("of", "expected_s", "by"),
    [
        ({"user": "ann", "name": "train", "gpus": 2, "vc": "a"}, 100.0, "mean of 1 job with the same user and name"),
        ({"user": "ann", "name": "new", "gpus": 2, "vc": "b"}, 200.0, "mean of 1 job with the same user and GPUs"),
        ({"user": "ann", "name": "new", "gpus": 8, "vc": "b"}, 150.0, "mean of 2 jobs with the same user"),
        ({"user": "new", "name": "train", "gpus": 2, "vc": "b"}, 400.0, "mean of 1 job with the same VC and GPUs"),
        ({"user": "new", "name": "train", "gpus": 2, "vc": "c"}, 300.0, "mean of 2 jobs with the same GPUs"),
        ({"user": "new", "name": "train", "gpus": 16, "vc": "c"}, 375.0, "mean of 4 jobs"),
        ({"user": "", "name": "train", "gpus": 8, "vc": "b"}, 800.0, "mean of 1 job with the same VC and GPUs"),
    ],
)
def test_L20_the_most_alike_jobs_count(of: dict[str, object], expected_s: float, by: str) -> None:
    found = asked(a_job("new", **of))  # type: ignore[arg-type]
    assert found.duration_s == expected_s
    assert by in found.duration_source


def test_the_newest_jobs_of_a_group_count_where_it_is_asked_for() -> None:
    recent, all_of_them = HistoryPredictor(newest=2), HistoryPredictor()
    for predictor in (recent, all_of_them):
        predictor.learn([past(ran_s, user="ann") for ran_s in (9000.0, 100.0, 200.0)])
    found = recent.predict(a_job("new", user="ann"), None, 0.0)
    assert found.duration_s == 150.0
    assert found.duration_source == "history: mean of the last 2 jobs with the same user and GPUs"
    assert all_of_them.predict(a_job("new", user="ann"), None, 0.0).duration_s == 3100.0


def test_before_any_job_has_ended_there_is_a_first_guess() -> None:
    found = HistoryPredictor(first_guess_s=50.0).predict(a_job("new"), None, 0.0)
    assert found == Prediction(50.0, "history: no job has ended yet", None, "history")


def test_an_unmodelled_job_counts_as_jumbo_once_measured() -> None:
    predictor = HistoryPredictor()
    assert predictor.predict(a_job("new"), None, 0.0).share_score is None
    assert predictor.predict(a_job("new"), LIGHT, 0.0).share_score == JUMBO
    assert predictor.pair_speed(LIGHT, LIGHT) is None


@pytest.mark.parametrize(("ran_s", "left_s"), [(0.0, 100.0), (60.0, 40.0), (100.0, 100.0), (250.0, 250.0)])
def test_a_job_that_outlived_its_estimate_goes_on_as_long_again(ran_s: float, left_s: float) -> None:
    assert Prediction(100.0, "test").remaining_s(ran_s) == left_s


def asks_for(limit_s: float | None, **of: object) -> Job:
    return replace(a_job("new", **of), time_limit_s=limit_s)  # type: ignore[arg-type]


@pytest.mark.parametrize(("ran_s", "state"), [(0.0, "FAILED"), (40.0, "BOOT_FAIL"), (40.0, "LAUNCH_FAILED")])
def test_what_did_not_run_teaches_no_duration(ran_s: float, state: str) -> None:
    guarded = Predictions(PriorPredictor(), LeftOut(), 3600.0)
    guarded.learn([replace(past(ran_s), state=state)])
    found = guarded.predict(asks_for(7200.0), None, 0.0)
    assert found == Prediction(7200.0, "history: the time limit; no job like it has ended yet", None, "history")


def test_without_a_time_limit_the_first_guess_is_the_prior() -> None:
    found = PriorPredictor(50.0).predict(asks_for(None), None, 0.0)
    words = "history: a first guess, since it has no time limit; no job like it has ended yet"
    assert found == Prediction(50.0, words, None, "history")


def test_others_tell_how_much_of_a_limit_jobs_use_and_the_user_how_long_his_run() -> None:
    predictor = PriorPredictor()
    job = asks_for(10_000.0, user="ann", name="a")
    predictor.learn([Ended(job, 1000.0, 1000.0)] * 500)
    of_others = predictor.predict(asks_for(100_000.0, user="bob", name="b"), None, 0.0).duration_s
    assert of_others == pytest.approx(10_000.0, rel=0.05)
    own = predictor.predict(asks_for(100_000.0, user="ann", name="other"), None, 0.0).duration_s
    assert own == pytest.approx(1000.0, rel=0.05)


def test_a_group_forgets_its_oldest_jobs() -> None:
    predictor, job = PriorPredictor(), asks_for(86_400.0, user="ann", name="train")
    predictor.learn([Ended(job, 60.0, 60.0)] * 1000 + [Ended(job, 6000.0, 6000.0)] * 1000)
    assert predictor.predict(job, None, 0.0).duration_s == pytest.approx(6000.0, rel=0.02)


@pytest.mark.parametrize("made", [HistoryPredictor, PriorPredictor])
def test_names_of_one_job_each_do_not_add_up_for_ever(monkeypatch: pytest.MonkeyPatch, made: Any) -> None:
    """As many names as jobs: those of which a job ended last are remembered."""
    monkeypatch.setattr("lucid.models.history.GROUPS_KEPT", 20)
    predictor = made()
    often = a_job("often", user="ada", name="often")
    for n in range(200):
        predictor.learn([Ended(a_job(f"{n}", user="ada", name=f"once-{n}"), 1.0, 50.0), Ended(often, 1.0, 500.0)])
    groups = getattr(predictor, "_means", None) or predictor._known
    assert len(groups) == 20
    assert "same user and name" in predictor.predict(often, None, 0.0).duration_source
