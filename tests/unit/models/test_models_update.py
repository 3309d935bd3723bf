"""When to train and when to fall back: each reason alone, all together, and the measures behind them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lucid.errors import ModelError
from lucid.models.kind import TooFew, split
from lucid.models.library import Library, Trained
from lucid.models.training import (
    Action,
    Decision,
    Drift,
    Evidence,
    Rules,
    category_psi,
    due,
    error_ratio,
    psi,
    run_due,
)

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


def test_every_reason_is_given() -> None:
    decision = due(evidence(trained=NOW - timedelta(days=30), new_jobs=5000, drift=Drift(2.0, 900, {"x": 1.0})))
    assert decision.action is Action.FALL_BACK
    assert len(decision.reasons) == 5


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


def test_many_rare_users_are_no_drift_but_a_new_one_with_half_of_the_jobs_is() -> None:
    rng = np.random.default_rng(1)
    old, new = ([f"user{n}" for n in rng.zipf(1.3, size) if n < 1e6] for size in (500, 2000))
    assert category_psi(old, new) < 0.1
    assert category_psi(old, [*new[: len(new) // 2], *["newcomer"] * (len(new) // 2)]) > 0.25


class Ticks:
    """A stand-in for training and falling back that notes what was called."""

    def __init__(self) -> None:
        self.called: list[str] = []

    def train(self, library: Library) -> Trained:
        self.called.append("train")
        with library.training():
            return Trained(1, 1.0, None, True, "")

    def fall_back(self, decision: Decision) -> None:
        self.called.append("fall back" if decision.action is Action.FALL_BACK else "wrong")


@pytest.mark.parametrize(
    ("drift", "jobs", "expected"),
    [(CALM, 10, []), (CALM, 2000, ["train"]), (Drift(2.0, 500), 10, ["fall back", "train"])],
)
def test_the_runner_does_what_was_decided(tmp_path: Path, drift: Drift, jobs: int, expected: list[str]) -> None:
    ticks = Ticks()
    decision, outcome = run_due(
        Library(tmp_path), evidence(new_jobs=jobs, drift=drift), ticks.train, fall_back=ticks.fall_back
    )
    assert ticks.called == expected
    assert (outcome is not None) == ("train" in expected)
    assert (decision.action is Action.NOTHING) == (expected == [])


def test_the_runner_skips_while_another_trains(tmp_path: Path) -> None:
    library, ticks = Library(tmp_path), Ticks()
    with library.training():
        decision, outcome = run_due(library, evidence(new_jobs=2000), ticks.train)
    assert outcome is None
    assert "skipped" in decision.reasons[-1]
    assert run_due(library, evidence(new_jobs=2000), ticks.train)[1] is not None


def test_rules_can_be_set() -> None:
    assert due(evidence(new_jobs=60), Rules(new_jobs=60)).action is Action.TRAIN
    assert due(evidence(), Rules(psi_train=0.04)).action is Action.TRAIN
    assert due(evidence(drift=Drift(1.3, 100)), Rules(ratio_fall_back=1.5)).action is Action.TRAIN


def test_drift_reports_itself() -> None:
    assert CALM.worst_input == ("gpus", 0.05)
    assert Drift(None, 0).worst_input is None
    assert CALM.to_json() == {"error_ratio": 0.8, "jobs": 500, "psi": {"gpus": 0.05, "user": 0.02}}


@pytest.mark.parametrize("ended", [40, 60, 99])
def test_enough_to_judge_by_is_what_the_message_says(ended: int) -> None:
    assert split(np.arange(float(ended)), None, "jobs") == ended - 21.0
    with pytest.raises(TooFew, match=r"39 jobs are new, and 0 of them came last, .*at least 40 and 20 are needed"):
        split(np.zeros(39), None, "jobs")
