"""Policies that lie, and policies that forget to say what they do: nothing of it gets past the safety check."""

from __future__ import annotations

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
    Regroup,
    Requeue,
    Resize,
    Start,
)
from lucid.core.job import Elastic, JobProfile, Pending, Running, Stage
from lucid.core.snapshot import Partition, Snapshot
from lucid.orchestrator.cycle import Cycle
from lucid.orchestrator.policy import PolicyRules
from scenes.hostile import LIES, WHY, Says, Still, done, start
from scenes.jobs import LIGHT, VC, at, nodes, runs, waits
from scenes.plans import ANYTHING, FixedPredictor, part, settings, snap


def elastic(name: str, where: str) -> Running:
    entry = runs(name, where)
    return replace(entry, job=replace(entry.job, elastic=Elastic(4)))


def pair(name: str, other: str, where: str, **rest: Any) -> tuple[Running, Running]:
    return tuple(runs(a, where, profile=LIGHT, partner=b, job=rest) for a, b in ((name, other), (other, name)))  # type: ignore[return-value]


HOME = part(
    nodes(3, 4),
    [waits("p", profile=LIGHT), waits("q", profile=LIGHT)],
    [
        runs("r", "n1:0", profile=LIGHT),
        elastic("e", "n1:1"),
        *pair("x", "y", "n1:2"),
        runs("g", "n1:3", group=("g", "h"), profile=LIGHT, job={"takes_turns": True}),
        runs("h", "n1:3", group=("g", "h"), profile=LIGHT, job={"takes_turns": True}),
    ],
)
ROOM = part(nodes(1, 4, "p"), [waits("new")], [runs("old", "p1:0", stage=Stage.PROFILE)], "prof", profiling=True)
BEYOND_STARTS: dict[str, Decision] = {
    "requeues": Requeue(WHY),
    "resizes": Resize(at("n2:0-1"), WHY),
    "moves": Regroup(at("n2:0"), WHY),
    "regroups": Regroup(at("n1:0"), WHY),
    "parts": Requeue(WHY, part=True),
    "starts beside": start("n1:0", "r"),
    "starts in slots": start("n2:0", slots=True),
    "starts in a group": start("n1:3", group=("g", "h", "p")),
    "releases": EndProfiling(WHY),
    "keeps": Keep(WHY),
    "lends profiling nodes": start("p1:1"),
}
WHOM = {
    "requeues": "r", "resizes": "e", "moves": "r", "regroups": "r", "parts": "x", "starts beside": "p",
    "starts in slots": "p", "starts in a group": "p", "releases": "old", "keeps": "old", "lends profiling nodes": "p",
}  # fmt: skip


def told(kind: str) -> dict[str, dict[str, Decision]]:
    where = "prof" if kind in ("releases", "keeps", "lends profiling nodes") else VC
    made = {where: {WHOM[kind]: BEYOND_STARTS[kind]}}
    if kind == "starts in a group":
        made[VC] |= {job: Regroup(at("n1:3"), WHY, ("g", "h", "p")) for job in "gh"}
    return made


@pytest.mark.parametrize("kind", BEYOND_STARTS)
def test_a_policy_that_states_no_rules_may_only_start_jobs(kind: str) -> None:
    assert WHOM[kind] in done(snap(0.0, HOME, ROOM), told(kind), profiling={"restarts": "allowed"})
    assert done(snap(0.0, HOME, ROOM), told(kind), None, profiling={"restarts": "allowed"}) == {}
    assert done(snap(0.0, HOME, ROOM), told(kind), PolicyRules()) == {}


def test_a_policy_that_states_no_rules_starts_jobs() -> None:
    assert done(snap(0.0, HOME, ROOM), {VC: {"p": start("n2:0")}, "prof": {"new": start("p1:1")}}, None).keys() == {
        "p", "new",
    }  # fmt: skip


# -- whom it stops, whatever it says -------------------------------------------------------------------------------


def live(partition: Partition, slots: int = 4) -> Partition:
    """The same on Slurm, whose GPUs have slots."""
    return replace(partition, nodes=tuple(replace(node, slots=slots) for node in partition.nodes))


