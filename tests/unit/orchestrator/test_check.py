"""Every safety rule: a plan that keeps it passes, and one that breaks it is refused by job and resource."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest

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
from lucid.core.gpu import GpuOut
from lucid.core.job import Elastic, Pending, Running, Stage, Yields
from lucid.core.node import Node, Window
from lucid.core.snapshot import Partition, Snapshot
from lucid.errors import UnsafePlan
from lucid.orchestrator.cycle import Cycle
from lucid.orchestrator.policy import PolicyRules
from lucid.orchestrator.safety.check import SafetyCheck
from scenes.hostile import WHY, Says, Still, done, start
from scenes.jobs import LIGHT, VC, at, by, nodes, runs, waits
from scenes.plans import ANYTHING, FixedPredictor, guess, kinds, part, settings, snap
from scenes.replays import a_cluster, a_trace

Told = dict[str, Decision]
BIG = replace(LIGHT, gpu_mem_mib=13000.0)
SHAKY = replace(LIGHT, unstable=True)
STOP, PART, END, KEEP = Requeue(WHY), Requeue(WHY, part=True), EndProfiling(WHY), Keep(WHY)


def resize(where: str) -> Resize:
    return Resize(at(where), WHY)


def regroup(where: str, group: str = "") -> Regroup:
    return Regroup(at(where), WHY, tuple(group))


def join(where: str, group: str) -> Start:
    return start(where, group=tuple(group), slots=True)


def together(where: str, group: str, decide: Any = join) -> Told:
    return {name: decide(where, group) for name in group}


def pair(one: str, other: str, where: str, **rest: Any) -> list[Running]:
    return [runs(a, where, profile=LIGHT, partner=b, job=rest) for a, b in ((one, other), (other, one))]


def with_slots(partition: Partition, slots: int = 4) -> Partition:
    """The same on Slurm, whose GPUs have slots."""
    return replace(partition, nodes=tuple(replace(node, slots=slots) for node in partition.nodes))


ROOM = part(
    (*nodes(2, 4, cpus=8, mem_mib=64000), Node("down1", 4, available=False)),
    [
        waits("p1", profile=LIGHT, cpus=1), waits("p2", 2, profile=LIGHT), waits("p3", profile=LIGHT),
        waits("p4", profile=BIG), waits("p5"), waits("p6", cpus=9), waits("p7", mem_mib=65000),
        replace(waits("p8"), barred="Licenses", retry_s=99.0), waits("p9", 2, min_nodes=2),
    ],
    [
        runs("r1", "n1:0", profile=LIGHT), runs("r2", "n1:1-2", profile=LIGHT), *pair("r3", "r4", "n2:0"),
        runs("r5", "n2:1", profile=BIG), runs("r6", "n2:2"),
    ],
)  # fmt: skip


def stretchy(where: str, partner: str | None = None, **limits: int) -> Partition:
    entry = runs("e", where, partner=partner)
    entry = replace(entry, job=replace(entry.job, elastic=Elastic(**{"max_gpus": 4, **limits})))
    return part(nodes(2, 4), [waits("p")], [entry, runs("b", "n2:3"), runs("rigid", "n2:2")])


TURNS = part(
    nodes(4, 4),
    [*(waits(name, 2, takes_turns=True, user="ada", profile=LIGHT) for name in "abcde"), waits("o", profile=LIGHT),
     waits("s", 2, shareable=False, profile=LIGHT), waits("u", 2, profile=BIG), waits("v", 2, profile=BIG)],
    [
        *(runs(n, "n2:0-1", group=("x", "y"), profile=LIGHT, job={"takes_turns": True, "user": "ada"}) for n in "xy"),
        runs("z", "n2:2-3", profile=LIGHT, job={"takes_turns": True, "user": "ada"}), *pair("p", "q", "n3:0"),
    ],
)  # fmt: skip


def third(**facts: Any) -> Partition:
    """On Slurm, with one that would join x and y."""
    guest = waits("c", 2, **{"takes_turns": True, "user": "ada", "profile": LIGHT, **facts})
    return with_slots(replace(TURNS, pending=(guest,)))


THIRD = {"c": join("n2:0-1", "xyc"), "x": regroup("n2:0-1", "xyc"), "y": regroup("n2:0-1", "xyc")}
ONE_USER = {"packing": {"same_user_only": True}}


def beside(guest: Pending | None = None, host: Running | None = None) -> Partition:
    there = [host or runs("host", "n1:0", profile=LIGHT)]
    return part(nodes(2, 4), [guest or waits("guest", profile=LIGHT)], there)


def guest(**facts: Any) -> Partition:
    return beside(waits("guest", **{"profile": LIGHT, **facts}))


def host(where: str = "n1:0", **facts: Any) -> Partition:
    return beside(host=runs("host", where, **{"profile": LIGHT, **facts}))


BESIDE: Told = {"guest": start("n1:0", "host", slots=True)}
MAINT = Window(1200.0, 8400.0, "maintenance m1")
CLOSES = part([Node("n1", 4, windows=(MAINT,)).at(0.0)], [waits("p", time_limit_s=3600.0), waits("for ever")])
OUT = GpuOut("n1", 2, 50.0, "Xid 79, fallen off the bus", ends_jobs=True)
ILL = part([Node("n1", 4, slots=2, left_out=(OUT,))], [waits("p", 2)], [runs("on", "n1:2")])


def gives_way(s: Yields | None = None, **rest: Any) -> Partition:
    """Jobs of another partition that give way to the owner's."""
    there = [runs(name, where, job={"vc": "scav"}, yields=Yields()) for name, where in (("s", "n1:0"), ("t", "n1:1"))]
    there[0] = replace(there[0], **{"yields": s or Yields(), **rest})
    return part(nodes(1, 4), [waits("o"), waits("o3", 3)], there)


