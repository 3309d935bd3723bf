"""The timeline of what runs, and plans that are used again."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from builders import a_job, part, runs
from examples import examples
from lucid.core.changes import Versioned
from lucid.core.decision import Action, Hold, PartitionPlan, Requeue
from lucid.core.job import Job, Running
from lucid.core.ledger import Ledger, gpus_by_node, host_share
from lucid.core.node import Node
from lucid.core.snapshot import Partition
from lucid.orchestrator.capacity.timeline import End, Slot, Timeline
from lucid.orchestrator.plan_reuse import KeptParts

NOW_S = 1000.0
Parts = tuple[tuple[int, int], ...]


@dataclass
class World:
    """Nodes, who holds what until when, and what was kept for jobs: (from, until, job, parts)."""

    machines: list[Node]
    held: list[tuple[float, Running]]
    kept: list[tuple[float, float, Job, Parts]] = field(default_factory=list)

    def room(self, i: int, at_s: float) -> tuple[int, int, int]:
        """GPUs, CPUs and MiB that are free on a node at a time."""
        node = self.machines[i]
        if not node.available:
            return 0, node.cpus, node.mem_mib
        gpus, cpus, mem = node.gpus, node.cpus - node.cpus_used, node.mem_mib - node.mem_used_mib
        uses = [
            (e.job, mask.bit_count())
            for end, e in self.held
            if end > at_s
            for n, mask in e.placement
            if n == node.name
        ]
        uses += [(job, here) for s, u, job, parts in self.kept if s <= at_s < u for n, here in parts if n == i]
        for job, here in uses:
            gpus -= here
            cpus -= host_share(job.cpus, here, job.gpus)
            mem -= host_share(job.mem_mib, here, job.gpus)
        return gpus, cpus, mem

    def instants(self) -> list[float]:
        """When what is free may change."""
        later = {end for end, _ in self.held} | {t for s, u, _, _ in self.kept for t in (s, u)}
        return [NOW_S, *sorted(t for t in later if t > NOW_S)]

    def fits(self, job: Job, i: int, here: int, at_s: float, limit_s: float) -> bool:
        """Has the node room for that part of the job, from then on until it ends?"""
        for t in [at_s, *(t for t in self.instants() if at_s < t < at_s + limit_s)]:
            gpus, cpus, mem = self.room(i, t)
            short_cpus = self.machines[i].cpus and cpus < host_share(job.cpus, here, job.gpus)
            short_mem = self.machines[i].mem_mib and mem < host_share(job.mem_mib, here, job.gpus)
            if gpus < here or short_cpus or short_mem:
                return False
        return True

    def find(self, job: Job, limit_s: float, closed: set[int], earliest: bool) -> tuple[float, Parts] | None:
        """The first time with room, and which nodes: those with most GPUs first, each the tightest that fits, of
        whole nodes the first; with ``earliest`` those that have had the room for longest."""
        per_node = max(node.gpus for node in self.machines)
        times = self.instants()
        for number, at_s in enumerate(times):
            chosen: list[tuple[int, int]] = []
            for here, count in gpus_by_node(job, per_node):
                able = [
                    i
                    for i in range(len(self.machines))
                    if i not in closed and i not in dict(chosen) and self.fits(job, i, here, at_s, limit_s)
                ]
                if earliest:
                    since = dict.fromkeys(able, number)
                    for i in able:
                        while since[i] and self.fits(job, i, here, times[since[i] - 1], limit_s):
                            since[i] -= 1
                    able.sort(key=lambda i, since=since: (since[i], i))  # type: ignore[misc]
                elif here < per_node:
                    able.sort(key=lambda i, at_s=at_s: (self.room(i, at_s)[0], i))  # type: ignore[misc]
                if len(able) < count:
                    break
                chosen += [(i, here) for i in able[:count]]
            else:
                return at_s, tuple(chosen)
        return None


def a_world(rng: random.Random) -> World:
    """A few nodes, some with host limits, some down, and jobs that run, of which some share GPUs."""
    limited, pairs = rng.random() < 0.6, rng.random() < 0.4
    machines = [
        Node(
            f"n{i}",
            rng.choice([2, 4, 4]),
            cpus=rng.choice([0, 8, 12]) if limited else 0,
            mem_mib=rng.choice([0, 64]) if limited else 0,
            available=rng.random() > 0.15,
        )
        for i in range(rng.randint(1, 4))
    ]
    held: list[tuple[float, Running]] = []
    for node in machines:
        first = rng.choice([0, 0, 1])
        while first < node.gpus and rng.random() < 0.7:
            last = min(first + rng.choice([0, 1]), node.gpus - 1)
            host = {} if pairs else {"cpus": rng.randint(0, 2), "mem_mib": rng.choice([0, 7])}
            for guest in range(2 if pairs else 1):
                entry = runs(f"{node.name}-{first}-{guest}", f"{node.name}:{first}-{last}", job=host)
                held.append((NOW_S + rng.choice([10.0, 20.0, 50.0, 90.0]), entry))
            first = last + 1 + rng.choice([0, 0, 1])
    return World(machines, held)


def check_short_answers(timeline: Timeline, job: Job, limit_s: float, slot: Slot | None) -> None:
    """What is asked without a search says what the search says."""
    assert timeline.ever(job) is (slot is not None)
    assert (timeline.room_s(job) >= NOW_S + limit_s > NOW_S) is (slot is not None and slot.step == 0 and limit_s > 0)
    if slot is not None:
        assert timeline.find(job, limit_s, from_s=slot.start_s) == slot
        assert timeline.find(job, limit_s, from_s=slot.start_s - 3.0) == slot


@settings(max_examples=examples(1000), deadline=None)
@given(st.randoms(use_true_random=False))
def test_the_timeline_agrees_with_looking_at_every_instant(rng: random.Random) -> None:
    world = a_world(rng)
    ends: list[End] = [(end, e.job, e.placement) for end, e in world.held]
    timeline = Timeline(Ledger(part(world.machines, running=[e for _, e in world.held])), NOW_S, ends)
    latest = {
        e.placement: (max(end for end, o in world.held if o.placement == e.placement), e) for _, e in world.held
    }
    world.held = list(latest.values())  # a pair's GPUs come free when the later of the two ends
    for number in range(5):
        job = a_job(
            f"w{number}",
            rng.choice([1, 1, 1, 2, 2, 3, 4, 6, 9]),
            cpus=rng.choice([0, 0, 3, 6]),
            mem_mib=rng.choice([0, 0, 20, 64]),
            min_nodes=rng.choice([1, 1, 2, 3]),
        )
        limit_s = rng.choice([0.0, 10.0, 15.0, 40.0, 1000.0])
        closed = {i for i in range(len(world.machines)) if rng.random() < 0.1}
        earliest = rng.random() < 0.3
        slot, wanted = timeline.find(job, limit_s, closed, earliest), world.find(job, limit_s, closed, earliest)
        assert (slot and (slot.start_s, slot.parts)) == wanted
        if not closed and not earliest:
            check_short_answers(timeline, job, limit_s, slot)
        if slot is not None and limit_s:
            timeline.take(job, slot, limit_s)
            world.kept.append((slot.start_s, slot.start_s + limit_s, job, slot.parts))


VCS = {name: Partition(name, (), (), ()) for name in ("a", "b", "c", "d")}
ALL = VCS | {"profiling": Partition("profiling", (), (), (), profiling=True)}
IDLE = PartitionPlan({"1": Hold(())})
ACTS = PartitionPlan({}, (Action("2", "b", Requeue(())),))


def due(at_s: float) -> PartitionPlan:
    return PartitionPlan({"3": Hold(())}, wake_s=at_s)


def test_looked_at_are_those_that_changed_act_or_are_due_and_profiling() -> None:
    kept, first = KeptParts(), Versioned(ALL)
    assert [*kept.to_look_at(first, 0.0, alone=True)] == [*ALL]
    made = kept.with_fresh(first, {"a": IDLE, "b": ACTS, "c": due(50.0), "d": IDLE, "profiling": IDLE})
    assert (made.acting, made.wake_s) == (["b"], 50.0)

    second = Versioned(ALL, first.key, {})
    assert [*kept.to_look_at(second, 10.0, alone=True)] == ["b", "profiling"], "what it did may have been refused"
    made = kept.with_fresh(second, {"b": IDLE, "profiling": IDLE})
    assert (made.acting, made.changed, made.wake_s) == ([], ("b",), 50.0)
    assert made["a"] is IDLE

    third = Versioned(ALL, second.key, {"d": ALL["d"]})
    assert [*kept.to_look_at(third, 50.0, alone=True)] == ["c", "d", "profiling"]
    made = kept.with_fresh(third, {"c": due(90.0), "d": due(70.0), "profiling": IDLE})
    assert made.wake_s == 70.0

    fourth = Versioned(ALL, third.key, {"d": ALL["d"]})
    assert [*kept.to_look_at(fourth, 60.0, alone=True)] == ["d", "profiling"]
    made = kept.with_fresh(fourth, {"d": IDLE, "profiling": IDLE})
    assert made.wake_s == 90.0, "the other plan of d is not asked any more"


def test_all_are_looked_at_where_it_is_not_known_what_changed_or_where_that_does_not_suffice() -> None:
    kept, first = KeptParts(), Versioned(ALL)
    kept.to_look_at(first, 0.0, alone=True)
    kept.with_fresh(first, dict.fromkeys(ALL, IDLE))
    assert [*kept.to_look_at(Versioned(ALL, object(), {}), 1.0, alone=True)] == [*ALL]
    kept.with_fresh(first, dict.fromkeys(ALL, IDLE))
    assert [*kept.to_look_at(Versioned(ALL, first.key, {}), 1.0, alone=False)] == [*ALL]
    kept.with_fresh(first, dict.fromkeys(ALL, IDLE))
    kept.to_look_at(Versioned(ALL, first.key, {}), 1.0, alone=True)  # a plan that fails is never handed in
    assert [*kept.to_look_at(Versioned(ALL, first.key, {}), 1.0, alone=True)] == [*ALL]
