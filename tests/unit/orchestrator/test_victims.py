"""Jobs that give way to others: who is preempted, by which rule, and what is told and foreseen of it."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from itertools import chain, combinations
from typing import Any

import pytest

from examples import tried
from lucid.core.codec import from_json, to_json
from lucid.core.decision import Hold, Requeue, Start
from lucid.core.job import JobProfile, Pending, Running, Yields
from lucid.core.ledger import Ledger
from lucid.core.node import Node
from lucid.core.placement import placement_gpus
from lucid.core.reasons.queue import Claims, HeldBy
from lucid.core.snapshot import Partition
from lucid.orchestrator.capacity.preemption import Yielding
from lucid.orchestrator.forecast.plan_ahead import forecast
from lucid.orchestrator.registry import BUILT_IN
from lucid.orchestrator.safety.check import SafetyCheck
from scenes.jobs import at, runs, waits
from scenes.plans import decide, decided, guess, part, policy, reason, settings, snap

NOW = 100_000.0
GIVES_WAY = Yields()
CLAIM = ("lucid", "backfill", "fifo", "sjf", "qssf")


def scavenger(name: str, where: str, age_s: float = 600.0, yields: Yields | None = GIVES_WAY, **job: Any) -> Running:
    return runs(name, where, NOW - age_s, alone=True, yields=yields, job={"vc": "scav", **job})


def owner(name: str = "owner", gpus: int = 1, **traits: Any) -> Pending:
    return waits(name, gpus, NOW, **traits)


def full(*running: Running, count: int = 1, gpus: int = 4) -> Partition:
    return part([Node(f"n{i}", gpus) for i in range(count)], [], running)


def claimed(partition: Partition, entry: Pending) -> set[str] | None:
    found = Yielding(partition, Ledger(partition, NOW), NOW).find(entry.job)
    return None if found is None else {*found.start(()).preempts}


def test_those_go_that_lose_least_whole_jobs_at_a_time() -> None:
    """100 GPU-seconds go before 120 for one of young's two."""
    old, young = scavenger("old", "n0:0,1", 7200), scavenger("young", "n0:2,3", 60)
    partition = full(old, young, scavenger("small", "n1:0", 100), scavenger("rest", "n1:1,2,3", 9000), count=2)
    for gpus, gone in ((1, {"small"}), (2, {"young"}), (4, {"old", "young"}), (9, None)):
        assert claimed(partition, owner(gpus=gpus)) == gone
    assert claimed(partition, owner(gpus=5)) is not None  # over both nodes


@tried(80, 80)
def test_no_other_choice_on_a_node_loses_less(rng: random.Random) -> None:
    """Against all sets of jobs: first those that are not cancelled, then those that save their work."""
    gpus, running = 8, []
    free = [*range(gpus)]
    rng.shuffle(free)
    while free and rng.random() < 0.9:
        count = min(rng.choice([1, 1, 2, 3]), len(free))
        where = "n0:" + ",".join(str(free.pop()) for _ in range(count))
        for _ in range(rng.choice([1, 1, 2])):
            ends, saves, going = (rng.random() < 0.2 for _ in range(3))
            yields = Yields(from_s=rng.choice([0.0, 0.0, NOW + 9]), ends=ends, saves=saves, going=going)
            age_s = float(rng.randint(1, 9))
            running.append(scavenger(f"s{len(running)}", where, age_s, rng.choice([yields, yields, None])))
    need = min(len(free) + rng.choice([1, 1, 2, 3, 8]), gpus)
    partition = full(*running, gpus=gpus)

    def lost(gone: tuple[Running, ...]) -> tuple[float, float, int] | None:
        left = {g for e in running if e not in gone for g in e.placement[0].gpus}
        if gpus - len(left) < need or any(e.yields is None or e.yields.from_s > NOW for e in gone):
            return None
        ways = [(entry, entry.yields) for entry in gone if entry.yields is not None and not entry.yields.going]
        cancelled = sum((NOW - e.start_s) * e.gpus for e, y in ways if y.ends)
        return cancelled, sum((NOW - e.start_s) * e.gpus for e, y in ways if not (y.ends or y.saves)), len(ways)

    every = chain.from_iterable(combinations(running, n) for n in range(len(running) + 1))
    best = min((cost for cost in map(lost, every) if cost is not None), default=None)
    found = Yielding(partition, Ledger(partition, NOW), NOW).find(owner(gpus=need).job)
    assert need <= len(free) or (found is None) == (best is None)
    if found is not None:
        assert lost(found.victims) == best
        assert placement_gpus(found.placement) == need