def claims(where: str, *victims: str, **rest: Any) -> Start:
    return start(where, preempts=victims, **rest)


def row(
    words: str,
    told: Told,
    room: Partition = ROOM,
    rules: PolicyRules = ANYTHING,
    scores: Mapping[str, int | None] | None = None,
    **sections: Any,
) -> Any:
    """What a plan decides, all others waiting, and what the check says of it: nothing if it is safe."""
    known = {job: guess(1000.0, score) for job, score in (scores or {}).items()}
    name = f"{' '.join(told) or 'nothing'}: {words or 'safe'}"
    return pytest.param(words, snap(0.0, room, predictions=known), {VC: told}, rules, sections, id=name)


def restarts(words: str, job: str, rule: str, **facts: Any) -> Any:
    room = with_slots(part(nodes(1, 4), (), [runs("r", "n1:0", job=facts), *pair("a", "b", "n1:1", **facts)]))
    return row(words, {job: PART if job == "a" else STOP}, room, profiling={"restarts": rule})


PROFILING = part(nodes(1, 4, "p"), (), [runs("old", "p1:0", stage=Stage.PROFILE), runs("on", "p1:1")], profiling=True)
OVER = "policy.profiling.restarts"
ROWS = [
    row("", {}),
    row("", {"p1": start("n1:3"), "p3": start("n2:3")}),
    row("", {"p2": start("n1:1-2", "r2")}),
    row("", {"p1": start("n1:0", "r1")}),
    row("", {"p1": start("n1:3"), "p3": start("n1:3", "p1")}),
    row("", {"r1": STOP, "p5": start("n1:0")}),
    row("", {"r3": PART, "p1": start("n2:0", "r4")}),
    row("", {"r3": STOP, "r4": STOP, "p5": start("n2:0")}),
    row("p5: its GPUs are held by ['r1']", {"p5": start("n1:0")}),
    row("p5: its GPUs are held by ['p1']", {"p1": start("n1:3"), "p5": start("n1:3")}),
    row("p1: it would share its GPUs with ['r3', 'r4']", {"p1": start("n2:0", "r3")}),
    row("p3: it would share its GPUs with ['p1', 'r1']", {"p1": start("n1:0", "r1"), "p3": start("n1:0", "r1")}),
    row("p1: it would share its GPUs with [], and the plan names 'r1'", {"p1": start("n1:3", "r1")}),
    row("p1: it and its partner r2 would hold different GPUs", {"p1": start("n1:1", "r2")}),
    row("p2: it would share its GPUs with ['r1', 'r2'], and", {"p2": start("n1:0-1", "r1")}),
    row("p2: it and its partner r2 would hold different GPUs", {"p2": start("n1:2-3", "r2")}),
    row("p4 and r5: their peaks of 26000 MiB do not fit on a GPU of 'n2'", {"p4": start("n2:1", "r5")}),
    row("p5: it would share GPUs, but its GPU memory has not been measured", {"p5": start("n1:0", "r1")}),
    row("r6: it would share GPUs, but its GPU memory has not been measured", {"p1": start("n2:2", "r6")}),
    row("p6: node 'n1' has too few CPUs", {"p6": start("n1:3")}),
    row("p7: node 'n1' has too few CPUs or too little host memory", {"p7": start("n1:3")}),
    row("p1: GPUs 0b1 of node 'nowhere' are not available", {"p1": start("nowhere:0")}),
    row("p1: GPUs 0b1 of node 'down1' are not available", {"p1": start("down1:0")}),
    row("p1: GPUs 0b10000 of node 'n1' are not available", {"p1": start("n1:4")}),
    row("p1: it asked for 1 GPUs, and would get 2", {"p1": start("n1:3 n2:3")}),
    row("p2: it asked for 2 GPUs, and would get 1", {"p2": start("n1:3")}),
    row("p2: its placement names one node twice", {"p2": start("n2:3 n2:3")}),
    row("r1: the plan cannot start it", {"r1": start("n1:3")}),
    row("p1: the plan cannot requeue it", {"p1": STOP}),
    row("r1: the plan cannot release it", {"r1": END}),
    row("p1: the plan cannot release it", {"p1": END}),
    row("r1: the plan cannot keep it", {"r1": KEEP}),
    row("ghost: the plan cannot start it", {"ghost": start("n1:3")}),
    row("ghost: the plan cannot requeue it", {"ghost": STOP}),
    row("p8: the plan starts it, and Slurm would not: Licenses", {"p8": start("n1:3")}),
    row("p9: it asked for 2 nodes, and would get 1", {"p9": start("n1:1-2")}),
    row("", {"p9": start("n1:3 n2:3")}),
    row("r1: the plan parts it from another, and it is alone", {"r1": PART}),
    row("", {"old": END}, PROFILING),
    row("", {"old": KEEP}, PROFILING, profiling={"restarts": "never"}),
    row("on: the plan cannot release it", {"on": END}, PROFILING),
    row("on: the plan cannot keep it", {"on": KEEP}, PROFILING, profiling={"restarts": "never"}),
    # what is overcommitted stops nobody who asks for none of it
    row("", {"p": start("n1:1")}, part(nodes(1, 4, cpus=4), [waits("p")], [runs("r", "n1:0", job={"cpus": 6})])),
    # elastic jobs
    *(row("", {"e": resize(where)}, stretchy("n1:0-1")) for where in ("n1:0", "n1:0-3", "n1:2-3 n2:0-1", "n1:1-2")),
    row("", {"p": start("n1:1"), "e": resize("n1:0")}, stretchy("n1:0-1")),
    row("e: it takes 1 to 4 GPUs, and would get 5", {"e": resize("n1:0-3 n2:0")}, stretchy("n1:0-1")),
    row("e: it takes 2 to 4 GPUs, and would get 1", {"e": resize("n1:0")}, stretchy("n1:0-1", min_gpus=2)),
    row("e: it takes 1 nodes at the most", {"e": resize("n1:0 n2:0")}, stretchy("n1:0", max_nodes=1)),
    row("e: its GPUs are held by ['b']", {"e": resize("n1:3 n2:3")}, stretchy("n1:0-1")),
    row("e: GPUs 0b1 of node 'n3' are not available", {"e": resize("n3:0")}, stretchy("n1:0-1")),
    row("e: the plan cannot resize it", {"e": resize("n1:0-1")}, stretchy("n1:0-1", "b")),
    row("rigid: the plan cannot resize it", {"rigid": resize("n2:2")}, stretchy("n1:0-1")),
    # windows, and GPUs that are left out
    row("p: it has a time limit of 3600 s, and node 'n1' closes in 1200 s", {"p": start("n1:0")}, CLOSES),
    row("for ever: it has no time limit, and node", {"for ever": start("n1:0")}, CLOSES),
    row("", {"p": start("n1:0-1")}, ILL),
    row("p: of GPUs 0b110 of node 'n1' one is left out of new starts", {"p": start("n1:1-2")}, ILL),
    row(f"on: the plan starts it over, which {OVER} = 'asked' forbids", {"on": STOP}, ILL, PolicyRules()),
    *(
        row("p: GPUs 0b1 of", {"p": start("n1:0")}, part(nodes(1, available=False, out=out), [waits("p")]))
        for out in ("drained", "reserved")
    ),
    # groups
    row("", together("n1:0-1", "abcd"), TURNS),
    row("", together("n2:0-1", "xyz", regroup), TURNS),
    row("", {**together("n2:0-1", "xya", regroup), "a": join("n2:0-1", "xya")}, TURNS),
    row("", {"x": STOP, "y": regroup("n2:0-1")}, TURNS),
    row("", {"x": regroup("n1:0-1"), "y": regroup("n1:2-3")}, TURNS),
    row("", {**together("n2:2-3", "xy", regroup), "z": regroup("n2:0-1")}, TURNS),
    row("it has 5 jobs; the policy may interleave 2 to 4", together("n1:0-1", "abcde"), TURNS),
    row("group a: it has 1 jobs", together("n1:0-1", "a"), TURNS),
    row("group a a: it has 2 jobs", {"a": join("n1:0-1", "aa")}, TURNS),
    row("job a: it runs in group b c, which", {"a": join("n1:2-3", "bc"), **together("n1:0-1", "bc")}, TURNS),
    row("job b is not in it but in b a", {"a": join("n1:0-1", "ab"), "b": join("n1:0-1", "ba")}, TURNS),
    row("job b holds other GPUs than", {"a": join("n1:0-1", "ab"), "b": join("n1:1-2", "ab")}, TURNS),
    row("job o holds other GPUs than", {"a": join("n1:0-1", "ao"), "o": join("n1:0", "ao")}, TURNS),
    row("group a b: b would not run", {"a": join("n1:0-1", "ab")}, TURNS),
    row("a: its GPUs are held by", together("n2:1-2", "ab"), TURNS),
    row("group x y: x would not run; the group must be formed anew", {"x": STOP}, TURNS),
    row("job x is not in it but in none", {"x": regroup("n1:0-1")}, TURNS),
    row("is not the group's alone", {"a": join("n2:0-1", "xya")}, TURNS),
    row("job s may not be shared", together("n1:0-1", "as"), TURNS),
    row("its memory peaks of 26000 MiB in all do not fit", together("n1:0-1", "uv"), TURNS),
    row("p: the plan cannot regroup it", {"p": regroup("n1:0")}, TURNS),
    *(row(f"2 to {n}", together("n1:0-1", "abcd"), TURNS, replace(ANYTHING, group_limit=n)) for n in (1, 2, 3)),
    row("", {"a": start("n1:0-1")}, TURNS, replace(ANYTHING, group_limit=1)),
    row("", THIRD, third(), **ONE_USER),
    row("job c has not said that it takes turns", THIRD, third(takes_turns=False)),
    row("job c has not been measured", THIRD, third(profile=None)),
    row("job c is of another user than job x", THIRD, third(user="eve"), **ONE_USER),
    row("", THIRD, third(user="eve"), packing={"same_user_only": False}),
    row("3 jobs, and a GPU of 'n2' has 2 slots", THIRD, with_slots(third(), 2)),
    row("", together("n1:0-1", "ab"), with_slots(TURNS, 2)),
    row("z: the plan moves it to other GPUs", {"z": regroup("n1:0-1")}, third()),
    # pairs
    row("", BESIDE, guest()),
    row("", BESIDE, guest(), scores={"guest": 2, "host": 0}),
    row("add up to 3, and policy.packing.gss is 2", BESIDE, guest(), scores={"guest": 2, "host": 1}),
    row("host: it would share GPUs, but it has no share score", BESIDE, guest(), scores={"host": None}),
    row("guest: it would share GPUs, but it has no share score", BESIDE, guest(), scores={"guest": None}),
    row("guest: it would share GPUs, which its user forbids", BESIDE, guest(shareable=False)),
    row("host: it would share GPUs, which its user forbids", BESIDE, host(job={"shareable": False})),
    row("guest: it would share GPUs, which was parted before", BESIDE, guest(alone=True)),
    row("host: it would share GPUs, which was parted before", BESIDE, host(alone=True)),
    row("guest: it would share GPUs, which is unstable", BESIDE, guest(profile=SHAKY)),
    row("host: it would share GPUs, which is unstable", BESIDE, host(profile=SHAKY)),
    row("on 2 nodes; pairs are on one", {"guest": start("n1:0 n2:0", "host")},
        beside(waits("guest", 2, profile=LIGHT), runs("host", "n1:0 n2:0", profile=LIGHT))),
    row("policy.packing.gss is 0", BESIDE, guest(), packing={"gss": 0}),
    row("are not of the same user", BESIDE, guest(user="eve"), **ONE_USER),
    row("", BESIDE, with_slots(guest(user="eve"), 2), packing={"same_user_only": False}),
    row("a GPU of 'n1' has one slot", BESIDE, with_slots(guest(), 1)),
    row("guest: it would share its GPUs with", {"host": start("n1:0"), "guest": start("n1:0", "host")},
        part(nodes(1, 1), [waits(name, profile=LIGHT) for name in ("host", "guest")], [runs("there", "n1:0")])),
    # who is stopped
    restarts(OVER, "r", "never", restart_asked=True),
    restarts(OVER, "r", "asked"),
    restarts("", "r", "asked", restart_asked=True),
    restarts("", "r", "allowed"),
    restarts(OVER, "r", "allowed", requeueable=False),
    restarts(OVER, "a", "never"),
    restarts("", "a", "allowed"),
    restarts(OVER, "a", "allowed", requeueable=False),
    *(
        row(words, {job: STOP}, room, replace(ANYTHING, preempts="elastic"), profiling={"restarts": rule})
        for room in (stretchy("n1:0"), with_slots(stretchy("n1:0")))
        for job, words, rule in (("e", "", "never"), ("rigid", "rules.preempts", "allowed"))
    ),
    # who is preempted by Slurm
    row("", {"o": claims("n1:0", "s")}, gives_way()),
    row("", {"o3": claims("n1:0-2", "s", "t")}, gives_way()),
    row("s, which does not give way", {"o": claims("n1:0", "s")}, gives_way(yields=None)),
    row("s, which does not give way", {"o": claims("n1:0", "s")}, gives_way(Yields(to=("high",)))),
    row("s, which may not be preempted for 5 s", {"o": claims("n1:0", "s")}, gives_way(Yields(5.0))),
    row("u, which does not run here", {"o": claims("n1:0", "u")}, gives_way()),
    row("t, which holds none of its GPUs", {"o": claims("n1:0", "s", "t")}, gives_way()),
    row("s, of which the plan decides something else", {"o": claims("n1:0", "s"), "s": STOP}, gives_way()),
    row("would not have its GPUs to itself", {"o": claims("n1:0", "s", slots=True)}, gives_way()),
    row("o3: its GPUs are held by ['t']", {"o3": claims("n1:0-2", "s")}, gives_way()),
    # a policy that states no rules may only start jobs
    *(
        row(rule, {job: decision}, room, PolicyRules(), profiling={"restarts": "allowed"})
        for rule, room, job, decision in (
            ("", TURNS, "o", start("n1:0")), ("preempts", TURNS, "z", STOP), ("pairs", TURNS, "p", PART),
            ("pairs", TURNS, "b", start("n2:2-3", "z")), ("pairs", TURNS, "o", start("n1:0", slots=True)),
            ("interleaves", TURNS, "z", regroup("n1:0-1")), ("interleaves", TURNS, "x", regroup("n2:0-1")),
            ("claims", gives_way(), "o", claims("n1:0", "s")),
            ("profiles", PROFILING, "old", END), ("profiles", PROFILING, "old", KEEP),
        )
    ),
]  # fmt: skip


