"""A plan that is kept is the plan that would be made anew, at every instant until its wake time.

Except around nodes kept for a job, since it is large or since its turn has come by the starvation bound: time alone
moves these, and the plan is made anew after five minutes; or later, if nobody starts by then.
"""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from msgspec import structs

from examples import Dice, tried
from lucid.binder.contention import contention_speeds
from lucid.core.decision import Plan
from lucid.core.job import JobProfile, Pending, Running
from lucid.core.node import Node
from lucid.core.placement import NodeGpus
from lucid.core.prediction import Prediction
from lucid.core.reasons.queue import LargeShare, PlainOrder, Reserved
from lucid.core.snapshot import Partition, Snapshot
from lucid.orchestrator.capacity.reservations import PLAN_AGAIN_S
from lucid.orchestrator.policy import Policy
from safety_rules import outline
from scenes.jobs import HEAVY, LIGHT, a_job
from scenes.plans import FixedPredictor, guess, policy

SMALLEST_S = 2e-3
"""Nobody looks twice within this time: it is how late a change that comes just after an instant is seen."""

MIDDLE = replace(LIGHT, gpu_util=60.0, mem_util=40.0)
"""Too slow beside a heavy one, not beside another of its kind."""
PROFILES = (MIDDLE, LIGHT, HEAVY, replace(LIGHT, gpu_mem_mib=15000.0), replace(HEAVY, gpu_mem_mib=22000.0), None)


def some_waiting_vc(rng: random.Random) -> Snapshot:
    """A VC in which a large job waits for whole nodes, and small ones for GPUs; some running jobs have outlived
    their estimates. In some, a heavy job stands in the queue before lighter ones of its shape; in some, another large
    job runs."""
    gpus, count, queued = rng.choice([1, 2, 2, 4]), rng.randint(2, 6), rng.random() < 0.4
    nodes = tuple(Node(f"n{i}", gpus) for i in range(count))
    predictions: dict[str, Prediction] = {}
    now_s = 1000.0
    running: list[Running] = []
    if count > 3 and rng.random() < 0.4:
        both, mask = nodes[:2], (1 << gpus) - 1
        running.append(Running(a_job("wide", 2 * gpus), 0.0, tuple(NodeGpus(node.name, mask) for node in both)))
        predictions["wide"] = some_guess(rng, None, queued)
    for node in nodes[2:] if running else nodes:
        for gpu in range(gpus):
            if rng.random() < 0.05:
                continue
            job = a_job(f"r{len(running)}", 1)
            profile = MIDDLE if queued else rng.choice(PROFILES)
            start_s = rng.choice([0.0, 250.0, 999.5, rng.uniform(0.0, 1000.0)])
            predictions[job.id] = some_guess(rng, profile, queued)
            running.append(Running(job, start_s, (NodeGpus(node.name, 1 << gpu),), profile=profile))
    running.sort(key=lambda e: e.start_s)
    large = a_job("large", gpus * rng.randint(1, count - 1) + rng.randint(1, gpus), rng.choice([0.0, 500.0]))
    pending = [Pending(large, large.submit_s)]
    predictions["large"] = guess(5000.0)
    first_s = rng.choice([900.0, 900.0, 700.0])
    for i in range(rng.randint(1, 6)):
        job = a_job(f"p{i}", 1 if queued else rng.randint(1, gpus), first_s + i, rank=i)
        profile = (MIDDLE if i else HEAVY) if queued else rng.choice(PROFILES)
        found = some_guess(rng, profile, queued)
        predictions[job.id] = structs.replace(found, duration_s=1.0) if queued and not i else found
        pending.append(Pending(job, job.submit_s, profile))
    return Snapshot(now_s, {"vc": Partition("vc", nodes, tuple(pending), tuple(running))}, predictions=predictions)


def some_guess(rng: random.Random, profile: JobProfile | None, queued: bool) -> Prediction:
    duration_s = rng.choice([1.0, 600.0, 1000.0, rng.uniform(1.0, 3000.0), rng.uniform(1.0, 300.0)])
    return guess(duration_s, None if profile is None else 0 if queued else rng.choice([0, 1]))


def passed_over(snapshot: Snapshot, before: Policy) -> Snapshot:
    """Plain order would have started some of the waiting jobs: when they came, nothing else ran."""
    vc = snapshot.partitions["vc"]
    earlier = replace(snapshot, now_s=950.0, partitions={"vc": replace(vc, running=())})
    return replace(snapshot, memory=before.plan(earlier).memory)


