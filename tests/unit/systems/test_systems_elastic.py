"""Elastic systems as published, Optimus among them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.papers.elastic_replay import Outcome, replay
from benchmarks.papers.elastic_workload import ElasticModel, ElasticRequest
from examples import examples
from lucid.orchestrator.policies.rounds.expansion import (
    ElasticJob,
    EpochTimes,
    NotEnoughGpus,
    best_fit,
    ef_gpus,
    expand,
    reduce,
    rescale,
)
from lucid.orchestrator.policies.rounds.marginal import Claim, OptimusJob, allocate, fair_shares, pick_node
from lucid.orchestrator.policies.rounds.optimus_models import (
    POINTS,
    LossModel,
    SpeedEstimator,
    SpeedModel,
    converged_at,
    end_epoch,
    fit_loss,
    merge_points,
    next_probe,
)


def test_gpus_that_slow_a_job_down_stay_idle() -> None:
    gained, total = expand([[10.0, 6.0, 7.0, 8.0]], [2], [5.0], 2)
    assert gained.tolist() == [0]
    assert total == 0.0
    assert expand([[10.0, 6.0]], [1], [5.0], 0)[0].tolist() == [0], "none is idle"


def test_a_restart_that_costs_more_than_it_saves_is_not_made() -> None:
    f = [[10.0, 9.0]]
    assert expand(f, [1], [3.0], 1)[0].tolist() == [1]
    assert expand(f, [1], [3.0], 1, restart_s=5.0)[0].tolist() == [0]


def test_reduction_refuses_to_take_the_last_gpu() -> None:  # E4
    with pytest.raises(ValueError, match="can spare 1"):
        reduce([[2.0, 1.0]], [2], [1.0], 2)


def job(name: str, gpus: int, epochs: float = 10.0) -> ElasticJob:
    return ElasticJob(name, gpus, epochs, 60.0 / np.arange(1, 5))


def test_idle_gpus_go_to_waiting_requests_first() -> None:  # E3
    assert rescale([job("a", 1)], 2, 4).admit == 2
    assert rescale([job("a", 1)], 3, 4).gpus == {}
    assert rescale([job("a", 1)], 2, 4).gpus == {"a": 2}  # what then is left expands


def test_running_jobs_shrink_for_new_requests_but_keep_one_gpu() -> None:  # E4, E5
    plan = rescale([job("a", 3), job("b", 1)], 5, 4)
    assert plan.admit == 2
    assert plan.gpus == {"a": 1}
    assert rescale([job("a", 1)] * 4, 1, 4).admit == 0


def test_running_jobs_grow_into_idle_gpus() -> None:  # E5
    plan = rescale([job("long", 1, 100.0), job("short", 1, 1.0)], 0, 4)
    assert plan.gpus == {"long": 3}
    with pytest.raises(ValueError, match="hold 5"):
        rescale([job("a", 5)], 0, 4)


@settings(max_examples=examples(200))
@given(st.lists(st.integers(0, 6), min_size=1, max_size=6), st.lists(st.integers(1, 8), max_size=6))
def test_placement_gives_each_job_its_gpus_and_oversubscribes_none(free: list[int], need: list[int]) -> None:
    nodes, jobs = dict(enumerate(free)), list(enumerate(need))
    if sum(need) > sum(free):
        with pytest.raises(NotEnoughGpus):
            best_fit(nodes, jobs)
        return
    placed = best_fit(nodes, jobs)
    assert {j: sum(n for _, n in parts) for j, parts in placed.items()} == dict(jobs)
    for node, room in nodes.items():
        assert sum(n for parts in placed.values() for where, n in parts if where == node) <= room


def test_preset_then_recorded_then_fitted() -> None:  # E13
    true = 100.0 / np.arange(1, 9) + 5.0
    speeds = EpochTimes([200.0] * 8)
    assert speeds.times().tolist() == [200.0] * 8
    speeds.record(1, 105.0)
    speeds.record(2, 60.0)
    assert speeds.times()[:3].tolist() == [105.0, 60.0, 200.0]
    speeds.record(2, 50.0)
    speeds.record(4, 30.0)
    assert speeds.times()[1] == 55.0
    assert speeds.times() == pytest.approx(true, rel=1e-6)
    with pytest.raises(ValueError, match=r"1\.\.8"):
        speeds.record(9, 1.0)


def test_one_slow_epoch_does_not_bend_the_fit() -> None:  # E13
    speeds = EpochTimes([1.0] * 10)
    for gpus in (1, 4, 6, 8, 10):
        speeds.record(gpus, (100.0 / gpus + 5.0) * (1.6 if gpus == 1 else 1.0))
    assert speeds.times()[4] == pytest.approx(25.0, rel=0.1)  # 31 % too much where long epochs count for more


def test_the_one_that_is_served_fully() -> None:  # E15
    times = [8.0, 4.0, 3.0, 5.0]
    assert ef_gpus(times, 4, 4) == 4
    assert ef_gpus(times, 3, 4) == 0
    assert ef_gpus(times, 2, 4, "free") == 2
    assert ef_gpus(times, 3, 4, "earliest") == 3


def test_replay_by_hand() -> None:  # E14-E16, E20
    model = ElasticModel("m", 10.0, 0.0)  # ten minutes an epoch, perfect scaling
    two = [ElasticRequest(0.0, model, 6, "small"), ElasticRequest(600.0, model, 6, "small")]
    assert replay(two, "fcfs", 2).jct_s == 3600
    # Serial, both GPUs each: 1,800 s, then from there to 3,600 s.
    assert replay(two, "ef", 2) == Outcome((1800 + 3000) / 2, 3600, 0)
    # Both GPUs until 600 s (2 epochs done), then one each; the second does 2,410 s of its 6 epochs alone.
    elastic = replay(two, "elastic", 2)
    assert elastic.rescales == 2
    assert elastic.makespan_s == pytest.approx(600 + 10 + 2400 + 10 + 595)
    assert replay(two, "elastic", 2, rescale_s=0).makespan_s == pytest.approx(3600)


SERVER = (1.0, 2.0, 0.0, 0.0)
WORKER = (2.0, 4.0, 0.0, 1.0)
SYNC = SpeedModel("sync", (0.02, 0.3, 0.1, 0.02, 0.03), 128)


def test_loss_fit_needs_three_points() -> None:
    true = LossModel(0.2, 0.5, 0.3)
    assert fit_loss([0, 1], true.loss([0, 1])) is None
    fitted = fit_loss(range(9), true.loss(np.arange(9)))
    assert [fitted.a, fitted.b, fitted.c] == pytest.approx([0.2, 0.5, 0.3], abs=1e-5)


def test_a_loss_curve_never_falls_below_zero_or_rises() -> None:  # O2
    epochs = np.arange(9)
    for losses in (1 / (0.2 * epochs + 0.5) - 0.2, 1 + 0.05 * epochs, 1 / (0.2 * epochs + 0.5) ** 2):
        fitted = fit_loss(epochs, losses)
        assert fitted is None or min(fitted.a, fitted.b, fitted.c) >= 0
    sunk = fit_loss(epochs, 1 / (0.2 * epochs + 0.5) - 0.2)
    assert sunk.c == pytest.approx(0.0, abs=1e-3)


def test_measured_speeds_come_first() -> None:  # O8
    estimate = SpeedEstimator("async", 128, {(1, 1): 9.0})
    assert estimate(1, 1) == 9.0
    assert estimate(2, 2) is None


def test_epochs_specified_then_alike_then_fitted_then_guessed() -> None:  # O5
    assert end_epoch(3, specified=50, same_type=[9]) == 50
    assert end_epoch(3, same_type=[10, 13]) == 11
    assert end_epoch(3, epochs=range(9), losses=LossModel(0.5, 1, 0.1).loss(np.arange(9))) == 22
    assert end_epoch(60, epochs=range(9), losses=LossModel(0.5, 1, 0.1).loss(np.arange(9))) == 60
    assert end_epoch(3, epochs=[1], losses=[1.0]) == 23
    assert converged_at(LossModel(0.01, 0.2, 0.1), 3) is None, "beyond the 100th epoch"


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


def optimus_job(name: int, epochs: float = 10.0, model: SpeedModel = SYNC) -> OptimusJob:
    return OptimusJob(name, SERVER, WORKER, epochs, lambda p, w: float(model.speed(p, w)))


def test_a_job_offers_its_better_task_a_server_on_ties() -> None:  # O11, O12
    flat = OptimusJob(0, (1, 0, 0, 0), (1, 0, 0, 0), 10.0, lambda p, w: float(p + w))
    assert allocate([flat], (5, 1, 1, 1)).tasks == {0: (4, 1)}


def test_a_job_that_only_slows_down_gets_no_more() -> None:
    slow = OptimusJob(0, SERVER, WORKER, 10.0, lambda p, w: 1.0 / (p + w))
    for stop in ("published", "exhausted"):
        assert allocate([slow], (99, 99, 9, 9), stop=stop).tasks == {0: (1, 1)}  # type: ignore[arg-type]


def test_unknown_speeds_and_finished_jobs_keep_their_pair() -> None:
    unknown = OptimusJob(0, SERVER, WORKER, 10.0, lambda *_: None)
    allocation = allocate([unknown, optimus_job(1, -3.0)], (99, 99, 9, 9))
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