@pytest.mark.parametrize(("words", "seen", "told", "rules", "sections"), ROWS)
def test_a_plan_is_refused_by_job_and_rule_if_and_only_if_it_breaks_one(
    words: str, seen: Snapshot, told: dict[str, Told], rules: PolicyRules, sections: dict[str, Any]
) -> None:
    """Whole, and what a live cluster carries out has no fault left."""
    plan = Says(told, rules).plan(seen)
    left, errors = SafetyCheck(rules, settings(**sections)).safe_part(seen, plan)
    assert bool(errors) is bool(words)
    assert words in "; ".join(map(str, errors))
    SafetyCheck(rules, settings(**sections))(seen, left)
    if words:
        with pytest.raises(UnsafePlan):
            SafetyCheck(rules, settings(**sections))(seen, plan)


# -- plans that are more wrong than one of their actions ------------------------------------------------------------


def of(told: Told) -> PartitionPlan:
    return Says({VC: told}, ANYTHING).plan(snap(0.0, ROOM)).partitions[VC]


HELD, P1, R1 = of({}), of({"p1": start("n1:3")}), of({"r1": STOP})
LACKS_P3 = PartitionPlan({job_id: d for job_id, d in HELD.decisions.items() if job_id != "p3"})
ELSEWHERE = Action("p1", "other", P1.decisions["p1"])


