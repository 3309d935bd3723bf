"""Large jobs, and jobs that wait too long."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from lucid.config.load import settings_from
from lucid.config.policy import FairnessSettings, ReservationSettings
from lucid.core.decision import Hold, PartitionPlan, Start
from lucid.core.job import Pending
from lucid.core.ledger import Ledger
from lucid.core.node import Node
from lucid.core.reasons.queue import LargeShare, PlainOrder, Reserved
from lucid.core.snapshot import Partition
from lucid.daemon.policies import live_policy
from lucid.orchestrator.capacity.reservations import (
    PLAN_AGAIN_S,
    NodeReservation,
    NodeReservations,
    keep,
    large_share,
    next_holder,
)
from lucid.orchestrator.capacity.timeline import Timeline, expected_ends
from lucid.orchestrator.order.starvation_bound import turns
from lucid.orchestrator.policies.lucid import plan as lucid_plan
from lucid.orchestrator.policies.lucid.plan import LucidMemory, promise_kept
from lucid.orchestrator.policies.shadow import Kept, Shadow
from lucid.simulator.metrics import run_metrics
from lucid.simulator.scenario import Scenario, simulate
from scenes.jobs import LIGHT, by, nodes, runs, waits
from scenes.plans import decide, guess, kinds, part, policy, reason, snap
from scenes.replays import a_trace

MACHINES = nodes(3, 4)
HELD = [runs("r1", "n1:0-3"), runs("r2", "n2:0-3"), runs("r3", "n3:0-1")]
ENDS = {"r1": guess(500.0), "r2": guess(900.0), "r3": guess(700.0)}


def plan(
    *waiting: Pending, now_s: float = 0.0, held: Any = HELD, machines: Any = MACHINES, **known: Any
) -> PartitionPlan:
    return decide("lucid", snap(now_s, part(machines, waiting, held), predictions={**ENDS, **known}))


def test_the_holder_gets_the_nodes_that_drain_soonest_and_they_are_looked_at_again_after_five_minutes() -> None:
    """Time alone moves what is expected of them: a job there may outlive its estimate. Where nobody else could have
    them they are looked at when they were to have room."""
    assert reason(plan(waits("big", 8)).decisions["big"], Reserved) == Reserved("big", 700.0, 700.0, 2)
    assert plan(waits("big", 8), waits("small"), now_s=100.0).wake_s == 400.0
    assert plan(waits("big", 8), waits("wide", 4), now_s=100.0).wake_s == 700.0


@pytest.mark.parametrize(
    ("waited_s", "estimate_s", "starts"),
    [(0.0, 700.0, True), (0.0, 701.0, False), (100.0, 600.0, True), (400.0, 75.0, True), (400.0, 76.0, False)],
)
def test_the_longer_the_holder_has_waited_the_surer_a_job_must_be_to_end_in_time(
    waited_s: float, estimate_s: float, starts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Needed at 700 s, patience 100 s: after 400 s a job must end in time even if it takes four times as long."""
    monkeypatch.setattr(lucid_plan, "PATIENCE_S", 100.0)
    small = waits("small", submit_s=waited_s)
    decision = plan(waits("big", 8), small, now_s=waited_s, small=guess(estimate_s)).decisions["small"]
    assert isinstance(decision, Start) == starts
    if not starts:
        found = reason(decision, Reserved)
        assert (found.holder, found.times) == ("big", max(waited_s / 100.0, 1.0))


