"""Elastic systems as published, Optimus among them."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.papers.elastic_replay import Outcome, replay
from benchmarks.papers.elastic_workload import CLASSES, MIXES, MODELS, ElasticModel, ElasticRequest, draw_set
from examples import examples
from lucid.errors import ConfigError
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
    fit_speed,
    loss_sigma,
    merge_points,
    next_probe,
)

P = 6


def problem(seed: int, jobs: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    g = np.arange(1, P + 1)
    f = rng.uniform(1, 10, (jobs, 1)) * (1 / g + rng.uniform(0, 0.2, (jobs, 1)) * (g - 1))
    return f, rng.integers(1, 3, jobs), rng.integers(1, 30, jobs).astype(float)


def saved(f: np.ndarray, s: np.ndarray, left: np.ndarray, change: tuple[int, ...]) -> float:
    return sum((f[i, s[i] - 1] - f[i, s[i] + d - 1]) * left[i] for i, d in enumerate(change))


@settings(max_examples=examples(200))
@given(st.integers(0, 10**6), st.integers(1, 3), st.integers(0, 4))
def test_expansion_equals_enumeration(seed: int, jobs: int, idle: int) -> None:  # E6, E9
    f, s, left = problem(seed, jobs)
    ways = [
        change for change in product(range(idle + 1), repeat=jobs) if sum(change) <= idle and (s + change <= P).all()
    ]
    gained, total = expand(f, s, left, idle)
    assert total == pytest.approx(max(saved(f, s, left, w) for w in ways))
    assert saved(f, s, left, tuple(gained)) == pytest.approx(total)


@settings(max_examples=examples(200))
@given(st.integers(0, 10**6), st.integers(1, 3), st.integers(0, 3))
def test_reduction_equals_enumeration(seed: int, jobs: int, reclaim: int) -> None:  # E7, E10
    f, s, left = problem(seed, jobs)
    s = s + 1
    ways = [c for c in product(*(range(have) for have in s)) if sum(c) == min(reclaim, (s - 1).sum())]
    lost, total = reduce(f, s, left, min(reclaim, int((s - 1).sum())))
    assert total == pytest.approx(min(-saved(f, s, left, tuple(-x for x in w)) for w in ways))
    assert (s - lost >= 1).all()


def test_gpus_that_slow_a_job_down_stay_idle() -> None:
    gained, total = expand([[10.0, 6.0, 7.0, 8.0]], [2], [5.0], 2)
    assert gained.tolist() == [0]
    assert total == 0.0


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


def test_placement_prefers_the_tightest_node_then_the_emptiest() -> None:  # E11, E12
    assert best_fit({"a": 4, "b": 2, "c": 3}, [("j", 2)]) == {"j": [("b", 2)]}
    assert best_fit({"a": 4, "b": 2, "c": 3}, [("j", 6)]) == {"j": [("a", 4), ("b", 2)]}
    assert best_fit({"a": 2, "b": 3}, [("small", 1), ("large", 3)]) == {
        "large": [("b", 3)],
        "small": [("a", 1)],
    }


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


@pytest.mark.parametrize("mix", MIXES)
def test_sets_of_requests(mix: str) -> None:  # E17, E18
    requests = draw_set(mix, 15, seed=1)
    assert len(requests) == 20
    assert requests[0].arrival_s == 0
    for request in requests:
        low, high = CLASSES[request.size]
        assert request.size in MIXES[mix]
        assert low <= request.epochs * request.model.epoch_min <= high
    assert draw_set(mix, 15, seed=1) == requests
    with pytest.raises(ConfigError, match="workload1"):
        draw_set("workload9", 15, seed=1)


MANY = 4000


@pytest.mark.parametrize("mix", MIXES)
def test_a_mix_draws_its_classes_as_often_as_it_says(mix: str) -> None:  # E17
    sizes = [request.size for request in draw_set(mix, 15, seed=2, jobs=MANY)]
    drawn = {size: sizes.count(size) / MANY for size in set(sizes)}
    assert drawn == pytest.approx(MIXES[mix], abs=0.03)
    often = {"workload2": "small", "workload4": "large"}
    assert ("micro" in drawn) == (mix == "workload1"), "only the first mix has micro jobs"
    assert mix not in often or drawn[often[mix]] > 0.5
    if mix not in often:
        assert max(drawn.values()) - min(drawn.values()) < 0.06


def test_classes_are_whole_trainings_on_one_gpu() -> None:  # E17
    assert {name: low for name, (low, _) in CLASSES.items()} == {"micro": 6, "small": 11, "medium": 61, "large": 121}
    assert {name: high for name, (_, high) in CLASSES.items()} == {
        "micro": 10,
        "small": 60,
        "medium": 120,
        "large": 480,
    }
    images, enlarged = MODELS[:5], MODELS[5:]
    assert all(1 <= model.epoch_min <= 2 for model in images)
    assert len(enlarged) == 3
    assert all(model.epoch_min >= 10 for model in enlarged)


def test_models_and_epochs_are_drawn_evenly_from_those_that_fit_the_class() -> None:  # E17, E18
    fast, slow = ElasticModel("fast", 1.0, 0.0), ElasticModel("slow", 4.0, 0.0)
    classes = {"small": (10.0, 19.0), "medium": (2.0, 3.0), "large": (8.0, 8.0)}
    drawn = draw_set("workload4", 15, seed=3, jobs=MANY, models=(fast, slow), classes=classes)
    small = [r for r in drawn if r.size == "small"]
    assert sorted({r.epochs for r in small if r.model is fast}) == list(range(10, 20))
    assert sorted({r.epochs for r in small if r.model is slow}) == [3, 4]
    assert sum(r.model is fast for r in small) / len(small) == pytest.approx(0.5, abs=0.08)
    first = [r.epochs for r in small if r.model is fast]
    assert np.mean(first) == pytest.approx(14.5, abs=0.6)
    assert {r.model for r in drawn if r.size == "medium"} == {fast}, "four minutes do not go into two or three"
    assert {(r.model, r.epochs) for r in drawn if r.size == "large"} == {(fast, 8), (slow, 2)}
    assert {r.model for r in draw_set("workload1", 15, seed=3, jobs=MANY)} == set(MODELS)


def test_requests_arrive_as_a_poisson_process() -> None:  # E18
    gaps = np.diff([r.arrival_s for r in draw_set("workload1", 20, seed=4, jobs=MANY)])
    assert gaps.mean() == pytest.approx(1200, rel=0.05)
    assert gaps.std() == pytest.approx(1200, rel=0.08), "as wide as its mean"


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


def test_the_published_margins_appear() -> None:  # E18
    jct: dict[str, list[float]] = {"fcfs": [], "ef": [], "elastic": []}
    for mix in MIXES:
        sets = [draw_set(mix, 15, seed) for seed in range(10)]
        for rule, values in jct.items():
            values.append(float(np.mean([replay(s, rule).jct_s for s in sets])))  # type: ignore[arg-type]
    ours, fcfs, ef = (np.array(jct[rule]) for rule in ("elastic", "fcfs", "ef"))
    assert (ours / fcfs).mean() < 0.65
    assert (ours / ef).mean() < 0.5


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


def optimus_job(name: int, epochs: float = 10.0, model: SpeedModel = SYNC) -> OptimusJob:
    return OptimusJob(name, SERVER, WORKER, epochs, lambda p, w: float(model.speed(p, w)))


def test_every_job_starts_with_a_pair_in_order() -> None:  # O10
    capacity = (100, 100, 10, 2)
    tasks = allocate([optimus_job(i) for i in range(4)], capacity).tasks
    assert tasks.keys() == {0, 1}


def test_a_job_offers_its_better_task_a_server_on_ties() -> None:  # O11, O12
    flat = OptimusJob(0, (1, 0, 0, 0), (1, 0, 0, 0), 10.0, lambda p, w: float(p + w))
    assert allocate([flat], (5, 1, 1, 1)).tasks == {0: (4, 1)}


def test_the_best_gain_is_served_first() -> None:  # O11, O12
    tasks = allocate([optimus_job(0, 1.0), optimus_job(1, 100.0)], (60, 200, 10, 4)).tasks
    assert tasks[1][1] > tasks[0][1]


def test_published_stop_leaves_cores_idle_that_exhausted_uses() -> None:  # O12
    jobs = [optimus_job(i, 20.0 + i) for i in range(3)]
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
