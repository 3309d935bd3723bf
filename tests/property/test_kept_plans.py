"""A plan that is kept is the plan that would be made anew, at every instant until its wake time.

Except around nodes kept for a job, since it is large or since its turn has come by the starvation bound: time alone
moves these, and the plan is made anew after five minutes; or later, if nobody starts by then.
"""

from __future__ import annotations

import json
import random
from dataclasses import replace

import pytest
from msgspec import structs

from examples import Dice, tried
from lucid.binder.contention import contention_speeds
from lucid.core.decision import Plan, Start
from lucid.core.job import JobProfile, Pending, Running
from lucid.core.node import Node
from lucid.core.placement import NodeGpus
from lucid.core.prediction import Prediction
from lucid.core.reasons.queue import Reserved
from lucid.core.snapshot import Partition, Snapshot
from lucid.daemon.policies import LivePolicy
from lucid.daemon.reporting.replan import LastPlan
from lucid.daemon.reporting.starts import starts_ahead
from lucid.explain.queue_rows import QueueRow, queue_rows
from lucid.orchestrator.capacity.reservations import PLAN_AGAIN_S
from lucid.orchestrator.forecast.plan_ahead import forecast
from lucid.orchestrator.policy import Policy
from lucid.store.view import view_from, view_to_dict
from safety_rules import outline
from scenes.jobs import HEAVY, LIGHT, VC, a_job, by, nodes
from scenes.plans import FixedPredictor, guess, policy
from scenes.plans import settings as rules_of
from scenes.replays import a_trace, replay

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
        for share in sorted((0.001, 0.3, rng.random(), 0.999)):
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


# -- what lucidctl queue shows is what was decided, and what will be if estimates are right --------------------------

BARE = {"profiling": {"enabled": False}}


def some_snapshot(rng: random.Random) -> Snapshot:
    """Some VC, at times with a job that Slurm bars and one that is too large."""
    snapshot = some_waiting_vc(rng)
    barred = Pending(a_job("barred", 1, 950.0), 950.0, barred="licences")
    extra = [one for one in (barred, Pending(a_job("huge", 1000, 960.0), 960.0)) if rng.random() < 0.5]
    partition = snapshot.partitions[VC]
    partition = replace(partition, pending=(*partition.pending, *extra))
    known = {**snapshot.predictions, **{entry.job.id: guess(rng.choice([1.0, 500.0])) for entry in extra}}
    return replace(snapshot, partitions={VC: partition}, predictions=known)


def as_shown(snapshot: Snapshot, plan: Plan, name: str, rules: dict[str, object]) -> list[QueueRow]:
    """What the queue shows of a plan that went through lucidd's store."""
    seen = view_from(json.dumps(view_to_dict(snapshot, plan)))
    last = LastPlan(seen.snapshot(), seen.plan(), {VC: "pack"}, policy=LivePolicy(name, rules_of(**rules)))
    predictor = FixedPredictor(speed=contention_speeds)
    ahead = forecast(last.snapshot, last.plan, last.policy.make(predictor), 2_000)
    return queue_rows(last, starts_ahead(last.snapshot, ahead, last.times))


@pytest.mark.parametrize("name", ["fifo", "backfill", "qssf", "srtf", "tiresias", "lucid"])
@tried(25)
def test_who_starts_now_is_who_the_plan_starts(name: str, rng: random.Random) -> None:
    snapshot = some_snapshot(rng)
    packing, bound_s = {"when_calm": rng.random() < 0.3, "gss": rng.choice([0, 2])}, rng.choice([None, 600.0])
    rules: dict[str, object] = {**BARE, "packing": packing, "fairness": {"beyond_plain_s": bound_s}}
    plan = policy(name, FixedPredictor(speed=contention_speeds), **rules).plan(snapshot)
    rows = as_shown(snapshot, plan, name, rules)
    starts = {action.job_id for action in plan.actions if isinstance(action.decision, Start)}
    assert {row.entry.job.id for row in rows} == {entry.job.id for entry in snapshot.partitions[VC].pending}
    assert [row.position for row in rows] == list(range(1, len(rows) + 1))
    assert {row.entry.job.id for row in rows if row.starts_in_s == (0, 0, 0)} == starts
    assert {row.entry.job.id for row in rows if row.starts_in_s is not None and 0 in row.starts_in_s} == starts
    assert {row.entry.job.id for row in rows if row.decision is not None and row.decision.verb == "start"} == starts
    for row in rows:
        if row.entry.barred or row.entry.job.id == "huge":
            assert row.starts_in_s is None


KEYS = {
    "fifo": lambda e, _known: e.job.submit_s,
    **dict.fromkeys(["sjf", "srtf"], lambda e, known: known[e.job.id].duration_s),
    **dict.fromkeys(["qssf", "lucid"], lambda e, known: known[e.job.id].duration_s * e.job.gpus),
}


@pytest.mark.parametrize("name", KEYS)
@tried(25)
def test_the_order_is_the_policys_own(name: str, rng: random.Random) -> None:
    snapshot = some_waiting_vc(rng)
    rules: dict[str, object] = {**BARE, "reservation": {"enabled": False}}
    plan = policy(name, FixedPredictor(speed=contention_speeds), **rules).plan(snapshot)
    known, pending = snapshot.predictions, snapshot.partitions[VC].pending
    expected = sorted(pending, key=lambda entry: KEYS[name](entry, known))
    shown = [row.entry.job.id for row in as_shown(snapshot, plan, name, rules)]
    assert shown == [entry.job.id for entry in expected]


@pytest.mark.parametrize("name", ["fifo", "sjf", "qssf", "backfill", "lucid"])
@tried(25)
def test_with_right_estimates_jobs_start_when_it_was_said(name: str, rng: random.Random) -> None:
    """Against the simulator, which knows nothing of forecasts. Nobody shares, so that nobody is slower than alone."""
    fairness = {"beyond_plain_s": rng.choice([None, 300.0]) if name == "lucid" else None}
    rules: dict[str, object] = {**BARE, "packing": {"gss": 0}, "fairness": fairness}
    rules["backfill"] = {"depth": rng.choice([1, 100])}
    jobs = []
    for i in range(rng.randint(2, 14)):
        gpus, submit_s = rng.choice([1, 1, 2, 3, 4, 6, 8]), rng.choice([0.0, rng.uniform(0, 99)])
        jobs.append(by(f"j{i}", gpus, rng.uniform(10.0, 1000.0), submit_s))
    found, tape = replay(name, a_trace(*jobs), {VC: nodes(rng.randint(2, 3), 4)}, **rules)
    all_there = [cycle for cycle in tape.cycles if cycle[0].now_s >= 99.0] or tape.cycles[-1:]
    snapshot, plan, _ = rng.choice(all_there)
    exact = FixedPredictor({item.job.id: item.duration_s for item in jobs})
    ahead = forecast(snapshot, plan, policy(name, exact, **rules), coarser=0.0)
    waiting = {entry.job.id for entry in snapshot.partitions[VC].pending if found[entry.job.id].start_s >= 0}
    assert ahead.starts_s.keys() == waiting
    for job_id in waiting:
        assert snapshot.now_s + ahead.starts_s[job_id] == pytest.approx(found[job_id].start_s, abs=1e-3)
