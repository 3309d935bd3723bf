"""Every safety rule, broken once in a plan that was good: the check names the job and the resource."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from lucid.core.decision import (
    Action,
    Decision,
    EndProfiling,
    Hold,
    Keep,
    PartitionPlan,
    Plan,
    Requeue,
    Resize,
    Start,
)
from lucid.core.job import Elastic, Running, Stage
from lucid.core.ports import Capability
from lucid.core.reasons.queue import FairOrder, Unplanned
from lucid.core.snapshot import Snapshot
from lucid.errors import UnsafePlan
from lucid.orchestrator.cycle import Cycle
from lucid.orchestrator.safety.check import SafetyCheck
from scenes.jobs import LIGHT, VC, at, by, nodes, runs, waits
from scenes.plans import ANYTHING, FixedPredictor, check_plan, part, settings, snap
from scenes.replays import a_cluster, a_trace

WHY = (FairOrder(0.0),)
BIG = replace(LIGHT, gpu_mem_mib=13000.0)

MACHINES = (*nodes(2, 4, cpus=8, mem_mib=64000), *nodes(1, 4, prefix="down", available=False))
WAITING = (
    waits("p1", profile=LIGHT, cpus=1),
    waits("p2", 2, profile=LIGHT),
    waits("p3", profile=LIGHT),
    waits("p4", profile=BIG),
    waits("p5"),
    waits("p6", cpus=9),
    waits("p7", mem_mib=65000),
)
ON_GPUS = (
    runs("r1", "n1:0", profile=LIGHT),
    runs("r2", "n1:1-2", profile=LIGHT),
    runs("r3", "n2:0", profile=LIGHT, partner="r4"),
    runs("r4", "n2:0", profile=LIGHT, partner="r3"),
    runs("r5", "n2:1", profile=BIG),
    runs("r6", "n2:2"),
)


def start(where: str, beside: str | None = None) -> Start:
    return Start(at(where), WHY, beside)


def of(name: str, changes: dict[str, Decision]) -> PartitionPlan:
    """A plan that holds every job but those for which it is told otherwise."""
    decisions: dict[str, Decision] = {e.job.id: Hold(WHY) for e in WAITING} | changes
    actions = [Action(job_id, name, d) for job_id, d in decisions.items() if not isinstance(d, Hold)]
    return PartitionPlan(decisions, tuple(actions))


def state(**rest: Any) -> Snapshot:
    return snap(0.0, part(MACHINES, WAITING, ON_GPUS, **rest))


def check(**changes: Decision) -> None:
    SafetyCheck(ANYTHING, settings())(state(), Plan(0.0, {VC: of(VC, changes)}))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"p1": start("n1:3"), "p3": start("n2:3")},
        {"p2": start("n1:1-2", beside="r2")},
        {"p1": start("n1:0", beside="r1")},
        {"p1": start("n1:3"), "p3": start("n1:3", beside="p1")},
        {"r1": Requeue(WHY), "p5": start("n1:0")},
        {"r3": Requeue(WHY, part=True), "p1": start("n2:0", beside="r4")},
        {"r3": Requeue(WHY), "r4": Requeue(WHY), "p5": start("n2:0")},
    ],
    ids=lambda changes: " ".join(changes) or "nothing",
)
def test_good_plans_pass(changes: dict[str, Decision]) -> None:
    check(**changes)


@pytest.mark.parametrize(
    ("changes", "job", "about"),
    [
        ({"p5": start("n1:0")}, "p5", "held by ['r1']"),
        ({"p1": start("n1:3"), "p5": start("n1:3")}, "p5", "held by ['p1']"),
        ({"p1": start("n2:0", beside="r3")}, "p1", "at most two jobs share a GPU"),
        ({"p1": start("n1:0", beside="r1"), "p3": start("n1:0", beside="r1")}, "p3", "at most two jobs share a GPU"),
        ({"p1": start("n1:3", beside="r1")}, "p1", "the plan names 'r1'"),
        ({"p1": start("n1:1", beside="r2")}, "p1", "different GPUs"),
        ({"p2": start("n1:0-1", beside="r1")}, "p2", "at most two jobs share a GPU"),
        ({"p2": start("n1:2-3", beside="r2")}, "p2", "different GPUs"),
        ({"p4": start("n2:1", beside="r5")}, "p4", "do not fit on a GPU of 'n2'"),
        ({"p5": start("n1:0", beside="r1")}, "p5", "has not been measured"),
        ({"p1": start("n2:2", beside="r6")}, "r6", "has not been measured"),
        ({"p6": start("n1:3")}, "p6", "CPUs"),
        ({"p7": start("n1:3")}, "p7", "host memory"),
        ({"p1": start("nowhere:0")}, "p1", "'nowhere'"),
        ({"p1": start("down1:0")}, "p1", "'down1'"),
        ({"p1": start("n1:4")}, "p1", "'n1'"),
        ({"p1": start("n1:3 n2:3")}, "p1", "asked for 1 GPUs, and would get 2"),
        ({"p2": start("n1:3")}, "p2", "asked for 2 GPUs, and would get 1"),
        ({"p2": Start(at("n2:3") + at("n2:3"), WHY)}, "p2", "names one node twice"),
        ({"r1": start("n1:3")}, "r1", "cannot start"),
        ({"p1": Requeue(WHY)}, "p1", "cannot requeue"),
        ({"r1": EndProfiling(WHY)}, "r1", "cannot release"),
        ({"p1": EndProfiling(WHY)}, "p1", "cannot release"),
        ({"r1": Keep(WHY)}, "r1", "cannot keep"),
        ({"ghost": start("n1:3")}, "ghost", "cannot start"),
        ({"ghost": Requeue(WHY)}, "ghost", "cannot requeue"),
    ],
)
def test_a_bad_plan_is_refused_by_job_and_resource(changes: dict[str, Decision], job: str, about: str) -> None:
    with pytest.raises(UnsafePlan) as caught:
        check(**changes)
    assert job in str(caught.value)
    assert about in str(caught.value)


HELD, P1 = of(VC, {}), of(VC, {"p1": start("n1:3")})
LACKS_P3 = PartitionPlan({job_id: d for job_id, d in HELD.decisions.items() if job_id != "p3"})
R1 = of(VC, {"r1": Requeue(WHY)})
ELSEWHERE = Action("p1", "other", P1.decisions["p1"])


@pytest.mark.parametrize(
    ("plans", "words"),
    [
        ({VC: LACKS_P3}, "p3: it is pending in 'vc', and the plan does not decide it"),
        ({}, "'vc': the plan decides none of its 7 pending jobs"),
        ({VC: HELD, "elsewhere": PartitionPlan({})}, "'elsewhere'"),
        ({VC: PartitionPlan(R1.decisions, R1.actions * 2)}, "job r1: the plan has two actions"),
        ({VC: PartitionPlan(P1.decisions, (Action("p1", VC, start("n2:3")),))}, "p1: its action and its decision"),
        ({VC: PartitionPlan(P1.decisions, (ELSEWHERE,))}, "p1: its action and its decision"),
        ({VC: PartitionPlan(P1.decisions)}, "p1: the plan decides to start it, but has no action"),
    ],
    ids=["undecided", "left out", "no such partition", "acts twice", "acts otherwise", "acts elsewhere", "no action"],
)
def test_a_plan_whose_decisions_and_actions_do_not_match_its_partitions_is_refused(
    plans: dict[str, PartitionPlan], words: str
) -> None:
    with pytest.raises(UnsafePlan, match=words):
        SafetyCheck(ANYTHING, settings())(state(), Plan(0.0, plans))


def test_a_partition_in_which_nobody_waits_may_be_left_out() -> None:
    SafetyCheck(ANYTHING, settings())(snap(0.0, part(MACHINES, (), ON_GPUS)), Plan(0.0, {}))


def test_a_job_started_in_two_partitions_is_refused() -> None:
    there = part(nodes(1, prefix="o"), [waits("p1", profile=LIGHT)], name="other")
    d = start("o1:0")
    plans = {VC: P1, "other": PartitionPlan({"p1": d}, (Action("p1", "other", d),))}
    with pytest.raises(UnsafePlan, match="job p1: the plan has two actions"):
        SafetyCheck(ANYTHING, settings())(snap(0.0, part(MACHINES, WAITING, ON_GPUS), there), Plan(0.0, plans))


@pytest.mark.parametrize("decision", [EndProfiling(WHY), Keep(WHY)], ids=["release", "keep"])
def test_only_jobs_in_their_profiling_run_are_released_or_kept(decision: EndProfiling | Keep) -> None:
    def profiling_room(stage: Stage) -> tuple[Snapshot, Plan]:
        room = part(nodes(1), (), [runs("r1", "n1:0", stage=stage)], profiling=True)
        plan = PartitionPlan({"r1": decision}, (Action("r1", VC, decision),))
        return snap(0.0, room), Plan(0.0, {VC: plan})

    SafetyCheck(ANYTHING, settings())(*profiling_room(Stage.PROFILE))
    with pytest.raises(UnsafePlan, match="r1: the plan cannot"):
        SafetyCheck(ANYTHING, settings())(*profiling_room(Stage.MAIN))


def test_a_pending_job_may_be_released_unprofiled() -> None:
    room = part(nodes(1), [waits("p1")], (), profiling=True)
    release = EndProfiling(WHY)
    plan = PartitionPlan({"p1": release}, (Action("p1", VC, release),))
    SafetyCheck(ANYTHING, settings())(snap(0.0, room), Plan(0.0, {VC: plan}))


def test_what_was_overcommitted_before_stops_nobody_who_asks_for_none_of_it() -> None:
    tight = nodes(1, 4, cpus=4)
    held = [runs("r1", "n1:0", job={"cpus": 6})]
    SafetyCheck(ANYTHING, settings())(
        snap(0.0, part(tight, [waits("p1")], held)),
        Plan(0.0, {VC: PartitionPlan({"p1": (d := start("n1:1"))}, (Action("p1", VC, d),))}),
    )


def test_a_plan_that_passed_is_not_checked_again_but_a_new_one_is() -> None:
    check, snapshot = SafetyCheck(ANYTHING, settings()), state()
    good = of(VC, {})
    check(snapshot, Plan(0.0, {VC: good}))
    check(snapshot, Plan(1.0, {VC: good}))
    with pytest.raises(UnsafePlan):
        check(snapshot, Plan(2.0, {VC: of(VC, {"p5": start("n1:0")})}))


class Reckless:
    """Starts every job on the same GPU."""

    name = "reckless"
    needs: frozenset[Capability] = frozenset()
    profiled: Callable[..., bool] = staticmethod(lambda job: False)

    def plan(self, snapshot: Snapshot) -> Plan:
        same = start("vc-1:0")
        waiting = [e.job.id for e in snapshot.partitions[VC].pending]
        actions = tuple(Action(job_id, VC, same) for job_id in waiting)
        return Plan(snapshot.now_s, {VC: PartitionPlan(dict.fromkeys(waiting, same), actions)})


def test_nothing_of_an_unsafe_plan_is_applied() -> None:
    cluster = a_cluster(a_trace(by("a"), by("b")), profiled=lambda job: False)
    cluster.advance(0.0)
    with pytest.raises(UnsafePlan, match="job b"):
        Cycle(cluster, FixedPredictor(), Reckless(), settings()).run()
    left = cluster.observe().partitions[VC]
    assert [e.job.id for e in left.pending] == ["a", "b"]
    assert not left.running


def test_a_live_cluster_leaves_out_the_unsafe_action_alone_and_its_job_waits_with_the_reason() -> None:
    cluster = a_cluster(a_trace(by("a"), by("b")), profiled=lambda job: False)
    cluster.advance(0.0)
    result = Cycle(cluster, FixedPredictor(), Reckless(), settings(), tolerant=True).run()
    assert [error.job_id for error in result.unsafe] == ["b"]
    left = cluster.observe().partitions[VC]
    assert ([e.job.id for e in left.running], [e.job.id for e in left.pending]) == (["a"], ["b"])
    held = result.plan.decision_of("b")
    assert isinstance(held, Hold)
    assert [reason.kind for reason in held.reasons] == ["Unsafe"]


def test_a_guest_goes_with_its_unsafe_host() -> None:
    snapshot, measured = state(), LIGHT
    waiting = [replace(waits(name), profile=measured) for name in ("host", "guest")]
    room = part(nodes(1, 1), waiting, [runs("there", "n1:0")])
    host, guest = start("n1:0"), structs.replace(start("n1:0"), beside="host")
    plan = PartitionPlan({"host": host, "guest": guest}, (Action("host", VC, host), Action("guest", VC, guest)))
    left, unsafe = SafetyCheck(ANYTHING, settings()).safe_part(
        replace(snapshot, partitions={VC: room}), Plan(0.0, {VC: plan})
    )
    assert {error.job_id for error in unsafe} == {"host", "guest"}
    assert not left.actions


@pytest.mark.parametrize("made", [PartitionPlan({}), None])
def test_a_plan_that_leaves_a_job_undecided_stops_its_own_partition_alone_on_a_live_cluster(
    made: PartitionPlan | None,
) -> None:
    scene = Snapshot(
        0.0, {VC: part(nodes(1, 1), [waits("lost")]), "w": part(nodes(1, 1, "m"), [waits("a", vc="w")], name="w")}
    )
    good = start("m1:0")
    plans = {"w": PartitionPlan({"a": good}, (Action("a", "w", good),)), **({VC: made} if made else {})}
    with pytest.raises(UnsafePlan, match=r"does not decide it|decides none"):
        SafetyCheck(ANYTHING, settings())(scene, Plan(0.0, plans))
    left, unsafe = SafetyCheck(ANYTHING, settings()).safe_part(scene, Plan(0.0, plans))
    assert not unsafe
    assert ([action.job_id for action in left.actions], left.partitions["w"]) == (["a"], plans["w"])
    assert [type(reason) for reason in left.partitions[VC].decisions["lost"].reasons] == [Unplanned]
    assert left.partitions[VC].error


def stretchy(where: str, **limits: int) -> Running:
    entry = runs("e", where)
    return replace(entry, job=replace(entry.job, elastic=Elastic(**{"max_gpus": 4, **limits})))


def resized(entry: Running, where: str) -> PartitionPlan:
    decision = Resize(at(where), WHY)
    return PartitionPlan({"e": decision}, (Action("e", VC, decision),))


@pytest.mark.parametrize("where", ["n1:0", "n1:0-3", "n1:2-3 n2:0-1", "n1:1-2"])
def test_an_elastic_job_may_be_resized_within_its_limits_over_its_own_gpus(where: str) -> None:
    entry = stretchy("n1:0-1")
    check_plan(part(nodes(2, 4), running=[entry]), resized(entry, where))


@pytest.mark.parametrize(
    ("where", "limits", "words"),
    [
        ("n1:0-3 n2:0", {}, "takes 1 to 4 GPUs, and would get 5"),
        ("n1:0", {"min_gpus": 2}, "takes 2 to 4 GPUs, and would get 1"),
        ("n1:3 n2:3", {}, "held by ['b']"),
        ("n3:0", {}, "are not available"),
    ],
)
def test_a_resize_beyond_limits_or_onto_others_is_unsafe(where: str, limits: dict[str, int], words: str) -> None:
    entry = stretchy("n1:0-1", **limits)
    with pytest.raises(UnsafePlan, match=re.escape(words)):
        check_plan(part(nodes(2, 4), running=[entry, runs("b", "n2:3")]), resized(entry, where))


def test_a_job_that_is_not_elastic_is_not_resized() -> None:
    entry = runs("e", "n1:0-1")
    with pytest.raises(UnsafePlan, match="cannot resize it"):
        check_plan(part(nodes(2, 4), running=[entry]), resized(entry, "n1:0-1"))


def test_an_elastic_job_in_a_pair_is_not_resized() -> None:
    entry = replace(stretchy("n1:0-1"), partner="b")
    with pytest.raises(UnsafePlan, match="cannot resize it"):
        check_plan(part(nodes(2, 4), running=[entry]), resized(entry, "n1:0-1"))


def test_gpus_that_a_resize_gives_up_are_free_for_others_in_the_same_plan() -> None:
    entry = stretchy("n1:0-1")
    less, start = Resize(at("n1:0"), WHY), Start(at("n1:1"), WHY)
    plan = PartitionPlan({"p": start, "e": less}, (Action("p", VC, start), Action("e", VC, less)))
    check_plan(part(nodes(2, 4), [waits("p")], [entry]), plan)
