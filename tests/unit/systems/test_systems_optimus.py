"""Optimus's curves, allocation and placement, rule by rule."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from examples import examples
from lucid.orchestrator.policies.rounds.marginal import Claim, OptimusJob, allocate, fair_shares, pick_node
from lucid.orchestrator.policies.rounds.optimus_models import (
    POINTS,
    LossModel,
    SpeedEstimator,
    SpeedModel,
    converged_at,
    end_epoch,
    fit_loss,
    fit_speed,
    loss_sigma,
    merge_points,
    next_probe,
)

SERVER = (1.0, 2.0, 0.0, 0.0)
WORKER = (2.0, 4.0, 0.0, 1.0)
SYNC = SpeedModel("sync", (0.02, 0.3, 0.1, 0.02, 0.03), 128)
ASYNC = SpeedModel("async", (1.0, 0.2, 0.05, 0.03), 128)


def test_formulas() -> None:  # O2, O6, O7
    assert float(LossModel(0.5, 1.0, 0.1).loss(2)) == pytest.approx(0.6)
    assert float(ASYNC.speed(2, 4)) == pytest.approx(4 / (1 + 0.2 * 2 + 0.05 * 4 + 0.03 * 2))
    assert float(SYNC.speed(2, 4)) == pytest.approx(1 / (0.02 * 32 + 0.3 + 0.1 * 2 + 0.02 * 4 + 0.03 * 2))


def test_late_losses_weigh_more() -> None:  # O3
    assert loss_sigma(7).tolist() == [1, 1, 1, 0.25, 0.25, 0.25, 0.0625]


def test_loss_fit_needs_three_points() -> None:
    true = LossModel(0.2, 0.5, 0.3)
    assert fit_loss([0, 1], true.loss([0, 1])) is None
    fitted = fit_loss(range(9), true.loss(np.arange(9)))
    assert [fitted.a, fitted.b, fitted.c] == pytest.approx([0.2, 0.5, 0.3], abs=1e-5)


def test_three_points_make_a_loss_curve_and_more_make_it_better() -> None:  # O2
    true = LossModel(0.2, 0.5, 0.3)
    early = fit_loss([0, 5, 30], true.loss([0, 5, 30]))
    assert early.loss(60) == pytest.approx(true.loss(60), rel=1e-3)
    bumpy = [1.0, 1.0, *true.loss(np.arange(2, 30))]
    before, after = fit_loss([0, 1, 2], bumpy[:3]), fit_loss(range(30), bumpy)
    assert after.loss(60) == pytest.approx(true.loss(60), rel=0.1)
    assert before.loss(60) > 2 * true.loss(60), "nothing has fallen yet"


def test_a_loss_curve_never_falls_below_zero_or_rises() -> None:  # O2
    epochs = np.arange(9)
    for losses in (1 / (0.2 * epochs + 0.5) - 0.2, 1 + 0.05 * epochs, 1 / (0.2 * epochs + 0.5) ** 2):
        fitted = fit_loss(epochs, losses)
        assert fitted is None or min(fitted.a, fitted.b, fitted.c) >= 0
    sunk = fit_loss(epochs, 1 / (0.2 * epochs + 0.5) - 0.2)
    assert sunk.c == pytest.approx(0.0, abs=1e-3)


@pytest.mark.parametrize(("model", "least"), [(ASYNC, 4), (SYNC, 5)])
def test_speed_fit_off_the_diagonal_predicts_everywhere(model: SpeedModel, least: int) -> None:
    places = [(1, 1), (2, 1), (1, 3), (4, 2), (3, 5), (6, 6)]
    points = {(p, w): float(model.speed(p, w)) for p, w in places}
    assert fit_speed(model.kind, dict(list(points.items())[: least - 1]), 128) is None
    fitted = fit_speed(model.kind, points, 128)
    assert float(fitted.speed(5, 8)) == pytest.approx(float(model.speed(5, 8)), rel=1e-4)


def test_measured_speeds_come_first() -> None:  # O8
    estimate = SpeedEstimator("async", 128, {(1, 1): 9.0})
    assert estimate(1, 1) == 9.0
    assert estimate(2, 2) is None


@settings(max_examples=examples(200))
@given(st.floats(0.01, 2), st.floats(0.05, 2), st.integers(0, 95))
def test_convergence_by_the_window(a: float, b: float, progress: int) -> None:  # O4
    model = LossModel(a, b, 0.1)
    start = max(0, progress - 10)

    def still(e: int) -> bool:
        return all(float(model.loss(e - i)) - float(model.loss(e)) <= 0.05 for i in range(10))

    expected = next((e for e in range(start + 9, 101) if still(e)), None)
    assert converged_at(model, progress) == expected


def test_epochs_specified_then_alike_then_fitted_then_guessed() -> None:  # O5
    assert end_epoch(3, specified=50, same_type=[9]) == 50
    assert end_epoch(3, same_type=[10, 13]) == 11
    assert end_epoch(3, epochs=range(9), losses=LossModel(0.5, 1, 0.1).loss(np.arange(9))) == 22
    assert end_epoch(60, epochs=range(9), losses=LossModel(0.5, 1, 0.1).loss(np.arange(9))) == 60
    assert end_epoch(3, epochs=[1], losses=[1.0]) == 23


def test_probing() -> None:  # O9
    rng = np.random.default_rng(0)
    known: list[tuple[int, int]] = []
    while (point := next_probe(known, rng)) is not None:
        assert point not in known
        known.append(point)
    assert len(known) == POINTS
    assert any(p != w for p, w in known)
    p, w = next_probe([], rng, diagonal=True) or (0, 1)
    assert p == w
    assert merge_points([{(1, 1): 2.0}, {(1, 1): 4.0, (2, 2): 1.0}]) == {(1, 1): 3.0, (2, 2): 1.0}


def job(name: int, epochs: float = 10.0, model: SpeedModel = SYNC) -> OptimusJob:
    return OptimusJob(name, SERVER, WORKER, epochs, lambda p, w: float(model.speed(p, w)))


def test_every_job_starts_with_a_pair_in_order() -> None:  # O10
    capacity = (100, 100, 10, 2)
    tasks = allocate([job(i) for i in range(4)], capacity).tasks
    assert tasks.keys() == {0, 1}


def test_a_job_offers_its_better_task_a_server_on_ties() -> None:  # O11, O12
    flat = OptimusJob(0, (1, 0, 0, 0), (1, 0, 0, 0), 10.0, lambda p, w: float(p + w))
    assert allocate([flat], (5, 1, 1, 1)).tasks == {0: (4, 1)}


def test_the_best_gain_is_served_first() -> None:  # O11, O12
    tasks = allocate([job(0, 1.0), job(1, 100.0)], (60, 200, 10, 4)).tasks
    assert tasks[1][1] > tasks[0][1]


def test_published_stop_leaves_cores_idle_that_exhausted_uses() -> None:  # O12
    jobs = [job(i, 20.0 + i) for i in range(3)]
    capacity = (48, 128, 10, 5)

    def total(stop: str) -> float:
        tasks = allocate(jobs, capacity, stop=stop).tasks  # type: ignore[arg-type]
        return sum(j.epochs / (j.speed(*tasks[j.job_id]) or 0) for j in jobs)

    assert total("exhausted") < total("published")


def test_a_job_that_only_slows_down_gets_no_more() -> None:
    slow = OptimusJob(0, SERVER, WORKER, 10.0, lambda p, w: 1.0 / (p + w))
    for stop in ("published", "exhausted"):
        assert allocate([slow], (99, 99, 9, 9), stop=stop).tasks == {0: (1, 1)}  # type: ignore[arg-type]


def test_unknown_speeds_and_finished_jobs_keep_their_pair() -> None:
    unknown = OptimusJob(0, SERVER, WORKER, 10.0, lambda *_: None)
    allocation = allocate([unknown, job(1, -3.0)], (99, 99, 9, 9))
    assert allocation.tasks == {0: (1, 1), 1: (1, 1)}
    assert allocation.unknown == (0,)


def test_the_smallest_dominant_share_is_served_next() -> None:  # O21
    # The example of the paper on dominant resource fairness: 9 CPUs and 18 GB; a task of A takes <1, 4>, of B <3, 1>.
    shares = fair_shares([Claim("A", (1, 4), 99), Claim("B", (3, 1), 99)], (9, 18))
    assert shares == {"A": 3, "B": 2}
    one_gpu = [Claim("a", (1,), 2), Claim("b", (1,), 99), Claim("c", (1,), 99)]
    assert fair_shares(one_gpu, [8]) == {"a": 2, "b": 3, "c": 3}
    assert fair_shares(one_gpu, [2]) == {"a": 1, "b": 1, "c": 0}, "the earlier first"
    assert fair_shares([Claim("wide", (1,), 4, 4), Claim("b", (1,), 4)], [3]) == {"wide": 0, "b": 3}


def test_a_task_goes_where_most_is_left_and_use_is_even() -> None:  # O19
    capacity = [[8.0, 8.0], [8.0, 8.0], [4.0, 4.0]]
    assert pick_node([1, 1], np.zeros((3, 2)), capacity) == 0, "the first of equals"
    assert pick_node([1, 1], [[4, 4], [2, 2], [1, 1]], capacity) == 1, "3 of 8 used, not 2 of 4 or 5 of 8"
    assert pick_node([2, 0], [[2, 0], [0, 2], [4, 4]], capacity) == 1, "CPU where memory is used"
    assert pick_node([9, 0], np.zeros((3, 2)), capacity) is None
