"""Jobs that are resized or take turns: whatever stands on a cluster and whatever jobs report, plans are safe."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import structs

from applications import INIT, learning
from examples import examples
from lucid.config.policy import OverheadSettings, PolicySettings
from lucid.core.decision import Hold, Plan, Regroup, Resize, Start
from lucid.core.job import Elastic, Job, JobProfile, Pending, Running
from lucid.core.ledger import Ledger
from lucid.core.node import Node
from lucid.core.ports import Applied
from lucid.core.prediction import StageTimes
from lucid.core.reasons.sharing import Overlaps
from lucid.core.snapshot import Partition, Snapshot
from lucid.orchestrator.capacity.placement import consolidated
from lucid.orchestrator.policy import Policy, PolicyRules, rules_of
from lucid.orchestrator.registry import make_policy
from lucid.orchestrator.safety.check import SafetyCheck
from lucid.simulator.cluster.application import Application
from lucid.simulator.cluster.state import JobOutcome
from lucid.simulator.cluster.training import EpochTable
from lucid.simulator.cluster.truth import OraclePredictor
from lucid.simulator.engine import run
from lucid.simulator.traces.record import Trace, TraceJob
from safety_rules import check_held, holdings, judge, outline
from scenes.jobs import VC, a_job, by, elastic
from scenes.plans import FixedPredictor, decided, guess, part, policy, reason, snap
from scenes.plans import settings as rules
from scenes.replays import a_cluster, a_trace


class Judge:
    """Judges every cycle. ``fresh``: makes each plan again without a past."""

    def __init__(self, rules: PolicyRules, fresh: Policy) -> None:
        self.rules, self.fresh, self.resized = rules, fresh, 0
        self.epochs: dict[str, float] = {}

    def record(self, snapshot: Snapshot, plan: Plan, applied: Sequence[Applied]) -> None:
        assert not [item for item in applied if item.refused]
        partition, made, tally = snapshot.partitions[VC], plan.partitions[VC], Counter[str]()
        held = holdings(partition)
        check_held(partition, held, [*held], snapshot, self.rules, PolicySettings())
        judge(snapshot, plan, self.rules, PolicySettings(), tally)
        self.resized += tally["Resize"]
        for entry in partition.listed():
            if entry.progress is not None:
                assert entry.progress.epochs >= self.epochs.get(entry.job.id, 0.0) - 1e-9
                self.epochs[entry.job.id] = entry.progress.epochs
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


NAMES = ("pollux", "optimus", "optimus-fitted", "optimus-drf")
POLICY_ROUND_S = 100.0
SECTIONS = {
    "pollux": {"interval_s": POLICY_ROUND_S, "population": 12, "generations": 8},
    "optimus": {"interval_s": POLICY_ROUND_S},
}


def some_nodes(rng: random.Random) -> tuple[Node, ...]:
    cpus, mem = rng.choice([0, 0, 6]), rng.choice([0, 0, 5000])
    size, mixed = rng.choice([2, 4]), rng.random() < 0.3
    gpus = [rng.choice([1, 2, 4]) if mixed else size for _ in range(rng.randint(1, 4))]
    up = [not i or rng.random() > 0.2 for i in range(len(gpus))]
    return tuple(Node(f"n{i}", gpus[i], cpus=cpus, mem_mib=mem, available=up[i]) for i in range(len(gpus)))


def some_job(rng: random.Random, number: int, app: Application, most: int) -> TraceJob:
    submit_s = float(rng.randint(0, 400))
    host = {"cpus": rng.choice([0, 1]), "mem_mib": rng.choice([0, 900])}
    name, kind = f"j{number}", rng.random()
    if kind < 0.3:
        return by(name, rng.randint(1, most), float(rng.randint(10, 500)), submit_s, **host)
    if kind < 0.6:
        table = [rng.uniform(20.0, 80.0) / g**0.7 for g in range(1, rng.randint(2, 9))]
        return elastic(name, 1, submit_s, epochs=rng.randint(1, 9), table=table, **host)
    truth = learning(app, rng.choice([INIT, 256, 512]))
    limits = Elastic(rng.randint(1, 12), 1, truth.batch, INIT, 1024, 16, 128, pinned=rng.random() < 0.2)
    job = a_job(name, 1, submit_s, elastic=limits, **host)
    return TraceJob(job, truth.epochs * truth.epoch_s(1)[0], learning=truth)


def play(seed: int, name: str, app: Application) -> tuple[Trace, dict[str, JobOutcome], Judge]:
    rng = random.Random(seed)
    machines = some_nodes(rng)
    most = max(m.gpus for m in machines if m.available)
    trace = a_trace(*(some_job(rng, i, app, most) for i in range(rng.randint(2, 9))), elastic("last"))
    predictor = OraclePredictor(trace) if name == "optimus" else FixedPredictor()
    chosen, fresh = (make_policy(name, rules(**SECTIONS), predictor) for _ in range(2))
    watched = Judge(rules_of(fresh), fresh)
    cluster = a_cluster(trace, {VC: machines}, agents=name == "pollux")
    result = run(cluster, chosen, predictor, watched, settings=rules(**SECTIONS))
    assert cluster.jobs.busy_gpus == 0
    return trace, {o.job.id: o for o in result.outcomes}, watched


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=examples(30), deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 2**32))
def test_every_cycle_is_safe_and_every_job_comes_to_its_end(name: str, seed: int, app: Application) -> None:
    trace, outcomes, _ = play(seed, name, app)
    overheads = OverheadSettings()
    for item in trace.jobs:
        outcome = outcomes[item.job.id]
        assert outcome.end_s > 0, f"{item.job.id} never ended"
        assert outcome.queue_s >= 0
        if isinstance(item.learning, EpochTable):
            least_s, most_s = (item.learning.epochs * bound(item.learning.table) for bound in (min, max))
            ran_s, start_s = outcome.jct_s - outcome.queue_s, overheads.elastic_start_s
            moves = outcome.resizes + outcome.preemptions
            # whoever is moved while he starts up, starts up elsewhere instead
            assert least_s + (0.0 if moves else start_s) <= ran_s + 1e-3
            assert ran_s <= most_s + start_s + moves * max(overheads.rescale_s, start_s) + 1e-3


def test_the_random_scenes_reach_what_they_are_for(app: Application) -> None:
    assert any(count > 5 for count in accumulate(play(seed, "pollux", app)[2].resized for seed in range(6)))


# -- Muri, on a real cluster ----------------------------------------------------------------------------------------


def some_turns_job(rng: random.Random, at: int, willing: bool) -> Job:
    if willing:
        return Job(
            f"j{at}", VC, rng.choice([1, 1, 2]), float(rng.randrange(100)), at, user="ada", takes_turns=True,
            time_limit_s=rng.choice([None, 5e3]),
        )  # fmt: skip
    return Job(
        f"j{at}", VC, rng.choice([1, 1, 1, 2, 4, 8]), float(rng.randrange(100)), at,
        user=rng.choice(["ada", "eve"]), cpus=rng.choice([0, 1, 4]), mem_mib=rng.choice([0, 1000, 30000]),
        time_limit_s=rng.choice([None, 500.0, 1e6]), shareable=rng.random() < 0.9, takes_turns=rng.random() < 0.8,
        min_nodes=rng.choice([1, 1, 1, 2]),
    )  # fmt: skip


def stages(rng: random.Random) -> StageTimes | None:
    if rng.random() < 0.2:
        return None
    if rng.random() < 0.4:
        some = (rng.random(), rng.random(), rng.random())
        shares = rng.choice([(0.9, 0.05, 0.0), (0.0, 0.9, 0.1), (0.0, 0.05, 0.95), (1.0, 1.0, 1.0), some])
        return StageTimes((*shares, 0.0), 1.0, outside=True)
    times = tuple(rng.choice([0.0, 1e-6, 0.1, 1.0, 1e5]) for _ in range(4))
    return StageTimes(times, min(max(sum(times) * rng.random(), *times), sum(times))) if any(times) else None


def cluster(rng: random.Random) -> tuple[Partition, dict[str, StageTimes | None]]:
    slots = [rng.choice([1, 2, 4]) for _ in range(rng.randrange(1, 5))]
    machines = [
        Node(f"n{i}", rng.choice([1, 2, 4]), cpus=16, mem_mib=64000, available=rng.random() < 0.9, slots=count)
        for i, count in enumerate(slots)
    ]
    willing = rng.random() < 0.5  # in these scenes most may share
    jobs = [some_turns_job(rng, at, willing) for at in range(rng.randrange(1, 25))]
    sizes = [10.0] if willing else [10.0, 5e3, 9e4]
    peaks = {job.id: None if rng.random() < 0.2 else JobProfile(9.0, 9.0, rng.choice(sizes)) for job in jobs}
    empty = part(machines)
    ledger, running, waiting = Ledger(empty), list[Running](), list[Pending]()
    for job in jobs:
        placement = consolidated(ledger, job) if rng.random() < 0.6 else None
        if placement is None:
            waiting.append(Pending(job, job.submit_s, peaks[job.id], alone=rng.random() < 0.1))
            continue
        ledger.claim(job, placement)
        running.append(Running(job, 50.0, placement, profile=peaks[job.id], alone=rng.random() < 0.2))
        alike = [w for w in waiting if w.job.gpus == job.gpus]
        others = alike[: rng.randrange(4)]  # as somebody once put them together
        ids = (job.id, *(w.job.id for w in others))
        if others and rng.random() < 0.5:
            running[-1] = replace(running[-1], group=ids)
            for w in others:
                waiting.remove(w)
                running.append(Running(w.job, 60.0, placement, profile=w.profile, group=ids))
    return part(machines, waiting, running), {job.id: stages(rng) for job in jobs}


def test_plans_are_safe_and_touch_nobody_that_runs() -> None:
    found = [check_plan_of(random.Random(seed)) for seed in range(150)]
    assert sum(pairs for pairs, _ in found) > 10, "else the rules hold because there is nothing to hold them to"
    assert max(largest for _, largest in found) > 2


def check_plan_of(rng: random.Random) -> tuple[int, int]:
    """How many pairs by use from outside did the plan make, and how large was its largest group?"""
    partition, known = cluster(rng)
    guesses = {}
    for entry in partition.listed():
        made_up = guess(rng.choice([1.0, 1e3, 1e7])).within(entry.job.time_limit_s)
        guesses[entry.job.id] = structs.replace(made_up, stages=known[entry.job.id])
    sections = {"packing": {"same_user_only": True}, "muri": {"patience_s": rng.choice([80.0, 1e6])}}
    planner = policy(rng.choice(["muri-s", "muri-l"]), **sections)
    seen = snap(100.0, partition, predictions=guesses)
    plan = planner.plan(seen)
    SafetyCheck(planner.rules, rules(**sections))(seen, plan)
    judge(seen, plan, planner.rules, rules(**sections), Counter())
    pairs, largest, decisions = 0, 0, plan.partitions[VC].decisions
    for decision in decisions.values():
        assert isinstance(decision, Start | Hold | Regroup)
        if isinstance(decision, Start | Regroup) and decision.group:
            assert all(known[name] is not None for name in decision.group)
            assert len(decision.placement) == 1
            largest = max(largest, len(decision.group))
            if any(found.outside for name in decision.group if (found := known[name]) is not None):
                assert len(decision.group) == 2
                test = reason(decision, Overlaps)
                assert test
                assert set(test.group.split()) == set(decision.group)
                pairs += 1
    again = policy(planner.name, **sections).plan(seen)
    assert again.partitions[VC].decisions == decisions, "a plan follows from its snapshot"
    return pairs, largest
