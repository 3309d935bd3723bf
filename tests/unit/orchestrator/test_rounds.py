"""Policies that decide in rounds, on a cluster whose looks never fall on the exact moment of a round."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from builders import VC, FixedPredictor, nodes, part, runs, snap, waits
from lucid.config.policy import PolicySettings
from lucid.core.decision import Hold, PartitionPlan, Resize, Start
from lucid.core.job import Elastic, Progress
from lucid.core.snapshot import Partition
from lucid.orchestrator.forecast.plan_ahead import Forecast, forecast
from lucid.orchestrator.policy import Policy
from lucid.orchestrator.registry import make_policy
from lucid.store.values import noun_from_json, noun_to_json

ALL = ("pollux", "optimus", "optimus-fitted", "optimus-drf", "tiresias")
EVERY_60 = {name: {"interval_s": 60.0} for name in ("pollux", "optimus", "tiresias")}


def by_name(name: str) -> Policy:
    settings = PolicySettings.model_validate(EVERY_60)
    return make_policy(name, settings, FixedPredictor())


def look(made: Policy, at_s: float, partition: Partition, before: PartitionPlan | None) -> PartitionPlan:
    """One look of lucidd: what the plan before left comes back through its store, as JSON."""
    memory: dict[str, Any] = {}
    if before is not None and before.memory is not None:
        memory = {VC: noun_from_json(noun_to_json(before.memory))}
    return made.plan(replace(snap(at_s, partition), memory=memory)).partitions[VC]


@pytest.mark.parametrize("name", ALL)
def test_a_round_that_has_passed_is_decided_at_the_next_look(name: str) -> None:
    made, before = by_name(name), None
    partition = part(nodes(1, 4), [waits("a", 1)])
    for at_s in (1000.3, 1010.3, 1019.7):
        before = look(made, at_s, partition, before)
        assert isinstance(before.decisions["a"], Hold)
        assert before.wake_s == 1020.0
    before = look(made, 1021.4, partition, before)
    assert isinstance(before.decisions["a"], Start), "the round of 1020 s is decided late, not left out"
    assert before.wake_s in (1080.0, None), "and the next is the next multiple"


@pytest.mark.parametrize("name", ALL)
def test_after_a_restart_without_memory_the_next_round_is_waited_for(name: str) -> None:
    partition = part(nodes(1, 4), [waits("a", 1)])
    before = look(by_name(name), 1000.3, partition, None)
    after = look(by_name(name), 1021.4, partition, None)
    assert after.wake_s == 1080.0
    kept = look(by_name(name), 1021.4, partition, before)
    assert isinstance(kept.decisions["a"], Start), "with what the store kept it goes on"


@pytest.mark.parametrize("name", ALL)
def test_between_rounds_nothing_is_decided_twice(name: str) -> None:
    made = by_name(name)
    waiting = look(made, 1000.3, part(nodes(1, 4), [waits("a", 1)]), None)
    decided = look(made, 1021.4, part(nodes(1, 4), [waits("a", 1)]), waiting)
    later = look(made, 1031.4, part(nodes(1, 4), [waits("b", 1)], [runs("a", "n1:0", 1021.4)]), decided)
    assert isinstance(later.decisions["b"], Hold)
    assert later.wake_s == 1080.0
    assert not later.actions


def test_a_clock_that_was_set_back_does_not_stop_the_rounds() -> None:
    made = by_name("pollux")
    before = look(made, 5000.3, part(nodes(1, 4), [waits("a", 1)]), None)
    again = look(made, 1000.3, part(nodes(1, 4), [waits("a", 1)]), before)
    assert again.wake_s == 1020.0
    assert isinstance(look(made, 1021.0, part(nodes(1, 4), [waits("a", 1)]), again).decisions["a"], Start)


def test_a_start_that_had_to_wait_for_gpus_to_be_left_is_made_between_rounds() -> None:
    """An elastic job gives way to a rigid one, which a real cluster cannot start in the same moment."""
    made = by_name("pollux")
    limits = Elastic(4, batch=64, init_batch=64, most_batch=256, atomic_min=8, atomic_max=256)
    wide = replace(
        runs("e", "n1:0-3", 100.0),
        job=replace(waits("e", 1).job, elastic=limits),
        progress=Progress(1.0, ((4, 10.0),)),
    )
    before = look(made, 6000.5, part(nodes(1, 4), [waits("r", 2)], [wide]), None)
    decided = look(made, 6061.4, part(nodes(1, 4), [waits("r", 2)], [wide]), before)
    start, resize = decided.decisions["r"], decided.decisions["e"]
    assert isinstance(start, Start)
    assert isinstance(resize, Resize)
    # refused: the job has not left. At the next look it is shown on its new GPUs, and rigid
    gone = replace(wide, placement=resize.placement, job=replace(wide.job, gpus=2, elastic=None))
    held = look(made, 6062.4, part(nodes(1, 4), [waits("r", 2), waits("x", 1)], [wide]), decided)
    assert isinstance(held.decisions["r"], Hold), "not onto GPUs that are taken"
    again = look(made, 6063.4, part(nodes(1, 4), [waits("r", 2), waits("x", 1)], [gone]), held)
    assert again.decisions["r"] == start
    assert isinstance(again.decisions["x"], Hold), "who came after the round waits for the next"
    over = look(made, 6064.4, part(nodes(1, 4), [waits("x", 1)], [gone, runs("r", "n1:2-3", 6064.0)]), again)
    assert not over.actions


@pytest.mark.parametrize("name", ["pollux", "optimus-fitted", "optimus-drf"])
def test_nobody_plans_such_a_policy_ahead(name: str) -> None:
    """A search for each round of a day would take minutes, and resized jobs are not followed."""
    made = by_name(name)
    partition = part(nodes(1, 4), [waits("a", 1, elastic=Elastic(4))])
    held = snap(1000.3, partition)
    assert forecast(held, made.plan(held), made) == Forecast({}, pytest.approx(19.7))
    due = snap(1020.0, partition)
    assert forecast(due, made.plan(due), made) == Forecast({"a": 0.0}, 60.0)
