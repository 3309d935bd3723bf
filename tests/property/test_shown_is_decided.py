"""What ``lucidctl queue`` shows is what lucidd decided, and what it will decide if estimates are right."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from typing import Any

import pytest
from test_kept_plans import some_waiting_vc

from examples import tried
from lucid.binder.contention import contention_speeds
from lucid.core.decision import Plan, Start
from lucid.core.job import Pending
from lucid.core.snapshot import Snapshot
from lucid.daemon.policies import LivePolicy
from lucid.daemon.reporting.replan import LastPlan
from lucid.daemon.reporting.starts import starts_ahead
from lucid.explain.queue_rows import QueueRow, queue_rows
from lucid.orchestrator.forecast.plan_ahead import forecast
from lucid.store.view import view_from, view_to_dict
from scenes.jobs import VC, a_job, by, nodes
from scenes.plans import FixedPredictor, guess, policy
from scenes.plans import settings as rules_of
from scenes.replays import a_trace, replay

BARE = {"profiling": {"enabled": False}}


def some_snapshot(rng: random.Random) -> Snapshot:
    """Some VC, at times with a job that Slurm bars and one that is too large."""
    snapshot = some_waiting_vc(rng)
    extra = []
    if rng.random() < 0.5:
        extra.append(Pending(a_job("barred", 1, 950.0), 950.0, barred="licences"))
    if rng.random() < 0.5:
        extra.append(Pending(a_job("huge", 1000, 960.0), 960.0))
    partition = snapshot.partitions[VC]
    partition = replace(partition, pending=(*partition.pending, *extra))
    known = {**snapshot.predictions, **{entry.job.id: guess(rng.choice([1.0, 500.0])) for entry in extra}}
    return replace(snapshot, partitions={VC: partition}, predictions=known)


def _through_json(data: Any) -> Any:
    return json.loads(json.dumps(data))


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
    rules: dict[str, object] = {
        **BARE,
        "packing": {"when_calm": rng.random() < 0.3, "gss": rng.choice([0, 2])},
        "fairness": {"beyond_plain_s": rng.choice([None, 600.0])},
    }
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
    "fifo": lambda e, known: e.job.submit_s,
    "sjf": lambda e, known: known[e.job.id].duration_s,
    "qssf": lambda e, known: known[e.job.id].duration_s * e.job.gpus,
    "srtf": lambda e, known: known[e.job.id].duration_s,
    "lucid": lambda e, known: known[e.job.id].duration_s * e.job.gpus,
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
    rules: dict[str, object] = {
        **BARE,
        "packing": {"gss": 0},
        "fairness": {"beyond_plain_s": rng.choice([None, 300.0]) if name == "lucid" else None},
        "backfill": {"depth": rng.choice([1, 100])},
    }
    jobs = [
        by(
            f"j{i}",
            rng.choice([1, 1, 2, 3, 4, 6, 8]),
            rng.uniform(10.0, 1000.0),
            rng.choice([0.0, rng.uniform(0, 99)]),
        )
        for i in range(rng.randint(2, 14))
    ]
    found, tape = replay(name, a_trace(*jobs), {VC: nodes(rng.randint(2, 3), 4)}, **rules)
    all_there = [cycle for cycle in tape.cycles if cycle[0].now_s >= 99.0] or tape.cycles[-1:]
    snapshot, plan, _ = rng.choice(all_there)
    exact = FixedPredictor({item.job.id: item.duration_s for item in jobs})
    ahead = forecast(snapshot, plan, policy(name, exact, **rules), coarser=0.0)
    waiting = {entry.job.id for entry in snapshot.partitions[VC].pending if found[entry.job.id].start_s >= 0}
    assert ahead.starts_s.keys() == waiting
    for job_id in waiting:
        assert snapshot.now_s + ahead.starts_s[job_id] == pytest.approx(found[job_id].start_s, abs=1e-3)
