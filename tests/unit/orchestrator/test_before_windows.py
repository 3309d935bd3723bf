"""Jobs that are started before a window although their time limit reaches into it, because their users allow it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from builders import VC, a_trace, by, nodes, replay
from lucid.core.decision import Action, Hold, PartitionPlan, Plan, Requeue, Start
from lucid.core.job import Elastic, Pending
from lucid.core.node import Node, Window
from lucid.core.reason import Closes, MustLeave, StartsUntil
from lucid.errors import UnsafePlan
from lucid.orchestrator.policies.lucid.lucid_policy import LucidPolicy
from lucid.orchestrator.safety.check import SafetyCheck
from lucid.simulator.elastic.training import EpochTable
from lucid.simulator.outages import Outages
from scenes.jobs import a_job, at, runs, waits
from scenes.plans import ANYTHING, FixedPredictor, guess, part, policy, settings, snap

MAINT = Window(5000.0, 9000.0, "m")
NODE = Node("n1", 4, windows=(MAINT,))
FILL = {"fill": True, "margin_s": 60.0}


def entry(name: str, limit_s: float | None = 90000.0, **rest: Any) -> Pending:
    return waits(name, 1, time_limit_s=limit_s, **rest)


def decided(*entries: Pending, estimate_s: float = 1000.0, now_s: float = 0.0, **said: Any) -> PartitionPlan:
    predictions = {one.job.id: guess(estimate_s) for one in entries}
    snapshot = snap(now_s, part([NODE], entries), predictions=predictions)
    made = policy("lucid", FixedPredictor(), before_windows={**FILL, **said}).plan(snapshot)
    SafetyCheck(LucidPolicy.rules, settings(profiling={"restarts": "allowed"}))(snapshot, made)
    return made.partitions[VC]


def test_a_job_whose_user_asked_for_it_starts_until_the_window() -> None:
    made = decided(entry("asked", restart_asked=True), entry("other"), entry("endless", None, restart_asked=True))
    for name in ("asked", "endless"):
        start = made.decisions[name]
        assert isinstance(start, Start)
        assert start.until_s == 4940.0
        assert start.reasons[0] == StartsUntil(4940.0, 4940.0, 2000.0, False)
    assert isinstance(made.decisions["other"], Hold)
    assert any(isinstance(why, Closes) for why in made.decisions["other"].reasons)


def test_it_is_off_unless_it_is_asked_for() -> None:
    assert isinstance(decided(entry("asked", restart_asked=True), fill=False).decisions["asked"], Hold)


@pytest.mark.parametrize(("estimate_s", "sure", "starts"), [(4000, 1, True), (4000, 2, False), (9000, 0, True)])
def test_a_job_that_would_lose_its_work_starts_only_if_it_is_likely_to_end(
    estimate_s: float, sure: float, starts: bool
) -> None:
    made = decided(entry("asked", restart_asked=True), estimate_s=estimate_s, sure=sure)
    assert isinstance(made.decisions["asked"], Start) == starts


def test_a_job_with_checkpoints_starts_where_enough_time_is_left() -> None:
    keeps = entry("keeps", restart_asked=True, elastic=Elastic(max_gpus=1))
    for now_s, starts in ((4000.0, True), (4500.0, False)):
        made = decided(keeps, estimate_s=90000.0, now_s=now_s, least_s=600.0)
        assert isinstance(made.decisions["keeps"], Start) == starts


def test_a_job_that_ends_before_the_window_is_started_like_any_other() -> None:
    start = decided(entry("short", 4000.0, restart_asked=True)).decisions["short"]
    assert isinstance(start, Start)
    assert start.until_s is None


@pytest.mark.parametrize("name", ["lucid", "fifo"])
def test_it_leaves_when_its_time_is_up_whatever_policy_runs(name: str) -> None:
    running = runs("asked", "n1:0", 0.0, job={"time_limit_s": 90000.0, "restart_asked": True}, until_s=4940.0)
    early, late = (policy(name).plan(snap(now_s, part([NODE], (), [running]))) for now_s in (100.0, 4940.0))
    assert early.partitions[VC].actions == ()
    assert early.wake_s == 4940.0
    assert late.partitions[VC].decisions["asked"] == Requeue((MustLeave(4940.0),))


@pytest.mark.parametrize(
    ("job", "until_s", "says"),
    [
        ({}, 4940.0, "job j: it would be requeued before a window, and its user did not ask for it"),
        ({"restart_asked": True}, 5060.0, "job j: it would leave after node 'n1' closes"),
        ({"restart_asked": True, "requeueable": False}, 4940.0, "its user did not ask for it"),
    ],
)
def test_the_safety_check_knows_such_starts(job: dict[str, Any], until_s: float, says: str) -> None:
    start = Start(at("n1:0"), (), until_s=until_s)
    plan = Plan(0.0, {VC: PartitionPlan({"j": start}, (Action("j", VC, start),))})
    pending = Pending(a_job("j", 1, time_limit_s=90000.0, **job), 0.0)
    with pytest.raises(UnsafePlan, match=says):
        SafetyCheck(ANYTHING, settings())(snap(0.0, part([NODE], [pending])), plan)


@pytest.mark.parametrize(("keeps", "end_s"), [(False, 9000.0 + 7000.0 + 10.0), (True, 9000.0 + 30.0 + 2090.0)])
def test_work_is_kept_by_those_who_write_checkpoints_and_lost_by_others(keeps: bool, end_s: float) -> None:
    item = by("asked", 1, 7000.0, time_limit_s=90000.0, restart_asked=True)
    if keeps:
        job = replace(item.job, elastic=Elastic(max_gpus=1))
        item = replace(item, job=job, learning=EpochTable(700.0, (10.0,)))
    outcomes, tape = replay(
        "lucid",
        a_trace(item),
        {VC: nodes(1, prefix="n")},
        outages=Outages({"n1": (MAINT,)}),
        profiling={"enabled": False},
        before_windows={**FILL, "sure": 0.0},
    )
    assert [(at_s, type(action.decision)) for at_s, action in tape.actions("asked")] == [
        (0.0, Start),
        (4940.0, Requeue),
        (9000.0, Start),
    ]
    assert outcomes["asked"].end_s == pytest.approx(end_s)
