"""Plans by what an earlier plan left: lucidd was killed meanwhile, jobs were cancelled, or the cluster is another.

lucidd keeps the memory of its plans (``Snapshot.memory``) every half minute, so after a crash it is older than what
it sees. Whatever is in it, a plan is made, decides every waiting job, and breaks no rule of safety.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from test_elastic_policies import NAMES, SECTIONS
from test_elastic_policies import some_job as some_elastic_job
from test_elastic_policies import some_nodes as some_elastic_nodes
from test_pools import some_pool, wrong
from test_safety import VARIANTS, some_scene

from applications import an_application
from builders import VC, FixedPredictor, Tape, a_cluster, a_trace, elastic, nodes, replay
from builders import settings as rules
from examples import tried
from lucid.core.ports import Predictor
from lucid.core.snapshot import Snapshot
from lucid.orchestrator.registry import make_policy
from lucid.orchestrator.safety.check import SafetyCheck
from lucid.simulator.cluster.training import Application
from lucid.simulator.cluster.truth import OraclePredictor
from lucid.simulator.engine import run
from lucid.store.values import noun_from_json, noun_to_json

KEEPS_MEMORY = [name for name, (policy, made) in VARIANTS.items() if policy == "tiresias" or "fairness" in made] + [
    "lucid, time-aware"
]


@pytest.fixture(scope="module")
def app() -> Application:
    return an_application()


def some_cancelled(rng: random.Random, snapshot: Snapshot) -> Snapshot:
    """The same without some of the jobs that wait, and without some that run alone."""
    if rng.random() < 0.3:
        return snapshot
    parts = {
        name: replace(
            part,
            pending=tuple(entry for entry in part.pending if rng.random() < 0.6),
            running=tuple(
                entry for entry in part.running if entry.partner is not None or entry.group or rng.random() < 0.8
            ),
        )
        for name, part in snapshot.partitions.items()
    }
    return replace(snapshot, partitions=parts)


def plan_by_old_memory(
    rng: random.Random, tape: Tape, name: str, sections: Mapping[str, Any], predictor: Predictor, times: int = 6
) -> int:
    """Plans of policies that have no past, each at some cycle by what some earlier plan left. How many left any?"""
    left = 0
    for _ in range(times):
        then, now = sorted(rng.choices(range(len(tape.cycles)), k=2))
        memory = noun_from_json(noun_to_json(dict(tape.cycles[then][1].memory)))
        left += bool(memory)
        snapshot = replace(some_cancelled(rng, tape.cycles[now][0]), memory=memory)
        fresh = make_policy(name, rules(**sections), predictor)
        plan = fresh.plan(snapshot)
        SafetyCheck(fresh.rules, rules(**sections))(snapshot, plan)
        decided = [job for part in plan.partitions.values() for job in part.decisions]
        waiting = {entry.job.id for part in snapshot.partitions.values() for entry in part.pending}
        assert waiting <= set(decided)
        assert noun_to_json(dict(plan.memory))
    return left


@pytest.mark.parametrize("variant", KEEPS_MEMORY)
@tried(15)
def test_any_older_memory_makes_a_safe_plan(variant: str, rng: random.Random) -> None:
    name, sections = VARIANTS[variant]
    scene = some_scene(rng)
    if not scene.profiling_nodes:
        sections = {**sections, "profiling": {**sections.get("profiling", {}), "enabled": False}}
    predictor = scene.predictor()
    chosen, tape = make_policy(name, rules(**sections), predictor), Tape()
    run(scene.cluster(chosen, rules(**sections)), chosen, predictor, tape, settings=rules(**sections))
    plan_by_old_memory(rng, tape, name, sections, predictor)


@tried(25)
def test_any_older_memory_of_vcs_that_lend_makes_a_safe_plan(rng: random.Random) -> None:
    trace, layout = some_pool(rng)
    profiling = rng.random() < 0.5
    sections: dict[str, Any] = {
        "lending": {"mode": rng.choice(["quota", "borrow"])},
        "fairness": {"beyond_plain_s": 400.0},
        "profiling": {"enabled": profiling},
    }
    predictor = wrong(rng, trace)
    machines = nodes(1, 4, "p") if profiling else ()
    _, tape = replay("lucid", trace, layout, predictor=predictor, profiling_nodes=machines, **sections)
    plan_by_old_memory(rng, tape, "lucid", sections, predictor)


@pytest.mark.parametrize("name", NAMES)
@tried(8)
def test_any_older_memory_of_rounds_makes_a_safe_plan(name: str, rng: random.Random, app: Application) -> None:
    machines = some_elastic_nodes(rng)
    most = max(m.gpus for m in machines if m.available)
    trace = a_trace(*(some_elastic_job(rng, i, app, most) for i in range(rng.randint(2, 9))), elastic("last"))
    predictor = OraclePredictor(trace) if name == "optimus" else FixedPredictor()
    chosen, tape = make_policy(name, rules(**SECTIONS), predictor), Tape()
    cluster = a_cluster(trace, {VC: machines}, agents=name == "pollux")
    run(cluster, chosen, predictor, tape, settings=rules(**SECTIONS))
    plan_by_old_memory(rng, tape, name, SECTIONS, predictor, times=3)


@pytest.mark.parametrize("variant", ["lucid, bounded", "lucid, bounded late", "tiresias"])
@tried(10)
def test_the_memory_of_another_cluster_makes_a_safe_plan(variant: str, rng: random.Random) -> None:
    """Job numbers begin anew after Slurm was installed anew: the same ids are other jobs."""
    name, sections = VARIANTS[variant]
    sections = {**sections, "profiling": {"enabled": False}}
    tapes = []
    for _ in range(2):
        scene = replace(some_scene(rng), profiling_nodes=())
        predictor = scene.predictor()
        chosen, tape = make_policy(name, rules(**sections), predictor), Tape()
        run(scene.cluster(chosen, rules(**sections)), chosen, predictor, tape, settings=rules(**sections))
        tapes.append(tape)
    here, other = tapes
    here.cycles = [(snapshot, rng.choice(other.cycles)[1], done) for snapshot, _, done in here.cycles]
    plan_by_old_memory(rng, here, name, sections, predictor)


def test_the_random_scenes_leave_memory() -> None:
    for variant in KEEPS_MEMORY:
        name, sections = VARIANTS[variant]
        sections = {**sections, "profiling": {**sections.get("profiling", {}), "enabled": False}}
        left = 0
        for seed in range(3):
            scene = replace(some_scene(random.Random(seed), 30), profiling_nodes=())
            predictor = scene.predictor()
            chosen, tape = make_policy(name, rules(**sections), predictor), Tape()
            run(scene.cluster(chosen, rules(**sections)), chosen, predictor, tape, settings=rules(**sections))
            left += plan_by_old_memory(random.Random(seed), tape, name, sections, predictor)
        assert left > 5, variant
