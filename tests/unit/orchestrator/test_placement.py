"""Where jobs are placed: nodes, their counts, switches, and GPUs that are out."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from examples import tried
from lucid.config.policy import LIVE_DEFAULTS, with_defaults
from lucid.core.decision import Hold, PartitionPlan, Plan, Requeue, Resize, Start
from lucid.core.gpu import GpuOut
from lucid.core.job import Elastic, Job, Pending, Running
from lucid.core.ledger import Ledger, gpus_by_node
from lucid.core.node import Node
from lucid.core.placement import NodeGpus, Placement, show_placement
from lucid.core.reasons.queue import EverFits, GpusOut, Spread, Switches, TooLarge, Unranked
from lucid.core.snapshot import Partition
from lucid.orchestrator.capacity.placement import Feasibility, consolidated, emptiest
from lucid.orchestrator.capacity.timeline import Timeline
from lucid.orchestrator.policy import off_bad_gpus
from lucid.orchestrator.registry import BUILT_IN, make_policy
from lucid.orchestrator.safety.check import SafetyCheck
from scenes.jobs import HEAVY, LIGHT, VC, a_job, at, nodes, runs, waits
from scenes.plans import ANYTHING, FixedPredictor, check_plan, decide, decided, guess, part, policy, settings, snap
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


def test_nodes_may_be_ruled_out() -> None:
    assert consolidated(Ledger(part(nodes(2))), a_job("j", 8), lambda i: i != 0) == at("n2:0-7")


def test_what_can_never_run() -> None:
    mixed = (Node("n1", 8), Node("n2", 4), Node("n3", 4))
    bars = {gpus: Feasibility(part(mixed)).bar(a_job("j", gpus)) for gpus in (8, 12, 16, 17)}
    assert bars == {8: None, 12: None, 16: EverFits(16, 0, 0, False), 17: TooLarge(17, 16)}


def test_a_node_that_is_down_may_come_back() -> None:
    one_down = part((Node("n1", 8), Node("n2", 8, available=False)))
    assert Feasibility(one_down).bar(a_job("j", 16)) is None
    assert Feasibility(one_down, up_only=True).bar(a_job("j", 16)) == TooLarge(16, 8)


@pytest.mark.parametrize("text", ["n1:0", "n1:0,3", "n1:0-7 n2:1-2,5"])
def test_placements_read_as_they_are_written(text: str) -> None:
    assert show_placement(at(text)) == text


def test_the_emptiest_node_gives_as_many_gpus_as_its_cpus_and_memory_allow() -> None:
    machines = (Node("n1", 4, cpus=4), Node("n2", 3, mem_mib=64), Node("n3", 2))
    ledger = Ledger(part(machines, (), [runs("r", "n3:0")]))
    assert emptiest(ledger, a_job("plain", 6), 6) == at("n1:0-3 n2:0-1")
    assert emptiest(ledger, a_job("cpus", 6, cpus=12), 6) == at("n1:0-1 n2:0-2 n3:1"), "two CPUs a GPU"
    assert emptiest(ledger, a_job("memory", 6, mem_mib=180), 6) == at("n1:0-3 n2:0-1")
    assert emptiest(ledger, a_job("memory", 6, mem_mib=240), 6) == at("n1:0-3 n2:0 n3:1"), "40 MiB a GPU"
    assert emptiest(ledger, a_job("memory", 6, mem_mib=390), 6) is None
    assert emptiest(ledger, a_job("wide", 9), 9) is None


def tree(*leaves: int, per_spine: int = 2, gpus: int = 4) -> list[Node]:
    """Nodes below leaf switches of so many nodes each, of which so many stand below one spine."""
    made = []
    for leaf, count in enumerate(leaves):
        for _ in range(count):
            made.append(Node(f"n{len(made)}", gpus, switches=(f"s{leaf}", f"spine{leaf // per_spine}", "root")))
    return made


def in_racks(nodes: list[Node], gpus: int, busy: str = "", **job: object) -> set[str]:
    held = tuple(Running(a_job(name), 0.0, (NodeGpus(name, 0b1111),)) for name in busy.split())
    found = consolidated(Ledger(Partition("vc", tuple(nodes), (), held), 0.0), a_job("j", gpus, **job))
    return {one.node for one in found or ()}


def test_the_smallest_switch_with_room_is_taken() -> None:
    nodes = tree(3, 2, 4)
    assert in_racks(nodes, 8) == {"n3", "n4"}  # the leaf of two, although n0 comes first
    assert in_racks(nodes, 12) == {"n0", "n1", "n2"}
    assert in_racks(nodes, 16) == {"n5", "n6", "n7", "n8"}
    assert in_racks(nodes, 8, "n3") == {"n0", "n1"}
    assert in_racks(nodes, 12, "n0 n5") == {"n6", "n7", "n8"}


def test_beyond_one_leaf_the_lowest_common_switch_and_few_leaves_are_taken() -> None:
    nodes = tree(3, 2, 4)
    assert in_racks(nodes, 20) == {"n0", "n1", "n2", "n3", "n4"}  # all of spine 0
    assert in_racks(tree(2, 2, 2, 2), 16, "n0") == {"n4", "n5", "n6", "n7"}
    assert in_racks(nodes, 6, min_nodes=3) == {"n0", "n1", "n2"}
    assert in_racks(nodes, 10) == {"n0", "n1", "n2"}  # two whole nodes, and the rest below the same switch


def test_a_job_of_one_node_has_nothing_to_do_with_switches() -> None:
    assert in_racks(tree(1, 1), 3) == {"n0"}


def test_switches_that_its_user_asked_for_are_waited_for_so_long_and_told() -> None:
    nodes = tree(2, 2)
    busy = [Running(a_job(f"r{i}", 4), 0.0, (NodeGpus(name, 0b1111),)) for i, name in enumerate(("n0", "n2"))]
    wants = Pending(a_job("j", 8, 0.0, most_switches=1, switches_until_s=300.0), 0.0)
    predictions = {"r0": guess(700.0), "r1": guess(900.0)}
    waits = decide("lucid", snap(100.0, part(nodes, [wants], busy), predictions=predictions))
    assert isinstance(waits.decisions["j"], Hold)
    assert Switches(1, 0, 300.0, 100.0) in waits.decisions["j"].reasons
    assert waits.wake_s == 300.0
    starts = decide("lucid", snap(300.0, part(nodes, [wants], busy), predictions=predictions))
    assert isinstance(starts.decisions["j"], Start)
    assert Spread(2, 2, 700.0) in starts.decisions["j"].reasons


@pytest.mark.parametrize("policy", ["lucid", "backfill", "fifo"])
def test_nodes_of_several_sizes_are_no_stumbling_block(policy: str) -> None:
    nodes = [*tree(2), Node("big", 8, cpus=64, switches=("s9",))]
    wants = Pending(a_job("j", 8, 0.0, most_switches=1, min_nodes=2, cpus=4), 0.0)
    assert isinstance(decide(policy, snap(0.0, part(nodes, [wants]))).decisions["j"], Start)


@pytest.mark.parametrize("policy", ["lucid", "backfill", "fifo"])
def test_every_order_tells_below_how_many_switches_a_job_starts(policy: str) -> None:
    made = decide(policy, snap(0.0, part(tree(2, 2), [Pending(a_job("j", 12), 0.0)])))
    found = next(why for why in made.decisions["j"].reasons if isinstance(why, Spread))
    assert (found.nodes, found.switches, bool(found)) == (3, 2, False)


@tried(60)
def test_no_choice_of_nodes_stands_below_a_smaller_switch(rng: random.Random) -> None:
    nodes = tree(*(rng.randint(1, 3) for _ in range(rng.randint(1, 4))))
    busy = [node.name for node in nodes if rng.random() < 0.3]
    count = rng.randint(2, 4)
    found = in_racks(nodes, 4 * count, " ".join(busy))
    by_name = {node.name: node for node in nodes}
    free = [node.name for node in nodes if node.name not in busy]

    def level(names: tuple[str, ...]) -> int:
        return next(at for at in range(3) if len({by_name[name].switches[at] for name in names}) == 1)

    choices = [level(names) for names in itertools.combinations(free, count)]
    assert bool(found) == bool(choices)
    if found:
        assert level(tuple(found)) == min(choices)


RESIZING = ("elastic", "pollux", "optimus-fitted", "optimus-drf")
GROWING = tuple(name for name in RESIZING if name != "optimus-fitted")
"""Optimus first tries sizes by lot."""
FIXED = ("elastic-fcfs", "elastic-ef")
PERFECT = tuple(60.0 / g for g in range(1, 25))
QUICK = {"pollux": {"population": 20, "generations": 15, "patience": 5}}


def few(entry: Any, most: int = 1, **limits: Any) -> Any:
    """The same job, on so many nodes at the most."""
    limits = {"max_nodes": most or None, "epochs": 50.0, **limits}
    return replace(entry, job=replace(entry.job, elastic=replace(entry.job.elastic, **limits)))


def plan(name: str, partition: Partition, now_s: float = 60000.0, seed: int = 0) -> PartitionPlan:
    """Made, and found safe."""
    ids = [entry.job.id for entry in (*partition.pending, *partition.running)]
    guesses = {job_id: structs.replace(guess(1000.0), epochs=50.0, epoch_s=PERFECT) for job_id in ids}
    made = policy(name, **({"pollux": {**QUICK["pollux"], "seed": seed}} if name == "pollux" else {})).plan(
        snap(now_s, partition, predictions=guesses)
    )
    found = made.partitions[partition.name]
    check_plan(partition, found)
    return found


@pytest.mark.parametrize("name", GROWING)
def test_a_job_for_one_node_grows_to_that_node_and_no_further(name: str) -> None:
    entry = few(holds("a", "n1:0,1", seen=(1, 2, 4, 8)))
    made = plan(name, part(nodes(2, 4), running=[entry]))
    (where,) = decided(made, "a", Resize).placement
    assert where.gpus == (0, 1, 2, 3)
    wide = plan(name, part(nodes(2, 4), running=[few(holds("a", "n1:0,1", seen=(1, 2, 4, 8)), 0)]))
    assert gpus_given(wide, "a") == 8


@pytest.mark.parametrize("name", GROWING)
def test_what_it_cannot_have_goes_to_others(name: str) -> None:
    entries = [few(holds("a", "n1:0", seen=(1, 2, 4, 8))), few(holds("b", "n2:0", seen=(1, 2, 4, 8)), 0)]
    made = plan(name, part(nodes(2, 4), running=entries))
    assert gpus_given(made, "a") + gpus_given(made, "b") == 8


@pytest.mark.parametrize("name", RESIZING)
def test_on_more_nodes_than_it_may_have_now_it_comes_back_to_so_many(name: str) -> None:
    """Its user changed the comment while it ran."""
    made = plan(name, part(nodes(2, 4), running=[few(holds("a", "n1:0,1 n2:0,1", seen=(1, 2, 4)))]))
    assert len(decided(made, "a", Resize).placement) == 1


@pytest.mark.parametrize("name", RESIZING)
def test_with_more_gpus_than_it_may_have_now_it_gives_them_back(name: str) -> None:
    entry = few(holds("a", "n1:0-3", seen=(1, 2, 4)), most=2, max_gpus=2)
    assert gpus_given(plan(name, part(nodes(2, 4), running=[entry])), "a") <= 2


@pytest.mark.parametrize("name", ["elastic", *FIXED])
def test_a_new_job_for_one_node_starts_on_one_or_waits(name: str) -> None:
    asks = few(waits("a", 2, elastic=Elastic(8, 2)))
    scattered = [runs("x", "n1:0-2"), runs("y", "n2:0-2")]
    assert isinstance(plan(name, part(nodes(2, 4), [asks], scattered)).decisions["a"], Hold)
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
    assert limits.allows([4, 4])
    assert not limits.allows([1, 1, 1])
    with pytest.raises(ValueError, match="limits must be at least 1"):
        Elastic(4, max_nodes=0)


def several(gpus: int, min_nodes: int) -> Job:
    return a_job("j", gpus, min_nodes=min_nodes)


@pytest.mark.parametrize(
    ("gpus", "min_nodes", "per_node", "wanted"),
    [
        (2, 2, 4, ((1, 2),)),
        (3, 2, 4, ((2, 1), (1, 1))),
        (8, 2, 8, ((4, 2),)),
        (12, 2, 4, ((4, 3),)),
        (2, 3, 4, ((1, 2),)),
        (1, 1, 4, ((1, 1),)),
        (6, 1, 4, ((4, 1), (2, 1))),
        (8, 1, 4, ((4, 2),)),
        (0, 1, 4, ()),
    ],
)
def test_gpus_are_spread_over_the_nodes_asked_for(
    gpus: int, min_nodes: int, per_node: int, wanted: tuple[tuple[int, int], ...]
) -> None:
    assert gpus_by_node(several(gpus, min_nodes), per_node) == wanted


def test_one_node_is_never_a_place_for_a_job_of_two() -> None:
    bar = Feasibility(part(nodes(1, 4))).bar(several(2, 2))
    assert isinstance(bar, EverFits)
    assert not bar
    assert Feasibility(part(nodes(2, 4))).bar(several(2, 2)) is None


ONE, TWO, WIDE = waits("1", profile=LIGHT), waits("2", user="v"), waits("3", gpus=8)
WHAT: dict[str, dict[str, Any]] = {
    "defaults": {},
    "never ranked": {"fairness": {"estimates": "never"}},
    "bounded": {"fairness": {"beyond_plain_s": 3600.0}, "profiling": {"enabled": False}},
}


@pytest.mark.parametrize("how", WHAT)
@pytest.mark.parametrize("name", BUILT_IN)
def test_all_wait_by_every_policy(name: str, how: str) -> None:
    scene = snap(100.0, part((), [ONE, TWO, WIDE]))
    made = policy(name, **WHAT[how]).plan(scene).partitions["vc"]
    assert {job: type(decision) for job, decision in made.decisions.items()} == dict.fromkeys("123", Hold)


@pytest.mark.parametrize("gain", [0.3, 0.9])
def test_all_wait_where_estimates_rank_under_live_defaults(gain: float) -> None:
    rules = with_defaults(settings(), LIVE_DEFAULTS, frozenset())
    scene = replace(snap(100.0, part((), [ONE, TWO, WIDE])), trust={"": Unranked("", 50, gain, 0.3)})
    made = make_policy("lucid", rules, FixedPredictor()).plan(scene).partitions["vc"]
    assert {job: type(decision) for job, decision in made.decisions.items()} == dict.fromkeys("123", Hold)


@pytest.mark.parametrize("mode", ["off", "quota", "borrow"])
def test_all_wait_in_a_pool(mode: str) -> None:
    waiting = [Pending(a_job(f"{vc}{i}", 2, vc=vc), 0.0, LIGHT) for vc in "ab" for i in range(2)]
    scene = snap(100.0, replace(part((), waiting, name="pool"), quotas={"a": 4, "b": 4}))
    rules: dict[str, Any] = {"lending": {"mode": mode}, "profiling": {"enabled": False}}
    made = policy("lucid", fairness={"beyond_plain_s": 3600.0}, **rules).plan(scene).partitions["pool"]
    assert {type(decision) for decision in made.decisions.values()} == {Hold}


OUT = GpuOut("n1", 2, 50.0, "Xid 79, fallen off the bus", "xid", 79, "gpu", "reboot", ends_jobs=True)
BAD = Node("n1", 4, slots=2, left_out=(OUT,))


def test_a_job_that_needs_the_whole_node_waits_for_no_time_and_bars_nobody() -> None:
    here = part([BAD])
    assert Feasibility(here).bar(waits("a", 4).job) is None, "it may be well again"
    assert Feasibility(here, up_only=True).bar(waits("a", 4).job) is not None
    assert Feasibility(here, up_only=True).bar(waits("a", 3).job) is None


def test_when_a_job_on_it_ends_there_is_one_gpu_less() -> None:
    held = runs("r", "n1:0-3")
    ledger = Ledger(part([BAD], (), [held]))
    line = Timeline(ledger, 0.0, [(100.0, held.job, held.placement)])
    assert line.find(waits("a", 3).job, 50.0).start_s == 100.0
    assert line.find(waits("a", 4).job, 50.0) is None


def test_the_reason_names_it() -> None:
    assert Ledger(part([BAD])).gpus_out() == GpusOut(1, "n1", 2, 50.0, OUT.words)
    assert Ledger(part([Node("n1", 4)])).gpus_out() is None


def test_only_who_asked_for_it_is_started_over_and_only_for_a_fault_that_ends_jobs() -> None:
    asked, other, elsewhere = (_restartable(runs(name, where), ask) for name, where, ask in _SCENE)
    here = part([BAD], (), [asked, other, elsewhere])
    plan = off_bad_gpus(PartitionPlan({}), here)
    assert {job: type(made) for job, made in plan.decisions.items()} == {"asked": Requeue}
    SafetyCheck(ANYTHING, settings())(snap(0.0, here), Plan(0.0, {here.name: plan}))
    mild = part([replace(BAD, left_out=(structs.replace(OUT, ends_jobs=False),))], (), [asked])
    kept = PartitionPlan({})
    assert off_bad_gpus(kept, mild) is kept


_SCENE = (("asked", "n1:2", True), ("other", "n1:2", False), ("elsewhere", "n1:0", True))


def _restartable(entry: Running, asked: bool) -> Running:
    return replace(entry, job=replace(entry.job, requeueable=True, restart_asked=asked))


@pytest.mark.parametrize("boot_s", [0.0, 240.0])
def test_a_job_shares_before_a_node_is_woken_for_it(boot_s: float) -> None:
    """A pair too slow for one that finds free GPUs, and fast enough for one that would wait otherwise."""
    machines = [Node("a", 4, 24000), Node("s", 4, 24000, boot_s=boot_s)]
    first = runs("first", "a:0-3", profile=HEAVY)
    partition = part(machines, [waits("second", 4, profile=LIGHT)], [first])
    lucid = policy(
        "lucid", FixedPredictor(speed=lambda a, b: (0.8, 0.8)), packing={"gss": 4, "waiting_pair_speed": 0.7}
    )
    predictions = {"first": guess(90000.0, 1), "second": guess(9000.0, 1)}
    start = lucid.plan(snap(900.0, partition, predictions=predictions)).partitions[VC].decisions["second"]
    assert isinstance(start, Start)
    assert start.beside == ("first" if boot_s else None)
