"""Whatever is planned can be planned again from its record alone, byte for byte: every policy, every cycle."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from applications import INIT, learning
from examples import examples
from lucid.config.policy import PolicySettings
from lucid.core.decision import Plan
from lucid.core.job import Elastic
from lucid.core.ports import Applied, Capability
from lucid.core.prediction import StageTimes
from lucid.core.snapshot import Snapshot
from lucid.models.throughput.model import ArrivalForecaster
from lucid.orchestrator.planner import PolicyHost
from lucid.orchestrator.registry import BUILT_IN, make_policy
from lucid.simulator.cluster.application import Application
from lucid.simulator.cluster.truth import Interleaving
from lucid.simulator.engine import run
from lucid.simulator.layout import NodeShape
from lucid.simulator.scenario import Scenario
from lucid.simulator.traces.record import TraceJob
from lucid.store.plan_records import plan_bytes, read_record, record_bytes, replan
from scenes.jobs import HEAVY, LIGHT, VC, a_job, by, nodes
from scenes.plans import settings
from scenes.replays import a_cluster, a_trace

ROUND_S = 100.0
RULES: dict[str, dict[str, Any]] = {
    "profiling": {"t_prof_s": 60.0},
    "pollux": {"interval_s": ROUND_S, "population": 8, "generations": 4},
    "optimus": {"interval_s": ROUND_S},
    "tiresias": {"threshold_gpu_s": 200.0},
}
MOST_CYCLES = 25


def some_jobs(rng: random.Random, policy: str, app: Application) -> list[TraceJob]:
    kind = "elastic" if policy.startswith(("pollux", "optimus", "elastic")) else "rigid"
    return [_job(rng, i, "staged" if policy.startswith("muri") else kind, app) for i in range(rng.randint(3, 12))]


def _job(rng: random.Random, number: int, kind: str, app: Application) -> TraceJob:
    name, at_s, user = f"j{number}", float(rng.randint(0, 500)), rng.choice("ab")
    if kind == "elastic":
        truth = learning(app, rng.choice([INIT, 256]))
        limits = Elastic(rng.randint(1, 8), 1, truth.batch, INIT, 1024, 16, 128, epochs=4.0)
        return TraceJob(a_job(name, 1, at_s, elastic=limits, user=user), 1000.0, learning=truth)
    profile = rng.choice([LIGHT, HEAVY, LIGHT, None])
    made = by(name, rng.choice([1, 1, 2, 4, 8]), rng.uniform(20.0, 900.0), at_s, profile=profile, user=user)
    if kind == "rigid":
        return made
    times = tuple(rng.uniform(0.1, 5.0) for _ in range(4))
    return TraceJob(made.job, made.duration_s, stages=StageTimes(times, sum(times), 5.0))


class Again:
    """A recorder that plans every cycle again from its record, and compares."""

    def __init__(self, watched: PolicyHost, rules: PolicySettings, path: Path) -> None:
        self.watched, self.rules, self.path, self.cycles, self.kept = watched, rules, path, 0, 0

    def record(self, snapshot: Snapshot, plan: Plan, applied: Sequence[Applied]) -> None:
        self.cycles += 1
        if self.cycles > MOST_CYCLES:
            return
        self.path.write_bytes(record_bytes(plan, self.watched.made_from(), self.watched.name, self.rules))
        found = read_record(self.path)
        assert found.plans == {name: plan_bytes(part) for name, part in plan.partitions.items()}
        assert replan(found) == found.plans
        self.kept += sum(found.contexts[i].snapshot.now_s != plan.now_s for i in found.context.values())


def cycles(policy: str, rng: random.Random, app: Application, path: Path, **rules: Any) -> Again:
    trace = a_trace(*some_jobs(rng, policy, app))
    scenario = Scenario(trace, {VC: 2}, NodeShape(4))
    predictor = scenario.predictor_for(policy)
    made = settings(**{**RULES, **{name: {**RULES.get(name, {}), **part} for name, part in rules.items()}})
    watched = PolicyHost(lambda heard: make_policy(policy, made, heard), predictor)
    again = Again(watched, made, path)
    cluster = a_cluster(
        trace,
        {VC: nodes(2, 4)},
        profiling_nodes=nodes(1, 4, "p") if Capability.PROFILE in watched.needs else (),
        profiled=watched.profiled,
        profiling=made.profiling,
        interleaving=Interleaving() if scenario.staged else None,
        agents=Capability.ADAPT in watched.needs,
    )
    run(cluster, watched, predictor, again, forecaster=ArrivalForecaster(), settings=made)
    return again


@pytest.mark.parametrize("policy", BUILT_IN)
def test_every_cycle_of_every_policy_can_be_planned_again(policy: str, app: Application, tmp_path: Path) -> None:
    """Random histories by seed: a failing one is small already, and shrinking it would take minutes."""
    for seed in range(examples(2, 2)):
        assert cycles(policy, random.Random(seed), app, tmp_path / "r").cycles > 0


def test_what_looks_ahead_can_be_planned_again(app: Application, tmp_path: Path) -> None:
    for seed in range(2):
        again = cycles("lucid", random.Random(seed), app, tmp_path / "r", profiling={"time_aware": True})
        assert again.cycles > 0


def test_kept_plans_are_among_them(app: Application, tmp_path: Path) -> None:
    """Of a partition that was not planned anew there is what it was planned from, earlier."""
    assert any(cycles("lucid", random.Random(i), app, tmp_path / "r").kept for i in range(6))
