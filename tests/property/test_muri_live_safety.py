"""Whatever stands on a real cluster and whatever jobs report: Muri's plan is safe, stops nobody and moves nobody."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest
from msgspec import structs

from lucid.core.decision import Hold, Plan, Regroup, Start
from lucid.core.job import Job, JobProfile, Pending, Running
from lucid.core.ledger import Ledger
from lucid.core.node import Node
from lucid.core.prediction import StageTimes
from lucid.core.reasons.sharing import Overlaps
from lucid.core.snapshot import Partition
from lucid.orchestrator.capacity.placement import consolidated
from lucid.orchestrator.safety.check import SafetyCheck
from safety_rules import judge
from scenes.jobs import VC
from scenes.plans import guess, part, policy, settings, snap


def a_job(rng: random.Random, at: int, willing: bool) -> Job:
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
    jobs = [a_job(rng, at, willing) for at in range(rng.randrange(1, 25))]
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
        others = [w for w in waiting if w.job.gpus == job.gpus][
            : rng.randrange(4)
        ]  # as somebody once put them together
        ids = (job.id, *(w.job.id for w in others))
        if others and rng.random() < 0.5:
            running[-1] = replace(running[-1], group=ids)
            for w in others:
                waiting.remove(w)
                running.append(Running(w.job, 60.0, placement, profile=w.profile, group=ids))
    return part(machines, waiting, running), {job.id: stages(rng) for job in jobs}


@pytest.mark.parametrize("seed", range(150))
def test_plans_are_safe_and_touch_nobody_that_runs(seed: int) -> None:
    rng = random.Random(seed)
    partition, known = cluster(rng)
    entries: tuple[Pending | Running, ...] = (*partition.pending, *partition.running)
    guesses = {
        e.job.id: structs.replace(
            guess(rng.choice([1.0, 1e3, 1e7])).within(e.job.time_limit_s), stages=known[e.job.id]
        )
        for e in entries
    }
    muri = {"patience_s": rng.choice([80.0, 1e6])}
    rules = settings(packing={"same_user_only": True}, muri=muri)
    planner = policy(rng.choice(["muri-s", "muri-l"]), packing={"same_user_only": True}, muri=muri)
    seen = snap(100.0, partition, predictions=guesses)
    made = planner.plan(seen).partitions[VC]
    plan = Plan(100.0, {VC: made})
    SafetyCheck(planner.rules, rules)(seen, plan)
    judge(seen, plan, planner.rules, rules, Counter())
    for decision in made.decisions.values():
        assert isinstance(decision, Start | Hold | Regroup)
        if isinstance(decision, Start | Regroup) and decision.group:
            assert all(known[name] is not None for name in decision.group)
            assert len(decision.placement) == 1
            if any(found.outside for name in decision.group if (found := known[name]) is not None):
                assert len(decision.group) == 2
                test = next(item for item in decision.reasons if isinstance(item, Overlaps))
                assert test
                assert set(test.group.split()) == set(decision.group)
    again = policy(planner.name, packing={"same_user_only": True}, muri=muri).plan(seen)
    assert again.partitions[VC].decisions == made.decisions, "a plan follows from its snapshot"


def test_the_random_scenes_make_groups_and_pairs_from_outside() -> None:
    """Else the rules above hold because there is nothing to hold them to."""
    pairs, largest, seeds = 0, 0, iter(range(150))
    while pairs <= 20 or largest <= 2:
        seed = next(seeds)  # and there have to be as many as this in 150 scenes
        partition, known = cluster(random.Random(seed))
        entries: tuple[Pending | Running, ...] = (*partition.pending, *partition.running)
        guesses = {
            e.job.id: structs.replace(guess(1e3).within(e.job.time_limit_s), stages=known[e.job.id]) for e in entries
        }
        made = policy("muri-l", muri={"patience_s": 1e6}).plan(snap(100.0, partition, predictions=guesses))
        for action in made.partitions[VC].actions:
            if isinstance(action.decision, Start | Regroup):
                pairs += any(isinstance(item, Overlaps) for item in action.decision.reasons)
                largest = max(largest, len(action.decision.group))
