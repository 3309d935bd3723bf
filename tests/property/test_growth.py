"""What spares work in plain order changes nothing: each plan is made with and without it, over random clusters."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from test_starvation_bound import ALONE, shadow_of, some_stream, wrong

from builders import Tape, a_job, a_trace, guess, nodes, part, policy, replay, runs, snap
from examples import tried
from lucid.config.policy import BackfillSettings
from lucid.core.decision import PartitionPlan, Start
from lucid.core.job import Pending
from lucid.core.snapshot import Snapshot
from lucid.orchestrator.capacity.timeline import Timeline
from lucid.orchestrator.policies import backfill
from lucid.orchestrator.policies.backfill import BackfillPolicy
from lucid.orchestrator.policies.lucid import policy as lucid
from lucid.orchestrator.policies.shadow import advance
from lucid.orchestrator.policies.waiting import WaitingJob

NOW_S = 1000.0


class AtOnce(backfill._Plan):
    """Keeps GPUs for each job that waits when its turn comes, and looks for the place of every job."""

    def _fits_now(self, timeline: Timeline, row: WaitingJob, limit: float) -> bool:
        slot = timeline.find(row.entry.job, limit)
        return slot is not None and slot.step == 0

    def _owe(self, timeline: Timeline, row: WaitingJob, limit: float) -> None:
        slot = timeline.find(row.entry.job, limit)
        if slot is not None:
            timeline.take(row.entry.job, slot, limit)
            self._reserved += 1


def some_queue(rng: random.Random) -> Snapshot:
    """A few nodes, one of them down now and then, half taken; behind the first that waits a long line."""
    size, limited = rng.choice([2, 4, 8]), rng.random() < 0.4
    machines = [*nodes(rng.randint(1, 5), size, cpus=4 * size if limited else 0)]
    running = []
    for node in machines:
        first = 0
        while first < size and rng.random() < 0.8:
            last = min(first + rng.choice([0, 1, size - 1]), size - 1)
            limit_s = rng.choice([None, 1100.0, 1500.0, 1500.0, 3000.0, 9000.0])
            job = {"time_limit_s": limit_s, "cpus": rng.choice([0, 0, 3]) if limited else 0}
            running.append(runs(f"{node.name}-{first}", f"{node.name}:{first}-{last}", start_s=0.0, job=job))
            first = last + 1
    most = size * len(machines)
    waiting = []
    for number in range(rng.randint(1, 25)):
        gpus = min(rng.choice([1, 1, 1, 2, 2, size, 2 * size]), most + 1)
        limit_s = rng.choice([None, 50.0, 90.0, 100.0, 400.0, 500.0, 2000.0])
        cpus = rng.choice([0, 2, 8]) if limited else 0
        spread = rng.choice([1, 1, 1, 2])
        job = a_job(f"w{number}", gpus, float(number), time_limit_s=limit_s, cpus=cpus, min_nodes=spread)
        waiting.append(Pending(job, float(number)))
    room = part(machines, waiting, running)
    estimates = {e.job.id: guess(rng.choice([10.0, 400.0, 4000.0])) for e in (*waiting, *running)}
    return snap(NOW_S, room, predictions=estimates)


def decided(snapshot: Snapshot, rules: BackfillSettings) -> PartitionPlan:
    return BackfillPolicy(rules).plan(snapshot).partitions["vc"]


@tried(300)
def test_gpus_kept_only_where_somebody_asks_are_those_kept_at_once(rng: random.Random) -> None:
    """Every decision with its reasons, and the starts alone as the shadow asks for them."""
    snapshot, rules = some_queue(rng), BackfillSettings(depth=rng.choice([1, 2, 100]))
    quick = decided(snapshot, rules)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backfill, "_Plan", AtOnce)
        plain = decided(snapshot, rules)
    assert quick.decisions == plain.decisions
    assert list(quick.decisions) == list(plain.decisions)
    assert (quick.actions, quick.wake_s) == (plain.actions, plain.wake_s)
    assert tuple(BackfillPolicy(rules).starts(snapshot.partitions["vc"], snapshot)) == quick.actions


def test_the_queues_reach_what_they_are_for() -> None:
    behind = held = 0
    for seed in range(100):
        plan = decided(some_queue(random.Random(seed)), BackfillSettings())
        for decision in plan.decisions.values():
            tests = [why for why in decision.reasons if isinstance(why, backfill.Backfill)]
            behind += bool(tests) and isinstance(decision, Start)
            held += any(why.ahead > 1 and not why for why in tests)
    assert behind > 20
    assert held > 100


@tried(40)
def test_a_queue_carried_from_plan_to_plan_is_one_made_anew(rng: random.Random) -> None:
    """Every decision with its reasons, also where jobs have one place, or somebody said something of theirs."""
    trace, layout = some_stream(rng)
    said = [{"rank": 0}, {"tier": 1}, {"nice": 5}, {}, {}, {}] if rng.random() < 0.5 else [{}]
    trace = a_trace(*(replace(item, job=replace(item.job, **rng.choice(said))) for item in trace.jobs))
    estimates = wrong(rng, trace)
    for name, rules in (("backfill", {}), ("lucid", {"fairness": {"estimates": "never"}, **ALONE})):
        for snapshot, plan, _ in replay(name, trace, layout, predictor=estimates, **rules)[1].cycles:
            carried, anew = (
                made.partitions["vc"] for made in (plan, policy(name, estimates, **rules).plan(snapshot))
            )
            assert [*carried.decisions.items()] == [*anew.decisions.items()]
            assert (carried.actions, carried.wake_s) == (anew.actions, anew.wake_s)


@tried(40)
def test_a_shadow_that_looks_at_changes_is_one_that_looks_at_everything(rng: random.Random) -> None:
    trace, layout = some_stream(rng)
    rules: dict[str, Any] = {"fairness": {"beyond_plain_s": rng.choice([30.0, 400.0])}}
    rules |= ALONE if rng.random() < 0.5 else {"profiling": {"enabled": False}}
    estimates = wrong(rng, trace)

    def shadows() -> list[object]:
        tape: Tape = replay("lucid", trace, layout, predictor=estimates, **rules)[1]
        return [(plan.now_s, shadow_of(plan.memory)) for _, plan, _ in tape.cycles]

    quick = shadows()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lucid, "advance", lambda *args: advance(*args[:-1]))
        assert shadows() == quick
