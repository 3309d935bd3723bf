"""Elastic jobs and policies."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from applications import INIT, learning
from examples import examples
from lucid.config.policy import OverheadSettings, PolicySettings
from lucid.core.decision import Action, Decision, Hold, PartitionPlan, Plan, Requeue, Resize, Start
from lucid.core.job import Elastic, Pending, Running
from lucid.core.node import Node
from lucid.core.placement import NodeGpus, Placement
from lucid.core.ports import Applied, Capability
from lucid.core.reasons.queue import NextRound
from lucid.core.snapshot import Partition, Snapshot
from lucid.orchestrator.policy import PartitionPolicy, Policy, PolicyRules, rules_of
from lucid.orchestrator.registry import make_policy
from lucid.simulator.cluster.application import Application
from lucid.simulator.cluster.state import JobOutcome
from lucid.simulator.cluster.truth import OraclePredictor
from lucid.simulator.engine import run
from lucid.simulator.traces.record import Trace, TraceJob
from safety_rules import check_held, holdings, judge, outline
from scenes.jobs import VC, a_job, by, elastic, nodes
from scenes.plans import FixedPredictor, decided
from scenes.plans import settings as rules
from scenes.replays import a_cluster, a_trace

ROUND_S = 50.0


class Restless(PartitionPolicy):
    """Deals the GPUs out anew at every round, by lot. Remembers only how many rounds there were."""

    name = "restless"
    needs = frozenset({Capability.RESIZE, Capability.PREEMPT})
    rules = PolicyRules(preempts="elastic", resizes=True)

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.seed = seed
        self.rounds: list[object] = []

    def plan_partition(self, partition: Partition, snapshot: Snapshot) -> PartitionPlan:
        now_s = snapshot.now_s
        why = (NextRound(now_s),)
        past = snapshot.memory.get(partition.name, 0)
        self.rounds.append(past)
        assert isinstance(past, int)
        rng = random.Random(f"{self.seed} {now_s}")
        free = [(node.name, gpu) for node in partition.nodes for gpu in range(node.gpus)]
        rng.shuffle(free)
        decisions: dict[str, Decision] = {}
        members: list[Pending | Running] = [*partition.pending, *partition.running]
        rng.shuffle(members)
        for entry in members:
            limits = entry.job.elastic
            count = rng.randint(limits.min_gpus, limits.max_gpus)
            waits = isinstance(entry, Pending)
            if len(free) < count or rng.random() < 0.2:
                decisions[entry.job.id] = Hold(why) if waits else Requeue(why)
                continue
            taken, free = free[:count], free[count:]
            where = placement(taken)
            decisions[entry.job.id] = Start(where, why) if waits else Resize(where, why)
        actions = tuple(
            Action(job_id, partition.name, decision)
            for job_id, decision in decisions.items()
            if not isinstance(decision, Hold)
        )
        wake_s = now_s + ROUND_S if members else None
        return PartitionPlan(decisions, actions, wake_s, past + 1)


def placement(gpus: Sequence[tuple[str, int]]) -> Placement:
    masks: Counter[str] = Counter()
    for name, gpu in gpus:
        masks[name] |= 1 << gpu
    return tuple(NodeGpus(name, mask) for name, mask in sorted(masks.items()))


class Judge:
    """Judges every cycle. ``fresh``: makes each plan again without a past."""

    def __init__(self, rules: PolicyRules, fresh: Policy | None = None) -> None:
        self.rules, self.fresh, self.resized = rules, fresh, 0
        self.epochs: dict[str, float] = {}

    def record(self, snapshot: Snapshot, plan: Plan, applied: Sequence[Applied]) -> None:
        assert not [item for item in applied if item.refused]
        partition, made, tally = snapshot.partitions[VC], plan.partitions[VC], Counter[str]()
        held = holdings(partition)
        check_held(partition, held, [*held], snapshot, self.rules, PolicySettings())
        judge(snapshot, plan, self.rules, PolicySettings(), tally)
        self.resized += tally["Resize"]
        for entry in (*partition.pending, *partition.running):
            if entry.progress is not None:
                assert entry.progress.epochs >= self.epochs.get(entry.job.id, 0.0) - 1e-9
                self.epochs[entry.job.id] = entry.progress.epochs
        if self.fresh is None:
            return
        for running in partition.running:
            decision = made.decisions.get(running.job.id)
            assert running.job.elastic is not None or decision is None, "a job that is not elastic stays as it is"
            if isinstance(decision, Resize):
                assert set(decision.placement) != set(running.placement)
                assert any(bool(item) for item in decision.reasons)
        for pending in partition.pending:
            decision = decided(made, pending.job.id, Start | Hold)
            assert isinstance(decision, Hold) or all(bool(item) for item in decision.reasons)
        assert outline(self.fresh.plan(snapshot)) == outline(plan), "the plan depends on more than the snapshot"


@settings(max_examples=examples(200))
@given(seed=st.integers(0, 2**32))
def test_elastic_jobs_come_to_their_end_however_they_are_moved(seed: int) -> None:
    rng = random.Random(seed)
    jobs = [
        elastic(
            f"j{i}",
            1,
            float(rng.randint(0, 300)),
            epochs=rng.randint(1, 8),
            table=sorted((rng.uniform(5.0, 60.0) for _ in range(rng.randint(1, 6))), reverse=True),
        )
        for i in range(rng.randint(1, 6))
    ]
    overheads = OverheadSettings(rescale_s=rng.choice([0.0, 10.0]), elastic_start_s=rng.choice([0.0, 20.0]))
    cluster = a_cluster(a_trace(*jobs), {VC: nodes(rng.randint(2, 3), 3)}, overheads=overheads)
    policy = Restless(seed)
    result = run(cluster, policy, FixedPredictor(), Judge(Restless.rules))
    truth = {item.job.id: item for item in jobs}
    for outcome in result.outcomes:
        item = truth[outcome.job.id]
        table = item.learning.epoch_s(6)
        ran_s = outcome.jct_s - outcome.queue_s
        lost_s = overheads.elastic_start_s
        moves = outcome.resizes + outcome.preemptions
        # whoever is moved while he starts up, starts up elsewhere instead
        assert item.learning.epochs * min(table) + (0.0 if moves else lost_s) <= ran_s + 1e-3
        most_lost_s = lost_s + moves * max(overheads.rescale_s, overheads.elastic_start_s)
        assert ran_s <= item.learning.epochs * max(table) + most_lost_s + 1e-3
    assert cluster.jobs.busy_gpus == 0
    assert policy.rounds == list(range(len(policy.rounds))), "the memory did not ride from plan to plan"


def test_a_resize_costs_a_restart_and_the_new_speed_counts_from_then_on() -> None:
    class Once(Restless):
        def plan_partition(self, partition: Partition, snapshot: Snapshot) -> PartitionPlan:
            why = (NextRound(0.0),)
            if partition.pending:
                start = Start(placement([("n1", 0)]), why)
                return PartitionPlan({"a": start}, (Action("a", VC, start),), 230.0)
            if snapshot.now_s == 230.0:
                more = Resize(placement([("n1", 1), ("n1", 2)]), why)
                return PartitionPlan({"a": more}, (Action("a", VC, more),))
            return PartitionPlan({})

    cluster = a_cluster(a_trace(elastic("a", epochs=4, table=(100.0, 50.0))), {VC: nodes(1, 4)})
    result = run(cluster, Once(0), FixedPredictor())
    (outcome,) = result.outcomes
    # 30 s start-up, two epochs at 100 s, 30 s restart, two epochs at 50 s
    assert outcome.end_s == pytest.approx(360.0)
    assert outcome.resizes == 1
    assert result.series.busy_gpu_s == pytest.approx(230.0 + 2 * 130.0)


NAMES = ("pollux", "optimus", "optimus-fitted", "optimus-drf")
AGENTS = ("pollux",)
POLICY_ROUND_S = 100.0
SECTIONS = {
    "pollux": {"interval_s": POLICY_ROUND_S, "population": 12, "generations": 8},
    "optimus": {"interval_s": POLICY_ROUND_S},
}


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


def play(seed: int, name: str, app: Application) -> tuple[Trace, dict[str, JobOutcome], Judge]:
    rng = random.Random(seed)
    machines = some_nodes(rng)
    most = max(m.gpus for m in machines if m.available)
    trace = a_trace(*(some_job(rng, i, app, most) for i in range(rng.randint(2, 9))), elastic("last"))
    predictor = OraclePredictor(trace) if name == "optimus" else FixedPredictor()
    chosen, fresh = (make_policy(name, rules(**SECTIONS), predictor) for _ in range(2))
    watched = Judge(rules_of(fresh), fresh)
    cluster = a_cluster(trace, {VC: machines}, agents=name in AGENTS)
    result = run(cluster, chosen, predictor, watched, settings=rules(**SECTIONS))
    return trace, {o.job.id: o for o in result.outcomes}, watched


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
