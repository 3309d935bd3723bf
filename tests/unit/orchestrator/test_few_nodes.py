"""Jobs that may have few nodes only (``-N 1``, ``nodes=1``): no policy that resizes gives them more."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from builders import at, decided, guess, nodes, part, policy, runs, snap, waits
from lucid.core.decision import Action, Hold, PartitionPlan, Resize, Start
from lucid.core.job import Elastic, Pending, Running
from lucid.core.reasons.queue import FairOrder
from lucid.core.snapshot import Partition
from lucid.errors import UnsafePlan
from scenes.plans import check_plan
from scenes.systems import AGENTS_LIMITS, gpus_given, holds, room, wants

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
    guesses = {job_id: replace(guess(1000.0), epochs=50.0, epoch_s=PERFECT) for job_id in ids}
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


def test_the_check_refuses_more_nodes() -> None:
    entry = few(holds("a", "n1:0"))
    decision = Resize(at("n1:0 n2:0"), (FairOrder(0.0),))
    made = PartitionPlan({"a": decision}, (Action("a", "vc", decision),))
    with pytest.raises(UnsafePlan, match="takes 1 nodes at the most, and would get 2"):
        check_plan(part(nodes(2, 4), running=[entry]), made)


def test_limits_by_nodes() -> None:
    limits = replace(AGENTS_LIMITS, max_nodes=2)
    assert limits.on_nodes([4, 8, 4]).max_gpus == 12
    assert limits.on_nodes([16, 8, 4]) is limits
    assert replace(limits, min_gpus=6).on_nodes([2, 1]).max_gpus == 6
    assert limits.allows([4, 4])
    assert not limits.allows([1, 1, 1])
    with pytest.raises(ValueError, match="limits must be at least 1"):
        Elastic(4, max_nodes=0)