@pytest.mark.parametrize("name", sorted(BUILT_IN))
def test_every_policy_makes_safe_plans_and_those_claim_for_which_it_makes_sense(name: str) -> None:
    jobs = [scavenger("s0", "n0:0,1"), scavenger("s1", "n0:2,3", 60)]
    snapshot = snap(NOW, part([Node("n0", 4)], [owner("a", 2), owner("b", 1), owner("c", 1), owner("d", 1)], jobs))
    made = policy(name).plan(snapshot)
    SafetyCheck(policy(name).rules, settings())(snapshot, made)
    starts = [a.decision for a in made.actions if isinstance(a.decision, Start)]
    gone = {victim for start in starts for victim in start.preempts}
    assert gone == ({"s0", "s1"} if name in CLAIM else set())
    if name in CLAIM:
        held = [(part.node, gpu) for start in starts for part in start.placement for gpu in part.gpus]
        assert (len(starts), len(held)) == (3, len({*held}))


def test_free_gpus_and_nodes_that_sleep_come_before() -> None:
    room = part([Node("n0", 4), Node("asleep", 4, boot_s=300.0)], [owner(gpus=2)], [scavenger("s", "n0:0,1,2")])
    start = decided(decide("lucid", snap(NOW, room)), "owner", Start)
    assert (start.placement[0].node, start.preempts) == ("asleep", ())


def test_the_reason_names_whom_what_they_lose_and_what_else_there_was() -> None:
    jobs = [scavenger("old", "n0:0-3", 7200), scavenger("young", "n1:0-3", 60)]
    made = decide("lucid", snap(NOW, part([Node("n0", 4), Node("n1", 4)], [owner(gpus=2)], jobs)))
    why = reason(made.decisions["owner"], Claims, Start)
    assert [(v.job, v.vc, v.gpus, v.lost_gpu_s) for v in why.victims] == [("young", "scav", 4, 240.0)]
    assert (why.gpus, why.next_gpu_s) == (2, 28800.0)
    assert from_json(Claims, to_json(why)) == why


def test_who_holds_the_gpus_is_told_and_when_that_changes() -> None:
    jobs = [scavenger("s", "n0:0,1", yields=None), scavenger("t", "n0:2,3", yields=Yields(NOW + 50))]
    for name in CLAIM:
        made = decide(name, snap(NOW, part([Node("n0", 4)], [owner(gpus=4)], jobs)))
        assert reason(made.decisions["owner"], HeldBy, Hold) == HeldBy("scav", 4, 2, 1, NOW + 50)
        assert (made.wake_s or math.inf) <= NOW + 50


def test_only_jobs_of_the_right_qos_preempt() -> None:
    gives_way = scavenger("s", "n0:0", yields=Yields(to=("high",)))
    made = decide("lucid", snap(NOW, part([Node("n0", 1)], [owner("low"), owner("high", qos="high")], [gives_way])))
    assert {job: type(decision) for job, decision in made.decisions.items()} == {"low": Hold, "high": Start}


def test_the_forecast_does_not_wait_for_scavengers() -> None:
    jobs = [scavenger("s", "n0:0-3"), runs("own", "n1:0-3", NOW - 10)]
    room = part([Node("n0", 4), Node("n1", 4)], [owner("first", 4), owner("second", 4)], jobs)
    snapshot, lucid = snap(NOW, room, predictions={"s": guess(1e6), "own": guess(110.0)}), policy("lucid")
    assert sorted(forecast(snapshot, lucid.plan(snapshot), lucid).starts_s.values()) == [0.0, 100.0]


