"""The elastic platform as a policy: the same as its own experiment's arithmetic, and its rules on small states."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from benchmarks.papers.elastic_replay import replay
from benchmarks.papers.elastic_sets import compare_case, replay_set
from benchmarks.papers.elastic_workload import draw_set
from builders import (
    VC,
    a_cluster,
    a_trace,
    at,
    by,
    decide,
    decided,
    guess,
    kinds,
    nodes,
    part,
    policy,
    reason,
    runs,
    snap,
    waits,
)
from lucid.config.policy import PolicySettings
from lucid.core.decision import PartitionPlan, Resize, Start
from lucid.core.job import Elastic, Pending, Progress, Running
from lucid.core.node import Node
from lucid.core.reasons.queue import FreeGpus
from lucid.orchestrator.registry import make_policy
from lucid.simulator.cluster.training import EpochTable
from lucid.simulator.cluster.truth import OraclePredictor
from lucid.simulator.engine import run
from scenes.systems import gpus_given as gpus
from scenes.systems import room

POLICIES = {"elastic": "elastic", "fcfs": "elastic-fcfs", "ef": "elastic-ef"}
GROWS = Elastic(8, epochs=10.0)
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


def plan(
    name: str, machines: Sequence[Node], entries: Sequence[Pending | Running], now_s: float = 100.0
) -> PartitionPlan:
    known = {
        entry.job.id: structs.replace(guess(600.0), epochs=10.0, epoch_s=PERFECT)
        if entry.job.elastic
        else guess(600.0)
        for entry in entries
    }
    return policy(name).plan(snap(100.0, room(machines, entries), predictions=known)).partitions[VC]


def grows(name: str, where: str, limits: Elastic = GROWS, **rest: Any) -> Running:
    """An elastic job on some GPUs; it asked for one."""
    return replace(runs(name, where, **rest), job=waits(name, elastic=limits).job)


def test_a_start_on_all_gpus_says_that_they_were_free() -> None:
    made = plan("elastic", nodes(1), [waits("a", elastic=GROWS)])
    assert isinstance(made.decisions["a"], Start)
    free = reason(made.decisions["a"], FreeGpus)
    assert (free.needed, free.free) == (8, 8)


def test_when_nobody_can_spare_a_gpu_the_line_waits_in_order() -> None:
    entries = [
        grows("a", "n1:0"),
        grows("b", "n1:1"),
        waits("c", submit_s=2.0, elastic=GROWS),
        waits("d", elastic=GROWS),
    ]
    made = plan("elastic", nodes(1, 2), entries)
    assert made.actions == ()
    assert kinds(made.decisions["d"]) == ["FreeGpus"]  # submitted first
    assert kinds(made.decisions["c"]) == ["BehindHead"]


def test_a_job_that_is_not_elastic_is_made_room_for() -> None:
    made = plan("elastic", nodes(1, 4), [grows("a", "n1:0-3"), waits("rigid", 2)])
    assert (gpus(made, "a"), gpus(made, "rigid")) == (2, 2)
    whole = plan("elastic", nodes(1, 4), [grows("a", "n1:0-3"), waits("rigid", 4)])
    assert whole.actions == ()  # the elastic one keeps its last GPU, so shrinking it would help nobody
    stays = plan("elastic", nodes(1, 4), [runs("rigid", "n1:0-1"), waits("a", elastic=GROWS)])
    assert gpus(stays, "a") == 2
    assert "rigid" not in stays.decisions


def who_grows(
    seen: tuple[tuple[int, float], ...],
    preset: Sequence[float] = PERFECT,
    have: int = 1,
    done: float = 1.0,
    epochs: float = 10.0,
) -> str:
    """Two jobs run, one GPU is idle: which of them gets it? ``b`` has five epochs left and would save 150 s. ``a``
    has ``have`` GPUs and has reported these times of an epoch."""
    a = grows("a", f"n1:0-{have - 1}", progress=Progress(done, seen))
    b = grows("b", f"n1:{have}", progress=Progress(5.0))
    known = {
        "a": structs.replace(guess(600.0), epochs=epochs, epoch_s=tuple(preset)),
        "b": structs.replace(guess(600.0), epochs=10.0, epoch_s=PERFECT),
    }
    made = policy("elastic").plan(snap(100.0, part(nodes(1, have + 2), (), [a, b]), predictions=known))
    decisions = made.partitions[VC].decisions
    (grown,) = decisions
    assert gpus(made.partitions[VC], grown) == (have if grown == "a" else 1) + 1
    return grown


def test_preset_times_decide_until_a_job_has_reported_others() -> None:  # E13
    assert who_grows(()) == "a"
    assert who_grows((), preset=[60.0] * 8) == "b", "the preset table says that more GPUs are of no use to it"
    assert who_grows(((2, 60.0), (3, 90.0))) == "b", "it has found that out"
    assert who_grows(((1, 60.0), (2, 60.0))) == "b"
    assert who_grows(((1, 90.0), (2, 30.0)), preset=[60.0] * 8) == "a"


def test_three_reported_numbers_of_gpus_foretell_the_others() -> None:  # E13
    seen = tuple((g, 40.0 / g + 20.0) for g in (1, 2, 3))  # 30 s on four GPUs, 3 s less than on three
    assert who_grows(seen[1:], have=3) == "a", "the preset time of four GPUs is 15 s"
    assert who_grows(seen, have=3) == "b"


def test_what_a_job_has_done_is_no_longer_ahead_of_it() -> None:  # E13, E6
    assert who_grows((), epochs=20.0, done=10.0) == "a"
    assert who_grows((), epochs=20.0, done=19.0) == "b"


def test_the_job_keeps_those_of_its_gpus_that_it_can() -> None:
    made = plan("elastic", nodes(1, 4), [grows("a", "n1:1-3"), waits("b", elastic=GROWS), waits("c", elastic=GROWS)])
    shrunk = decided(made, "a", Resize)
    assert set(shrunk.placement[0].gpus) < {1, 2, 3}


@pytest.mark.parametrize("name", POLICIES.values())
def test_mixed_sets_run_to_their_end_safely(name: str) -> None:
    """With host limits, a node that is down, jobs of several least sizes and jobs that are not elastic; the safety
    check of every cycle judges."""
    for seed in range(12):
        rng = random.Random(seed)
        machines = tuple(
            Node(f"n{i}", rng.choice([2, 4]), cpus=rng.choice([0, 8]), available=i == 0 or rng.random() > 0.2)
            for i in range(3)
        )
        items = []
        for number in range(12):
            low = rng.choice([1, 1, 2])
            limits = Elastic(rng.randint(low, 8), low, epochs=5.0) if rng.random() < 0.75 else None
            table = tuple(30.0 / g + g for g in range(1, 9))
            submit_s, cpus = rng.choice([0.0, 50.0]) * number, rng.choice([0, low, 2 * low])
            item = by(f"j{number}", low, 150.0, submit_s, rank=number, cpus=cpus, elastic=limits)
            items.append(replace(item, learning=EpochTable(5.0, table)) if limits else item)
        trace = a_trace(*items)
        predictor = OraclePredictor(trace)
        cluster = a_cluster(trace, {VC: machines}, profiled=lambda job: False)
        made = run(cluster, make_policy(name, PolicySettings(), predictor), predictor)
        assert all(o.end_s > 0 for o in made.outcomes), f"seed {seed}"


def test_the_experiment_reaches_its_margins() -> None:
    cases = [compare_case(mix, 15, sets=2) for mix in ("workload1", "workload2", "workload3", "workload4")]
    assert sum(case.change("fcfs") for case in cases) / 4 < -0.35
    assert sum(case.change("ef") for case in cases) / 4 < -0.50
    assert sum(case.change("fcfs", "makespan_s") for case in cases) / 4 < -0.25


def test_reported_times_alone_let_a_job_grow() -> None:
    """Without preset times, a report of one size is no reason to believe that every other size is slower."""
    entry = replace(grows("a", "n1:0,1"), progress=Progress(1.0, ((2, 1.0),)))
    known = {"a": guess(600.0)}
    made = policy("elastic").plan(snap(100.0, part(nodes(2, 4), [], [entry]), predictions=known)).partitions[VC]
    assert gpus(made, "a") == 8


def test_a_job_that_reports_more_epochs_than_its_user_said_stays_within_its_limits() -> None:
    limits = Elastic(2, epochs=3.0)
    entry = replace(
        runs("a", "n1:0"), job=replace(waits("a", 1).job, elastic=limits), progress=Progress(5.0, ((1, 10.0),))
    )
    others = [
        replace(entry, job=replace(entry.job, id=f"o{i}", elastic=Elastic(8, epochs=9.0)), placement=at(f"n1:{i}"))
        for i in (1, 2)
    ]
    made = decide("elastic", snap(600.0, part(nodes(2, 4), running=[entry, *others])))
    assert "a" not in made.decisions
    assert made.actions, "the others grow"
