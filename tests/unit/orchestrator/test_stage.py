"""The profiling stage: rows L2, L4, L6 and L7, and who may carry on in place."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from lucid.core.decision import Decision, EndProfiling, Hold, Keep, PartitionPlan, Start
from lucid.core.job import Pending, Running, Stage
from lucid.core.node import Node
from lucid.core.reason import Reason
from lucid.core.reasons.profiling import (
    HomeHasRoom,
    HomeWaits,
    ProfilerPressure,
    ProfileTime,
    ProfilingFits,
    ProfilingTaken,
    Requeueable,
    WaitedForProfiling,
)
from lucid.core.snapshot import ArrivalForecast
from lucid.profiler.stage import goes_through_profiling, plan_profiling, t_prof_s
from lucid.simulator.cluster.jobs import PROFILING
from scenes.jobs import LIGHT, a_job, at, by, nodes, runs, waits
from scenes.plans import FixedPredictor, decided, part, policy, reason, settings, snap
from scenes.replays import a_trace, replay

LAYOUT = {"vc": nodes(1, 8)}


def stage(
    pending: list[Pending] | None = None,
    running: list[Running] | None = None,
    now_s: float = 0.0,
    machines: tuple[Node, ...] = nodes(2, 8),
    home: int = 0,
    arrivals: ArrivalForecast | None = None,
    **profiling: object,
) -> PartitionPlan:
    room = part(machines, pending or (), running or (), name=PROFILING, profiling=True)
    return plan_profiling(room, now_s, settings(profiling=profiling).profiling, {"vc": home}, arrivals=arrivals)


def profiling_run(name: str, where: str = "n1:0", **job: object) -> Running:
    return runs(name, where, stage=Stage.PROFILE, job=job)


@pytest.mark.parametrize(
    ("job", "rules", "profiled"),
    [
        ({"gpus": 8}, {"n_prof": 8}, True),
        ({"gpus": 9}, {"n_prof": 8}, False),
        ({}, {"n_prof": 0}, False),
        ({"requeueable": False}, {}, False),
        ({"gpus": 2, "min_nodes": 2}, {}, False),
        ({}, {"enabled": False}, False),
        ({"restart_asked": True}, {"restarts": "asked"}, False),
        ({"restart_asked": True}, {"restarts": "never"}, False),
    ],
)
def test_L2_who_goes_through_profiling(job: dict[str, Any], rules: dict[str, Any], profiled: bool) -> None:
    assert goes_through_profiling(a_job("j", **job), settings(profiling=rules).profiling) == profiled


@pytest.mark.parametrize(("now_s", "ends"), [(79.9, False), (80.0, True), (200.0, True)])
def test_L2_a_profiling_run_ends_at_t_prof(now_s: float, ends: bool) -> None:
    plan = stage(running=[profiling_run("j")], now_s=now_s, t_prof_s=80.0)
    assert bool(plan.actions) == ends
    if ends:
        assert reason(plan.decisions["j"], ProfileTime) == ProfileTime(now_s, 80.0)
    else:
        assert plan.wake_s == 80.0


def test_L4_fewest_gpus_first_then_first_come() -> None:
    jobs = [waits("four", 4), waits("one", 1), waits("two", 2), waits("uno", 1, 5.0)]
    assert [a.job_id for a in stage(jobs).actions] == ["one", "uno", "two", "four"]


def test_L4_a_larger_job_waits_behind_a_smaller_one() -> None:
    plan = stage([waits("b", 8), waits("a", 2)], [profiling_run("r", "n1:0-6")], machines=nodes(1, 8))
    assert isinstance(plan.decisions["a"], Hold)
    assert isinstance(plan.decisions["b"], Hold)


def test_L4_profiling_is_exclusive_and_on_the_tightest_node() -> None:
    plan = stage([waits("j", 2, profile=LIGHT)], [profiling_run("r", "n2:0-3")])
    decision = decided(plan, "j", Start)
    assert (decision.placement, decision.beside) == (at("n2:4-5"), None)


def test_profiling_keeps_within_cpus_and_host_memory() -> None:
    machines = nodes(1, 8, cpus=8)
    plan = stage([waits("a", cpus=6), waits("b", cpus=6), waits("c", cpus=9)], machines=machines)
    kinds = {job_id: type(d) for job_id, d in plan.decisions.items()}
    assert kinds == {"a": Start, "b": Hold, "c": EndProfiling}


def test_gpus_that_are_given_up_are_given_out_in_the_same_plan() -> None:
    plan = stage([waits("next", 8)], [profiling_run("j", "n1:0-7")], now_s=80.0, machines=nodes(1, 8), t_prof_s=80.0)
    assert [(a.job_id, type(a.decision)) for a in plan.actions] == [("j", EndProfiling), ("next", Start)]


def test_L6_a_job_that_ends_within_t_prof_leaves_the_system() -> None:
    outcomes, tape = replay("lucid", a_trace(by("debug", 1, 30.0)), LAYOUT, profiling_nodes=nodes(1, prefix="p"))
    assert outcomes["debug"].ended_in_profiling
    assert outcomes["debug"].jct_s == 30.0
    assert [a.partition for _, a in tape.actions("debug")] == [PROFILING]


def test_L7_a_long_cold_start_lengthens_t_prof() -> None:
    rules = settings(profiling={"t_prof_s": 80.0}).profiling
    assert t_prof_s(a_job("j"), rules) == 80.0
    assert t_prof_s(a_job("j", long_cold_start=True), rules) == 240.0
    plan = stage(running=[profiling_run("j", long_cold_start=True)], now_s=100.0, t_prof_s=80.0)
    assert not plan.actions
    assert plan.wake_s == 240.0


@pytest.mark.parametrize(("waited_s", "released"), [(599.0, False), (600.0, True)])
def test_a_job_that_waited_too_long_goes_home_unprofiled(waited_s: float, released: bool) -> None:
    full = [profiling_run("r", "n1:0-7")]
    full = [runs("r", "n1:0-7", waited_s, stage=Stage.PROFILE)]
    plan = stage([waits("j", 1, 0.0)], full, now_s=waited_s, machines=nodes(1, 8), max_wait_s=600.0)
    assert isinstance(plan.decisions["j"], EndProfiling) == released
    if released:
        assert reason(plan.decisions["j"], WaitedForProfiling).waited_s == 600.0
    else:
        assert plan.wake_s == 600.0


@pytest.mark.parametrize(
    ("waiting", "made", "decision", "why"),
    [
        (0, {}, Keep, None),
        (0, {"home": 0}, EndProfiling, HomeWaits("vc", 0)),
        (1, {}, EndProfiling, None),
        (0, {"carry_on_share": 0.0}, EndProfiling, None),
        (0, {"where": "n2:0", "running": [runs("before", "n1:0-7")]}, EndProfiling, None),
        (3, {"home": 0, "requeueable": False}, Keep, Requeueable(False)),
    ],
)
def test_a_profiled_job_carries_on_where_its_home_is_full_nobody_waits_and_few_do(
    waiting: int, made: dict[str, Any], decision: type, why: Reason | None
) -> None:
    """And whoever may not be started over."""
    made = {"home": 1, "t_prof_s": 80.0, "carry_on_share": 0.5, **made}
    entry = profiling_run("j", made.pop("where", "n1:0"), requeueable=made.pop("requeueable", True))
    plan = stage([waits(f"w{i}", 8) for i in range(waiting)], [entry, *made.pop("running", ())], 80.0, **made)
    assert {*plan.decisions} == {"j", *(f"w{i}" for i in range(waiting))}, "who carries on already is let be"
    assert isinstance(plan.decisions["j"], decision)
    assert why is None or why in plan.decisions["j"].reasons


@pytest.mark.parametrize("gpus", [0, 9])
def test_L4_a_job_of_no_gpu_or_more_than_a_node_has_is_sent_on_unprofiled(gpus: int) -> None:
    assert reason(stage([waits("j", gpus)]).decisions["j"], ProfilingFits, EndProfiling) == ProfilingFits(gpus, False)


BURST = {"time_aware": True}


def test_L5_a_burst_shortens_t_prof_and_a_calm_does_not() -> None:
    busy = [profiling_run("r", "n1:0-7"), profiling_run("s", "n2:0-7")]
    calm = stage([waits(f"j{i}", 8, vc="vc") for i in range(2)], busy, 60.0, **BURST)  # 2 x 8 x 80 / 16 = 80 s
    assert not calm.actions
    burst = stage([waits(f"j{i}", 8, vc="vc") for i in range(4)], busy, 60.0, **BURST)  # 160 s: T_prof halves
    assert reason(burst.decisions["r"], ProfileTime) == ProfileTime(60.0, 40.0)
    static = stage([waits(f"j{i}", 8, vc="vc") for i in range(4)], busy, 60.0)
    assert not static.actions


def test_L5_a_forecast_shortens_t_prof_before_the_queue_is_long() -> None:
    busy = [profiling_run("r", "n1:0-7"), profiling_run("s", "n2:0-7")]
    queue = [waits(f"j{i}", 8, vc="vc") for i in range(2)]  # 80 s, which is no burst yet

    def t_prof_ends(per_hour: float, **rules: object) -> bool:
        arrivals = ArrivalForecast("throughput v3", {"vc": per_hour}, per_hour)
        return "r" in stage(queue, busy, 60.0, arrivals=arrivals, **rules).decisions

    assert not t_prof_ends(0.0, **BURST)
    assert t_prof_ends(720.0, **BURST)  # 16 GPUs more within one T_prof: 160 s, so T_prof halves to 40 s
    assert not t_prof_ends(720.0)


def test_L5_n_prof_falls_with_the_forecast_and_says_who_made_it() -> None:
    home = part(nodes(1, 8), name="vc")
    room = part(nodes(1, 8, "p"), [waits("big", 4, vc="vc")], name=PROFILING, profiling=True)
    coming = ArrivalForecast("throughput v3", {"vc": 2000.0}, 576.0)
    calm, burst = (
        policy("lucid", profiling={**BURST, "n_prof": 4})
        .plan(replace(snap(0.0, room, home), arrivals=arrivals))
        .partitions[PROFILING]
        .decisions["big"]
        for arrivals in (ArrivalForecast(), coming)
    )
    assert isinstance(calm, Start), "profiled"
    assert isinstance(burst, EndProfiling), "N_prof is 2 now, and its VC has room"
    pressure = reason(burst, ProfilerPressure)
    assert (pressure.gpus_per_hour, pressure.by) == (576.0, "throughput v3")


# -- nobody waits longer because of others in the profiling partition -------------------------------------------


def strangers(name: str, where: str) -> Running:
    """A job that was submitted to the profiling partition itself."""
    return runs(name, where, job={"vc": PROFILING})


def test_profiling_wakes_no_node_unless_a_setting_says_so() -> None:
    asleep = replace(nodes(1, 4)[0], boot_s=240.0)
    boots = replace(asleep, boots_since_s=0.0)

    def made(node: Node, **rules: bool) -> Decision:
        room = part((node,), [waits("a")], name=PROFILING)
        return plan_profiling(room, 10.0, settings(profiling=rules).profiling, {}).decisions["a"]

    home = made(asleep)
    assert isinstance(home, EndProfiling)
    assert [type(r).__name__ for r in home.reasons] == ["ProfilingFits", "NodesOut"]
    assert isinstance(made(asleep, wake_nodes=True), Start)
    assert isinstance(made(boots), Start), "it boots already"


def test_nobody_waits_for_profiling_nodes_that_are_none_of_lucids_to_give() -> None:
    full = stage([waits("j", 2)], [strangers("x", "n1:0-7"), strangers("y", "n2:0-7")])
    assert isinstance(full.decisions["j"], EndProfiling)
    assert reason(full.decisions["j"], ProfilingTaken) == ProfilingTaken(16)
    half = stage([waits("j", 2)], [strangers("x", "n1:0-7")])
    assert isinstance(half.decisions["j"], Start), "other nodes are free"
    ours = stage([waits("j", 2)], [profiling_run("x", "n1:0-7"), profiling_run("y", "n2:0-7")])
    assert isinstance(ours.decisions["j"], Hold), "measuring runs end soon"


@pytest.mark.parametrize(("in_turn", "first"), [(False, ["a0", "a1"]), (True, ["a0", "b"])])
def test_where_users_take_turns_many_programs_of_one_do_not_hold_up_anothers(in_turn: bool, first: list[str]) -> None:
    many = [waits(f"a{i}", 4, user="ada") for i in range(20)]
    plan = stage([*many, waits("b", 4, user="bob")], machines=nodes(1, 8), users_in_turn=in_turn)
    assert [action.job_id for action in plan.actions] == first
    running = [profiling_run("x", "n1:0-3", user="ada")]
    plan = stage([*many, waits("b", 4, user="bob")], running, machines=nodes(1, 8), users_in_turn=in_turn)
    assert [action.job_id for action in plan.actions] == first[in_turn:][:1]


@pytest.mark.parametrize("home_if_room", [False, True])
def test_who_cannot_be_profiled_at_once_goes_home_where_there_is_room(home_if_room: bool) -> None:
    room = part(
        nodes(1, 8), [waits("j", 2), waits("k", 2)], [profiling_run("x", "n1:0-7")], name=PROFILING, profiling=True
    )
    rules = settings(profiling={"home_if_room": home_if_room}).profiling
    plan = plan_profiling(room, 0.0, rules, {}, lambda job, _spare: HomeHasRoom("vc", 2, job.id == "j"))
    assert isinstance(plan.decisions["j"], EndProfiling if home_if_room else Hold)
    assert isinstance(plan.decisions["k"], Hold)


def test_a_programs_wait_for_profiling_is_bounded_by_room_at_home_under_a_flood() -> None:
    """One user's hundred new programs, and another's one: it starts within two measuring runs."""
    flood = [by(f"a{i}", 4, 600.0, profile=LIGHT, user="ada") for i in range(100)]
    one = by("bob", 4, 600.0, profile=LIGHT, user="bob", submit_s=1.0)
    waited = {}
    for fair in (False, True):
        rules = {"users_in_turn": fair, "home_if_room": fair}
        _, tape = replay("lucid", a_trace(*flood, one), LAYOUT, profiling_nodes=nodes(1, 8, "p"), profiling=rules)
        waited[fair] = tape.actions("bob")[0][0] - 1.0
    assert waited[True] <= 160.0 < waited[False]


@pytest.mark.parametrize(("held", "home"), [("n6:0-2", True), ("n6:0-3", False)])
def test_a_job_is_measured_at_home_where_a_quarter_of_the_vc_stays_idle(held: str, home: bool) -> None:
    """A VC of 32 GPUs, of which 9 or 8 are idle: 8 or 7 would be left."""
    running = [*(runs(f"r{i}", f"n{i}:0-3") for i in range(1, 6)), runs("r6", held)]
    prof = part(nodes(1, 4, prefix="p"), [waits("j", 1)], name="prof", profiling=True)
    plan = policy("lucid", FixedPredictor()).plan(snap(0.0, part(nodes(8, 4), (), running), prof))
    assert isinstance(plan.partitions["prof"].decisions["j"], EndProfiling if home else Start)