def test_the_forecast_knows_partitions_that_have_nodes_in_common() -> None:
    """A node of two partitions; the scavenger that runs, and the one that waits, give way to the owner's job."""
    node, there, lucid = Node("n0", 4), scavenger("s", "n0:0-3", 10.0), policy("lucid")
    below = part([node], [owner("t", 4, vc="scav")], [replace(there, yields=None)], name="scav")
    predictions = {"s": guess(110.0), "t": guess(50.0), "owner": guess(1000.0)}
    for waiting, starts_s in (([owner(gpus=4)], {"owner": 0.0, "t": 1000.0, "s": 1050.0}), ([], {"t": 100.0})):
        snapshot = snap(NOW, part([node], waiting, [there]), below, predictions=predictions)
        told = forecast(snapshot, lucid.plan(snapshot), lucid)
        assert told.starts_s == pytest.approx(starts_s, rel=0.05)


def test_cpus_and_memory_of_those_that_go_are_free() -> None:
    share = {"cpus": 8, "mem_mib": 500}
    jobs = [scavenger("a", "n0:0,1", 10, **share), scavenger("b", "n0:2", 20, **share)]
    partition = part([Node("n0", 4, cpus=16, mem_mib=1000)], [], jobs)
    assert claimed(partition, owner(gpus=1, **share)) == {"a"}, "a GPU is free, but no CPU: one of them has to go"
    assert claimed(partition, owner(gpus=2, cpus=12)) == {"a", "b"}
    assert claimed(partition, owner(gpus=2, cpus=17)) is None


def test_one_that_goes_for_its_memory_gives_a_gpu_too_or_stays() -> None:
    """Slurm is asked for the GPUs of all that are to go; the safety check lets nobody else go."""
    jobs = [scavenger(name, where, cpus=1, mem_mib=300) for name, where in (("a", "n0:0"), ("b", "n0:1"))]
    partition = part([Node("n0", 4, cpus=16, mem_mib=1000)], [], jobs)
    plan = Yielding(partition, Ledger(partition, NOW), NOW)
    claim, both = (plan.find(owner(gpus=gpus, mem_mib=mem).job) for gpus, mem in ((1, 700), (2, 1000)))
    assert claim is not None
    assert len(claim.victims) == claim.why.gpus == 1
    assert claim.placement == claim.victims[0].placement, "though two others are free"
    assert plan.find(owner(gpus=1, mem_mib=1000).job) is None
    assert both is not None
    assert both.placement == at("n0:0,1")


def test_a_pair_of_another_partition_is_parted_there_and_not_here() -> None:
    """Both partitions see it: with two actions for one job neither would be done."""
    unstable = JobProfile(10.0, 5.0, 4000.0, unstable=True)
    pair = [replace(scavenger(name, "n0:0,1"), profile=unstable, partner=other) for name, other in ("ab", "ba")]
    here = replace(full(*pair), pending=(owner("late", 4),))
    there = replace(here, name="scav", pending=(), running=tuple(replace(e, yields=None) for e in pair))
    acts = [policy("lucid").plan(snap(NOW, room)).actions for room in (here, there)]
    assert not any(isinstance(action.decision, Requeue) for action in acts[0])
    assert [(action.job_id, type(action.decision)) for action in acts[1]] == [("a", Requeue)]


def test_time_alone_takes_nobody_away_who_gives_way() -> None:
    """A replay would plan once a second for as long as an owner waits."""
    own = runs("own", "n0:3", NOW, job={"time_limit_s": 5000.0})
    made = decide("backfill", snap(NOW, replace(full(own, scavenger("s", "n0:0")), pending=(owner(gpus=4),))))
    assert made.wake_s == NOW + 5000.0
