"""Elastic systems as published, Optimus among them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from benchmarks.papers.elastic_replay import Outcome, replay
from benchmarks.papers.elastic_sets import replay_set
from benchmarks.papers.elastic_workload import ElasticModel, ElasticRequest, draw_set
from examples import examples
from lucid.core.decision import PartitionPlan, Resize, Start
from lucid.core.job import Elastic, Pending, Progress, Running
from lucid.core.node import Node
from lucid.core.reasons.queue import FreeGpus
from lucid.orchestrator.policies.rounds import expansion, optimus_models
from lucid.orchestrator.policies.rounds.expansion import ElasticJob, EpochTimes, best_fit, ef_gpus, expand, rescale
from lucid.orchestrator.policies.rounds.marginal import Claim, OptimusJob, allocate, fair_shares, pick_node
from lucid.orchestrator.policies.rounds.optimus_models import LossModel, SpeedModel, end_epoch, fit_loss
from lucid.simulator.cluster.training import EpochTable
from lucid.simulator.cluster.truth import OraclePredictor
from lucid.simulator.engine import run
from scenes.jobs import VC, by, nodes, runs, waits
from scenes.plans import decide, decided, guess, kinds, part, policy, reason, snap
from scenes.replays import a_cluster, a_trace
from scenes.systems import gpus_given as gpus
from scenes.systems import room


def test_gpus_that_slow_a_job_down_or_save_less_than_a_restart_stay_idle() -> None:
    gained, total = expand([[10.0, 6.0, 7.0, 8.0]], [2], [5.0], 2)
    assert (gained.tolist(), total) == ([0], 0.0)
    assert expand([[10.0, 6.0]], [1], [5.0], 0)[0].tolist() == [0], "none is idle"
    for restart_s, more in ((0.0, [1]), (5.0, [0])):
        assert expand([[10.0, 9.0]], [1], [3.0], 1, restart_s=restart_s)[0].tolist() == more


def job(name: str, gpus: int, epochs: float = 10.0) -> ElasticJob:
    return ElasticJob(name, gpus, epochs, 60.0 / np.arange(1, 5))


RESCALES: dict[str, tuple[list[ElasticJob], int, int, dict[str, int]]] = {  # E3, E4, E5
    "idle GPUs go to waiting requests first, what is left expands": ([job("a", 1)], 2, 2, {"a": 2}),
    "nothing is left": ([job("a", 1)], 3, 3, {}),
    "running jobs shrink for new requests but keep one GPU": ([job("a", 3), job("b", 1)], 5, 2, {"a": 1}),
    "nobody can spare one": ([job("a", 1)] * 4, 1, 0, {}),
    "running jobs grow into idle GPUs": ([job("long", 1, 100.0), job("short", 1, 1.0)], 0, 0, {"long": 3}),
}


@pytest.mark.parametrize("how", RESCALES)
def test_of_four_gpus_waiting_requests_get_one_each_and_running_jobs_the_others(how: str) -> None:
    running, waiting, admit, gpus = RESCALES[how]
    made = rescale(running, waiting, 4)
    assert (made.admit, made.gpus) == (admit, gpus)


def test_what_cannot_be_reduced_or_is_not_there_is_refused() -> None:  # E4
    with pytest.raises(ValueError, match="can spare 1"):
        expansion.reduce([[2.0, 1.0]], [2], [1.0], 2)
    with pytest.raises(ValueError, match="hold 5"):
        rescale([job("a", 5)], 0, 4)


@settings(max_examples=examples(200))
@given(st.lists(st.integers(0, 6), min_size=1, max_size=6), st.lists(st.integers(1, 8), max_size=6))
def test_placement_gives_each_job_its_gpus_and_oversubscribes_none(free: list[int], need: list[int]) -> None:
    nodes, jobs = dict(enumerate(free)), list(enumerate(need))
    if sum(need) > sum(free):
        with pytest.raises(expansion.NotEnoughGpus):
            best_fit(nodes, jobs)
        return
    placed = best_fit(nodes, jobs)
    assert {j: sum(n for _, n in parts) for j, parts in placed.items()} == dict(jobs)
    for node, most in nodes.items():
        assert sum(n for parts in placed.values() for where, n in parts if where == node) <= most


def test_preset_then_recorded_then_fitted_and_one_slow_epoch_does_not_bend_the_fit() -> None:  # E13
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
    slow = EpochTimes([1.0] * 10)
    for count in (1, 4, 6, 8, 10):
        slow.record(count, (100.0 / count + 5.0) * (1.6 if count == 1 else 1.0))
    assert slow.times()[4] == pytest.approx(25.0, rel=0.1)  # 31 % too much where long epochs count for more


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


def test_a_loss_fit_needs_three_points_and_never_falls_below_zero_or_rises() -> None:  # O2
    true, epochs = LossModel(0.2, 0.5, 0.3), np.arange(9)
    assert fit_loss([0, 1], true.loss([0, 1])) is None
    fitted = fit_loss(range(9), true.loss(epochs))
    assert [fitted.a, fitted.b, fitted.c] == pytest.approx([0.2, 0.5, 0.3], abs=1e-5)
    sinks = 1 / (0.2 * epochs + 0.5) - 0.2
    for losses in (sinks, 1 + 0.05 * epochs, 1 / (0.2 * epochs + 0.5) ** 2):
        fitted = fit_loss(epochs, losses)
        assert fitted is None or min(fitted.a, fitted.b, fitted.c) >= 0
    assert fit_loss(epochs, sinks).c == pytest.approx(0.0, abs=1e-3)


def test_epochs_specified_then_alike_then_fitted_then_guessed() -> None:  # O5
    assert end_epoch(3, specified=50, same_type=[9]) == 50
    assert end_epoch(3, same_type=[10, 13]) == 11
    assert end_epoch(3, epochs=range(9), losses=LossModel(0.5, 1, 0.1).loss(np.arange(9))) == 22
    assert end_epoch(60, epochs=range(9), losses=LossModel(0.5, 1, 0.1).loss(np.arange(9))) == 60
    assert end_epoch(3, epochs=[1], losses=[1.0]) == 23
    assert optimus_models.converged_at(LossModel(0.01, 0.2, 0.1), 3) is None, "beyond the 100th epoch"


def test_probing() -> None:  # O8, O9
    estimate = optimus_models.SpeedEstimator("async", 128, {(1, 1): 9.0})
    assert (estimate(1, 1), estimate(2, 2)) == (9.0, None), "measured speeds come first"
    rng = np.random.default_rng(0)
    known: list[tuple[int, int]] = []
    while (point := optimus_models.next_probe(known, rng)) is not None:
        assert point not in known
        known.append(point)
    assert len(known) == optimus_models.POINTS
    assert any(p != w for p, w in known)
    p, w = optimus_models.next_probe([], rng, diagonal=True) or (0, 1)
    assert p == w
    assert optimus_models.merge_points([{(1, 1): 2.0}, {(1, 1): 4.0, (2, 2): 1.0}]) == {(1, 1): 3.0, (2, 2): 1.0}


WORK = (1.0, 2.0, 0.0, 0.0), (2.0, 4.0, 0.0, 1.0), 10.0
"""What a server and a worker need, and the epochs left."""


def test_a_job_offers_its_better_task_a_server_on_ties_and_none_that_slows_it_down() -> None:  # O11, O12
    flat = OptimusJob(0, (1, 0, 0, 0), (1, 0, 0, 0), 10.0, lambda p, w: float(p + w))
    assert allocate([flat], (5, 1, 1, 1)).tasks == {0: (4, 1)}
    slow = OptimusJob(0, *WORK, lambda p, w: 1.0 / (p + w))
    for stop in ("published", "exhausted"):
        assert allocate([slow], (99, 99, 9, 9), stop=stop).tasks == {0: (1, 1)}  # type: ignore[arg-type]
    sync = SpeedModel("sync", (0.02, 0.3, 0.1, 0.02, 0.03), 128)
    ended = OptimusJob(1, *WORK[:2], -3.0, lambda p, w: float(sync.speed(p, w)))
    allocation = allocate([OptimusJob(0, *WORK, lambda *_: None), ended], (99, 99, 9, 9))
    assert allocation.tasks == {0: (1, 1), 1: (1, 1)}, "unknown speeds and finished jobs keep their pair"
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


POLICIES = {"elastic": "elastic", "fcfs": "elastic-fcfs", "ef": "elastic-ef"}
GROWS = Elastic(8, epochs=10.0)
TABLE = EpochTable(5.0, tuple(30.0 / g + g for g in range(1, 9)))
PERFECT = tuple(60.0 / g for g in range(1, 9))


@pytest.mark.parametrize("rule", POLICIES)
@pytest.mark.parametrize(
    ("mix", "mean_min", "seed"), [("workload1", 15, 0), ("workload4", 10, 1), ("workload2", 20, 2)]
)
def test_the_policy_gives_what_the_arithmetic_gives(rule: str, mix: str, mean_min: float, seed: int) -> None:
    requests = draw_set(mix, mean_min, seed)
    expected = replay(requests, rule)  # type: ignore[arg-type]
    jct_s, makespan_s, resizes = replay_set(requests, POLICIES[rule])
    assert jct_s == pytest.approx(expected.jct_s, rel=1e-9)
    assert makespan_s == pytest.approx(expected.makespan_s, rel=1e-9)
    assert resizes == expected.rescales


TRAINS = structs.replace(guess(600.0), epochs=10.0, epoch_s=PERFECT)


def plan(name: str, machines: Sequence[Node], entries: Sequence[Pending | Running]) -> PartitionPlan:
    known = {entry.job.id: TRAINS if entry.job.elastic else guess(600.0) for entry in entries}
    return decide(name, snap(100.0, room(machines, entries), predictions=known))


def grows(name: str, where: str, limits: Elastic = GROWS, **rest: Any) -> Running:
    """An elastic job on some GPUs; it asked for one."""
    return replace(runs(name, where, **rest), job=waits(name, elastic=limits).job)


def test_when_nobody_can_spare_a_gpu_the_line_waits_in_order() -> None:
    line = [waits("c", submit_s=2.0, elastic=GROWS), waits("d", elastic=GROWS)]
    made = plan("elastic", nodes(1, 2), [grows("a", "n1:0"), grows("b", "n1:1"), *line])
    assert made.actions == ()
    assert kinds(made.decisions["d"]) == ["FreeGpus"]  # submitted first
    assert kinds(made.decisions["c"]) == ["BehindHead"]


def test_a_job_that_is_not_elastic_is_made_room_for() -> None:
    free = reason(plan("elastic", nodes(1), [waits("a", elastic=GROWS)]).decisions["a"], FreeGpus, Start)
    assert (free.needed, free.free) == (8, 8), "a start on all GPUs says that they were free"
    made = plan("elastic", nodes(1, 4), [grows("a", "n1:0-3"), waits("rigid", 2)])
    assert (gpus(made, "a"), gpus(made, "rigid")) == (2, 2)
    whole = plan("elastic", nodes(1, 4), [grows("a", "n1:0-3"), waits("rigid", 4)])
    assert whole.actions == ()  # the elastic one keeps its last GPU, so shrinking it would help nobody
    stays = plan("elastic", nodes(1, 4), [runs("rigid", "n1:0-1"), waits("a", elastic=GROWS)])
    assert gpus(stays, "a") == 2
    assert "rigid" not in stays.decisions


def who_grows(seen: Any, preset: Any = PERFECT, have: int = 1, done: float = 1.0, epochs: float = 10.0) -> str:
    """Two jobs run, one GPU is idle: which of them gets it? ``b`` has five epochs left and would save 150 s. ``a``
    has ``have`` GPUs and has reported these times of an epoch."""
    a = grows("a", f"n1:0-{have - 1}", progress=Progress(done, tuple(seen)))
    b = grows("b", f"n1:{have}", progress=Progress(5.0))
    known = {"a": structs.replace(TRAINS, epochs=epochs, epoch_s=tuple(preset)), "b": TRAINS}
    made = decide("elastic", snap(100.0, part(nodes(1, have + 2), (), [a, b]), predictions=known))
    (grown,) = made.decisions
    assert gpus(made, grown) == (have if grown == "a" else 1) + 1
    return grown


def test_preset_times_decide_until_a_job_has_reported_others_and_what_is_done_no_longer_counts() -> None:  # E13, E6
    assert who_grows(()) == "a"
    assert who_grows((), preset=[60.0] * 8) == "b", "the preset table says that more GPUs are of no use to it"
    assert who_grows(((2, 60.0), (3, 90.0))) == "b", "it has found that out"
    assert who_grows(((1, 60.0), (2, 60.0))) == "b"
    assert who_grows(((1, 90.0), (2, 30.0)), preset=[60.0] * 8) == "a"
    seen = tuple((g, 40.0 / g + 20.0) for g in (1, 2, 3))  # 30 s on four GPUs, 3 s less than on three
    assert who_grows(seen[1:], have=3) == "a", "the preset time of four GPUs is 15 s"
    assert who_grows(seen, have=3) == "b", "three reported numbers of GPUs foretell the others"
    assert [who_grows((), epochs=20.0, done=done) for done in (10.0, 19.0)] == ["a", "b"]


def test_the_job_keeps_those_of_its_gpus_that_it_can() -> None:
    made = plan("elastic", nodes(1, 4), [grows("a", "n1:1-3"), waits("b", elastic=GROWS), waits("c", elastic=GROWS)])
    assert set(decided(made, "a", Resize).placement[0].gpus) < {1, 2, 3}


@pytest.mark.parametrize("name", POLICIES.values())
def test_mixed_sets_run_to_their_end_safely(name: str) -> None:
    """With host limits, a node that is down, jobs of several least sizes and jobs that are not elastic; the safety
    check of every cycle judges."""
    for seed in range(12):
        rng = random.Random(seed)
        machines = [
            Node(f"n{i}", rng.choice([2, 4]), cpus=rng.choice([0, 8]), available=i == 0 or rng.random() > 0.2)
            for i in range(3)
        ]
        items = []
        for number in range(12):
            low = rng.choice([1, 1, 2])
            limits = Elastic(rng.randint(low, 8), low, epochs=5.0) if rng.random() < 0.75 else None
            submit_s, cpus = rng.choice([0.0, 50.0]) * number, rng.choice([0, low, 2 * low])
            item = by(f"j{number}", low, 150.0, submit_s, rank=number, cpus=cpus, elastic=limits)
            items.append(replace(item, learning=TABLE) if limits else item)
        trace = a_trace(*items)
        predictor = OraclePredictor(trace)
        cluster = a_cluster(trace, {VC: machines}, profiled=lambda job: False)
        made = run(cluster, policy(name, predictor), predictor)
        assert all(o.end_s > 0 for o in made.outcomes), f"seed {seed}"


def test_a_report_of_one_size_lets_a_job_grow_and_one_of_more_epochs_than_its_user_said_within_its_limits() -> None:
    said = Progress(5.0, ((1, 10.0),))
    alone = grows("a", "n1:0,1", progress=Progress(1.0, ((2, 1.0),)))
    now = snap(100.0, part(nodes(2, 4), running=[alone]), predictions={"a": guess(600.0)})
    assert gpus(decide("elastic", now), "a") == 8, "no reason to believe that every other size is slower"
    others = [grows(f"o{i}", f"n1:{i}", Elastic(8, epochs=9.0), progress=said) for i in (1, 2)]
    entry = grows("a", "n1:0", Elastic(2, epochs=3.0), progress=said)
    made = decide("elastic", snap(600.0, part(nodes(2, 4), running=[entry, *others])))
    assert "a" not in made.decisions
    assert made.actions, "the others grow"