@pytest.mark.parametrize("name", ["fifo", "backfill", "qssf", "srtf", "tiresias", "lucid"])
@tried(50)
def test_a_kept_plan_is_the_plan_made_anew(name: str, rng: random.Random) -> None:
    is_the_plan_made_anew(name, rng)


def test_nodes_kept_for_a_turn_move_too() -> None:
    """Here a job that stands before them has outlived its estimate: another may start there by and by."""
    is_the_plan_made_anew("lucid", Dice(6475734))


def is_the_plan_made_anew(name: str, rng: random.Random) -> None:
    snapshot = some_waiting_vc(rng)
    rules = {
        "reservation": {"most_share": rng.choice([0.5, 0.5, 0.9])},
        "backfill": {
            "weight_age": rng.choice([0.0, 100.0]),
            "max_age_s": 1000.0,
            "depth": rng.choice([1, 100]),
            "least_limit_s": rng.choice([1.0, 600.0]),
        },
        "packing": {
            "least_pair_speed": rng.choice([0.85, 0.7]),
            "waiting_pair_speed": rng.choice([None, 0.6]),
            "least_partner_remaining_s": rng.choice([0.0, 300.0]),
            "when_calm": rng.choice([False, True]),
        },
        "profiling": {"enabled": False},
        "fairness": {"beyond_plain_s": rng.choice([None, None, 300.0, 2000.0]), "keep_from": rng.choice([0.0, 0.5])},
    }
    predictor = FixedPredictor(speed=contention_speeds)
    if rng.random() < 0.5:
        snapshot = passed_over(snapshot, policy(name, predictor, **rules))
    keeps = policy(name, predictor, **rules)
    for _ in range(8):
        plan = keeps.plan(snapshot)
        if plan.actions:
            return
        until_s = snapshot.now_s + 20000.0 if plan.wake_s is None else plan.wake_s
        assert until_s > snapshot.now_s
        moves, soon = reserves(plan), until_s <= snapshot.now_s + PLAN_AGAIN_S
        for share in (0.001, 0.3, rng.random(), 0.999):
            at_s = snapshot.now_s + share * (until_s - snapshot.now_s)
            if until_s - at_s > SMALLEST_S:
                later = replace(snapshot, now_s=at_s, memory=plan.memory)
                assert keeps.plan(later).partitions["vc"] is plan.partitions["vc"], "not kept"
                anew = policy(name, predictor, **rules).plan(later)
                assert moves or outline(anew) == outline(plan)
                assert not moves or soon or not anew.actions
        if plan.wake_s is None:
            return
        snapshot = replace(snapshot, now_s=plan.wake_s, memory=plan.memory)


def reserves(plan: Plan) -> bool:
    """Are nodes kept for a job?"""
    return any(isinstance(why, Reserved) for d in plan.partitions["vc"].decisions.values() for why in d.reasons)


def in_its_turn(plan: Plan) -> bool:
    """Are nodes kept for a job whose turn has come?"""
    reasons = [d.reasons for d in plan.partitions["vc"].decisions.values()]
    return any({PlainOrder, Reserved} <= {*map(type, why)} for why in reasons)


def gives_way(plan: Plan) -> bool:
    return any(isinstance(why, LargeShare) for d in plan.partitions["vc"].decisions.values() for why in d.reasons)


def test_the_scenes_reach_reservations_that_move() -> None:
    """What the test above is for happens often enough in its scenes."""
    kept = moving = giving_way = in_turn = 0
    bound = {"beyond_plain_s": 300.0, "keep_from": 0.0}
    for seed in range(60):
        snapshot = some_waiting_vc(random.Random(seed))
        predicted = policy("lucid", FixedPredictor(speed=contention_speeds), profiling={"enabled": False})
        plan = predicted.plan(snapshot)
        if not plan.actions:
            kept += 1
            moving += plan.wake_s is not None
            giving_way += gives_way(plan) != gives_way(predicted.plan(replace(snapshot, now_s=1801.0)))
        fair = policy("lucid", FixedPredictor(speed=contention_speeds), profiling={"enabled": False}, fairness=bound)
        plan = fair.plan(passed_over(snapshot, fair))
        in_turn += not plan.actions and in_its_turn(plan)
    assert kept > 13
    assert in_turn > 10
    assert moving > 10
    assert giving_way > 3
