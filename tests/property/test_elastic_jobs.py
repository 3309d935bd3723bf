"""Elastic jobs that are moved and resized at random: nothing is lost, nothing is held twice, the time adds up."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builders import VC, FixedPredictor, a_cluster, a_trace, elastic, nodes
from examples import examples
from lucid.config.policy import OverheadSettings
from lucid.core.decision import Action, Decision, Hold, PartitionPlan, Plan, Requeue, Resize, Start
from lucid.core.job import Pending, Running
from lucid.core.placement import NodeGpus, Placement
from lucid.core.ports import Applied, Capability
from lucid.core.reasons.queue import NextRound
from lucid.core.snapshot import Partition, Snapshot
from lucid.orchestrator.policy import PartitionPolicy, PolicyRules
from lucid.simulator.engine import run

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
    def __init__(self) -> None:
        self.epochs: dict[str, float] = {}

    def record(self, snapshot: Snapshot, plan: Plan, applied: Sequence[Applied]) -> None:
        assert not [item for item in applied if item.refused]
        partition = snapshot.partitions[VC]
        held = Counter((p.node, g) for e in partition.running for p in e.placement for g in p.gpus)
        assert not held or max(held.values()) == 1
        for entry in (*partition.pending, *partition.running):
            limits, progress = entry.job.elastic, entry.progress
            assert limits is not None
            assert progress.epochs >= self.epochs.get(entry.job.id, 0.0) - 1e-9
            self.epochs[entry.job.id] = progress.epochs
            if isinstance(entry, Running):
                assert limits.min_gpus <= entry.gpus <= limits.max_gpus


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
    policy, judge = Restless(seed), Judge()
    result = run(cluster, policy, FixedPredictor(), judge)
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
    assert cluster.busy_gpus == 0
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