@pytest.mark.parametrize(
    ("job", "facts", "rule", "may"),
    [
        ("preempted", {}, "never", False),
        ("preempted", {}, "asked", False),
        ("preempted", {"restart_asked": True}, "asked", True),
        ("preempted", {}, "allowed", True),
        ("preempted", {"requeueable": False}, "allowed", False),
        ("parted", {}, "never", False),
        ("parted", {}, "allowed", True),
        ("parted", {"requeueable": False}, "allowed", False),
    ],
)
def test_on_slurm_nobody_is_started_over_whom_the_settings_protect(
    job: str, facts: dict[str, Any], rule: str, may: bool
) -> None:
    room = live(part(nodes(1, 4), [], [runs("preempted", "n1:0", job=facts), *pair("parted", "b", "n1:1", **facts)]))
    decisions = {VC: {job: Requeue(WHY, part=job == "parted")}}
    assert bool(done(snap(0.0, room), decisions, profiling={"restarts": rule})) is may


@pytest.mark.parametrize("room", [HOME, live(HOME)], ids=["replay", "live"])
def test_who_says_that_it_stops_elastic_jobs_stops_no_other(room: Partition) -> None:
    rules = replace(ANYTHING, preempts="elastic")
    decisions = {VC: {"r": Requeue(WHY), "e": Requeue(WHY)}}
    assert done(snap(0.0, room), decisions, rules, profiling={"restarts": "allowed"}).keys() == {"e"}
    assert done(snap(0.0, room), decisions, ANYTHING, profiling={"restarts": "never"}).keys() >= {"e"}
    assert done(snap(0.0, room), decisions, None) == {}


def test_only_who_is_in_a_pair_is_parted() -> None:
    assert done(snap(0.0, HOME), {VC: {"r": Requeue(WHY, part=True)}}) == {}


def test_on_slurm_nobody_is_moved() -> None:
    assert done(snap(0.0, live(HOME)), {VC: {"r": Regroup(at("n2:0"), WHY)}}) == {}


# -- who shares ------------------------------------------------------------------------------------------------------


def beside(
    guest: Pending, host: Running, scores: tuple[int | None, int | None] = (0, 0), slots: int = 0, **packing: Any
) -> bool:
    """Does a guest get to share, if the policy says so?"""
    room = part(nodes(2, 4, slots=slots), [guest], [host])
    seen = snap(0.0, room)
    both = zip((guest.job.id, host.job.id), scores, strict=True)
    seen = replace(
        seen, predictions={job: structs.replace(seen.predictions[job], share_score=score) for job, score in both}
    )
    decision = Start(host.placement, LIES, host.job.id, slots=True)
    return bool(done(seen, {VC: {guest.job.id: decision}}, packing=packing))


def a_guest(**facts: Any) -> Pending:
    return waits("guest", profile=facts.pop("profile", LIGHT), alone=facts.pop("alone", False), **facts)


def a_host(where: str = "n1:0", **facts: Any) -> Running:
    return runs("host", where, profile=facts.pop("profile", LIGHT), alone=facts.pop("alone", False), job=facts)


SHAKY = replace(LIGHT, unstable=True)
BIG = JobProfile(10.0, 5.0, 13000.0)


@pytest.mark.parametrize(
    ("scene", "may"),
    [
        ((a_guest(), a_host()), True),
        ((a_guest(), a_host(), (2, 0)), True),
        ((a_guest(), a_host(), (2, 1)), False),
        ((a_guest(), a_host(), (0, None)), False),
        ((a_guest(), a_host(), (None, 0)), False),
        ((a_guest(shareable=False), a_host()), False),
        ((a_guest(), a_host(shareable=False)), False),
        ((a_guest(alone=True), a_host()), False),
        ((a_guest(), a_host(alone=True)), False),
        ((a_guest(profile=SHAKY), a_host()), False),
        ((a_guest(), a_host(profile=SHAKY)), False),
        ((a_guest(profile=BIG), a_host(profile=BIG)), False),
        ((a_guest(gpus=2), a_host("n1:0 n2:0")), False),
    ],
)
def test_a_pair_is_made_by_the_settings_and_by_what_was_measured(scene: tuple[Any, ...], may: bool) -> None:
    assert beside(*scene) is may


@pytest.mark.parametrize(
    ("packing", "slots", "may"),
    [
        ({"gss": 0}, 0, False),
        ({"same_user_only": True}, 0, False),
        ({"same_user_only": False}, 2, True),
        ({}, 1, False),
    ],
)
def test_who_may_share_is_the_administrators_word(packing: dict[str, Any], slots: int, may: bool) -> None:
    assert beside(a_guest(user="ada"), a_host(user="eve"), slots=slots, **packing) is may