def test_where_other_jobs_have_waited_for_longer_the_holder_is_as_patient_as_they(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After 400 s a job must end in time even if it takes four times as long; where the others have waited for 200 s
    on average, twice as long."""
    monkeypatch.setattr(lucid_plan, "PATIENCE_S", 100.0)
    for others_s, times in (((0.0, 0.0), 4.0), ((350.0, 50.0), 2.0), ((400.0, 400.0), 1.0)):
        others = [waits(f"small{i}", submit_s=400.0 - s) for i, s in enumerate(others_s)]
        made = plan(waits("big", 8), *others, now_s=400.0, small0=guess(301.0), small1=guess(301.0))
        assert reason(made.decisions["small0"], Reserved).times == pytest.approx(times)


def test_a_long_job_does_not_join_a_job_on_nodes_that_are_kept() -> None:
    held = [runs("r1", "n1:0-3", profile=LIGHT), runs("r2", "n2:0-3"), runs("r3", "n3:0-3")]
    for said_s, starts in ((600.0, True), (9e9, False)):
        waiting = (waits("big", 8), waits("guest", 4, profile=LIGHT))
        made = plan(*waiting, held=held, guest=guess(said_s, 0), r1=guess(500.0, 0))
        assert isinstance(made.decisions["guest"], Start) == starts


def test_the_holder_starts_before_anybody_else_and_no_nodes_stand_idle_for_one_that_cannot_come() -> None:
    made = plan(waits("small"), waits("big", 8), held=[], machines=nodes(2, 4), small=guess(1.0))
    assert [a.job_id for a in made.actions] == ["big"]
    assert isinstance(made.decisions["small"], Hold)
    one_down = (Node("n1", 4), Node("n2", 4, available=False))
    made = plan(waits("big", 8), waits("small"), held=[], machines=one_down, now_s=1e6)
    assert isinstance(made.decisions["small"], Start)


LONG, SHORT_JOB = waits("long", 8, 0.0), waits("short", 8, 50.0)


@pytest.mark.parametrize(
    ("waiting", "now_s", "rules", "holder"),
    [
        ([waits("b", 8, 5.0), waits("c", 12, 3.0, rank=2), waits("a", 8, 3.0, rank=1)], 10.0, {}, "a"),
        # the longest wait for its estimate, until the oldest has waited too long
        ([LONG, SHORT_JOB], 100.0, {}, "short"),
        ([LONG, SHORT_JOB], 172799.0, {}, "short"),
        ([LONG, SHORT_JOB], 172800.0, {}, "long"),
        ([waits("j", 4)], 0.0, {}, None),
        ([waits("j", 5)], 0.0, {}, "j"),
        ([waits("j", 8)], 0.0, {"enabled": False}, None),
    ],
)
def test_for_whom_nodes_are_kept(
    waiting: list[Pending], now_s: float, rules: dict[str, Any], holder: str | None
) -> None:
    known = {**{e.job.id: guess(90.0) for e in waiting}, "long": guess(9000.0)}
    found, _ = next_holder(part(MACHINES, waiting), 4, now_s, ReservationSettings(**rules), known)
    assert (found and found.job.id) == holder


# -- large jobs keep to their share ----------------------------------------------------------------------------------

FIVE = nodes(5, 4)
LARGE_RUNS = [runs("L", "n1:0-3 n2:0-3")]
SMALL_RUN = {f"s{i}": runs(f"s{i}", f"n{i}:0-3") for i in (3, 4, 5)}
KNOWN = {"L": guess(900.0), "big": guess(900.0), "small": guess(9e9), **dict.fromkeys(SMALL_RUN, guess(500.0))}


def crowded(big_s: float, small_s: float, now_s: float = 100.0, **reservation: object) -> PartitionPlan:
    """8 of 20 GPUs held by a large job, 12 by small ones; another large one waits, and one that needs a GPU."""
    room = part(FIVE, [waits("big", 8, big_s), waits("small", 1, small_s)], [*LARGE_RUNS, *SMALL_RUN.values()])
    return decide("lucid", snap(now_s, room, predictions=KNOWN), reservation=reservation)


def test_beyond_their_share_large_jobs_give_way_to_a_smaller_one_that_has_waited_half_as_long() -> None:
    """Until then nodes are kept, and the plan is looked at again at that very time."""
    decision = crowded(0.0, 50.0).decisions["big"]
    assert reason(decision, LargeShare, Hold) == LargeShare(8, 8, 20, 0.5, "small", 50.0, 100.0)
    assert "Reserved" not in kinds(decision)
    made = crowded(0.0, 60.0)
    assert reason(made.decisions["big"], Reserved).holder == "big"
    assert made.wake_s == 120.0
    assert reason(crowded(0.0, 60.0, now_s=120.0).decisions["big"], LargeShare).other_waited_s == 60.0
    assert reason(crowded(0.0, 0.0, most_share=0.8).decisions["big"], Reserved).holder == "big", "within their share"


def test_one_large_job_at_least_is_served_and_who_can_never_start_makes_nobody_give_way() -> None:
    def share(room: Partition) -> tuple[LargeShare | None, float | None]:
        return large_share(room.pending[0], room, 4, 50.0, ReservationSettings())

    assert share(part(FIVE, [waits("big", 20), waits("small", 1)], [runs("s", "n1:0-3")])) == (None, None)
    machines = (*nodes(4, 4, cpus=8), Node("n5", 4, available=False, cpus=64))
    assert share(part(machines, [waits("big", 8), waits("small", 1, cpus=32)], LARGE_RUNS)) == (None, None)
    found, _ = share(part(machines, [waits("big", 8), waits("small", 1)], LARGE_RUNS))
    assert (found.total_gpus, bool(found)) == (16, False), "a node that is down counts for nobody"


HOUR = 3600.0
OFF: Mapping[str, Any] = {"profiling": {"enabled": False}, "reservation": {"enabled": False}, "packing": {"gss": 0}}


def planned(
    now_s: float,
    room: Partition,
    starts_s: Mapping[str, float],
    estimates_s: Mapping[str, float] | None = None,
    **sections: Any,
) -> PartitionPlan:
    """A plan under a bound of two hours, where plain order has started these jobs."""
    memory = LucidMemory(Shadow(now_s, tuple(n.name for n in room.nodes), Kept(2 * HOUR), starts_s=starts_s))
    guesses = {job: guess(s) for job, s in (estimates_s or {}).items()}
    scene = replace(snap(now_s, room, predictions=guesses), memory={"vc": memory})
    rules = {**OFF, "fairness": {"beyond_plain_s": 2 * HOUR}, **sections}
    return policy("lucid", None, **rules).plan(scene).partitions["vc"]


LARGE_TOO: dict[str, Any] = {"reservation": {"enabled": True}}


def fences_of(plan: PartitionPlan) -> dict[str, tuple[str, ...]]:
    assert isinstance(plan.memory, LucidMemory)
    return {job: fence.names for job, fence in plan.memory.shadow.fences.items()}


def test_from_half_of_the_bound_on_a_job_goes_before_shorter_ones_the_earlier_bound_first() -> None:
    room = part(nodes(1, 1), [waits("long", 1, 0.0), waits("short", 1, 1.0)])
    estimates_s = {"long": 9000.0, "short": 10.0}
    assert isinstance(planned(HOUR - 10, room, {"long": 0.0}, estimates_s).decisions["short"], Start)
    turn = planned(HOUR, room, {"long": 0.0}, estimates_s).decisions["long"]
    assert kinds(turn) == ["Priority", "PlainOrder", "FreeGpus", "InSlots"]
    why = reason(turn, PlainOrder, Start)
    assert (why.plain_s, why.turn_s, why.bound_s) == (0.0, HOUR, 2 * HOUR)
    both = planned(3 * HOUR, room, {"short": 100.0, "long": 50.0}, estimates_s)
    assert [action.job_id for action in both.actions] == ["long"]
    assert isinstance(both.decisions["short"], Hold)


def test_nodes_are_kept_for_it_and_said_so() -> None:
    """Half of n2 is free: no job starts there that is expected to stay longer."""
    running = [runs("x", "n1:0-3", job={"time_limit_s": 9 * HOUR}), runs("y", "n2:0-1")]
    room = part(nodes(2, 4), [waits("wide", 4, 0.0), waits("tiny", 1, 1.0)], running)
    plan = planned(2 * HOUR, room, {"wide": 0.0}, {"x": 9 * HOUR, "y": 2.5 * HOUR, "tiny": 0.6 * HOUR})
    assert kinds(plan.decisions["wide"]) == ["PlainOrder", "Reserved", "FreeGpus"]
    kept = reason(plan.decisions["tiny"], Reserved)
    assert (kept.holder, kept.nodes, bool(kept)) == ("wide", 1, True)
    assert fences_of(plan) == {"wide": ("n2",)}
    assert plan.wake_s == 2 * HOUR + PLAN_AGAIN_S, "time alone moves what is expected of nodes"


def test_in_each_vc_one_job_at_a_time_has_nodes_kept_in_its_turn() -> None:
    held = [runs("x", "n1:0-3"), runs("y", "n2:0-3"), runs("z", "n3:0-1")]
    room = part(nodes(3, 4), [waits("later", 4, 0.0), waits("first", 4, 1.0), waits("tiny", 1, 2.0)], held)
    estimates_s = {"x": 9 * HOUR, "y": 2.5 * HOUR, "z": 3 * HOUR, "tiny": 20 * HOUR, "later": 9 * HOUR}
    plan = planned(2 * HOUR, room, {"later": 50.0, "first": 10.0}, estimates_s)
    assert fences_of(plan) == {"first": ("n2",)}
    assert kinds(plan.decisions["later"]) == ["PlainOrder", "Reserved", "FreeGpus"]
    assert reason(plan.decisions["later"], Reserved).holder == "first"
    assert isinstance(plan.decisions["tiny"], Start), "n3 is kept for nobody"


@pytest.mark.parametrize("due", [(), ("big",)])
def test_the_large_job_goes_before_jobs_in_their_turn_whether_or_not_its_own_has_come(due: tuple[str, ...]) -> None:
    """Until its nodes are needed at 4 h a job in its turn is their guest like any other."""
    for estimate_s, starts in ((1.9 * HOUR, True), (2.1 * HOUR, False)):
        room = part(nodes(2, 4), [waits("turn", 1, 0.0), waits("big", 8, HOUR)], [runs("y", "n1:0-3")])
        starts_s = {"turn": 0.0, **dict.fromkeys(due, 0.5)}
        plan = planned(2 * HOUR, room, starts_s, {"y": 4 * HOUR, "turn": estimate_s}, **LARGE_TOO)
        assert isinstance(plan.decisions["turn"], Start) == starts
        assert kinds(plan.decisions["big"]) == [*(["PlainOrder"] if due else []), "Reserved", "FreeGpus"]
        if not starts:
            assert kinds(plan.decisions["turn"]) == ["PlainOrder", "Reserved", "FreeGpus"]


def test_nodes_kept_in_a_turn_are_none_of_the_large_job() -> None:
    held = [runs("x", "n1:0-3"), runs("y", "n2:0-3"), runs("z", "n3:0-3")]
    room = part(nodes(3, 4), [waits("turn", 4, 0.0), waits("big", 8, HOUR)], held)
    estimates_s = {"x": 4 * HOUR, "y": 5 * HOUR, "z": 9 * HOUR, "turn": 9 * HOUR}
    plan = planned(2 * HOUR, room, {"turn": 0.0}, estimates_s, **LARGE_TOO)
    assert reason(plan.decisions["big"], Reserved).until_s == 5 * HOUR
    assert fences_of(plan)["turn"] == ("n3",)


def test_one_gpu_needs_no_node_kept() -> None:
    room = part(nodes(1, 4), [waits("one"), waits("other", 1, 1.0)], [runs("y", "n1:0-3")])
    plan = planned(2 * HOUR, room, {"one": 0.0})
    assert (kinds(plan.decisions["one"]), fences_of(plan)) == (["PlainOrder", "FreeGpus"], {})


def test_turns_wake_when_the_next_one_comes_and_a_job_that_cannot_come_at_present_has_none() -> None:
    rules = FairnessSettings(beyond_plain_s=100.0, keep_from=0.25)
    room = part(nodes(1, 4), [waits("a"), waits("b"), waits("c")])
    found, changes_s = turns(room, {"a": 0.0, "b": 50.0}, 70.0, 30.0, rules)
    assert ([turn.entry.job.id for turn in found], changes_s) == (["a"], 75.0)
    assert turns(room, {"a": 0.0}, 40.0, 30.0, rules)[1] == 65.0, "plain order starts nobody before 40 s"
    assert turns(room, {"a": 0.0}, None, 30.0, rules)[1] is None
    down = part([Node("n1", 4), Node("n2", 4, available=False)], [waits("wide", 8)])
    assert turns(down, {"wide": 0.0}, None, 1000.0, rules)[0] == []


def test_the_longer_a_job_the_more_nodes_are_closed_to_it() -> None:
    a, b = Reserved("a", 0.0, 500.0, 1), Reserved("b", 0.0, 0.0, 1)
    kept = ((a, {1}, {"n2"}), (b, {0}, {"n1"}))
    fences = NodeReservations([NodeReservation(why, frozenset(at), frozenset(names)) for why, at, names in kept])
    assert [fences.level(s) for s in (1.0, 500.0, 501.0)] == [1, 1, 2]
    assert (fences.nodes, fences.names[2]) == ([frozenset(), {0}, {0, 1}], {"n1", "n2"})
    assert fences.why(2).holder == "b"


Held = Mapping[str, tuple[str, float, float]]
HALVES: Held = {"x": ("n1:0-3", 0.0, 900.0), "y": ("n2:0-1", 0.0, 200.0), "z": ("n2:2-3", 0.0, 1000.0)}
EACH: Held = {"x": ("n1:0-3", 100.0, 500.0), "y": ("n2:0-3", 400.0, 900.0), "z": ("n3:0-3", 400.0, 700.0)}
ODD = (Node("n1", 4), Node("n2", 4, available=False), Node("n3", 4), Node("n4", 2), Node("n5", 4))


@pytest.mark.parametrize(
    ("gpus", "held", "now_s", "names", "until_s", "machines"),
    [
        (2, HALVES, 100.0, {"n2"}, 200.0, MACHINES),
        (4, HALVES, 100.0, {"n1"}, 900.0, MACHINES),
        (8, HALVES, 100.0, {"n1", "n2"}, 1000.0, MACHINES),
        (6, HALVES, 100.0, {"n1", "n2"}, 900.0, MACHINES),
        (12, HALVES, 100.0, None, None, MACHINES),
        # x has outlived its estimate, and from 700 s on is expected after y
        (8, EACH, 650.0, {"n1", "n3"}, None, MACHINES),
        (8, EACH, 700.1, {"n2", "n3"}, None, MACHINES),
        (8, {"x": ("n1:0-3", 0.0, 500.0)}, 0.0, {"n3", "n5"}, None, ODD),
    ],
)
def test_the_nodes_kept_are_those_expected_first_of_the_right_size_that_are_up(
    gpus: int, held: Held, now_s: float, names: set[str] | None, until_s: float | None, machines: tuple[Node, ...]
) -> None:
    """Beside the halves n3 is closed."""
    running = [runs(name, where, at_s) for name, (where, at_s, _) in held.items()]
    ledger = Ledger(part(machines, [], running))
    ends = expected_ends(running, {name: guess(lasts_s) for name, (_, _, lasts_s) in held.items()}, now_s)
    closed = {2} if held is HALVES else frozenset[int]()
    kept = keep(waits("j", gpus).job, ledger, now_s, Timeline(ledger, now_s, ends), closed)
    assert (None if kept is None else {*kept.names}) == names
    assert until_s is None or kept.until_s == until_s


def test_a_withdrawn_job_leaves_the_shadow() -> None:
    chosen, memory = policy("lucid", None, fairness={"beyond_plain_s": HOUR}, **OFF), {}
    for now_s, left in ((10.0, "ab"), (20.0, "b")):
        room = part(nodes(1, 1), [waits(job, 1, 1.0) for job in left], [runs("x", "n1:0")])
        memory = chosen.plan(replace(snap(now_s, room), memory=memory)).memory
        assert {*memory["vc"].shadow.waiting} == {*left}  # type: ignore[attr-defined]


def test_a_job_in_profiling_does_not_wait_past_the_bound_there() -> None:
    rules = {"profiling": {"n_prof": 8}, "fairness": {"beyond_plain_s": 600.0}}
    room = part(nodes(1, 1), [waits("a", 1, 0.0)], [runs("x", "n1:0")], "profiling", profiling=True)
    plan = policy("lucid", None, **rules).plan(snap(600.0, room, part(nodes(1, 1, "h"))))
    assert kinds(plan.partitions["profiling"].decisions["a"]) == ["WaitedForProfiling"]


def test_the_tally_is_told_with_the_figures() -> None:
    small = (by(f"s{i}", 1, 900.0, 10.0 + i) for i in range(20))
    trace = a_trace(by("long", 1, 5000.0, 0.0), by("late", 1, 4000.0, 1.0), *small)
    rules = {"profiling": {"enabled": False}, "fairness": {"beyond_plain_s": 600.0}}
    scene = Scenario(trace, {"vc": 1}, settings=settings_from({"policy": rules}, "t"), predictor="oracle")
    scene = replace(scene, shape=replace(scene.shape, gpus=1))
    kept = run_metrics(simulate(scene, "lucid"))
    assert kept["starvation_bound_s"] == 600.0
    plain, starts = ({o.job.id: o.start_s for o in simulate(scene, name).outcomes} for name in ("backfill", "lucid"))
    excess_s = [starts[job] - plain[job] - 600.0 for job in starts]
    assert kept["jobs_past_bound"] == sum(s > 0 for s in excess_s) > 0
    assert kept["worst_past_bound_s"] == pytest.approx(max(excess_s))
    off = settings_from({"policy": {"profiling": {"enabled": False}}}, "t")
    assert "starvation_bound_s" not in run_metrics(simulate(replace(scene, settings=off), "lucid"))


def test_tallies_of_all_vcs_add_up() -> None:
    tallies = {"a": Kept(60.0, 5, 2, 30.0), "b": Kept(60.0, 3, 1, 90.0)}
    both: dict[str, Any] = {vc: LucidMemory(Shadow(0.0, (), kept)) for vc, kept in tallies.items()}
    assert promise_kept({**both, "c": "of another policy"}) == Kept(60.0, 8, 3, 90.0)
    assert promise_kept({"c": "of another policy"}) is None
    assert Kept(60.0).counting(-5.0).counting(7.0) == Kept(60.0, 2, 1, 7.0)


def test_lucidd_promises_twelve_hours_where_its_file_says_nothing_and_a_replay_nothing() -> None:
    for said, live in (({}, 12 * HOUR), ({"beyond_plain_s": 0}, 0.0), ({"beyond_plain_s": 60}, 60.0)):
        given = settings_from({"policy": {"fairness": said}}, "file")
        assert live_policy(given, frozenset()).settings.fairness.beyond_plain_s == live
    assert settings_from({}, "file").policy.fairness.beyond_plain_s is None


def test_without_a_bound_nothing_is_remembered() -> None:
    scene = snap(9 * HOUR, part(nodes(1), [waits("j", 8)], [runs("r", "n1:0-7")]))
    for bound in ({}, {"beyond_plain_s": 0.0}):
        assert policy("lucid", None, fairness=bound, **OFF).plan(scene).memory == {}
