"""Random clusters with elastic jobs and jobs that are not: Pollux and Optimus, every cycle judged."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from applications import INIT, an_application, learning
from builders import VC, FixedPredictor, a_cluster, a_job, a_trace, by, decided, elastic
from examples import examples
from lucid.core.decision import Hold, Plan, Requeue, Resize, Start
from lucid.core.job import Elastic
from lucid.core.node import Node
from lucid.core.ports import Applied
from lucid.core.snapshot import Snapshot
from lucid.orchestrator.policy import Policy
from lucid.orchestrator.registry import make_policy
from lucid.simulator.cluster.state import JobOutcome
from lucid.simulator.cluster.training import Application
from lucid.simulator.cluster.truth import OraclePredictor
from lucid.simulator.engine import run
from lucid.simulator.traces.record import Trace, TraceJob

from builders import settings as rules  # isort: skip

NAMES = ("pollux", "optimus", "optimus-fitted", "optimus-drf")
AGENTS = ("pollux",)
ROUND_S = 100.0
SECTIONS = {
    "pollux": {"interval_s": ROUND_S, "population": 12, "generations": 8},
    "optimus": {"interval_s": ROUND_S},
}


@pytest.fixture(scope="module")
def app() -> Application:
    return an_application()


def some_nodes(rng: random.Random) -> tuple[Node, ...]:
    cpus, mem = rng.choice([0, 0, 6]), rng.choice([0, 0, 5000])
    size, mixed = rng.choice([2, 4]), rng.random() < 0.3
    return tuple(
        Node(
            f"n{i}",
            rng.choice([1, 2, 4]) if mixed else size,
            cpus=cpus,
            mem_mib=mem,
            available=i == 0 or rng.random() > 0.2,
        )
        for i in range(rng.randint(1, 4))
    )


def some_job(rng: random.Random, number: int, app: Application, most: int) -> TraceJob:
    submit_s = float(rng.randint(0, 400))
    host = {"cpus": rng.choice([0, 1]), "mem_mib": rng.choice([0, 900])}
    name = f"j{number}"
    kind = rng.random()
    if kind < 0.3:
        return by(name, rng.randint(1, most), float(rng.randint(10, 500)), submit_s, **host)
    if kind < 0.6:
        table = [rng.uniform(20.0, 80.0) / g**0.7 for g in range(1, rng.randint(2, 9))]
        return elastic(name, 1, submit_s, epochs=rng.randint(1, 9), table=table, **host)
    truth = learning(app, rng.choice([INIT, 256, 512]))
    limits = Elastic(rng.randint(1, 12), 1, truth.batch, INIT, 1024, 16, 128, pinned=rng.random() < 0.2)
    return TraceJob(
        a_job(name, 1, submit_s, elastic=limits, **host), truth.epochs * truth.epoch_s(1)[0], learning=truth
    )


class Judge:
    """Judges every cycle; makes each plan again with a policy that has no past."""

    def __init__(self, fresh: Policy) -> None:
        self.fresh = fresh
        self.resized = 0

    def record(self, snapshot: Snapshot, plan: Plan, applied: Sequence[Applied]) -> None:
        assert not [item for item in applied if item.refused]
        partition, made = snapshot.partitions[VC], plan.partitions[VC]
        machines = {node.name: node for node in partition.nodes}
        held = Counter((p.node, g) for e in partition.running for p in e.placement for g in p.gpus)
        assert not held or max(held.values()) == 1
        for name, machine in machines.items():
            here = [(e, p.mask.bit_count()) for e in partition.running for p in e.placement if p.node == name]
            assert not machine.cpus or sum(e.job.cpus * g / e.job.gpus for e, g in here) <= machine.cpus + 1e-6
            assert (
                not machine.mem_mib or sum(e.job.mem_mib * g / e.job.gpus for e, g in here) <= machine.mem_mib + 1e-6
            )
        for entry in partition.running:
            limits = entry.job.elastic
            assert (
                entry.gpus == entry.job.gpus if limits is None else limits.min_gpus <= entry.gpus <= limits.max_gpus
            )
            decision = made.decisions.get(entry.job.id)
            assert limits is not None or decision is None, "a job that is not elastic stays as it is"
            assert decision is None or isinstance(decision, Resize | Requeue)
            if isinstance(decision, Resize):
                assert set(decision.placement) != set(entry.placement)
                assert any(bool(item) for item in decision.reasons)
                self.resized += 1
        for pending in partition.pending:
            decision = decided(made, pending.job.id, Start | Hold)
            assert isinstance(decision, Hold) or all(bool(item) for item in decision.reasons)
        again = self.fresh.plan(snapshot).partitions[VC]
        assert {k: (type(d), getattr(d, "placement", None)) for k, d in again.decisions.items()} == {
            k: (type(d), getattr(d, "placement", None)) for k, d in made.decisions.items()
        }, "the plan depends on more than the snapshot"


def play(seed: int, name: str, app: Application) -> tuple[Trace, dict[str, JobOutcome], Judge]:
    rng = random.Random(seed)
    machines = some_nodes(rng)
    most = max(m.gpus for m in machines if m.available)
    trace = a_trace(*(some_job(rng, i, app, most) for i in range(rng.randint(2, 9))), elastic("last"))
    predictor = OraclePredictor(trace) if name == "optimus" else FixedPredictor()
    chosen, fresh = (make_policy(name, rules(**SECTIONS), predictor) for _ in range(2))
    judge = Judge(fresh)
    cluster = a_cluster(trace, {VC: machines}, agents=name in AGENTS)
    result = run(cluster, chosen, predictor, judge, settings=rules(**SECTIONS))
    return trace, {o.job.id: o for o in result.outcomes}, judge


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=examples(30), deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 2**32))
def test_every_cycle_is_safe_and_every_job_comes_to_its_end(name: str, seed: int, app: Application) -> None:
    trace, outcomes, _ = play(seed, name, app)
    for item in trace.jobs:
        assert outcomes[item.job.id].end_s > 0, f"{item.job.id} never ended"
        assert outcomes[item.job.id].queue_s >= 0


def test_the_random_scenes_reach_what_they_are_for(app: Application) -> None:
    for name in AGENTS:
        resized = accumulate(play(seed, name, app)[2].resized for seed in range(6))
        assert any(count > 5 for count in resized)


@pytest.mark.parametrize("name", NAMES)
def test_the_same_input_gives_the_same_run(name: str, app: Application) -> None:
    assert play(7, name, app)[1] == play(7, name, app)[1]
