"""Safety rules of interleaved groups, each broken once in a plan that was good."""

from __future__ import annotations

from dataclasses import replace

import pytest

from builders import ANYTHING, LIGHT, VC, at, check_plan, nodes, part, runs, waits
from lucid.core.decision import Action, Decision, PartitionPlan, Regroup, Requeue, Start
from lucid.core.job import Pending, Running
from lucid.core.reasons.queue import FairOrder
from lucid.core.snapshot import Partition
from lucid.errors import UnsafePlan

WHY = (FairOrder(0.0),)
BIG = replace(LIGHT, gpu_mem_mib=13000.0)

WAITING = (
    waits("a", 2),
    waits("b", 2),
    waits("c", 2),
    waits("d", 2),
    waits("e", 2),
    waits("one"),
    waits("shy", 2, shareable=False),
    waits("big1", 2, profile=BIG),
    waits("big2", 2, profile=BIG),
)
TOGETHER = ("x", "y")
ON_GPUS = (
    runs("x", "n2:0-1", group=TOGETHER),
    runs("y", "n2:0-1", group=TOGETHER),
    runs("z", "n2:2-3"),
    runs("p", "n3:0", profile=LIGHT, partner="q"),
    runs("q", "n3:0", profile=LIGHT, partner="p"),
)


def start(where: str, *group: str) -> Start:
    return Start(at(where), WHY, group=group)


def regroup(where: str, *group: str) -> Regroup:
    return Regroup(at(where), WHY, group)


def check(decisions: dict[str, Decision], limit: int = 4, running: tuple[Running, ...] = ON_GPUS) -> None:
    """Judge a plan about some jobs; only those that it names wait."""
    waiting: tuple[Pending, ...] = tuple(entry for entry in WAITING if entry.job.id in decisions)
    partition: Partition = part(nodes(3, 4), waiting, running)
    actions = tuple(Action(job_id, VC, decision) for job_id, decision in decisions.items())  # type: ignore[arg-type]
    check_plan(partition, PartitionPlan(decisions, actions), replace(ANYTHING, group_limit=limit))


GOOD: dict[str, dict[str, Decision]] = {
    "four start together": {name: start("n1:0-1", "a", "b", "c", "d") for name in "abcd"},
    "one joins": {name: regroup("n2:0-1", "x", "y", "z") for name in "xyz"},
    "a newcomer joins": {
        "a": start("n2:0-1", "x", "y", "a"),
        "x": regroup("n2:0-1", "x", "y", "a"),
        "y": regroup("n2:0-1", "x", "y", "a"),
    },
    "one leaves": {"x": Requeue(WHY), "y": regroup("n2:0-1")},
    "both move apart": {"x": regroup("n1:0-1"), "y": regroup("n1:2-3")},
    "they swap places with another": {
        "x": regroup("n2:2-3", "x", "y"),
        "y": regroup("n2:2-3", "x", "y"),
        "z": regroup("n2:0-1"),
    },
}

BAD: dict[str, tuple[dict[str, Decision], str]] = {
    "too many": ({name: start("n1:0-1", *"abcde") for name in "abcde"}, "2 to 4"),
    "a group of one": ({"a": start("n1:0-1", "a")}, "2 to 4"),
    "one named twice": ({"a": start("n1:0-1", "a", "a")}, "2 to 4"),
    "it does not name itself": (
        {"a": start("n1:2-3", "b", "c"), "b": start("n1:0-1", "b", "c"), "c": start("n1:0-1", "b", "c")},
        "job a",
    ),
    "different ideas of the group": (
        {"a": start("n1:0-1", "a", "b"), "b": start("n1:0-1", "b", "a")},
        "job b is not in it",
    ),
    "other GPUs": ({"a": start("n1:0-1", "a", "b"), "b": start("n1:1-2", "a", "b")}, "other GPUs"),
    "other counts": ({"a": start("n1:0-1", "a", "one"), "one": start("n1:0", "a", "one")}, "other GPUs"),
    "one does not run": ({"a": start("n1:0-1", "a", "b")}, "b would not run"),
    "a stranger is there": ({name: start("n2:1-2", "a", "b") for name in "ab"}, "held by"),
    "one is left behind": ({"x": Requeue(WHY)}, "formed anew"),
    "one moves away alone": ({"x": regroup("n1:0-1")}, "job x is not in it but in none"),
    "joins without a word to the others": ({"a": start("n2:0-1", "x", "y", "a")}, "not the group's alone"),
    "asked not to share": ({name: start("n1:0-1", "a", "shy") for name in ("a", "shy")}, "shy may not be shared"),
    "memory": ({name: start("n1:0-1", "big1", "big2") for name in ("big1", "big2")}, "26000 MiB"),
    "partners are not regrouped": ({"p": regroup("n1:0")}, "cannot regroup"),
}


@pytest.mark.parametrize("name", GOOD)
def test_a_good_plan_passes(name: str) -> None:
    check(GOOD[name])


@pytest.mark.parametrize("name", BAD)
def test_a_broken_rule_is_named(name: str) -> None:
    decisions, words = BAD[name]
    with pytest.raises(UnsafePlan, match=words):
        check(decisions)


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_the_bound_is_what_the_policy_declares(limit: int) -> None:
    with pytest.raises(UnsafePlan, match=f"2 to {limit}"):
        check(GOOD["four start together"], limit)
    check({"a": start("n1:0-1")}, 1, ())
