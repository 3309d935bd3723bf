"""Jobs of several nodes below as few switches as can be."""

from __future__ import annotations

import itertools
import random

import pytest

from examples import tried
from lucid.core.decision import Hold, Start
from lucid.core.job import Pending, Running
from lucid.core.ledger import Ledger
from lucid.core.node import Node
from lucid.core.placement import NodeGpus
from lucid.core.reasons.queue import Spread, Switches
from lucid.core.snapshot import Partition
from lucid.orchestrator.capacity.placement import consolidated
from scenes.jobs import a_job
from scenes.plans import decide, guess, part, snap


def tree(*leaves: int, per_spine: int = 2, gpus: int = 4) -> list[Node]:
    """Nodes below leaf switches of so many nodes each, of which so many stand below one spine."""
    made = []
    for leaf, count in enumerate(leaves):
        for _ in range(count):
            made.append(Node(f"n{len(made)}", gpus, switches=(f"s{leaf}", f"spine{leaf // per_spine}", "root")))
    return made


def place(nodes: list[Node], gpus: int, busy: str = "", **job: object) -> set[str]:
    held = tuple(Running(a_job(name), 0.0, (NodeGpus(name, 0b1111),)) for name in busy.split())
    found = consolidated(Ledger(Partition("vc", tuple(nodes), (), held), 0.0), a_job("j", gpus, **job))
    return {one.node for one in found or ()}


def test_the_smallest_switch_with_room_is_taken() -> None:
    nodes = tree(3, 2, 4)
    assert place(nodes, 8) == {"n3", "n4"}  # the leaf of two, although n0 comes first
    assert place(nodes, 12) == {"n0", "n1", "n2"}
    assert place(nodes, 16) == {"n5", "n6", "n7", "n8"}
    assert place(nodes, 8, "n3") == {"n0", "n1"}
    assert place(nodes, 12, "n0 n5") == {"n6", "n7", "n8"}


def test_beyond_one_leaf_the_lowest_common_switch_and_few_leaves_are_taken() -> None:
    nodes = tree(3, 2, 4)
    assert place(nodes, 20) == {"n0", "n1", "n2", "n3", "n4"}  # all of spine 0
    assert place(tree(2, 2, 2, 2), 16, "n0") == {"n4", "n5", "n6", "n7"}
    assert place(nodes, 6, min_nodes=3) == {"n0", "n1", "n2"}
    assert place(nodes, 10) == {"n0", "n1", "n2"}  # two whole nodes, and the rest below the same switch


def test_a_job_of_one_node_has_nothing_to_do_with_switches() -> None:
    assert place(tree(1, 1), 3) == {"n0"}


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
    found = place(nodes, 4 * count, " ".join(busy))
    by_name = {node.name: node for node in nodes}
    free = [node.name for node in nodes if node.name not in busy]

    def level(names: tuple[str, ...]) -> int:
        return next(at for at in range(3) if len({by_name[name].switches[at] for name in names}) == 1)

    choices = [level(names) for names in itertools.combinations(free, count)]
    assert bool(found) == bool(choices)
    if found:
        assert level(tuple(found)) == min(choices)
