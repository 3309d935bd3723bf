"""Policies that lie, and policies that forget to say what they do: nothing of it gets past the safety check."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest

from lucid.core.decision import Action, Decision, Hold, Keep, PartitionPlan, Plan, Regroup, Release, Requeue, Resize
from lucid.core.decision import Start as _Start
from lucid.core.job import Elastic, JobProfile, Pending, Running, Stage
from lucid.core.ports import Applied, Capability
from lucid.core.reason import Borrows, FairOrder, LargeBorrows, PlainOrder, ShareScores
from lucid.core.snapshot import Partition, Snapshot
from lucid.orchestrator.cycle import Cycle
from lucid.orchestrator.rules import PolicyRules
from scenes.jobs import LIGHT, VC, at, nodes, runs, waits
from scenes.plans import ANYTHING, FixedPredictor, part, settings, snap

NEEDS = frozenset(Capability) - {Capability.ADAPT, Capability.ORACLE}
WHY = (FairOrder(0.0),)
LIES = (
    FairOrder(0.0),
    PlainOrder(0.0, 9e9, 1.0, 2.0),
    LargeBorrows(99, 1, 9e9),
    Borrows(0.0, 9e9),
    ShareScores(0, 0, 4),
)


class Says:
    """A policy that plans what it is told."""

    name = "says"

    def __init__(self, decisions: Mapping[str, Mapping[str, Decision]], rules: PolicyRules | None) -> None:
        self.decisions = decisions
        self.needs = NEEDS if rules not in (None, PolicyRules()) else frozenset[Capability]()
        self.profiled: Callable[..., bool] = lambda job: False
        if rules is not None:
            self.rules = rules

    def plan(self, snapshot: Snapshot) -> Plan:
        parts = {}
        for name, partition in snapshot.partitions.items():
            told = self.decisions.get(name, {})
            elsewhere = {job for other, made in self.decisions.items() if other != name for job in made}
            holds = {e.job.id: Hold(WHY) for e in partition.pending if e.job.id not in elsewhere}
            actions = tuple(Action(job, name, d) for job, d in told.items() if not isinstance(d, Hold))
            parts[name] = PartitionPlan({**holds, **told}, actions)
        return Plan(snapshot.now_s, parts)


@dataclass
class Still:
    """A cluster that shows one thing and does nothing."""

    snapshot: Snapshot
    capabilities: frozenset[Capability] = NEEDS

    def observe(self) -> Snapshot:
        return self.snapshot

    def apply(self, actions: Sequence[Action]) -> list[Applied]:
        return [Applied(action) for action in actions]


def done(
    seen: Snapshot,
    decisions: Mapping[str, Mapping[str, Decision]],
    rules: PolicyRules | None = ANYTHING,
    **sections: Any,
) -> dict[str, Decision]:
    """What a live cluster is told to do, by job, where a policy decides this."""
    predictor = FixedPredictor(
        {job: known.duration_s for job, known in seen.predictions.items()},
        {job: known.share_score for job, known in seen.predictions.items()},
    )
    cycle = Cycle(Still(seen), predictor, Says(decisions, rules), settings(**sections), tolerant=True)
    return {item.action.job_id: item.action.decision for item in cycle.run().applied}


def start(where: str, beside: str | None = None, **rest: Any) -> _Start:
    return _Start(at(where), LIES, beside, **rest)


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
    "releases": Release(WHY),
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


def test_who_says_that_it_stops_elastic_jobs_stops_no_other() -> None:
    rules = replace(ANYTHING, preempts="elastic")
    decisions = {VC: {"r": Requeue(WHY), "e": Requeue(WHY)}}
    assert done(snap(0.0, live(HOME)), decisions, rules, profiling={"restarts": "never"}).keys() == {"e"}


def test_only_who_is_in_a_pair_is_parted() -> None:
    assert done(snap(0.0, HOME), {VC: {"r": Requeue(WHY, part=True)}}) == {}


def test_on_slurm_nobody_is_moved() -> None:
    assert done(snap(0.0, live(HOME)), {VC: {"r": Regroup(at("n2:0"), WHY)}}) == {}


# -- who shares ------------------------------------------------------------------------------------------------------

SCORED = {"p": 0, "q": 0, "r": 0}


def beside(
    guest: Pending, host: Running, scores: tuple[int | None, int | None] = (0, 0), slots: int = 0, **packing: Any
) -> bool:
    """Does a guest get to share, if the policy says so?"""
    room = part(nodes(2, 4, slots=slots), [guest], [host])
    seen = snap(0.0, room)
    both = zip((guest.job.id, host.job.id), scores, strict=True)
    seen = replace(seen, predictions={job: replace(seen.predictions[job], share_score=score) for job, score in both})
    decision = _Start(host.placement, LIES, host.job.id, slots=True)
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


# -- quotas ----------------------------------------------------------------------------------------------------------

LENDS: dict[str, Any] = {"lending": {"mode": "borrow", "longest_s": 1000.0, "bound_s": 4000.0}}


def pool(
    now_s: float, *pending: Pending, quota: int = 16, predicted_s: float = 90_000.0, **sections: Any
) -> set[str]:
    """Who starts in a pool whose VC a holds its whole quota, if the policy says that all may."""
    running = [runs(f"r{i}", f"n{i + 1}:0-7", job={"vc": "a"}) for i in range(quota // 8)]
    room = replace(part(nodes(12), pending, running, "pool"), quotas={"a": quota, "b": 96 - quota})
    seen = snap(now_s, room)
    guesses = {e.job.id: replace(seen.predictions[e.job.id], duration_s=predicted_s) for e in pending}
    seen = replace(seen, predictions={**seen.predictions, **guesses})
    decisions: dict[str, Decision] = {}
    node = quota // 8
    for entry in pending:
        wanted = -(-entry.job.gpus // 8)
        names = [f"n{node + i + 1}:0-{min(entry.job.gpus, 8) - 1}" for i in range(wanted)]
        node += wanted
        decisions[entry.job.id] = start(" ".join(names))
    return set(done(seen, {"pool": decisions}, **{**LENDS, **sections}))


def mine(name: str, gpus: int = 8, submit_s: float = 0.0, **rest: Any) -> Pending:
    return waits(name, gpus, submit_s, vc="a", **rest)


def test_a_turn_is_not_what_a_plan_calls_one() -> None:
    """In plain order nobody starts before he was submitted: no turn comes before half of the bound is over."""
    assert pool(1999.0, mine("j")) == set()
    assert pool(2000.0, mine("j")) == {"j"}
    assert pool(9999.0, mine("j"), lending={**LENDS["lending"], "bound_s": None}) == set(), "no bound, no turn"
    assert pool(2000.0, mine("j"), fairness={"keep_from": 1.0}) == set()


def test_who_goes_beyond_a_quota_in_his_turn_holds_no_more_than_plain_order_could_have_given_the_vc() -> None:
    assert pool(2000.0, *(mine(name) for name in "jkl")) == {"j", "k"}
    home = replace(part(nodes(9), [mine(name) for name in "jkl"], name="pool"), quotas={"a": 8, "b": 64})
    decisions: dict[str, Decision] = {name: start(f"n{i + 2}:0-7") for i, name in enumerate("jkl")}
    said, cluster = Says({"pool": decisions}, ANYTHING), Still(snap(2000.0, home))
    cycle = Cycle(cluster, FixedPredictor(otherwise_s=90_000.0), said, settings(**LENDS), tolerant=True)
    ran = [item.action.job_id for item in cycle.run().applied]
    assert ran == ["j", "k"], "one within the quota, one in its turn"
    running = [runs(name, f"n{i + 2}:0-7", job={"vc": "a"}) for i, name in enumerate("jk")]
    cluster.snapshot = snap(9999.0, replace(home, pending=(mine("l"),), running=tuple(running)))
    said.decisions = {"pool": {"l": decisions["l"]}}
    assert not cycle.run().applied, "and this one has its GPUs yet"


def test_of_the_large_jobs_the_one_that_has_waited_longest_borrows_and_no_other() -> None:
    line = (mine("small"), mine("later", 16, 2.0), mine("first", 16, 1.0), mine("last", 16, 3.0))
    assert pool(100.0, *line) == {"first"}
    assert pool(100.0, *line, lending={**LENDS["lending"], "large": False}) == set()
    assert pool(100.0, *line, reservation={"above_gpus": 16}) == set()
    barred = replace(mine("barred", 16), barred="AssocGrpGRES")
    assert pool(100.0, barred, *line) == {"first"}, "one that Slurm bars does not stand before others"


def test_what_is_lent_is_the_administrators_word() -> None:
    assert pool(100.0, mine("j"), predicted_s=1000.0) == {"j"}
    assert pool(100.0, mine("j"), predicted_s=1001.0) == set()
    assert pool(9999.0, mine("j"), predicted_s=1.0, lending={"mode": "quota", "bound_s": None}) == set()
    assert pool(9999.0, mine("j", 24), predicted_s=1.0) == set(), "larger than its VC's quota"


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
            return replace(plan, partitions={**plan.partitions, "prof": self.first})

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
    with pytest.raises(Exception, match="does not decide it"):
        cycle.run()
