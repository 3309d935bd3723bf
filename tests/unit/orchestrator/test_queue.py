"""fifo, sjf, srtf and qssf: their keys, head-of-line blocking, and preemption."""

from __future__ import annotations

import pytest

from builders import a_trace, by, decide, guess, kinds, nodes, part, reason, replay, runs, snap, waits
from builders import policy as a_policy
from lucid.config.policy import OverheadSettings
from lucid.core.decision import Hold, Requeue, Start
from lucid.core.reasons.queue import BehindHead, EverFits, FairOrder, Preempted, Priority, TooLarge
from lucid.orchestrator.registry import known_policies

ESTIMATES = {"early": guess(300.0), "short": guess(100.0), "slim": guess(120.0)}
JOBS = [waits("early", 2, 0.0), waits("short", 4, 1.0), waits("slim", 1, 2.0)]


@pytest.mark.parametrize(
    ("policy", "order"),
    [
        ("fifo", ["early", "short", "slim"]),
        ("sjf", ["short", "slim", "early"]),
        ("srtf", ["short", "slim", "early"]),
        ("qssf", ["slim", "short", "early"]),
    ],
)
def test_the_key_of_each_policy(policy: str, order: list[str]) -> None:
    plan = decide(policy, snap(5.0, part(nodes(1, 8), JOBS), predictions=ESTIMATES))
    assert [a.job_id for a in plan.actions] == order


@pytest.mark.parametrize("name", sorted(known_policies()))
def test_a_policy_is_called_what_it_was_asked_for_as(name: str) -> None:
    assert a_policy(name).name == name


@pytest.mark.parametrize("policy", ["fifo", "sjf", "qssf"])
def test_the_head_of_the_line_blocks_the_rest(policy: str) -> None:
    jobs = [waits("wide", 4, 0.0), waits("slim", 1, 1.0)]
    estimates = {"wide": guess(1.0), "slim": guess(100.0)}
    plan = decide(policy, snap(5.0, part(nodes(1, 4), jobs, [runs("r", "n1:0")]), predictions=estimates))
    assert not plan.actions
    assert plan.decisions["slim"] == Hold((BehindHead("wide"),))


@pytest.mark.parametrize("policy", ["fifo", "sjf", "qssf", "srtf", "tiresias"])
def test_an_impossible_job_blocks_nobody(policy: str) -> None:
    jobs = [waits("huge", 9, 0.0), waits("slim", 1, 1.0)]
    estimates = {"huge": guess(1.0), "slim": guess(100.0)}
    plan = decide(policy, snap(60.0, part(nodes(1, 8), jobs), predictions=estimates))
    assert plan.decisions["huge"] == Hold((TooLarge(9, 8),))
    assert isinstance(plan.decisions["slim"], Start)


@pytest.mark.parametrize("policy", ["fifo", "sjf", "qssf", "srtf", "tiresias"])
def test_a_job_that_no_node_can_hold_blocks_nobody(policy: str) -> None:
    jobs = [waits("greedy", 1, 0.0, cpus=9), waits("slim", 1, 1.0, cpus=1)]
    estimates = {"greedy": guess(1.0), "slim": guess(100.0)}
    plan = decide(policy, snap(60.0, part(nodes(2, 1, cpus=8), jobs), predictions=estimates))
    assert plan.decisions["greedy"] == Hold((EverFits(1, 9, 0, False),))
    assert isinstance(plan.decisions["slim"], Start)


def test_a_job_without_an_estimate_comes_last_and_not_out() -> None:
    snapshot = snap(5.0, part(nodes(1, 8), JOBS), predictions=ESTIMATES)
    assert isinstance(snapshot.predictions, dict)
    del snapshot.predictions["short"]
    plan = decide("sjf", snapshot)
    assert [a.job_id for a in plan.actions] == ["slim", "early", "short"]
    assert reason(plan.decisions["short"], FairOrder).submit_s == 1.0


def test_equal_keys_go_by_order_of_arrival() -> None:
    jobs = [waits(name, 1, 0.0, rank=i) for i, name in enumerate("cab")]
    for policy in ("fifo", "sjf", "qssf", "srtf"):
        plan = decide(policy, snap(5.0, part(nodes(1, 8), jobs)))
        assert [a.job_id for a in plan.actions] == ["c", "a", "b"], policy


def test_the_reason_of_a_start_is_the_key_it_was_sorted_by() -> None:
    plan = decide("qssf", snap(5.0, part(nodes(1, 8), JOBS), predictions=ESTIMATES))
    assert reason(plan.decisions["short"], Priority) == Priority("duration x GPUs", 400.0, 100.0, 4, "test")
    assert kinds(plan.decisions["short"]) == ["Priority", "FreeGpus"]


def test_srtf_preempts_the_job_with_more_left() -> None:
    predictions = {"long": guess(1000.0), "short": guess(100.0)}
    snapshot = snap(50.0, part(nodes(1, 1), [waits("short")], [runs("long", "n1:0")]), predictions=predictions)
    plan = decide("srtf", snapshot)
    assert [(a.job_id, type(a.decision)) for a in plan.actions] == [("long", Requeue), ("short", Start)]
    assert reason(plan.decisions["long"], Preempted) == Preempted(1, 0)
    assert plan.wake_s == 51.0


def test_srtf_counts_what_a_job_has_run() -> None:
    predictions = {"long": guess(1000.0), "short": guess(100.0)}
    snapshot = snap(950.0, part(nodes(1, 1), [waits("short")], [runs("long", "n1:0")]), predictions=predictions)
    assert not decide("srtf", snapshot).actions


def test_srtf_counts_the_restarts_that_a_job_has_had() -> None:
    jobs = [waits("fresh"), waits("again", ran_s=100.0, restarts=2)]
    predictions = {"fresh": guess(75.0), "again": guess(100.0)}
    for overhead_s, first in ((40.0, "fresh"), (30.0, "again")):
        snapshot = snap(0.0, part(nodes(1, 1), jobs), predictions=predictions)
        plan = decide("srtf", snapshot, restart_overhead_s=overhead_s)
        assert [a.job_id for a in plan.actions] == [first]


def test_a_preemption_costs_a_restart() -> None:
    trace = a_trace(by("long", 1, 1000.0), by("short", 1, 100.0, 200.0))
    outcomes, _ = replay("srtf", trace, {"vc": nodes(1, 1)}, overheads=OverheadSettings(preempt_small_s=40.0))
    assert outcomes["short"].end_s == 300.0
    assert outcomes["long"].end_s == 300.0 + 800.0 + 40.0
    assert outcomes["long"].preemptions == 1


@pytest.mark.parametrize("policy", ["fifo", "sjf", "qssf", "lucid"])
def test_other_policies_leave_running_jobs_alone(policy: str) -> None:
    predictions = {"long": guess(1000.0), "short": guess(1.0)}
    snapshot = snap(50.0, part(nodes(1, 1), [waits("short")], [runs("long", "n1:0")]), predictions=predictions)
    assert not decide(policy, snapshot).actions


def test_L29_one_vc_does_not_wait_for_another() -> None:
    trace = a_trace(by("a", 1, 100.0), by("b", 1, 100.0, vc="other"))
    outcomes, _ = replay("fifo", trace, {"vc": nodes(1, 1), "other": nodes(1, 1, prefix="o")})
    assert [outcomes[j].end_s for j in "ab"] == [100.0, 100.0]