@pytest.mark.parametrize(
    ("plans", "words"),
    [
        ({VC: LACKS_P3}, "p3: it is pending in 'vc', and the plan does not decide it"),
        ({}, "'vc': the plan decides none of its 9 pending jobs"),
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
        SafetyCheck(ANYTHING, settings())(snap(0.0, ROOM), Plan(0.0, plans))
    SafetyCheck(ANYTHING, settings())(snap(0.0, replace(ROOM, pending=())), Plan(0.0, {}))


def test_a_job_is_started_in_one_partition_and_only_by_the_plan_of_profiling_in_another_than_its_own() -> None:
    """It waits in both; it waits in one and is started in the other, which profiles nobody."""
    there = part(nodes(1, prefix="o"), [waits("p1", profile=LIGHT)], name="other")
    both = {VC: P1, "other": PartitionPlan({"p1": (d := start("o1:0"))}, (Action("p1", "other", d),))}
    with pytest.raises(UnsafePlan, match="job p1: the plan has two actions"):
        SafetyCheck(ANYTHING, settings())(snap(0.0, ROOM, there), Plan(0.0, both))
    assert done(snap(0.0, part(nodes(1)), there), {VC: {"p1": start("n1:0")}}) == {}


@pytest.mark.parametrize("made", [{VC: PartitionPlan({})}, {}])
def test_a_plan_that_leaves_a_job_undecided_stops_its_own_partition_alone_on_a_live_cluster(
    made: dict[str, PartitionPlan],
) -> None:
    scene = snap(0.0, part(nodes(1, 1), [waits("lost")]), part(nodes(1, 1, "m"), [waits("a", vc="w")], name="w"))
    good = start("m1:0")
    plans = {"w": PartitionPlan({"a": good}, (Action("a", "w", good),)), **made}
    left, unsafe = SafetyCheck(ANYTHING, settings()).safe_part(scene, Plan(0.0, plans))
    assert not unsafe
    assert ([action.job_id for action in left.actions], left.partitions["w"]) == (["a"], plans["w"])
    assert kinds(left.partitions[VC].decisions["lost"]) == ["Unplanned"]
    assert left.partitions[VC].error


# -- in cycles -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("live", [False, True])
def test_of_an_unsafe_plan_nothing_is_applied_and_on_a_live_cluster_all_but_the_unsafe_action(live: bool) -> None:
    """Both start on the same GPU."""
    cluster = a_cluster(a_trace(by("a"), by("b")), profiled=lambda job: False)
    cluster.advance(0.0)
    same = Says({VC: dict.fromkeys("ab", start("vc-1:0"))}, PolicyRules())
    cycle = Cycle(cluster, FixedPredictor(), same, settings(), tolerant=live)
    with nullcontext() if live else pytest.raises(UnsafePlan, match="job b"):
        result = cycle.run()
        assert [error.job_id for error in result.unsafe] == ["b"]
        assert kinds(result.plan.decision_of("b")) == ["Unsafe"]
    left = cluster.observe().partitions[VC]
    assert [e.job.id for e in left.running] == ["a"] * live
    assert [e.job.id for e in left.pending] == ["a", "b"][live:]


def test_a_hold_that_is_to_be_carried_out_is_no_action() -> None:
    strange, hold = Says({}, ANYTHING), Hold(WHY)
    plan = Plan(0.0, {VC: PartitionPlan({"old": hold}, (Action("old", VC, hold),))})  # type: ignore[arg-type]
    strange.plan = lambda snapshot: plan  # type: ignore[method-assign]
    cycle = Cycle(Still(snap(0.0, PROFILING)), FixedPredictor(), strange, settings(), tolerant=True)
    assert not cycle.run().applied


def test_a_plan_that_passed_is_checked_again_only_where_it_or_what_it_hangs_on_has_changed() -> None:
    """A job that waits at home, and is started on a profiling node: it has started elsewhere since, or nobody decides
    it any more, and the plan of one of the two partitions is the old one."""
    home, room = part(nodes(1), [waits("p")]), part(nodes(1, 4, "p"), (), (), "prof", profiling=True)
    seen, moved = snap(0.0, home, room), snap(1.0, part(nodes(1), (), [runs("p", "n1:0")]), room)
    nothing = PartitionPlan({})
    lent = Says({"prof": {"p": start("p1:1")}}, ANYTHING).plan(seen).partitions
    for later, plans, words in (
        (moved, {VC: nothing, "prof": lent["prof"]}, "cannot start"),
        (seen, {VC: lent[VC], "prof": nothing}, "does not decide it"),
    ):
        check = SafetyCheck(ANYTHING, settings())
        check(seen, Plan(0.0, lent))
        with pytest.raises(UnsafePlan, match=words):
            check(later, Plan(1.0, plans))
    check, seen = SafetyCheck(ANYTHING, settings()), snap(0.0, ROOM)
    for _ in range(2):
        check(seen, Plan(0.0, {VC: HELD}))
    with pytest.raises(UnsafePlan):
        check(seen, Plan(2.0, {VC: of({"p5": start("n1:0")})}))
    check(snap(3.0, replace(ROOM, running=())), Plan(3.0, {VC: HELD}))
    with pytest.raises(UnsafePlan):
        check(snap(4.0, replace(ROOM, pending=(*ROOM.pending, waits("k")))), Plan(4.0, {VC: HELD}))


# -- quotas: what a plan calls a turn or a loan decides nothing -----------------------------------------------------

QUOTA: dict[str, Any] = {"lending": {"mode": "quota"}, "fairness": {"beyond_plain_s": 4000.0}}
"""Nobody borrows: beyond its quota a VC has only what a turn brings."""
BORROW = {"lending": {"mode": "borrow"}}


def pool(now_s: float, told: Told, *pending: Pending, rules: PolicyRules = ANYTHING, **sections: Any) -> set[str]:
    """What is carried out in a pool in which VC a holds its whole quota of 16."""
    running = [runs(f"r{i}", f"n{i}:0-7", job={"vc": "a"}) for i in (1, 2)]
    room = replace(part(nodes(12), pending, running, "pool"), quotas={"a": 16, "b": 80})
    return set(done(snap(now_s, room), {"pool": told}, rules, **{**QUOTA, **sections}))


def mine(name: str, gpus: int = 8, **rest: Any) -> Pending:
    return waits(name, gpus, vc="a", **rest)


J: Told = {"j": start("n3:0-7")}


def test_who_goes_beyond_a_quota_is_the_administrators_word() -> None:
    """In plain order nobody starts before he was submitted: no turn comes before half of the bound is over."""
    assert [pool(now_s, J, mine("j")) for now_s in (1999.0, 2000.0)] == [set(), {"j"}]
    assert not pool(9999.0, J, mine("j"), fairness={"beyond_plain_s": 0})
    assert not pool(2000.0, J, mine("j"), fairness={"beyond_plain_s": 4000.0, "keep_from": 1.0})
    assert pool(100.0, J, mine("j"), **BORROW) == {"j"}
    assert not pool(100.0, J, mine("j"), **BORROW, rules=replace(ANYTHING, borrows=False))


def test_who_leaves_makes_room_within_the_quota_and_a_job_that_stays_or_is_too_large_never_goes_beyond() -> None:
    assert pool(0.0, {"r1": STOP, **J}, mine("j"), profiling={"restarts": "allowed"}) == {"r1", "j"}
    for sections in (BORROW, {}):
        assert pool(9999.0, J, mine("j", borrows=False), **sections) == set()
        assert pool(9999.0, {"j": start("n3:0-7 n4:0-7 n5:0-7")}, mine("j", 24), **sections) == set()


def test_who_goes_beyond_a_quota_in_his_turn_holds_no_more_than_plain_order_could_have_given_the_vc() -> None:
    told = {name: start(f"n{i + 3}:0-7") for i, name in enumerate("jkl")}
    assert pool(2000.0, told, *(mine(name) for name in "jkl")) == {"j", "k"}
    home = replace(part(nodes(9), [mine(name) for name in "jkl"], name="pool"), quotas={"a": 8, "b": 64})
    said, cluster = Says({"pool": told}, ANYTHING), Still(snap(2000.0, home))
    cycle = Cycle(cluster, FixedPredictor(otherwise_s=90_000.0), said, settings(**QUOTA), tolerant=True)
    assert [item.action.job_id for item in cycle.run().applied] == ["j", "k"], "one in its quota, one in its turn"
    running = [runs(name, f"n{i + 3}:0-7", job={"vc": "a"}) for i, name in enumerate("jk")]
    cluster.snapshot = snap(9999.0, replace(home, pending=(mine("l"),), running=tuple(running)))
    said.decisions = {"pool": {"l": told["l"]}}
    assert not cycle.run().applied, "and this one has its GPUs yet"
