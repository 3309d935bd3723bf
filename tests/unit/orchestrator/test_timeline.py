"""The timeline of what runs, plans that are used again, rounds and forecasts."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from examples import examples
from lucid.core.decision import Hold, PartitionPlan, Plan, Resize, Start
from lucid.core.job import Elastic, Job, Pending, Progress, Running, Stage
from lucid.core.ledger import Ledger, gpus_by_node, host_share
from lucid.core.node import Node, Window
from lucid.core.snapshot import Partition, Snapshot
from lucid.orchestrator.capacity.timeline import End, Slot, Timeline
from lucid.orchestrator.forecast.plan_ahead import Forecast, forecast
from lucid.orchestrator.order.queue_order import factor_of, site_factors
from lucid.orchestrator.policy import Policy
from lucid.store.values import value_from_json, value_to_json
from scenes.jobs import HEAVY, LIGHT, VC, a_job, nodes, runs, waits
from scenes.plans import decide, decided, guess, part, policy, snap

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
        uses = [(e.job, e.job.gpus) for end, e in self.held if end > at_s and e.placement[0].node == node.name]
        closed = any(window.from_s <= at_s < window.end_s for window in node.windows)
        if closed or (node.shut and uses) or not (node.available or node.shut):  # it opens once it is empty, too
            return 0, node.cpus, node.mem_mib
        gpus, cpus, mem = node.gpus, node.cpus - node.cpus_used, node.mem_mib - node.mem_used_mib
        uses += [(job, here) for s, u, job, parts in self.kept if s <= at_s < u for n, here in parts if n == i]
        for job, here in uses:
            gpus -= here
            cpus -= host_share(job.cpus, here, job.gpus)
            mem -= host_share(job.mem_mib, here, job.gpus)
        return gpus, cpus, mem

    def instants(self) -> list[float]:
        """When what is free may change."""
        later = {end for end, _ in self.held} | {t for s, u, _, _ in self.kept for t in (s, u)}
        later |= {t for node in self.machines for window in node.windows for t in (window.from_s, window.end_s)}
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
                left = [i for i in range(len(self.machines)) if i not in closed and i not in dict(chosen)]
                able = [i for i in left if self.fits(job, i, here, at_s, limit_s)]
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
    """A few nodes, some with host limits, some down or closed at times, and jobs that run, of which some share."""
    limited, pairs, closing = rng.random() < 0.6, rng.random() < 0.4, rng.random() < 0.5
    machines, held = list[Node](), list[tuple[float, Running]]()
    for i in range(rng.randint(1, 4)):
        host = {"cpus": rng.choice([0, 8, 12]), "mem_mib": rng.choice([0, 64])} if limited else {}
        begins = rng.sample([-5.0, 3.0, 15.0, 40.0, 60.0], rng.choice([0, 1, 2])) if closing else []
        windows = tuple(Window(NOW_S + at_s, NOW_S + at_s + rng.choice([4, 12, 30, 200]), "w") for at_s in begins)
        up = rng.random() > 0.15
        machines.append(Node(f"n{i}", rng.choice([2, 4, 4]), available=up, windows=windows, **host).at(NOW_S))
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
    timeline = Timeline(Ledger(part(world.machines, running=[e for _, e in world.held]), NOW_S), NOW_S, ends)
    latest = {entry.placement: (end, entry) for end, entry in sorted(world.held, key=lambda one: one[0])}
    world.held = list(latest.values())  # a pair's GPUs come free when the later of the two ends
    for number in range(5):
        host = {"cpus": rng.choice([0, 0, 3, 6]), "mem_mib": rng.choice([0, 0, 20, 64])}
        gpus, min_nodes = rng.choice([1, 1, 1, 2, 2, 3, 4, 6, 9]), rng.choice([1, 1, 2, 3])
        job = a_job(f"w{number}", gpus, min_nodes=min_nodes, **host)
        limit_s = rng.choice([0.0, 10.0, 15.0, 40.0, 1000.0])
        closed = {i for i in range(len(world.machines)) if rng.random() < 0.1}
        earliest = rng.random() < 0.3
        slot, wanted = timeline.find(job, limit_s, closed, earliest), world.find(job, limit_s, closed, earliest)
        assert (slot and (slot.start_s, slot.parts)) == wanted
        if not closed and not earliest:
            check_short_answers(timeline, job, limit_s, slot)
        if slot is not None and limit_s:
            timeline.book(job, slot, limit_s)
            world.kept.append((slot.start_s, slot.start_s + limit_s, job, slot.parts))


ALL_OF_THEM = ("pollux", "optimus", "optimus-fitted", "optimus-drf", "tiresias")
EVERY_60 = {name: {"interval_s": 60.0} for name in ("pollux", "optimus")}


def by_name(name: str) -> Policy:
    return policy(name, **EVERY_60)


def look(made: Policy, at_s: float, partition: Partition, before: PartitionPlan | None) -> PartitionPlan:
    """One look of lucidd: what the plan before left comes back through its store, as JSON."""
    memory: dict[str, Any] = {}
    if before is not None and before.memory is not None:
        memory = {VC: value_from_json(value_to_json(before.memory))}
    return made.plan(replace(snap(at_s, partition), memory=memory)).partitions[VC]


@pytest.mark.parametrize("name", ALL_OF_THEM)
def test_a_round_that_has_passed_is_decided_at_the_next_look_and_once(name: str) -> None:
    made, before, partition = by_name(name), None, part(nodes(1, 4), [waits("a", 1)])
    for at_s in (1000.3, 1010.3, 1019.7):
        before = look(made, at_s, partition, before)
        assert isinstance(before.decisions["a"], Hold)
        assert before.wake_s == 1020.0
    assert look(by_name(name), 1021.4, partition, None).wake_s == 1080.0, "after a restart without memory"
    late = look(by_name(name), 1021.4, partition, before)
    assert isinstance(late.decisions["a"], Start), "the round of 1020 s is decided late, not left out"
    assert late.wake_s in (1080.0, None), "and the next is the next multiple"
    later = look(made, 1031.4, part(nodes(1, 4), [waits("b", 1)], [runs("a", "n1:0", 1021.4)]), late)
    assert isinstance(later.decisions["b"], Hold)
    assert (later.wake_s, later.actions) == (1080.0, ())


@pytest.mark.parametrize("same", [False, True])
def test_a_clock_that_was_set_back_does_not_stop_the_rounds(same: bool) -> None:
    made, before, rooms = by_name("pollux"), None, [part(nodes(1, 4), [waits("a", 1)]) for _ in range(3)]
    for at_s, room in zip((5000.3, 1000.3, 1021.0), rooms[:1] * 3 if same else rooms, strict=True):
        last, before = before, look(made, at_s, room, before)
    assert last is not None
    assert last.wake_s == 1020.0
    decided(before, "a", Start)


def test_a_start_that_had_to_wait_for_gpus_to_be_left_is_made_between_rounds() -> None:
    """An elastic job gives way to a rigid one, which a real cluster cannot start in the same moment."""
    made, r, x = by_name("pollux"), waits("r", 2), waits("x", 1)
    limits = Elastic(4, batch=64, init_batch=64, most_batch=256, atomic_min=8, atomic_max=256)
    wide = runs("e", "n1:0-3", 100.0, progress=Progress(1.0, ((4, 10.0),)))
    wide = replace(wide, job=replace(wide.job, gpus=1, elastic=limits))
    before = look(made, 6000.5, part(nodes(1, 4), [r], [wide]), None)
    plan = look(made, 6061.4, part(nodes(1, 4), [r], [wide]), before)
    start, resize = decided(plan, "r", Start), decided(plan, "e", Resize)
    # refused: the job has not left. At the next look it is shown on its new GPUs, and rigid
    gone = replace(wide, placement=resize.placement, job=replace(wide.job, gpus=2, elastic=None))
    held = look(made, 6062.4, part(nodes(1, 4), [r, x], [wide]), plan)
    assert isinstance(held.decisions["r"], Hold), "not onto GPUs that are taken"
    again = look(made, 6063.4, part(nodes(1, 4), [r, x], [gone]), held)
    assert again.decisions["r"] == start
    assert isinstance(again.decisions["x"], Hold), "who came after the round waits for the next"
    assert not look(made, 6064.4, part(nodes(1, 4), [x], [gone, runs("r", "n1:2-3", 6064.0)]), again).actions


@pytest.mark.parametrize("name", ["pollux", "optimus-fitted", "optimus-drf"])
def test_nobody_plans_such_a_policy_ahead(name: str) -> None:
    """A search for each round of a day would take minutes, and resized jobs are not followed."""
    made, partition = by_name(name), part(nodes(1, 4), [waits("a", 1, elastic=Elastic(4))])
    for at_s, told in ((1000.3, Forecast({}, pytest.approx(19.7))), (1020.0, Forecast({"a": 0.0}, 60.0))):
        assert forecast(snap(at_s, partition), made.plan(snap(at_s, partition)), made) == told


BARE = {"profiling": {"enabled": False}}


def foreseen(snapshot: Snapshot, name: str = "lucid", most_visits: int = 10_000, **sections: object) -> Forecast:
    rules = {**BARE, **sections}
    return forecast(snapshot, policy(name, **rules).plan(snapshot), policy(name, **rules), most_visits, coarser=0.0)


def light(*names: str) -> list[Pending]:
    return [waits(name, profile=LIGHT) for name in names]


HOST, OTHER = runs("host", "n1:0", profile=LIGHT), runs("other", "o1:0", profile=HEAVY)
HALVES = [runs("r", "n1:0-3", partner="s"), runs("s", "n1:0-3", partner="r")]
SLOW = replace(LIGHT, seen_speed=0.4, seen_beside="two")
PARTED = [runs("one", "n1:0", profile=SLOW, partner="two"), runs("two", "n1:0", 1.0, profile=LIGHT, partner="one")]
ASLEEP = replace(nodes(1, 4)[0], boot_s=240.0)
MEASURED = runs("now", "p1:0-1", 10.0, stage=Stage.PROFILE, job={"vc": VC})
ALONE = runs("now", "p1:0", 10.0, stage=Stage.PROFILE, profile=LIGHT, alone=True, job={"vc": VC})
FORESEEN: dict[str, tuple[float, list[Partition], dict[str, Any], dict[str, Any]]] = {
    "a pair frees its GPUs as the last of both ends": (
        0.0, [part(nodes(1, 4), [waits("a", 4)], HALVES)], {"a": 10.0, "r": 100.0, "s": 300.0}, {"a": 300.0}
    ),
    "one that may share starts as soon as a partner does": (
        0.0, [part(nodes(1, 1), light("b", "guest"), [runs("heavy", "n1:0", profile=HEAVY)])],
        {"heavy": (50.0, 2), "b": (9000.0, 0), "guest": (9000.0, 0)}, {"b": 50.0, "guest": 50.0},
    ),
    "beside none that is too heavy": (
        0.0, [part(nodes(1, 1), light("guest"), [runs("heavy", "n1:0", profile=HEAVY)])],
        {"heavy": (50.0, 2), "guest": (10.0, 0)}, {"guest": 50.0},
    ),
    "a third waits until one of a pair ends": (
        0.0, [part(nodes(1, 1), light("first", "second"), [HOST])],
        {"host": (9000.0, 0), "first": (100.0, 0), "second": (200.0, 0)}, {"first": 0.0, "second": 100.0},
    ),
    "a pair stays one though the policy plans again for another VC": (
        0.0, [part(nodes(1, 1), light("first", "second"), [HOST]), part(nodes(1, 1, "o"), [], [OTHER], "elsewhere")],
        {"host": (9000.0, 0), "first": (400.0, 0), "second": (800.0, 0), "other": (50.0, 2)},
        {"first": 0.0, "second": 400.0},
    ),
    "who was parted is not expected beside its partner again": (
        700.0, [part(nodes(1, 1), [waits("other")], PARTED)],
        {"one": (2000.0, 0), "two": (1500.0, 0), "other": 1e6}, {"two": 1300.0, "other": 2800.0},
    ),
    "one that Slurm bars is given no time": (
        0.0, [part(nodes(1), [replace(waits("a"), barred="licences", retry_s=60.0)])], {}, {}
    ),
    "a wakes the node, b comes while it boots, c waits for both": (
        0.0, [part([ASLEEP], [waits("a", 2), waits("b", 2), waits("c", 4)])],
        {"a": 100.0, "b": 300.0, "c": 1000.0}, {"a": 240.0, "b": 240.0, "c": 540.0},
    ),
    "one whose node boots ends later by that": (
        0.0, [part([replace(ASLEEP, boots_since_s=-40.0)], [waits("a", 4)], [runs("r", "n1:0-3", 200.0)])],
        {"a": 10.0, "r": 100.0}, {"a": 300.0},
    ),
    "lucidd looks again a second after one was moved home, and profiling goes on": (
        30.0,
        [part(nodes(1, 4)), part(nodes(1, 2, "p"), [waits("one", 2), waits("two", 2)], [MEASURED], "prof", True)],
        {}, {"now": 41.0, "one": 40.0, "two": 100.0},
    ),
    "not started in slots, it may share after its next start": (
        30.0, [part(nodes(1, 1), (), [HOST]), part(nodes(1, 1, "p"), [waits("next")], [ALONE], "prof", True)],
        {"now": (500.0, 0), "host": (9000.0, 0), "next": 100.0}, {"now": 41.0, "next": 40.0},
    ),
}  # fmt: skip


@pytest.mark.parametrize(("now_s", "rooms", "known", "starts_s"), FORESEEN.values(), ids=FORESEEN)
def test_when_jobs_will_start(
    now_s: float, rooms: list[Partition], known: dict[str, Any], starts_s: dict[str, float]
) -> None:
    guesses = {job: guess(*said) if isinstance(said, tuple) else guess(said) for job, said in known.items()}
    profiling = {"carry_on_share": 0.0, "t_prof_s": 60.0, "home_if_room": False, "enabled": len(rooms) > 1}
    assert foreseen(snap(now_s, *rooms, predictions=guesses), profiling=profiling).starts_s == starts_s


def test_the_plan_in_force_comes_first_whatever_would_be_planned_now() -> None:
    snapshot = snap(0.0, part(nodes(1, 1), [waits("a"), waits("b")]), predictions={"a": guess(5.0), "b": guess(9.0)})
    plan = policy("lucid", **BARE).plan(snapshot)
    assert isinstance(plan.decision_of("a"), Start)
    held = Plan(0.0, {VC: type(plan.partitions[VC])(plan.partitions[VC].decisions, (), 20.0)})
    found = forecast(snapshot, held, policy("lucid", **BARE))
    assert found.starts_s == {"a": 20.0, "b": 25.0}


def test_how_far_it_was_planned_ahead_is_told() -> None:
    room = part(nodes(1, 1), [waits("a"), waits("b"), waits("c")], [runs("r", "n1:0")])
    found = foreseen(snap(0.0, room), most_visits=5)
    assert (found.starts_s, found.ahead_s) == ({"a": 1000.0}, 2000.0)


def test_the_site_factor_falls_with_the_place_in_the_plan_by_powers_of_two() -> None:
    assert [factor_of(position) for position in (1, 2, 3, 4, 5, 2**30)] == [1000, 950, 900, 900, 850, 0]
    room = part(nodes(1), [waits("a", 2), waits("b"), waits("c")], [runs("r", "n1:0-3")])
    assert site_factors(decide("fifo", snap(0.0, room))) == {"a": 1000, "b": 950, "c": 900}