@pytest.mark.parametrize(
    ("facts", "may"),
    [({}, True), ({"takes_turns": False}, False), ({"user": "eve"}, False), ({"profile": None}, False)],
)
def test_on_slurm_a_group_has_willing_measured_members_of_one_user(facts: dict[str, Any], may: bool) -> None:
    third = {"takes_turns": True, "user": "ada", "profile": LIGHT, **facts}
    members = [
        runs(job, "n1:0", group=("a", "b"), profile=LIGHT, job={"takes_turns": True, "user": "ada"}) for job in "ab"
    ]
    room = live(part(nodes(1, 4), [waits("c", **third)], members))
    whole = ("a", "b", "c")
    decisions: dict[str, Decision] = {job: Regroup(at("n1:0"), WHY, whole) for job in "ab"}
    decisions["c"] = start("n1:0", group=whole, slots=True)
    found = done(snap(0.0, room), {VC: decisions}, packing={"same_user_only": True})
    assert (found.keys() == {"a", "b", "c"}) is may
    assert may or "c" not in found


# -- who may not start at all ----------------------------------------------------------------------------------------


def test_a_job_that_slurm_bars_is_not_started() -> None:
    barred = replace(waits("p"), barred="Licenses", retry_s=99.0)
    assert done(snap(0.0, part(nodes(1), [barred])), {VC: {"p": start("n1:0")}}) == {}


def test_a_job_that_is_to_start_at_home_starts_on_no_profiling_node() -> None:
    home = part(nodes(1), [replace(waits("p"), home_only=True)])
    assert done(snap(0.0, home, ROOM), {"prof": {"p": start("p1:1")}}) == {}


@pytest.mark.parametrize("out", ["down", "drained", "reserved"])
def test_nobody_starts_where_nothing_may_start(out: str) -> None:
    room = part(nodes(1, available=False, out=out), [waits("p")])
    assert done(snap(0.0, room), {VC: {"p": start("n1:0")}}) == {}


def test_a_hold_that_is_to_be_carried_out_is_no_action() -> None:
    room = part(nodes(1), [], [runs("old", "n1:0", stage=Stage.PROFILE)], profiling=True)

    class Strange(Says):
        def plan(self, snapshot: Snapshot) -> Plan:
            hold = Hold(WHY)
            return Plan(0.0, {VC: PartitionPlan({"old": hold}, (Action("old", VC, hold),))})  # type: ignore[arg-type]

    cycle = Cycle(Still(snap(0.0, room)), FixedPredictor(), Strange({}, ANYTHING), settings(), tolerant=True)
    assert not cycle.run().applied


def test_a_plan_that_passed_is_checked_again_where_the_job_has_started_elsewhere_since() -> None:
    """The profiling partition has not changed, and the plan for it is the old one: its job runs at home by now."""
    lent, moved = start("p1:1"), {VC: {}, "prof": {"p": start("p1:1")}}
    moved["prof"]["p"] = lent
    home, room = part(nodes(1), [waits("p")]), part(nodes(1, 4, "p"), [], [], "prof", profiling=True)

    class Kept(Says):
        first: PartitionPlan | None = None

        def plan(self, snapshot: Snapshot) -> Plan:
            plan = super().plan(snapshot)
            self.first = self.first or plan.partitions["prof"]
            return structs.replace(plan, partitions={**plan.partitions, "prof": self.first})

    cluster = Still(snap(0.0, home, room))
    cycle = Cycle(cluster, FixedPredictor(), Kept(moved, ANYTHING), settings(), tolerant=True)
    assert len(cycle.run().applied) == 1
    cluster.snapshot = snap(1.0, part(nodes(1), [], [runs("p", "n1:0")]), room)
    assert len(cycle.run().applied) == 0


def test_a_plan_that_passed_is_checked_again_where_nobody_decides_a_job_any_more() -> None:
    home, room = part(nodes(1), [waits("p")]), part(nodes(1, 4, "p"), [], [], "prof", profiling=True)
    nothing, lent = PartitionPlan({}), start("p1:1")

    class Forgets(Says):
        def plan(self, snapshot: Snapshot) -> Plan:
            mine = PartitionPlan({"p": lent}, (Action("p", "prof", lent),)) if snapshot.now_s == 0.0 else nothing
            return Plan(snapshot.now_s, {VC: nothing, "prof": mine})

    cluster = Still(snap(0.0, home, room))
    cycle = Cycle(cluster, FixedPredictor(), Forgets({}, ANYTHING), settings(), tolerant=True)
    cycle.run()
    cluster.snapshot = snap(1.0, home, room)
    assert "does not decide it" in cycle.run().plan.partitions[VC].error
