"""Muri live: its groups, and what its forecast says of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

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
from scenes.jobs import LIGHT, VC, at, nodes, runs, waits
from scenes.plans import ANYTHING, check_plan, decide, decided, guess, kinds, part, policy, reason, settings, snap
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
THREE_RUN = [running(name, "n1:0", "abc") for name in "abc"]
LARGE = [running("a", "n1:0-1"), waiting("b", 2)]
OUTSIDE_PAIR = {"a": LOADS, "b": COMPUTES}
ONE_OUTSIDE = {"a": STORE, "b": CPU, "c": shares(0.0, 0.1, 0.9), "d": GPU}
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
    "the head waits for a node": ([*slots(4, gpus=2), AWAY], [waits("z", 8), *LARGE], FOUR, ["ab"]),
    "outside: the same resource": (slots(4), THREE, FROM_OUTSIDE, None),
    "outside: no place for the first": (slots(4), THREE, {"a": COMPUTES, "b": COMPUTES, "c": LOADS}, ["ac"]),
    "outside: a pair is joined by nobody": (slots(4), [*TWO_RUN, waiting("c")], {**OUTSIDE_PAIR, "c": NET}, None),
    "outside: half of a pair": (slots(4), [*TWO_RUN, waiting("c")], {"a": LOADS, "b": GPU, "c": NET}, None),
    "outside: nobody joins those in turns": (slots(4), [*TWO_RUN, waiting("c"), waiting("d")], ONE_OUTSIDE, ["abd"]),
    "outside: one of three, after a restart": (slots(4), [*THREE_RUN, waiting("d")], {**FOUR, "a": LOADS}, None),
    "outside: beyond a time limit": (slots(4), [THREE[0], until(waiting("b"), 1050.0)], OUTSIDE_PAIR, None),
    "outside: 1,000 s take 1,158": (slots(4), [THREE[0], until(waiting("b"), 1300.0)], OUTSIDE_PAIR, ["ab"]),
}


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
    ("change", "of_job"),
    [
        ({"profile": None}, {}),
        ({"profile": JobProfile(10.0, 5.0, 23000.0)}, {}),
        ({"alone": True}, {}),
        ({}, {"takes_turns": False}),
        ({}, {"shareable": False}),
        ({}, {"user": "eve"}),
        ({}, {"time_limit_s": 1000.0}),
        ({}, {}),
    ],
)
@pytest.mark.parametrize("who", ["runs", "waits"])
def test_who_did_not_opt_in_or_is_not_known_shares_with_nobody(
    change: dict[str, Any], of_job: dict[str, Any], who: str
) -> None:
    """Where nothing else is changed, its stages are not known."""
    entries = {"runs": running("a", "n1:0"), "waits": waiting("b")}
    entry = entries[who]
    stages = {name: found for name, found in FOUR.items() if change or of_job or name != entry.job.id}
    entries[who] = replace(entry, job=replace(entry.job, **of_job), **change)
    _, made = plan(slots(4), list(entries.values()), stages, packing={"same_user_only": True})
    assert not made.actions


def test_rigid_jobs_are_neither_stopped_nor_joined_and_start_alone() -> None:
    entries = [runs("r", "n1:0-1"), waits("s", 2), waiting("a", 2), waiting("b", 2)]
    stages = {"a": STORE, "b": GPU, "r": CPU, "s": NET}
    _, made = plan(slots(4, 2, 2), entries, stages, now_s=10.0)
    assert "r" not in made.decisions
    starts = {name: d for name, d in made.decisions.items() if isinstance(d, Start)}
    assert set(starts) == {"s"}, "who came first has the free GPUs"
    assert not starts["s"].slots


def test_no_job_starts_before_one_that_has_waited_too_long() -> None:
    """A job of the whole node waits; others could join the group for ever."""
    entries = [running("a", "n1:0"), waits("z", 2), waiting("b"), waiting("c")]
    early, late = (plan(slots(4, 1, 2), entries, FOUR, now_s=s, muri={"patience_s": 1e3})[1] for s in (100.0, 1e3))
    assert decided(early, "b", Start).placement == at("n1:1"), "until then a job that fits passes one that does not"
    assert isinstance(early.decisions["c"], Start)
    assert len(groups(early)) == 1, "it joins one of them"
    assert kinds(early.decisions["z"])[-1] == "FreeGpus"
    assert early.wake_s == 1000.0
    assert not late.actions
    assert reason(late.decisions["b"], BehindHead).head == "z"


def test_lucids_own_policy_leaves_a_group_alone() -> None:
    """As after a change of policy: three on the same GPU are shown so, and nobody joins them."""
    entries = [running(name, "n1:0", "abc", alone=True) for name in "abc"]
    partition = part(slots(4, gpus=2), [waiting("d"), waiting("e"), waiting("f", 2)], entries)
    planner = policy("lucid")
    made = planner.plan(snap(100.0, partition, predictions=dict.fromkeys("abcdef", guess(1000.0, 0)))).partitions[VC]
    check_plan(partition, made, planner.rules)
    assert not {"a", "b", "c"} & set(made.decisions)
    starts = {name: d for name, d in made.decisions.items() if isinstance(d, Start)}
    assert {d.placement for d in starts.values()} <= {at("n1:1")}
    assert {d.beside for d in starts.values()} <= {None, *"def"}


def test_a_group_that_breaks_a_rule_takes_only_its_own_actions_out() -> None:
    partition = room(slots(4, gpus=2), [running("a", "n1:0"), waiting("b"), waiting("z", 1)])
    decisions: dict[str, Decision] = {
        "b": Start(at("n1:0"), (), group=("a", "b"), slots=True),
        "a": Regroup(at("n1:0"), (), ("a", "b", "ghost")),
        "z": Start(at("n1:1"), (), slots=True),
    }
    actions = tuple(Action(name, VC, d) for name, d in decisions.items() if not isinstance(d, Hold))
    plan_ = Plan(1.0, {VC: PartitionPlan(decisions, actions)})
    left, unsafe = SafetyCheck(ANYTHING, settings()).safe_part(snap(1.0, partition), plan_)
    assert [action.job_id for action in left.actions] == ["z"]
    assert {error.job_id for error in unsafe} == {"a", "b"}


SECONDS = StageTimes((0.1, 0.4, 4.5, 0.0), 5.0)
"""Shares like those of COMPUTES. Nobody enforces an order beside a job that calls no turns, so they count."""
OTHERS = {"c": shares(0.0, 0.8, 0.1), "d": NET}


FROM_OUTSIDE_AND_NOT: dict[str, tuple[int, Sequence[Pending | Running], dict[str, StageTimes]]] = {
    "two slots": (2, [*map(waiting, "abcd")], {**OUTSIDE_PAIR, **OTHERS}),
    "four slots": (4, [*map(waiting, "abcd")], {**OUTSIDE_PAIR, **OTHERS}),
    "one that waits calls turns": (4, THREE, {"a": LOADS, "b": SECONDS, "c": CPU}),
    "one that runs calls turns": (4, THREE, {"a": SECONDS, "b": LOADS, "c": CPU}),
}


@pytest.mark.parametrize("how", FROM_OUTSIDE_AND_NOT)
def test_jobs_known_from_outside_make_pairs_and_nothing_larger(how: str) -> None:
    count, entries, stages = FROM_OUTSIDE_AND_NOT[how]
    _, made = plan(slots(count), entries, stages)
    assert groups(made) == {frozenset("ab")}, "the best pair for the first of them"
    found = reason(made.decisions["b"], Overlaps)
    assert found.group == "a b"
    assert (found.conflict, found.speed) == pytest.approx((0.75 * 0.02 + 0.1 * 0.08 + 0.15 * 0.9, 1 / 1.158))


def stored(memory: Any) -> Any:
    return value_from_json(json.loads(json.dumps(value_to_json(memory))))


def after(
    entries: Sequence[Pending | Running], stages: dict[str, StageTimes], memory: object, at_s: float = 200.0
) -> PartitionPlan:
    """The next plan, with what the one before left; over a restart of lucidd, too."""
    seen = snap(at_s, room(slots(2), entries), predictions=guesses(entries, stages))
    return decide("muri-l", replace(seen, memory=stored({VC: memory})))


def kinds_of(group: Sequence[Any], *names: str) -> list[Any]:
    """They as jobs of these names: of a kind with all of this name."""
    return [replace(entry, job=replace(entry.job, name=name)) for entry, name in zip(group, names, strict=True)]


def slow(speed: float = 0.4, *names: str) -> list[Any]:
    """A pair of these kinds that runs, as its sampler saw it."""
    seen = {name: replace(LIGHT, seen_speed=speed, seen_beside=other) for name, other in ("ab", "ba")}
    return kinds_of([running(name, "n1:0", "ab", profile=seen[name]) for name in "ab"], *(names or ("load", "train")))


LATER = kinds_of([running("c", "n1:0"), waiting("d")], "train", "load")
OTHER = kinds_of([running("c", "n1:0"), waiting("d")], "train", "other")


@pytest.mark.parametrize("stages", [OUTSIDE_PAIR, {"a": NET, "b": GPU}])
def test_a_pair_that_was_much_slower_than_promised_is_not_made_again(stages: dict[str, StageTimes]) -> None:
    """Nobody of it is stopped. Pairs that call turns are seen, too."""
    first = after(slow(), stages, None)
    assert not first.actions
    memory, known = first.memory, {"c": stages["b"], "d": stages["a"]}
    made = after(LATER, known, memory, 300.0)
    assert not made.actions
    found = reason(made.decisions["d"], SlowBefore)
    assert (found.group, found.seen) == ("c d", 0.4)
    assert made.memory == memory
    assert groups(after(OTHER, known, memory)) == {frozenset("cd")}
    assert groups(after(LATER, known, memory, 40 * 86400.0)) == {frozenset("cd")}, "after a month it is tried again"
    assert isinstance(memory, tuple)
    assert not groups(after(LATER, known, (*memory, "rubbish")))
    assert groups(after(LATER, known, "rubbish")) == {frozenset("cd")}


def test_a_pair_that_is_as_fast_as_promised_or_not_seen_or_does_something_else_is_made_again() -> None:
    memory = after(slow(), OUTSIDE_PAIR, None).memory
    assert groups(after(LATER, {"c": COMPUTES, "d": shares(0.4, 0.5, 0.0)}, memory)) == {frozenset("cd")}
    assert groups(after(LATER, {"c": COMPUTES, "d": shares(0.7, 0.15, 0.15)}, memory)) == set(), "about the same"
    fast = after(slow(0.7), OUTSIDE_PAIR, memory).memory
    assert groups(after(LATER, {"c": COMPUTES, "d": LOADS}, fast)) == {frozenset("cd")}, "it was forgotten"
    unseen = kinds_of([running(name, "n1:0", "ab") for name in "ab"], "load", "train")
    strangers = [replace(e, profile=replace(LIGHT, seen_speed=0.1, seen_beside="z")) for e in unseen]
    for entries in (unseen, strangers):  # what was seen beside another says nothing
        assert after(entries, OUTSIDE_PAIR, None).memory is None


def test_what_was_seen_outlives_an_empty_cluster_and_is_bounded() -> None:
    both = (LOADS.times_s, COMPUTES.times_s)
    old = tuple(SlowGroup((("ada", f"load{n}", 1), ("ada", "train", 1)), both, 0.3, 0.8, 100.0) for n in range(249))
    memory = after(slow(0.3, "new", "train"), OUTSIDE_PAIR, old).memory
    assert isinstance(memory, tuple)
    assert (len(memory), memory[:-1]) == (200, old[-199:])
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
    made = decide("muri-l", seen)
    assert [len(found) for found in groups(made)] == [most]
    if slow:
        (left,) = (d for d in made.decisions.values() if isinstance(d, Hold))
        assert reason(left, SlowBefore).seen == pytest.approx(10.5 / round_s)


def test_one_members_word_alone_breaks_no_group() -> None:
    silent = [replace(e, in_turns=(1e6, 4) if e.job.id == "a" else None) for e in took(15.0, 4, *"abcd")]
    assert after(silent, FOUR, None).memory is None


def period_of(memory: object, *jobs: str, user: str = "ada") -> float:
    """What a plan with this memory expects a round of jobs of four resources to take."""
    entries = [
        replace(e, job=replace(e.job, user=user)) for e in kinds_of([*map(waiting, "efgh"[: len(jobs)])], *jobs)
    ]
    known = guesses(entries, dict(zip("efgh", FOUR.values(), strict=True)))
    seen = replace(snap(300.0, part(slots(len(jobs)), entries), predictions=known), memory={VC: memory})
    return float(reason(decide("muri-l", seen).decisions["e"], Interleaved).period_s)


def test_a_promise_is_what_turns_cost_here_until_members_report() -> None:
    assert period_of(None, *"wxyz") == pytest.approx(10.5 * IN_TURNS.factor(4))
    memory = after(kinds_of(took(9.5, 4, *"abcd"), *"wxyz"), FOUR, None).memory
    assert period_of(memory, *"wxyz") == pytest.approx(9.5), "such a group was seen"
    mean = (2 * IN_TURNS.factor(4) + 9.5 / 10.5) / 3
    assert period_of(memory, *"wxyv") == pytest.approx(10.5 * mean), "another of this user"
    assert period_of(memory, *"wxyz", user="eve") == pytest.approx(10.5 * IN_TURNS.factor(4)), "he may have lied"
    assert period_of(memory, *"wx") == pytest.approx(10.5 * TWO), "of four"
    assert period_of(stored(memory), *"wxyz") == pytest.approx(9.5)


BOTH = [running(name, "n1:0", ("a", "b")) for name in "ab"]
UNKNOWN = [running(name, "n1:0", ("a", "y")) for name in "ay"]
OUTSIDE = [running(name, "n1:0", ("x", "y")) for name in "xy"]
SEEN = TurnsSeen(tuple(("ada", entry.job.name, 1) for entry in BOTH), 1.5, 0.0)
LOOSE = {"x": shares(0.7, 0.2, 0.1), "y": shares(0.1, 0.3, 0.6)}


FORECASTS: dict[str, tuple[Sequence[Running | Pending], dict[str, float], dict[str, StageTimes], object, float]] = {
    "members are slower": (BOTH, {"a": 1000.0, "b": 1000.0}, {}, (), 1000.0 * TWO),  # one iteration, times M8
    "alone": ([running("a", "n1:0")], {"a": 1000.0}, {}, (), 1000.0),
    "who is left is faster": (BOTH, {"a": 100.0, "b": 1000.0}, {}, (), 100.0 * TWO + 900.0),
    "who joins slows": (THREE[:2], {"a": 1000.0, "b": 1000.0}, {}, (), 1000.0 * TWO),
    "times unknown": (UNKNOWN, {"a": 100.0, "y": 100.0}, {}, (), 100.0),
    "no turns": (OUTSIDE, {"x": 1000.0, "y": 1000.0}, LOOSE, (), 1000.0 * (1 + 0.7 * 0.1 + 0.2 * 0.3 + 0.1 * 0.6)),
    "as reported": (BOTH, {"a": 1000.0, "b": 1000.0}, {}, (SEEN,), 1500.0),
}


@pytest.mark.parametrize("how", FORECASTS)
def test_the_forecast_knows_how_fast_a_group_is(how: str) -> None:
    """By when a job of the whole node starts."""
    entries, lasts, stages, memory, whole_s = FORECASTS[how]
    entries = [*entries, waits("whole", 1)]
    known = guesses(entries, {**FOUR, **stages}, {**lasts, "whole": 10.0})
    snapshot = replace(snap(0.0, room(slots(2), entries), predictions=known), memory={VC: memory})
    planner = policy("muri-l")
    found = dict(forecast(snapshot, planner.plan(snapshot), planner, coarser=0.0).starts_s)
    assert found.pop("whole") == pytest.approx(whole_s)
    assert not any(found.values())
