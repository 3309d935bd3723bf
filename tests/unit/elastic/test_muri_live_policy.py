"""Muri live: its groups, and what its forecast says of them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from builders import (
    ANYTHING,
    LIGHT,
    VC,
    at,
    check_plan,
    decided,
    guess,
    kinds,
    nodes,
    part,
    policy,
    reason,
    runs,
    settings,
    snap,
    waits,
)
from lucid.core.decision import Action, Decision, Hold, PartitionPlan, Plan, Regroup, Start
from lucid.core.job import JobProfile, Pending, Running
from lucid.core.node import Node
from lucid.core.prediction import StageTimes
from lucid.core.reasons.queue import BehindHead
from lucid.core.reasons.sharing import Interleaved, Overlaps, SlowBefore
from lucid.core.snapshot import Partition
from lucid.orchestrator.forecast.plan_ahead import forecast
from lucid.orchestrator.policies.muri.interleave import IN_TURNS
from lucid.orchestrator.policies.muri.seen import SlowGroup, TurnsSeen
from lucid.orchestrator.safety.check import SafetyCheck
from lucid.store.values import value_from_json, value_to_json
from scenes.systems import CPU, FOUR, GPU, NET, STORE, groups, guesses, room, turns
from scenes.systems import runs_in_turns as running
from scenes.systems import waits_for_turns as waiting

TWO = IN_TURNS.factor(2)


def plan(
    machines: Sequence[Node],
    entries: Sequence[Pending | Running],
    stages: dict[str, StageTimes],
    name: str = "muri-l",
    now_s: float = 100.0,
    **sections: Any,
) -> tuple[Partition, PartitionPlan]:
    """What the policy decides; the plan is safe."""
    partition, planner = room(machines, entries), policy(name, **sections)
    made = planner.plan(snap(now_s, partition, predictions=guesses(entries, stages))).partitions[VC]
    check_plan(partition, made, planner.rules)
    return partition, made


def slots(count: int, nodes_: int = 1, gpus: int = 1) -> tuple[Node, ...]:
    return tuple(replace(node, slots=count) for node in nodes(nodes_, gpus))


def shares(storage: float, cpu: float, gpu: float) -> StageTimes:
    """As a node measured them."""
    return StageTimes((storage, cpu, gpu, 0.0), 1.0, outside=True)


def until(entry: Any, limit_s: float) -> Any:
    """The same with a time limit."""
    return replace(entry, job=replace(entry.job, time_limit_s=limit_s))


LOADS, COMPUTES = shares(0.75, 0.1, 0.15), shares(0.02, 0.08, 0.9)
BIG = JobProfile(10.0, 5.0, 6000.0)
"""Fences of three are 3 x (6,000 x 1.1 + 512) MiB, which fit 24,576 MiB; those of four do not."""
THREE = [running("a", "n1:0"), waiting("b"), waiting("c")]
TWO_RUN = [running("a", "n1:0", "ab"), running("b", "n1:0", "ab")]
OF_3_CPUS = [turns(replace(e, job=replace(e.job, cpus=3))) for e in (running("a", "n1:0"), *map(waiting, "bcd"))]
SPREAD = replace(waiting("b", 2), job=replace(waiting("b", 2).job, min_nodes=2))
AWAY = replace(slots(4, gpus=8)[0], name="big", available=False)
GROWN = [running(name, "n1:0", "ab", profile=JobProfile(10.0, 5.0, 20000.0)) for name in "ab"]
LATE = {"a": StageTimes((0.5, 0.5, 3.0, 2.0), 6.0), "b": StageTimes((0.5, 0.5, 4.0, 1.0), 6.0)}
"""Together they take 9.5 s a round, one after the other 12. On the authors' testbed it took 1.31 times 9.5 s."""
FROM_OUTSIDE = {"a": COMPUTES, "b": shares(0.1, 0.1, 0.7), "c": shares(0.0, 0.2, 0.6)}
GROUPS: dict[str, tuple[Sequence[Node], Sequence[Pending | Running], dict[str, StageTimes], list[str] | None]] = {
    "four resources": (slots(4), [waiting(name) for name in "abcd"], FOUR, ["abcd"]),
    "one that runs is joined": (slots(4), THREE, FOUR, ["abc"]),
    "two that run are joined": (slots(4), [*TWO_RUN, waiting("c"), waiting("d")], FOUR, ["abcd"]),
    "others have free GPUs": (slots(4, gpus=4), THREE, FOUR, []),
    "the same resource": (slots(4), THREE, dict.fromkeys("abc", GPU), []),
    "a third would slow them": (slots(4), [*TWO_RUN, waiting("c")], {"a": STORE, "b": CPU, "c": CPU}, []),
    "fences of three": (slots(4), [waiting(name, profile=BIG) for name in "abc"], FOUR, ["abc"]),
    "its node is down": ([replace(node, available=False) for node in slots(4)], THREE, FOUR, []),
    "over two nodes": (slots(4, 2), [running("a", "n1:0 n2:0"), waiting("b", 2)], FOUR, []),
    "one wants two nodes": (slots(4, 1, 2), [running("a", "n1:0-1"), SPREAD], FOUR, []),
    "over two nodes, both new": (slots(4, 2), [waiting("a", 2), waiting("b", 2)], FOUR, []),
    "two slots": (slots(2), [waiting(name) for name in "abcd"], FOUR, ["ab"]),
    "fences of four": (slots(4), [waiting(name, profile=BIG) for name in "abcd"], FOUR, ["abc"]),
    "CPUs of two": ([replace(node, cpus=8, mem_mib=1000) for node in slots(4)], OF_3_CPUS, FOUR, ["ab"]),
    "dearer on the authors' testbed": (slots(2), THREE[:2], LATE, ["ab"]),
    "no place for the first": (slots(2), THREE, {"a": GPU, "b": GPU, "c": NET}, ["ac"]),
    "members that grew bar no other": (slots(4, gpus=2), [*GROWN, waiting("z")], FOUR, []),
    "the head waits for a node": (
        [*slots(4, gpus=2), AWAY], [waits("z", 8), running("a", "n1:0-1"), waiting("b", 2)], FOUR, ["ab"],
    ),
    "outside: the same resource": (slots(4), THREE, FROM_OUTSIDE, None),
    "outside: no place for the first": (slots(4), THREE, {"a": COMPUTES, "b": COMPUTES, "c": LOADS}, ["ac"]),
    "outside: a pair is joined by nobody": (
        slots(4), [*TWO_RUN, waiting("c")], {"a": LOADS, "b": COMPUTES, "c": NET}, None,
    ),
    "outside: half of a pair": (slots(4), [*TWO_RUN, waiting("c")], {"a": LOADS, "b": GPU, "c": NET}, None),
    "outside: nobody joins those in turns": (
        slots(4), [*TWO_RUN, waiting("c"), waiting("d")],
        {"a": STORE, "b": CPU, "c": shares(0.0, 0.1, 0.9), "d": GPU}, ["abd"],
    ),
    "outside: one of three, after a restart": (
        slots(4), [*(running(name, "n1:0", "abc") for name in "abc"), waiting("d")], {**FOUR, "a": LOADS}, None,
    ),
    "outside: beyond a time limit": (
        slots(4), [running("a", "n1:0"), until(waiting("b"), 1050.0)], {"a": LOADS, "b": COMPUTES}, None,
    ),
    "outside: 1,000 s take 1,158": (
        slots(4), [running("a", "n1:0"), until(waiting("b"), 1300.0)], {"a": LOADS, "b": COMPUTES}, ["ab"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("how", GROUPS)
def test_jobs_make_the_group_that_helps_and_nobody_is_moved(how: str) -> None:
    """None: nothing at all is done."""
    machines, entries, stages, expected = GROUPS[how]
    _, made = plan(machines, entries, stages, now_s=5000.0 if how == "the head waits for a node" else 100.0)
    assert groups(made) == {frozenset(names) for names in expected or ()}
    assert expected is not None or not made.actions
    where = {entry.job.id: entry.placement for entry in entries if isinstance(entry, Running)}
    for name, decision in made.decisions.items():
        assert not isinstance(decision, Regroup) or decision.placement == where[name]
        alone = isinstance(decision, Start) and not decision.group
        assert not alone or decision.slots is (len(decision.placement) == 1), "others may join it later"
    if expected == ["abcd"]:
        assert reason(made.decisions["a"], Interleaved).jobs == 4
    if how == "the same resource":
        assert not reason(made.decisions["b"], Interleaved)
    if how == "outside: the same resource":
        assert reason(made.decisions["b"], Overlaps).conflict > 1 / 3
    if how == "members that grew bar no other":
        assert isinstance(made.decisions["z"], Start)


@pytest.mark.parametrize(
    "change",
    [
        {"profile": None},
        {"profile": JobProfile(10.0, 5.0, 23000.0)},
        {"alone": True},
        {"job": {"takes_turns": False}},
        {"job": {"shareable": False}},
        {"job": {"user": "eve"}},
        {"job": {"time_limit_s": 1000.0}},
        {"stages": None},
    ],
)
@pytest.mark.parametrize("who", ["runs", "waits"])
def test_who_did_not_opt_in_or_is_not_known_shares_with_nobody(change: dict[str, Any], who: str) -> None:
    entries = {"runs": running("a", "n1:0"), "waits": waiting("b")}
    stages = dict(FOUR)
    entry = entries[who]
    if "stages" in change:
        del stages[entry.job.id]
    elif "job" in change:
        entries[who] = replace(entry, job=replace(entry.job, **change["job"]))
    else:
        entries[who] = replace(entry, **change)
    _, made = plan(slots(4), list(entries.values()), stages, packing={"same_user_only": True})
    assert not made.actions


def test_rigid_jobs_are_neither_stopped_nor_joined_and_start_alone() -> None:
    rigid = runs("r", "n1:0-1")
    entries = [rigid, replace(waits("s", 2), job=waits("s", 2).job), waiting("a", 2), waiting("b", 2)]
    stages = {"a": STORE, "b": GPU, "r": CPU, "s": NET}
    _, made = plan(slots(4, 2, 2), entries, stages, now_s=10.0)
    assert "r" not in made.decisions
    starts = {name: d for name, d in made.decisions.items() if isinstance(d, Start)}
    assert set(starts) == {"s"}, "who came first has the free GPUs"
    assert not starts["s"].slots


def test_no_job_starts_before_one_that_has_waited_too_long() -> None:
    """A job of the whole node waits; others could join the group for ever."""
    big = waits("z", 2)
    entries = [running("a", "n1:0"), big, waiting("b"), waiting("c")]
    early = plan(slots(4, gpus=2), entries, FOUR, now_s=100.0, muri={"patience_s": 1000.0})[1]
    begun = decided(early, "b", Start)
    assert begun.placement == at("n1:1"), "until then a job that fits passes one that does not"
    assert isinstance(early.decisions["c"], Start)
    assert len(groups(early)) == 1, "it joins one of them"
    assert kinds(early.decisions["z"])[-1] == "FreeGpus"
    assert early.wake_s == 1000.0
    late = plan(slots(4, gpus=2), entries, FOUR, now_s=1000.0, muri={"patience_s": 1000.0})[1]
    assert not late.actions
    assert reason(late.decisions["b"], BehindHead).head == "z"


def test_lucids_own_policy_leaves_a_group_alone() -> None:
    """As after a change of policy: three on the same GPU are shown so, and nobody joins them."""
    entries = [running(name, "n1:0", "abc", alone=True) for name in "abc"]
    partition = part(slots(4, gpus=2), [waiting("d"), waiting("e"), waiting("f", 2)], entries)
    known = {name: guess(1000.0, 0) for name in "abcdef"}
    planner = policy("lucid")
    made = planner.plan(snap(100.0, partition, predictions=known)).partitions[VC]
    check_plan(partition, made, planner.rules)
    assert not {"a", "b", "c"} & set(made.decisions)
    starts = {name: d for name, d in made.decisions.items() if isinstance(d, Start)}
    assert {d.placement for d in starts.values()} <= {runs("x", "n1:1").placement}
    assert {d.beside for d in starts.values()} <= {None, *"def"}


def test_a_group_that_breaks_a_rule_takes_only_its_own_actions_out() -> None:
    entries = [running("a", "n1:0"), waiting("b"), waiting("z", 1)]
    partition = room(slots(4, gpus=2), entries)
    group = ("a", "b")
    decisions: dict[str, Decision] = {
        "b": Start(runs("x", "n1:0").placement, (), group=group, slots=True),
        "a": Regroup(runs("x", "n1:0").placement, (), (*group, "ghost")),
        "z": Start(runs("x", "n1:1").placement, (), slots=True),
    }
    actions = tuple(Action(name, VC, d) for name, d in decisions.items() if not isinstance(d, Hold))
    plan_ = Plan(1.0, {VC: PartitionPlan(decisions, actions)})
    left, unsafe = SafetyCheck(ANYTHING, settings()).safe_part(snap(1.0, partition), plan_)
    assert [action.job_id for action in left.actions] == ["z"]
    assert {error.job_id for error in unsafe} == {"a", "b"}


SECONDS = StageTimes((0.1, 0.4, 4.5, 0.0), 5.0)
"""Shares like those of COMPUTES. Nobody enforces an order beside a job that calls no turns, so they count."""
OTHERS = {"c": shares(0.0, 0.8, 0.1), "d": NET}


@pytest.mark.parametrize(
    ("count", "entries", "stages"),
    [
        (2, [waiting(name) for name in "abcd"], {"a": LOADS, "b": COMPUTES, **OTHERS}),
        (4, [waiting(name) for name in "abcd"], {"a": LOADS, "b": COMPUTES, **OTHERS}),
        (4, THREE, {"a": LOADS, "b": SECONDS, "c": CPU}),
        (4, THREE, {"a": SECONDS, "b": LOADS, "c": CPU}),
    ],
    ids=["two slots", "four slots", "one that waits calls turns", "one that runs calls turns"],
)
def test_jobs_known_from_outside_make_pairs_and_nothing_larger(
    count: int, entries: Sequence[Pending | Running], stages: dict[str, StageTimes]
) -> None:
    _, made = plan(slots(count), entries, stages)
    assert groups(made) == {frozenset("ab")}, "the best pair for the first of them"
    found = reason(made.decisions["b"], Overlaps)
    assert found.group == "a b"
    assert found.conflict == pytest.approx(0.75 * 0.02 + 0.1 * 0.08 + 0.15 * 0.9)
    assert found.speed == pytest.approx(1 / 1.158)


def seen_at(speed: float, *names: str) -> list[Running]:
    """A pair that runs, as its sampler saw it."""
    return [
        running(name, "n1:0", names, profile=replace(LIGHT, seen_speed=speed, seen_beside=other))
        for name, other in zip(names, reversed(names), strict=True)
    ]


def after(
    entries: Sequence[Pending | Running], stages: dict[str, StageTimes], memory: object, at_s: float = 200.0
) -> PartitionPlan:
    """The next plan, with what the one before left; over a restart of lucidd, too."""
    kept = value_from_json(json.loads(json.dumps(value_to_json({VC: memory}))))
    seen = snap(at_s, room(slots(2), entries), predictions=guesses(entries, stages))
    return policy("muri-l").plan(replace(seen, memory=kept)).partitions[VC]


def named(name: str, kind: str, where: str = "") -> Any:
    """A job of a kind: jobs of one name."""
    entry = running(name, where) if where else waiting(name)
    return replace(entry, job=replace(entry.job, name=kind))


def kinds_of(group: Sequence[Running], *names: str) -> list[Running]:
    return [replace(entry, job=replace(entry.job, name=name)) for entry, name in zip(group, names, strict=True)]


@pytest.mark.parametrize("stages", [{"a": LOADS, "b": COMPUTES}, {"a": NET, "b": GPU}])
def test_a_pair_that_was_much_slower_than_promised_is_not_made_again(stages: dict[str, StageTimes]) -> None:
    """Nobody of it is stopped. Pairs that call turns are seen, too."""
    pair = kinds_of(seen_at(0.4, "a", "b"), "load", "train")
    first = after(pair, stages, None)
    assert not first.actions
    memory = first.memory
    later = [named("c", "train", "n1:0"), named("d", "load")]
    known = {"c": stages["b"], "d": stages["a"]}
    made = after(later, known, memory, 300.0)
    assert not made.actions
    found = reason(made.decisions["d"], SlowBefore)
    assert (found.group, found.seen) == ("c d", 0.4)
    assert made.memory == memory
    assert groups(after([named("c", "train", "n1:0"), named("d", "other")], known, memory)) == {frozenset("cd")}
    assert groups(after(later, known, memory, 40 * 86400.0)) == {frozenset("cd")}, "after a month it is tried again"
    assert isinstance(memory, tuple)
    assert not groups(after(later, known, (*memory, "rubbish")))
    assert groups(after(later, known, "rubbish")) == {frozenset("cd")}


def test_a_pair_of_kinds_that_do_something_else_by_now_is_made_again() -> None:
    pair = kinds_of(seen_at(0.4, "a", "b"), "load", "train")
    memory = after(pair, {"a": LOADS, "b": COMPUTES}, None).memory
    later = [named("c", "train", "n1:0"), named("d", "load")]
    assert groups(after(later, {"c": COMPUTES, "d": shares(0.4, 0.5, 0.0)}, memory)) == {frozenset("cd")}
    assert groups(after(later, {"c": COMPUTES, "d": shares(0.7, 0.15, 0.15)}, memory)) == set()


def test_a_pair_that_is_as_fast_as_promised_or_not_seen_is_made_again() -> None:
    later = [named("c", "train", "n1:0"), named("d", "load")]
    known = {"c": COMPUTES, "d": LOADS}
    stages = {"a": LOADS, "b": COMPUTES}
    slow = after(kinds_of(seen_at(0.4, "a", "b"), "load", "train"), stages, None).memory
    fast = after(kinds_of(seen_at(0.7, "a", "b"), "load", "train"), stages, slow).memory
    assert groups(after(later, known, fast)) == {frozenset("cd")}, "it was forgotten"
    unseen = kinds_of([running(name, "n1:0", "ab") for name in "ab"], "load", "train")
    assert after(unseen, stages, None).memory is None
    strangers = [replace(e, profile=replace(LIGHT, seen_speed=0.1, seen_beside="z")) for e in unseen]
    assert after(strangers, stages, None).memory is None, "what was seen beside another says nothing"


def test_what_was_seen_outlives_an_empty_cluster_and_is_bounded() -> None:
    shares_ = (LOADS.times_s, COMPUTES.times_s)
    old = tuple(
        SlowGroup((("ada", f"load{number}", 1), ("ada", "train", 1)), shares_, 0.3, 0.8, 100.0)
        for number in range(249)
    )
    pair = kinds_of(seen_at(0.3, "a", "b"), "new", "train")
    memory = after(pair, {"a": LOADS, "b": COMPUTES}, old).memory
    assert isinstance(memory, tuple)
    assert len(memory) == 200
    assert memory[:-1] == old[-199:]
    assert memory[-1].kinds == (("ada", "new", 1), ("ada", "train", 1))
    assert after([], {}, memory).memory == memory


def took(round_s: float, count: int, *names: str) -> list[Running]:
    """A group that runs, and what its members report of their turns."""
    return [running(name, "n1:0", names, in_turns=(round_s, count)) for name in names]


@pytest.mark.parametrize(
    ("round_s", "count", "slow", "most"),
    [
        (20.0, 4, True, 3),
        (15.1, 4, True, 3),  # 10.5 s each by the formula, 11.3 with what turns cost
        (15.0, 4, False, 3),  # it kept its promise, but three do more
        (11.0, 4, False, 4),
        (20.0, 3, False, 4),  # of when they were three
    ],
)
def test_a_group_that_reports_slow_turns_is_not_made_again(round_s: float, count: int, slow: bool, most: int) -> None:
    group = kinds_of(took(round_s, count, *"abcd"), *"wxyz")
    memory = after(group, FOUR, None).memory
    rows = memory if isinstance(memory, tuple) else ()
    assert any(isinstance(row, SlowGroup) for row in rows) is slow
    again = kinds_of([*map(waiting, "efgh")], *"wxyz")
    stages = dict(zip("efgh", FOUR.values(), strict=True))
    seen = replace(snap(300.0, part(slots(4), again), predictions=guesses(again, stages)), memory={VC: memory})
    made = policy("muri-l").plan(seen).partitions[VC]
    assert [len(found) for found in groups(made)] == [most]
    if slow:
        (left,) = (d for d in made.decisions.values() if isinstance(d, Hold))
        assert reason(left, SlowBefore).seen == pytest.approx(10.5 / round_s)


def test_one_members_word_alone_breaks_no_group() -> None:
    group = took(15.0, 4, *"abcd")
    group[0] = replace(group[0], in_turns=(1e6, 4))
    silent = [group[0], *(replace(entry, in_turns=None) for entry in group[1:])]
    assert after(silent, FOUR, None).memory is None


def period_of(memory: object, *jobs: str, user: str = "ada") -> float:
    """What a plan with this memory expects a round of jobs of four resources to take."""
    entries = [
        replace(e, job=replace(e.job, user=user, name=name))
        for e, name in zip(map(waiting, "efgh"), jobs, strict=False)
    ]
    known = guesses(entries, dict(zip("efgh", FOUR.values(), strict=True)))
    made = policy("muri-l").plan(
        replace(snap(300.0, part(slots(len(jobs)), entries), predictions=known), memory={VC: memory})
    )
    return float(reason(made.partitions[VC].decisions["e"], Interleaved).period_s)


def test_a_promise_is_what_turns_cost_here_until_members_report() -> None:
    assert period_of(None, *"wxyz") == pytest.approx(10.5 * IN_TURNS.factor(4))
    memory = after(kinds_of(took(9.5, 4, *"abcd"), *"wxyz"), FOUR, None).memory
    assert period_of(memory, *"wxyz") == pytest.approx(9.5), "such a group was seen"
    mean = (2 * IN_TURNS.factor(4) + 9.5 / 10.5) / 3
    assert period_of(memory, *"wxyv") == pytest.approx(10.5 * mean), "another of this user"
    assert period_of(memory, *"wxyz", user="eve") == pytest.approx(10.5 * IN_TURNS.factor(4)), "he may have lied"
    assert period_of(memory, *"wx") == pytest.approx(10.5 * TWO), "of four"
    assert period_of(value_from_json(json.loads(json.dumps(value_to_json(memory)))), *"wxyz") == pytest.approx(9.5)


def _starts(
    entries: Sequence[Pending | Running],
    lasts: Mapping[str, float],
    machines: Sequence[Node],
    stages: Mapping[str, StageTimes] | None = None,
    memory: object = (),
) -> dict[str, float]:
    known = guesses(entries, {**FOUR, **(stages or {})}, lasts)
    snapshot = replace(snap(0.0, room(machines, entries), predictions=known), memory={VC: memory})
    planner = policy("muri-l")
    return dict(forecast(snapshot, planner.plan(snapshot), planner, coarser=0.0).starts_s)


BOTH = [running(name, "n1:0", ("a", "b")) for name in "ab"]
UNKNOWN = [running(name, "n1:0", ("a", "y")) for name in "ay"]
OUTSIDE = [running(name, "n1:0", ("x", "y")) for name in "xy"]
SEEN = TurnsSeen(tuple(("ada", entry.job.name, 1) for entry in BOTH), 1.5, 0.0)
LOOSE = {"x": shares(0.7, 0.2, 0.1), "y": shares(0.1, 0.3, 0.6)}


@pytest.mark.parametrize(
    ("entries", "lasts", "stages", "memory", "whole_s"),
    [
        (
            BOTH,
            {"a": 1000.0, "b": 1000.0},
            {},
            (),
            1000.0 * TWO,
        ),  # one iteration, times what two cost (M8)
        ([running("a", "n1:0")], {"a": 1000.0}, {}, (), 1000.0),
        (BOTH, {"a": 100.0, "b": 1000.0}, {}, (), 100.0 * TWO + 900.0),
        ([running("a", "n1:0"), waiting("b")], {"a": 1000.0, "b": 1000.0}, {}, (), 1000.0 * TWO),
        (UNKNOWN, {"a": 100.0, "y": 100.0}, {}, (), 100.0),
        (OUTSIDE, {"x": 1000.0, "y": 1000.0}, LOOSE, (), 1000.0 * (1 + 0.7 * 0.1 + 0.2 * 0.3 + 0.1 * 0.6)),
        (BOTH, {"a": 1000.0, "b": 1000.0}, {}, (SEEN,), 1500.0),
    ],
    ids=[
        "members are slower",
        "alone",
        "who is left is faster",
        "who joins slows",
        "times unknown",
        "no turns",
        "as reported",
    ],
)
def test_the_forecast_knows_how_fast_a_group_is(
    entries: Sequence[Pending | Running],
    lasts: dict[str, float],
    stages: dict[str, StageTimes],
    memory: object,
    whole_s: float,
) -> None:
    found = _starts([*entries, waits("whole", 1)], {**lasts, "whole": 10.0}, slots(2), stages, memory)
    assert found["whole"] == pytest.approx(whole_s)
    assert all(at_s == 0.0 for name, at_s in found.items() if name != "whole")
