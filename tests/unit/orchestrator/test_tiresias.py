"""Tiresias: two queues by attained service, decided at rounds."""

from __future__ import annotations

import pytest

from builders import a_trace, by, decide, nodes, part, reason, replay, runs, snap, waits
from lucid.core.decision import Hold, PartitionPlan, Requeue, Start
from lucid.core.reasons.queue import NextRound, Priority
from lucid.core.snapshot import Snapshot

RULES = {"threshold_gpu_s": 600.0, "interval_s": 60.0}


def tiresias(snapshot: Snapshot) -> PartitionPlan:
    return decide("tiresias", snapshot, tiresias=RULES)


def test_between_rounds_everybody_waits_for_the_next() -> None:
    plan = tiresias(snap(61.0, part(nodes(1, 8), [waits("j")])))
    assert plan.decisions["j"] == Hold((NextRound(120.0),))
    assert plan.wake_s == 120.0


def test_at_a_round_jobs_start() -> None:
    plan = tiresias(snap(120.0, part(nodes(1, 8), [waits("j")])))
    assert isinstance(plan.decisions["j"], Start)


@pytest.mark.parametrize(("attained_s", "preempted"), [(600.0, False), (660.0, True)])
def test_a_job_past_the_threshold_gives_way(attained_s: float, preempted: bool) -> None:
    held = runs("old", "n1:0", 0.0)
    plan = tiresias(snap(attained_s, part(nodes(1, 1), [waits("new", 1, 5.0)], [held])))
    assert isinstance(plan.decisions.get("old"), Requeue) == preempted


def test_service_counts_gpus_times_time() -> None:
    held = runs("old", "n1:0-3", 0.0)
    plan = tiresias(snap(180.0, part(nodes(1, 4), [waits("new", 4, 5.0)], [held])))
    assert isinstance(plan.decisions["old"], Requeue)
    assert reason(plan.decisions["old"], Priority).value == 720.0


def test_earlier_runs_count_too() -> None:
    plan = tiresias(snap(60.0, part(nodes(1, 1), [waits("a", 1, 0.0, ran_s=601.0), waits("b", 1, 1.0)])))
    assert [a.job_id for a in plan.actions] == ["b"]


def test_within_a_queue_the_first_come_is_first_served() -> None:
    plan = tiresias(snap(60.0, part(nodes(1, 1), [waits("b", 1, 7.0), waits("a", 1, 3.0)])))
    assert [a.job_id for a in plan.actions] == ["a"]


def test_the_plan_is_made_anew_at_the_round_after_a_job_crosses_the_threshold() -> None:
    plan = tiresias(snap(120.0, part(nodes(1, 1), [waits("new", 1, 5.0)], [runs("old", "n1:0", 0.0)])))
    assert not plan.actions
    assert plan.wake_s == 660.0


@pytest.mark.parametrize("interval_s", [0.7, 7.3, 33.3, 60.0])
def test_rounds_of_any_length_come_to_an_end(interval_s: float) -> None:
    trace = a_trace(*(by(f"j{i}", 1, 400.0, 10.0 * i) for i in range(4)))
    rules = {"threshold_gpu_s": 100.0, "interval_s": interval_s}
    outcomes, _ = replay("tiresias", trace, {"vc": nodes(1, 1)}, tiresias=rules)
    assert all(o.end_s > 0 for o in outcomes.values())


def test_a_higher_tier_goes_before_a_lower_one_whatever_service_its_jobs_have_had() -> None:
    """The site's word (QOS priority) goes before the policy's: among running and waiting jobs alike."""
    served = waits("served", 1, 5.0, tier=10, ran_s=9000.0)
    fresh, held = waits("fresh", 1, 1.0), runs("held", "n1:0", 0.0)
    plan = tiresias(snap(60.0, part(nodes(1, 1), [fresh, served], [held])))
    assert [(a.job_id, type(a.decision)) for a in plan.actions] == [("held", Requeue), ("served", Start)]
    assert isinstance(plan.decisions["fresh"], Hold)
    alone = tiresias(
        snap(60.0, part(nodes(1, 1), [fresh], [runs("held", "n1:0", 0.0, job={"tier": 10}, ran_s=9000.0)]))
    )
    assert not alone.actions


def test_jobs_of_other_partitions_on_its_nodes_are_not_its_to_stop() -> None:
    """Their own partition decides about them. Requeued in vain, they would keep jobs waiting that could have others'
    GPUs."""
    running = [runs("foreign", "n1:0", 0.0, job={"vc": "scav"}), runs("own", "n1:1", 1.0)]
    plan = tiresias(snap(1200.0, part(nodes(1, 2), [waits("new", 1, 1195.0)], running)))
    assert [(a.job_id, type(a.decision)) for a in plan.actions] == [("own", Requeue), ("new", Start)]
