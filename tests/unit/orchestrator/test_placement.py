"""Where jobs are placed: nodes, their counts, switches, and GPUs that are out."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from examples import tried
from lucid.config.policy import LIVE_DEFAULTS, with_defaults
from lucid.core.decision import Hold, PartitionPlan, Requeue, Resize, Start
from lucid.core.gpu import GpuOut
from lucid.core.job import Elastic, Pending, Running
from lucid.core.ledger import Ledger, gpus_by_node
from lucid.core.node import Node
from lucid.core.placement import Placement, show_placement
from lucid.core.reason import Reason
from lucid.core.reasons.queue import EverFits, GpusOut, Spread, Switches, TooLarge, Unranked
from lucid.core.snapshot import Partition
from lucid.orchestrator.capacity.placement import Feasibility, consolidated, emptiest
from lucid.orchestrator.capacity.timeline import Timeline
from lucid.orchestrator.policy import off_bad_gpus
from lucid.orchestrator.registry import BUILT_IN, make_policy
from scenes.jobs import HEAVY, LIGHT, a_job, at, nodes, runs, waits
from scenes.plans import FixedPredictor, check_plan, decide, decided, guess, part, policy, reason, settings, snap
from scenes.systems import AGENTS_LIMITS, gpus_given, holds, room, wants


def place(gpus: int, machines: tuple[Node, ...], *busy: str, emptiest: bool = False, **host: int) -> Placement | None:
    held = [runs(f"r{i}", where) for i, where in enumerate(busy)]
    return consolidated(Ledger(part(machines, (), held)), a_job("j", gpus, **host), None, emptiest)


DOWN = (Node("n1", 8, available=False), Node("n2", 8))
LIMITED = (Node("n1", 2, cpus=3), Node("n2", 2, cpus=8))


@pytest.mark.parametrize(
    ("gpus", "machines", "busy", "expected", "rest"),
    [
        # on one node: the tightest, and its lowest GPUs
        (1, nodes(3), "", "n1:0", {}),
        (1, nodes(3), "n2:0-6", "n2:7", {}),
        (2, nodes(3), "n1:0-6 n2:0-4", "n2:5-6", {}),
        (4, nodes(3), "n1:0-4 n2:0-4", "n3:0-3", {}),
        (2, nodes(3), "n1:0,2,4,6", "n1:1,3", {}),
        (8, nodes(3), "n1:0", "n2:0-7", {}),
        # never spread where it fits on one node
        (8, nodes(2), "n1:0-4 n2:0-4", "", {}),
        (8, nodes(2), "n1:7 n2:7", "", {}),
        # a larger one: whole nodes in order, and the remainder on another, the tightest or the emptiest
        (16, nodes(4), "n1:0", "n2:0-7 n3:0-7", {}),
        (16, nodes(3), "n1:0 n2:0", "", {}),
        (10, nodes(3), "n3:0-4", "n1:0-7 n3:5-6", {}),
        (10, nodes(3), "n3:0-4", "n1:0-7 n2:0-1", {"emptiest": True}),
        (10, nodes(2), "n2:0-6", "", {}),
        (10, nodes(1), "", "", {}),
        (8, DOWN, "", "n2:0-7", {}),
        # CPUs and memory in proportion to GPUs
        (2, LIMITED, "", "n2:0-1", {"cpus": 4}),
        (4, LIMITED, "", "n1:0-1 n2:0-1", {"cpus": 6}),
        (4, LIMITED, "", "", {"cpus": 8}),
        (1, nodes(1, mem_mib=100), "", "", {"mem_mib": 101}),
        # on as many nodes as were asked for
        (2, nodes(3), "", "n1:0 n2:0", {"min_nodes": 2}),
        (2, nodes(1), "", "", {"min_nodes": 2}),
    ],
)
def test_where_a_job_is_placed(
    gpus: int, machines: tuple[Node, ...], busy: str, expected: str, rest: dict[str, Any]
) -> None:
    assert place(gpus, machines, *busy.split(), **rest) == (at(expected) or None)


def test_nodes_may_be_ruled_out_and_placements_read_as_they_are_written() -> None:
    assert consolidated(Ledger(part(nodes(2))), a_job("j", 8), lambda i: i != 0) == at("n2:0-7")
    for text in ("n1:0", "n1:0,3", "n1:0-7 n2:1-2,5"):
        assert show_placement(at(text)) == text


OUT = GpuOut("n1", 2, 50.0, "Xid 79, fallen off the bus", "xid", 79, "gpu", "reboot", ends_jobs=True)
BAD = Node("n1", 4, slots=2, left_out=(OUT,))
MIXED = (Node("n1", 8), Node("n2", 4), Node("n3", 4))


@pytest.mark.parametrize(
    ("machines", "gpus", "rest", "bar", "at_present"),
    [
        (MIXED, 8, {}, None, None),
        (MIXED, 12, {}, None, None),
        (MIXED, 16, {}, EverFits(16, 0, 0, False), EverFits(16, 0, 0, False)),
        (MIXED, 17, {}, TooLarge(17, 16), TooLarge(17, 16)),
        # a node that is down may come back, and a GPU that is out be well again
        (DOWN, 16, {}, None, TooLarge(16, 8)),
        ([BAD], 4, {}, None, TooLarge(4, 3)),
        ([BAD], 3, {}, None, None),
        (nodes(1, 4), 2, {"min_nodes": 2}, EverFits(2, 0, 0, False), EverFits(2, 0, 0, False)),
        (nodes(2, 4), 2, {"min_nodes": 2}, None, None),
    ],
)
def test_what_can_never_run_and_what_cannot_at_present(
    machines: Sequence[Node], gpus: int, rest: dict[str, int], bar: Reason | None, at_present: Reason | None
) -> None:
    job, here = a_job("j", gpus, **rest), part(machines)
    assert (Feasibility(here).bar(job), Feasibility(here, up_only=True).bar(job)) == (bar, at_present)


def test_the_emptiest_node_gives_as_many_gpus_as_its_cpus_and_memory_allow() -> None:
    machines = (Node("n1", 4, cpus=4), Node("n2", 3, mem_mib=64), Node("n3", 2))
    ledger = Ledger(part(machines, (), [runs("r", "n3:0")]))
    assert emptiest(ledger, a_job("j", 6), 6) == at("n1:0-3 n2:0-1")
    assert emptiest(ledger, a_job("j", 6, cpus=12), 6) == at("n1:0-1 n2:0-2 n3:1"), "two CPUs a GPU"
    for mem_mib, where in ((180, "n1:0-3 n2:0-1"), (240, "n1:0-3 n2:0 n3:1"), (390, "")):  # 30, 40 and 65 MiB a GPU
        assert emptiest(ledger, a_job("j", 6, mem_mib=mem_mib), 6) == (at(where) or None)
    assert emptiest(ledger, a_job("wide", 9), 9) is None


def tree(*leaves: int, per_spine: int = 2, gpus: int = 4) -> list[Node]:
    """Nodes below leaf switches of so many nodes each, of which so many stand below one spine."""
    made = []
    for leaf, count in enumerate(leaves):
        for _ in range(count):
            made.append(Node(f"n{len(made)}", gpus, switches=(f"s{leaf}", f"spine{leaf // per_spine}", "root")))
    return made


def in_racks(nodes: list[Node], gpus: int, busy: str = "", **job: int) -> set[str]:
    found = place(gpus, tuple(nodes), *(f"{name}:0-3" for name in busy.split()), **job)
    return {one.node for one in found or ()}


RACKS = tree(3, 2, 4)


@pytest.mark.parametrize(
    ("nodes", "gpus", "busy", "least", "taken"),
    [
        # the smallest switch with room: the leaf of two, although n0 comes first
        (RACKS, 8, "", 1, "34"), (RACKS, 12, "", 1, "012"), (RACKS, 16, "", 1, "5678"), (RACKS, 8, "n3", 1, "01"),
        (RACKS, 12, "n0 n5", 1, "678"), (RACKS, 6, "", 3, "012"),
        # beyond one leaf the lowest common switch and few leaves: all of spine 0, two leaves below another, two whole
        # nodes and the rest below the same switch; a job of one node has nothing to do with switches
        (RACKS, 20, "", 1, "01234"), (tree(2, 2, 2, 2), 16, "n0", 1, "4567"), (RACKS, 10, "", 1, "012"),
        (tree(1, 1), 3, "", 1, "0"),
    ],
)  # fmt: skip
def test_the_smallest_switch_with_room_is_taken(nodes: Any, gpus: int, busy: str, least: int, taken: str) -> None:
    assert in_racks(nodes, gpus, busy, min_nodes=least) == {f"n{i}" for i in taken}


def test_switches_that_its_user_asked_for_are_waited_for_so_long_and_told() -> None:
    busy = [runs("r0", "n0:0-3"), runs("r1", "n2:0-3")]
    room = part(tree(2, 2), [waits("j", 8, most_switches=1, switches_until_s=300.0)], busy)
    predictions = {"r0": guess(700.0), "r1": guess(900.0)}
    held = decide("lucid", snap(100.0, room, predictions=predictions))
    assert reason(held.decisions["j"], Switches, Hold) == Switches(1, 0, 300.0, 100.0)
    assert held.wake_s == 300.0
    started = decide("lucid", snap(300.0, room, predictions=predictions)).decisions["j"]
    assert reason(started, Spread, Start) == Spread(2, 2, 700.0)


@pytest.mark.parametrize("policy", ["lucid", "backfill", "fifo"])
def test_every_order_tells_below_how_many_switches_a_job_starts_and_takes_nodes_of_any_size(policy: str) -> None:
    made = decide(policy, snap(0.0, part(tree(2, 2), [waits("j", 12)])))
    found = reason(made.decisions["j"], Spread)
    assert (found.nodes, found.switches, bool(found)) == (3, 2, False)
    mixed = [*tree(2), Node("big", 8, cpus=64, switches=("s9",))]
    job = waits("j", 8, most_switches=1, min_nodes=2, cpus=4)
    assert isinstance(decide(policy, snap(0.0, part(mixed, [job]))).decisions["j"], Start)


@tried(60)
def test_no_choice_of_nodes_stands_below_a_smaller_switch(rng: random.Random) -> None:
    nodes = {node.name: node for node in tree(*(rng.randint(1, 3) for _ in range(rng.randint(1, 4))))}
    busy, count = [name for name in nodes if rng.random() < 0.3], rng.randint(2, 4)
    found = in_racks([*nodes.values()], 4 * count, " ".join(busy))

    def level(names: Iterable[str]) -> int:
        return next(at for at in range(3) if len({nodes[name].switches[at] for name in names}) == 1)

    choices = [level(names) for names in itertools.combinations(nodes.keys() - busy, count)]
    assert bool(found) == bool(choices)
    assert not found or level(found) == min(choices)


RESIZING = ("elastic", "pollux", "optimus-fitted", "optimus-drf")
GROWING = tuple(name for name in RESIZING if name != "optimus-fitted")
"""Optimus first tries sizes by lot."""
PERFECT = tuple(60.0 / g for g in range(1, 25))


def few(entry: Any, most: int = 1, **limits: Any) -> Any:
    """The same job, on so many nodes at the most."""
    wanted = replace(entry.job.elastic, max_nodes=most or None, epochs=50.0, **limits)
    return replace(entry, job=replace(entry.job, elastic=wanted))


def plan(name: str, partition: Partition, now_s: float = 60000.0, seed: int = 0) -> PartitionPlan:
    """Made, and found safe."""
    ids = [entry.job.id for entry in (*partition.pending, *partition.running)]
    guesses = {job_id: structs.replace(guess(1000.0), epochs=50.0, epoch_s=PERFECT) for job_id in ids}
    quick = {"population": 20, "generations": 15, "patience": 5, "seed": seed}
    found = policy(name, pollux=quick).plan(snap(now_s, partition, predictions=guesses)).partitions[partition.name]
    check_plan(partition, found)
    return found


@pytest.mark.parametrize("name", GROWING)
def test_a_job_for_one_node_grows_to_that_node_and_no_further_and_the_rest_goes_to_others(name: str) -> None:
    entry, other = (holds(job, where, seen=(1, 2, 4, 8)) for job, where in (("a", "n1:0,1"), ("b", "n2:0")))
    made = plan(name, part(nodes(2, 4), running=[few(entry)]))
    assert decided(made, "a", Resize).placement == at("n1:0-3")
    assert gpus_given(plan(name, part(nodes(2, 4), running=[few(entry, 0)])), "a") == 8
    both = plan(name, part(nodes(2, 4), running=[few(entry), few(other, 0)]))
    assert gpus_given(both, "a") + gpus_given(both, "b") == 8


@pytest.mark.parametrize("name", RESIZING)
def test_on_more_nodes_or_with_more_gpus_than_it_may_have_now_it_comes_back_to_so_many(name: str) -> None:
    """Its user changed the comment while it ran."""
    spread, wide = (holds("a", where, seen=(1, 2, 4)) for where in ("n1:0,1 n2:0,1", "n1:0-3"))
    made = plan(name, part(nodes(2, 4), running=[few(spread)]))
    assert len(decided(made, "a", Resize).placement) == 1
    assert gpus_given(plan(name, part(nodes(2, 4), running=[few(wide, 2, max_gpus=2)])), "a") <= 2


@pytest.mark.parametrize("name", ["elastic", "elastic-fcfs", "elastic-ef"])
def test_a_new_job_for_one_node_starts_on_one_or_waits(name: str) -> None:
    asks, scattered = few(waits("a", 2, elastic=Elastic(8, 2))), [runs("x", "n1:0-2"), runs("y", "n2:0-2")]
    decided(plan(name, part(nodes(2, 4), [asks], scattered)), "a", Hold)
    (_,) = decided(plan(name, part(nodes(2, 4), [asks], scattered[:1])), "a", Start).placement


@pytest.mark.parametrize("name", RESIZING)
@pytest.mark.parametrize("seed", range(4))
def test_whatever_the_state_nobody_has_more_nodes_than_it_may(name: str, seed: int) -> None:
    """The safety check judges: a plan that gives more is unsafe."""
    chance = random.Random(seed)
    machines = [replace(node, gpus=chance.choice((2, 4, 8))) for node in nodes(4, 8)]
    free = {node.name: list(range(node.gpus)) for node in machines}
    entries: list[Pending | Running] = []
    for number in range(8):
        most, job = chance.choice((1, 1, 2, 3)), f"j{number}"
        spots = [(name, gpus) for name, gpus in free.items() if gpus]
        chance.shuffle(spots)
        parts = {}
        for node, gpus in spots[: chance.randint(0, most)]:
            parts[node] = [gpus.pop() for _ in range(chance.randint(1, len(gpus)))]
        where = " ".join(f"{node}:{','.join(map(str, gpus))}" for node, gpus in parts.items())
        entries.append(few(holds(job, where, seen=(1, 2, 4)) if where else wants(job, float(number)), most))
    plan(name, room(machines, entries), seed=seed)


def test_limits_by_nodes() -> None:
    limits = replace(AGENTS_LIMITS, max_nodes=2)
    assert limits.on_nodes([4, 8, 4]).max_gpus == 12
    assert limits.on_nodes([16, 8, 4]) is limits
    assert replace(limits, min_gpus=6).on_nodes([2, 1]).max_gpus == 6
    assert [limits.allows(parts) for parts in ([4, 4], [1, 1, 1])] == [True, False]
    with pytest.raises(ValueError, match="limits must be at least 1"):
        Elastic(4, max_nodes=0)


@pytest.mark.parametrize(
    ("gpus", "min_nodes", "per_node", "wanted"),
    [
        (2, 2, 4, ((1, 2),)), (3, 2, 4, ((2, 1), (1, 1))), (8, 2, 8, ((4, 2),)), (12, 2, 4, ((4, 3),)),
        (2, 3, 4, ((1, 2),)), (1, 1, 4, ((1, 1),)), (6, 1, 4, ((4, 1), (2, 1))), (8, 1, 4, ((4, 2),)), (0, 1, 4, ()),
    ],
)  # fmt: skip
def test_gpus_are_spread_over_the_nodes_asked_for(gpus: int, min_nodes: int, per_node: int, wanted: Any) -> None:
    assert gpus_by_node(a_job("j", gpus, min_nodes=min_nodes), per_node) == wanted


ONE, TWO, WIDE = waits("1", profile=LIGHT), waits("2", user="v"), waits("3", gpus=8)
WHAT: dict[str, dict[str, Any]] = {
    "defaults": {},
    "never ranked": {"fairness": {"estimates": "never"}},
    "bounded": {"fairness": {"beyond_plain_s": 3600.0}, "profiling": {"enabled": False}},
}


@pytest.mark.parametrize("how", WHAT)
@pytest.mark.parametrize("name", BUILT_IN)
def test_all_wait_by_every_policy(name: str, how: str) -> None:
    made = decide(name, snap(100.0, part((), [ONE, TWO, WIDE])), **WHAT[how])
    assert {job: type(decision) for job, decision in made.decisions.items()} == dict.fromkeys("123", Hold)


@pytest.mark.parametrize("gain", [0.3, 0.9])
@pytest.mark.parametrize("quotas", [{}, {"vc": 4, "other": 4}])
@pytest.mark.parametrize("mode", ["off", "quota", "borrow"])
def test_all_wait_under_live_defaults_in_a_pool_or_without(gain: float, quotas: dict[str, int], mode: str) -> None:
    rules = with_defaults(settings(lending={"mode": mode}), LIVE_DEFAULTS, frozenset())
    scene = replace(snap(100.0, part((), [ONE, TWO, WIDE], quotas=quotas)), trust={"": Unranked("", 50, gain, 0.3)})
    made = make_policy("lucid", rules, FixedPredictor()).plan(scene).partitions["vc"]
    assert {job: type(decision) for job, decision in made.decisions.items()} == dict.fromkeys("123", Hold)


def test_when_a_job_ends_on_a_node_with_a_bad_gpu_there_is_one_less_and_the_reason_names_it() -> None:
    held = runs("r", "n1:0-3")
    line = Timeline(Ledger(part([BAD], (), [held])), 0.0, [(100.0, held.job, held.placement)])
    assert line.find(waits("a", 3).job, 50.0).start_s == 100.0
    assert line.find(waits("a", 4).job, 50.0) is None
    assert Ledger(part([BAD])).gpus_out() == GpusOut(1, "n1", 2, 50.0, OUT.words)
    assert Ledger(part([Node("n1", 4)])).gpus_out() is None


def test_only_who_asked_for_it_is_started_over_and_only_for_a_fault_that_ends_jobs() -> None:
    scene = (("asked", "n1:2", True), ("other", "n1:2", False), ("elsewhere", "n1:0", True))
    asked, *rest = (runs(name, where, job={"requeueable": True, "restart_asked": ask}) for name, where, ask in scene)
    here = part([BAD], (), [asked, *rest])
    plan = off_bad_gpus(PartitionPlan({}), here)
    assert {job: type(made) for job, made in plan.decisions.items()} == {"asked": Requeue}
    check_plan(here, plan)
    mild = part([replace(BAD, left_out=(structs.replace(OUT, ends_jobs=False),))], (), [asked])
    kept = PartitionPlan({})
    assert off_bad_gpus(kept, mild) is kept


@pytest.mark.parametrize("boot_s", [0.0, 240.0])
def test_a_job_shares_before_a_node_is_woken_for_it(boot_s: float) -> None:
    """A pair too slow for one that finds free GPUs, and fast enough for one that would wait otherwise."""
    machines = [Node("a", 4, 24000), Node("s", 4, 24000, boot_s=boot_s)]
    first = runs("first", "a:0-3", profile=HEAVY)
    partition = part(machines, [waits("second", 4, profile=LIGHT)], [first])
    scene = snap(900.0, partition, predictions={"first": guess(90000.0, 1), "second": guess(9000.0, 1)})
    slow = FixedPredictor(speed=lambda a, b: (0.8, 0.8))
    made = decide("lucid", scene, slow, packing={"gss": 4, "waiting_pair_speed": 0.7})
    assert decided(made, "second", Start).beside == ("first" if boot_s else None)
