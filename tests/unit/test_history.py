"""L20: means over past jobs, from the most alike to all."""

from __future__ import annotations

import pytest

from builders import LIGHT, a_job
from lucid.core.job import Ended, Job
from lucid.core.prediction import JUMBO, Prediction
from lucid.models.history import HistoryPredictor


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
        ({"user": "ann", "name": "train", "gpus": 2, "vc": "a"}, 100.0, "mean of 1 by user and name"),
        ({"user": "ann", "name": "new", "gpus": 2, "vc": "b"}, 200.0, "mean of 1 by user and GPUs"),
        ({"user": "ann", "name": "new", "gpus": 8, "vc": "b"}, 150.0, "mean of 2 by user"),
        ({"user": "new", "name": "train", "gpus": 2, "vc": "b"}, 400.0, "mean of 1 by VC and GPUs"),
        ({"user": "new", "name": "train", "gpus": 2, "vc": "c"}, 300.0, "mean of 2 by GPUs"),
        ({"user": "new", "name": "train", "gpus": 16, "vc": "c"}, 375.0, "mean of 4 by all jobs"),
        ({"user": "", "name": "train", "gpus": 8, "vc": "b"}, 800.0, "mean of 1 by VC and GPUs"),
    ],
)
def test_L20_the_most_alike_jobs_count(of: dict[str, object], expected_s: float, by: str) -> None:
    found = asked(a_job("new", **of))  # type: ignore[arg-type]
    assert found.duration_s == expected_s
    assert by in found.duration_source


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
