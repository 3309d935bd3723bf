"""A GPU that gets no new start, in plans: not used, not waited for, left by those who may be started over."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lucid.core.decision import Action, PartitionPlan, Plan, Requeue, Start
from lucid.core.gpu import GpuOut
from lucid.core.job import Running
from lucid.core.ledger import Ledger
from lucid.core.node import Node
from lucid.core.reasons.queue import FairOrder, GpusOut
from lucid.errors import UnsafePlan
from lucid.orchestrator.capacity.placement import Feasibility
from lucid.orchestrator.capacity.timeline import Timeline
from lucid.orchestrator.policy import off_bad_gpus
from lucid.orchestrator.safety.check import SafetyCheck
from scenes.jobs import at, runs, waits
from scenes.plans import ANYTHING, part, settings, snap

WHY = (FairOrder(0.0),)
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


def test_no_policy_starts_anything_there() -> None:
    here = part([BAD], [waits("a", 2)], [])
    for place, ok in (("n1:0-1", True), ("n1:1-2", False)):
        start = Start(at(place), WHY)
        plan = Plan(0.0, {here.name: PartitionPlan({"a": start}, (Action("a", here.name, start),))})
        if ok:
            SafetyCheck(ANYTHING, settings())(snap(0.0, here), plan)
        else:
            with pytest.raises(UnsafePlan, match="left out of new starts"):
                SafetyCheck(ANYTHING, settings())(snap(0.0, here), plan)


def test_only_who_asked_for_it_is_started_over_and_only_for_a_fault_that_ends_jobs() -> None:
    asked, other, elsewhere = (_restartable(runs(name, where), ask) for name, where, ask in _SCENE)
    here = part([BAD], (), [asked, other, elsewhere])
    plan = off_bad_gpus(PartitionPlan({}), here)
    assert {job: type(made) for job, made in plan.decisions.items()} == {"asked": Requeue}
    SafetyCheck(ANYTHING, settings())(snap(0.0, here), Plan(0.0, {here.name: plan}))
    mild = part([replace(BAD, left_out=(replace(OUT, ends_jobs=False),))], (), [asked])
    kept = PartitionPlan({})
    assert off_bad_gpus(kept, mild) is kept


_SCENE = (("asked", "n1:2", True), ("other", "n1:2", False), ("elsewhere", "n1:0", True))


def _restartable(entry: Running, asked: bool) -> Running:
    return replace(entry, job=replace(entry.job, requeueable=True, restart_asked=asked))
