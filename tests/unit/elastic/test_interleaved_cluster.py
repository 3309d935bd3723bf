"""Interleaved groups in the simulated cluster: speeds, costs of starting, progress, coming and going."""

from __future__ import annotations

from dataclasses import replace

import pytest

from builders import VC, a_cluster, a_trace, at, by, nodes
from lucid.core.decision import Action, Regroup, Requeue, Start
from lucid.core.job import Pending, Running
from lucid.core.ports import Capability
from lucid.core.prediction import StageTimes
from lucid.core.reasons.queue import FairOrder
from lucid.orchestrator.policies.muri.interleave import NO_OVERHEAD, PUBLISHED
from lucid.simulator.cluster.cluster import SimulatedCluster
from lucid.simulator.cluster.truth import Interleaving
from lucid.simulator.traces.record import TraceJob

WHY = (FairOrder(0.0),)
FIRST = StageTimes((3.0, 1.0), 4.0, start_s=10.0)
SECOND = StageTimes((1.0, 3.0), 4.0, start_s=5.0)
"""Beside FIRST a round takes 3 + 1 or 1 + 3: together they take as long as one alone."""


def staged(name: str, stages: StageTimes, duration_s: float = 100.0) -> TraceJob:
    return replace(by(name, 2, duration_s), stages=stages)


def cluster(*items: TraceJob, ordering: str = "best") -> SimulatedCluster:
    made = a_cluster(
        a_trace(*items),
        {VC: nodes(2, 4)},
        profiled=lambda job: False,
        interleaving=Interleaving(2, ordering, NO_OVERHEAD),  # type: ignore[arg-type]
    )
    made.advance(0.0)
    return made


def act(made: SimulatedCluster, **decisions: Start | Regroup | Requeue) -> None:
    applied = made.apply([Action(name, VC, decision) for name, decision in decisions.items()])
    assert not [item for item in applied if item.refused]


def run_on(made: SimulatedCluster, to_s: float) -> None:
    while (at_s := made.next_event_s()) is not None and at_s <= to_s:
        made.advance(at_s)
    made.advance(to_s)


def running(made: SimulatedCluster, name: str) -> Running:
    return next(entry for entry in made.observe().partitions[VC].running if entry.job.id == name)


PAIR = ("a", "b")


def pair(made: SimulatedCluster) -> None:
    act(made, a=Start(at("n1:0-1"), WHY, group=PAIR), b=Start(at("n1:0-1"), WHY, group=PAIR))


def test_a_group_waits_for_all_its_members_to_start_and_then_takes_turns() -> None:
    made = cluster(staged("a", FIRST), staged("b", SECOND, 50.0))
    pair(made)
    assert Capability.INTERLEAVE in made.capabilities
    assert (made.busy_gpus, made.shared_gpus) == (2, 2)
    run_on(made, 65.0)  # 10 + 5 s to start, then b's 50 s at full speed
    assert made.outcomes["b"].end_s == pytest.approx(65.0)
    assert (made.busy_gpus, made.shared_gpus) == (2, 0)
    assert running(made, "a").group == ()
    run_on(made, 200.0)
    assert made.outcomes["a"].end_s == pytest.approx(115.0)
    assert made.outcomes["a"].packed_s == pytest.approx(65.0)
    assert made.outcomes["b"].packed


def test_members_that_clash_are_slowed() -> None:
    made = cluster(staged("a", FIRST), staged("b", FIRST))
    pair(made)
    # T = max(3, 1) + max(1, 3) = 6 for iterations of 4
    assert running(made, "a").work.speed == pytest.approx(4 / 6)  # type: ignore[union-attr]
    run_on(made, 500.0)
    assert made.outcomes["a"].end_s == pytest.approx(20.0 + 150.0)


def test_work_is_reported_and_survives_regrouping_and_preemption() -> None:
    made = cluster(staged("a", FIRST), staged("b", FIRST))
    pair(made)
    run_on(made, 50.0)  # 20 s to start, 30 s at 2/3 of full speed
    assert running(made, "a").work.by_s(50.0) == pytest.approx(20.0)  # type: ignore[union-attr]
    act(made, a=Regroup(at("n2:0-1"), WHY), b=Requeue(WHY))
    moved = running(made, "a")
    assert (moved.group, moved.start_s, moved.placement) == ((), 0.0, at("n2:0-1"))
    (waiting,) = made.observe().partitions[VC].pending
    assert isinstance(waiting, Pending)
    assert waiting.work.by_s(99.0) == pytest.approx(20.0)
    run_on(made, 500.0)
    assert made.outcomes["a"].end_s == pytest.approx(50.0 + 10.0 + 80.0)
    assert made.busy_gpus == 0


def test_groups_change_places_in_one_go() -> None:
    made = cluster(staged("a", FIRST), staged("b", SECOND), staged("c", FIRST))
    pair(made)
    act(made, c=Start(at("n1:2-3"), WHY))
    act(
        made,
        a=Regroup(at("n1:2-3"), WHY, ("b", "a")),
        c=Regroup(at("n1:0-1"), WHY),
        b=Regroup(at("n1:2-3"), WHY, ("b", "a")),
    )
    assert (made.busy_gpus, made.shared_gpus) == (4, 2)
    assert running(made, "b").group == ("b", "a")
    run_on(made, 500.0)
    assert made.ended == 3
    assert (made.busy_gpus, made.shared_gpus) == (0, 0)


def test_without_an_executor_groups_are_refused() -> None:
    made = a_cluster(a_trace(staged("a", FIRST), staged("b", SECOND)), {VC: nodes(2, 4)}, profiled=lambda job: False)
    made.advance(0.0)
    assert Capability.INTERLEAVE not in made.capabilities
    (applied,) = made.apply([Action("a", VC, Start(at("n1:0-1"), WHY, group=PAIR))])
    assert "this cluster cannot interleave" in (applied.refused or "")


def test_speeds_follow_the_ordering_and_the_overhead() -> None:
    three = [StageTimes((4.0, 1.0, 1.0), 6.0), StageTimes((1.0, 4.0, 1.0), 6.0), StageTimes((1.0, 1.0, 4.0), 6.0)]
    best, worst = (Interleaving(3, order, NO_OVERHEAD).speeds(three) for order in ("best", "worst"))  # type: ignore[arg-type]
    assert best == [pytest.approx(1.0)] * 3
    assert worst == [pytest.approx(0.5)] * 3
    assert Interleaving(3, "best", PUBLISHED).speeds(three)[0] == pytest.approx(1 / PUBLISHED.factor(3))
    assert Interleaving(3, "best", PUBLISHED).speeds(three[:1]) == [1.0]
    assert Interleaving(2, "best", NO_OVERHEAD).speeds([FIRST, replace(SECOND, iteration_s=9.0)])[1] == 1.0
