"""The profiling stage: rows L2, L4 to L7, who may carry on in place, and who is started over (profiling.restarts)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from lucid.config.load import Settings, settings_from
from lucid.config.policy import LIVE_DEFAULTS, with_defaults
from lucid.core.decision import EndProfiling, Hold, Keep, PartitionPlan, Plan, Start, decision_to_dict
from lucid.core.job import Pending, Running, Stage
from lucid.core.ports import Capability
from lucid.core.reason import Reason
from lucid.core.reasons.profiling import (
    HomeHasRoom,
    HomeWaits,
    Overflow,
    ProfilerPressure,
    ProfileTime,
    ProfilingFits,
    ProfilingTaken,
    Requeueable,
    WaitedForProfiling,
)
from lucid.core.reasons.sharing import InSlots, PairHarm
from lucid.core.snapshot import ArrivalForecast, Snapshot
from lucid.daemon.modes import live_profiling, policy_settings
from lucid.models.packing.like_profiles import LikeProfiles
from lucid.orchestrator.policies.lucid.policy import LucidPolicy
from lucid.orchestrator.safety.check import SafetyCheck
from lucid.profiler.stage import goes_through_profiling, plan_profiling, t_prof_s
from lucid.simulator.cluster.jobs import PROFILING
from lucid.store.values import value_from_json
from scenes.jobs import HEAVY, LIGHT, VC, a_job, at, by, nodes, runs, waits
from scenes.plans import FixedPredictor, decide, decided, guess, kinds, part, policy, reason, settings, snap
from scenes.replays import a_trace, replay

LAYOUT = {"vc": nodes(1, 8)}


def stage(
    pending: Any = (), running: Any = (), now_s: float = 0.0, machines: Any = None, home: int = 0, **rest: Any
) -> PartitionPlan:
    arrivals = rest.pop("arrivals", None)
    room = part(machines or nodes(2, 8), pending, running, name=PROFILING, profiling=True)
    return plan_profiling(room, now_s, settings(profiling=rest).profiling, {"vc": home}, arrivals=arrivals)


def profiling_run(name: str, where: str = "n1:0", **job: object) -> Running:
    return runs(name, where, stage=Stage.PROFILE, job=job)


@pytest.mark.parametrize(
    ("job", "rules"),
    [
        ({"gpus": 9}, {"n_prof": 8}), ({}, {"n_prof": 0}), ({"requeueable": False}, {}),
        ({"gpus": 2, "min_nodes": 2}, {}), ({}, {"enabled": False}),
        ({"restart_asked": True}, {"restarts": "asked"}), ({"restart_asked": True}, {"restarts": "never"}),
    ],
)  # fmt: skip
def test_L2_who_goes_through_profiling(job: dict[str, Any], rules: dict[str, Any]) -> None:
    assert goes_through_profiling(a_job("j", gpus=8), settings(profiling={"n_prof": 8}).profiling)
    assert not goes_through_profiling(a_job("j", **job), settings(profiling=rules).profiling)


def test_L2_L7_a_profiling_run_ends_at_t_prof_which_a_long_cold_start_lengthens() -> None:
    rules = settings(profiling={"t_prof_s": 80.0}).profiling
    for cold, ends_s in ((False, 80.0), (True, 240.0)):
        assert t_prof_s(a_job("j", long_cold_start=cold), rules) == ends_s
        entry = profiling_run("j", long_cold_start=cold)
        early = stage(running=[entry], now_s=ends_s - 0.1, t_prof_s=80.0)
        assert (early.actions, early.wake_s) == ((), ends_s)
        for now_s in (ends_s, 300.0):
            ended = stage(running=[entry], now_s=now_s, t_prof_s=80.0).decisions["j"]
            assert reason(ended, ProfileTime, EndProfiling) == ProfileTime(now_s, ends_s)


def test_L4_fewest_gpus_first_then_first_come_exclusively_and_on_the_tightest_node() -> None:
    jobs = [waits("four", 4), waits("one", 1), waits("two", 2), waits("uno", 1, 5.0)]
    assert [a.job_id for a in stage(jobs).actions] == ["one", "uno", "two", "four"]
    full = stage([waits("b", 8), waits("a", 2)], [profiling_run("r", "n1:0-6")], machines=nodes(1, 8))
    assert [type(full.decisions[job]) for job in "ab"] == [Hold, Hold], "a larger job waits behind a smaller one"
    alone = decided(stage([waits("j", 2, profile=LIGHT)], [profiling_run("r", "n2:0-3")]), "j", Start)
    assert (alone.placement, alone.beside) == (at("n2:4-5"), None)


def test_profiling_keeps_within_cpus_and_host_memory() -> None:
    plan = stage([waits("a", cpus=6), waits("b", cpus=6), waits("c", cpus=9)], machines=nodes(1, 8, cpus=8))
    assert [type(plan.decisions[job]) for job in "abc"] == [Start, Hold, EndProfiling]


def test_gpus_that_are_given_up_are_given_out_in_the_same_plan() -> None:
    plan = stage([waits("next", 8)], [profiling_run("j", "n1:0-7")], now_s=80.0, machines=nodes(1, 8), t_prof_s=80.0)
    assert [(a.job_id, type(a.decision)) for a in plan.actions] == [("j", EndProfiling), ("next", Start)]


def test_L6_a_job_that_ends_within_t_prof_leaves_the_system() -> None:
    outcomes, tape = replay("lucid", a_trace(by("debug", 1, 30.0)), LAYOUT, profiling_nodes=nodes(1, prefix="p"))
    assert outcomes["debug"].ended_in_profiling
    assert outcomes["debug"].jct_s == 30.0
    assert [a.partition for _, a in tape.actions("debug")] == [PROFILING]


def test_a_job_that_waited_too_long_goes_home_unprofiled() -> None:
    def after(waited_s: float) -> PartitionPlan:
        full = [runs("r", "n1:0-7", waited_s, stage=Stage.PROFILE)]
        return stage([waits("j")], full, now_s=waited_s, machines=nodes(1, 8), max_wait_s=600.0)

    assert after(599.0).wake_s == 600.0
    decided(after(599.0), "j", Hold)
    assert reason(after(600.0).decisions["j"], WaitedForProfiling, EndProfiling).waited_s == 600.0


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
BUSY = [profiling_run("r", "n1:0-7"), profiling_run("s", "n2:0-7")]


def test_L5_a_burst_shortens_t_prof_and_a_calm_does_not() -> None:
    four = [waits(f"j{i}", 8) for i in range(4)]
    assert not stage(four[:2], BUSY, 60.0, **BURST).actions, "2 x 8 x 80 / 16 = 80 s"
    burst = stage(four, BUSY, 60.0, **BURST)  # 160 s: T_prof halves
    assert reason(burst.decisions["r"], ProfileTime) == ProfileTime(60.0, 40.0)
    assert not stage(four, BUSY, 60.0).actions


def test_L5_a_forecast_shortens_t_prof_before_the_queue_is_long() -> None:
    queue = [waits(f"j{i}", 8) for i in range(2)]  # 80 s, which is no burst yet

    def t_prof_ends(per_hour: float, **rules: object) -> bool:
        arrivals = ArrivalForecast("throughput v3", {"vc": per_hour}, per_hour)
        return "r" in stage(queue, BUSY, 60.0, arrivals=arrivals, **rules).decisions

    assert not t_prof_ends(0.0, **BURST)
    assert t_prof_ends(720.0, **BURST)  # 16 GPUs more within one T_prof: 160 s, so T_prof halves to 40 s
    assert not t_prof_ends(720.0)


def test_L5_n_prof_falls_with_the_forecast_and_who_is_above_it_goes_home_while_there_is_room() -> None:
    home = part(nodes(1, 8), name="vc")
    waiting = [waits("small", vc="vc"), *(waits(f"big{i}", 4, vc="vc") for i in range(3))]
    room = part(nodes(2, 8, "p"), waiting, name=PROFILING, profiling=True)
    chosen = policy("lucid", profiling={**BURST, "n_prof": 4, "home_if_room": False})
    calm, coming = ArrivalForecast(), ArrivalForecast("throughput v3", {"vc": 2000.0}, 1500.0)
    for arrivals, there, sent in (
        (calm, home, []),
        (coming, home, ["big0", "big1"]),  # N_prof is 2 now
        (coming, replace(home, pending=(waits("first"),)), []),
    ):
        made = chosen.plan(replace(snap(0.0, room, there), arrivals=arrivals)).partitions[PROFILING].decisions
        assert [job for job, decision in made.items() if isinstance(decision, EndProfiling)] == sent
        for job in sent:
            pressure = reason(made[job], ProfilerPressure)
            assert (pressure.gpus_per_hour, pressure.by) == (1500.0, "throughput v3")


# -- nobody waits longer because of others in the profiling partition -------------------------------------------


def test_profiling_wakes_no_node_unless_a_setting_says_so() -> None:
    asleep = nodes(1, 4, boot_s=240.0)
    stays = stage([waits("a")], machines=asleep, now_s=10.0).decisions["a"]
    assert (type(stays), kinds(stays)) == (EndProfiling, ["ProfilingFits", "NodesOut"])
    decided(stage([waits("a")], machines=asleep, now_s=10.0, wake_nodes=True), "a", Start)
    decided(stage([waits("a")], machines=nodes(1, 4, boot_s=240.0, boots_since_s=0.0), now_s=10.0), "a", Start)


def test_nobody_waits_for_profiling_nodes_that_are_none_of_lucids_to_give() -> None:
    """The jobs there were submitted to the profiling partition itself."""
    theirs = [runs(name, where, job={"vc": PROFILING}) for name, where in (("x", "n1:0-7"), ("y", "n2:0-7"))]
    full = stage([waits("j", 2)], theirs).decisions["j"]
    assert reason(full, ProfilingTaken, EndProfiling) == ProfilingTaken(16)
    decided(stage([waits("j", 2)], theirs[:1]), "j", Start)
    decided(stage([waits("j", 2)], BUSY), "j", Hold)  # measuring runs end soon


@pytest.mark.parametrize(("in_turn", "first"), [(False, ["a0", "a1"]), (True, ["a0", "b"])])
def test_where_users_take_turns_many_programs_of_one_do_not_hold_up_anothers(in_turn: bool, first: list[str]) -> None:
    many = [waits(f"a{i}", 4, user="ada") for i in range(20)]
    plan = stage([*many, waits("b", 4, user="bob")], machines=nodes(1, 8), users_in_turn=in_turn)
    assert [action.job_id for action in plan.actions] == first
    running = [profiling_run("x", "n1:0-3", user="ada")]
    plan = stage([*many, waits("b", 4, user="bob")], running, machines=nodes(1, 8), users_in_turn=in_turn)
    assert [action.job_id for action in plan.actions] == first[in_turn:][:1]


def test_who_cannot_be_profiled_at_once_goes_home_where_there_is_room() -> None:
    room = part(nodes(1, 8), [waits("j", 2), waits("k", 2)], BUSY[:1], name=PROFILING, profiling=True)
    for goes in (False, True):
        rules = settings(profiling={"home_if_room": goes}).profiling
        plan = plan_profiling(room, 0.0, rules, {}, lambda job, _spare: HomeHasRoom("vc", 2, job.id == "j"))
        assert [type(plan.decisions[job]) for job in "jk"] == [EndProfiling if goes else Hold, Hold]


def test_a_programs_wait_for_profiling_is_bounded_by_room_at_home_under_a_flood() -> None:
    """One user's hundred new programs, and another's one: it starts within two measuring runs."""
    flood = [by(f"a{i}", 4, 600.0, profile=LIGHT, user="ada") for i in range(100)]
    trace = a_trace(*flood, by("bob", 4, 600.0, profile=LIGHT, user="bob", submit_s=1.0))
    for fair in (False, True):
        rules = {"users_in_turn": fair, "home_if_room": fair}
        _, tape = replay("lucid", trace, LAYOUT, profiling_nodes=nodes(1, 8, "p"), profiling=rules)
        assert (tape.actions("bob")[0][0] <= 161.0) is fair


def test_a_job_is_measured_at_home_where_a_quarter_of_the_vc_stays_idle() -> None:
    """A VC of 32 GPUs, of which 9 or 8 are idle: 8 or 7 would be left."""
    for held, decision in (("n6:0-2", EndProfiling), ("n6:0-3", Start)):
        running = [*(runs(f"r{i}", f"n{i}:0-3") for i in range(1, 6)), runs("r6", held)]
        prof = part(nodes(1, 4, prefix="p"), [waits("j", 1)], name="prof", profiling=True)
        plan = policy("lucid").plan(snap(0.0, part(nodes(8, 4), (), running), prof))
        decided(plan.partitions["prof"], "j", decision)


# -- measured in place, and started over by nobody who did not ask for it -------------------------------------------

SHAKY = replace(LIGHT, unstable=True)


def scene(pending: list[Pending], running: Any = (), lent: Any = (), now_s: float = 0.0, **known: float) -> Snapshot:
    """A VC of one GPU and a profiling node of two."""
    prof = part(nodes(1, 2, prefix="p"), (), lent, name=PROFILING, profiling=True)
    predictions = {name: guess(value_s) for name, value_s in known.items()}
    return snap(now_s, part(nodes(1, 1), pending, running), prof, predictions=predictions)


def plan_of(snapshot: Snapshot, restarts: str = "asked", **profiling: object) -> Plan:
    chosen = policy("lucid", profiling={"restarts": restarts, **profiling})
    made = chosen.plan(snapshot)
    SafetyCheck(LucidPolicy.rules, settings(profiling={"restarts": restarts}))(snapshot, made)
    return made


FULL = runs("host", "n1:0")


def test_a_job_that_nobody_measured_starts_in_its_own_vc_in_slots_in_one_cycle() -> None:
    made = plan_of(scene([waits("j")])).decision_of("j")
    assert reason(made, InSlots, Start) == InSlots(True, False, 1, False, False, None, 2)
    assert made == Start(at("n1:0"), made.reasons, slots=True)
    assert decision_to_dict(made)["slots"] is True
    older = {"is": "lucid.core.decision:Start", "placement": [], "reasons": []}
    assert value_from_json(older) == Start((), (), slots=False)


def test_who_finds_no_place_at_home_starts_on_a_profiling_node_the_shortest_first() -> None:
    waiting = [waits("long"), waits("short"), waits("mid")]
    made = plan_of(scene(waiting, [FULL], long=9000.0, short=10.0, mid=100.0))
    placed = {a.job_id: (a.partition, a.decision.placement) for a in made.actions}  # type: ignore[union-attr]
    assert placed == {"short": (PROFILING, at("p1:0")), "mid": (PROFILING, at("p1:1"))}
    assert made.decision_of("short").reasons[0] == Overflow(VC, False)  # type: ignore[union-attr]
    assert isinstance(made.decision_of("long"), Hold)
    assert made.partitions[VC].decisions.keys() == {"long"}, "each job has one decision"


@pytest.mark.parametrize(
    ("entry", "watched", "rule", "why"),
    [
        (waits("j", 3), False, "asked", "no profiling node holds it"),
        (waits("j", shareable=False), False, "asked", "it may ask for what only its VC has"),
        (waits("late"), False, "asked", "expected to take too long"),
        (waits("j"), True, "asked", "Lucid only watches: it would be refused in every cycle, before anybody else"),
        (waits("j", profile=HEAVY), False, "allowed", "where restarts are allowed nothing overflows"),
    ],
)
def test_who_stays_at_home_all_the_same(entry: Pending, watched: bool, rule: str, why: str) -> None:
    seen = scene([entry], [FULL], late=21601.0)
    rooms = {**seen.partitions, VC: replace(seen.partitions[VC], acting=not watched)}
    assert not plan_of(replace(seen, partitions=rooms), rule).actions, why


def test_after_t_prof_who_may_not_be_started_over_carries_on() -> None:
    for asked, rule, ends in ((False, "asked", Keep), (True, "asked", EndProfiling), (True, "never", Keep)):
        entry = runs("j", "p1:0", stage=Stage.PROFILE, job={"restart_asked": asked})
        assert isinstance(plan_of(scene([], lent=[entry], now_s=80.0), rule).decision_of("j"), ends)


def test_a_job_that_came_home_from_a_profiling_node_is_not_lent_out_and_started_over_for_ever() -> None:
    trace = a_trace(by("large", gpus=2, duration_s=500.0, profile=LIGHT, restart_asked=True))
    profiling_nodes, rules = nodes(1, 8, prefix="p"), {"restarts": "asked"}
    found, tape = replay("lucid", trace, {VC: nodes(1, 1)}, profiling_nodes=profiling_nodes, profiling=rules)
    made = [type(action.decision) for _, action in tape.actions("large")]
    assert made == [Start, EndProfiling], "no node of its VC can hold it: Slurm would make it wait, too"
    assert found["large"].end_s < 0


@pytest.mark.parametrize(
    ("rule", "asks", "parted"),
    [("allowed", False, True), ("asked", False, False), ("asked", True, True), ("never", True, False)],
)
def test_a_bad_pair_is_parted_by_who_may_be_started_over(rule: str, asks: bool, parted: bool) -> None:
    one = runs("one", "n1:0", profile=SHAKY, partner="two", job={"restart_asked": asks})
    pair = (one, runs("two", "n1:0", 1.0, profile=LIGHT, partner="one"))
    made = decide("lucid", snap(700.0, part(nodes(1, 1), (), pair)), profiling={"enabled": False, "restarts": rule})
    assert [a.job_id for a in made.actions] == ["one"] * parted
    assert not parted or reason(made.decisions["one"], Requeueable) == Requeueable(True, rule, asks)


def paired(rule: str, speed: float, guest: dict[str, object] | None = None, **packing: object) -> Start | Hold:
    """The host is slowed less than the guest."""
    predictor = FixedPredictor(speed=lambda a, b: (speed, min(speed + 0.08, 1.0)))
    host, joins = runs("host", "n1:0", profile=LIGHT), waits("guest", profile=LIGHT, **(guest or {}))
    rules = {"profiling": {"enabled": False, "restarts": rule}, "packing": packing}
    made = decide("lucid", snap(0.0, part(nodes(1, 1), [joins], [host])), predictor, **rules)
    return decided(made, "guest", Start | Hold)  # type: ignore[no-any-return]


def test_a_pair_that_cannot_be_parted_is_made_only_where_it_can_cost_little() -> None:
    assert isinstance(paired("allowed", 0.87), Start)
    harm = reason(paired("asked", 0.87), PairHarm, Hold)
    assert (bool(harm), harm.worst) == (False, pytest.approx(0.72))
    assert isinstance(paired("asked", 0.87, {"restart_asked": True}), Start), "then it can be parted"
    assert reason(paired("asked", 0.95), PairHarm, Start)
    assert isinstance(paired("asked", 0.87, unparted_harm=0.5), Start)
    late = reason(paired("asked", 0.45, least_pair_speed=0.4), PairHarm, Hold)
    assert late.worst == pytest.approx(0.3), "it is not taken to be parted in time"


def test_lucidd_asks_first_and_so_does_a_replay_as_live() -> None:
    assert Settings().policy.profiling.restarts == "allowed", "as published"
    said = settings_from({"policy": {"profiling": {"restarts": "allowed"}}}, "t")
    assert [live_profiling(one).restarts for one in (Settings(), said)] == ["asked", "allowed"]
    able = frozenset({Capability.SHARE, Capability.PROFILE})
    assert policy_settings(Settings(), able).profiling.restarts == "asked"
    assert with_defaults(said.policy, LIVE_DEFAULTS, said.given).profiling.restarts == "allowed"
    older = {"kind": "Requeueable", "requeueable": True, "holds": True}
    assert Reason.from_json(older) == Requeueable(True), "as a version wrote it that had no such rule"


def test_like_jobs_foretell_the_largest_memory_and_a_margin_the_looser_the_likeness() -> None:
    like = LikeProfiles()
    like.note("ada", "train-1", 1, replace(LIGHT, gpu_mem_mib=3000.0), 0.0)
    like.note("ada", "train-1", 1, replace(LIGHT, gpu_mem_mib=1000.0), 10.0)
    same = like.profile_of("ada", "train-1", 1, 20.0)
    told = [same, like.profile_of("ada", "Train-22", 1, 20.0), like.profile_of("ada", "train-1", 2, 20.0)]
    assert [found and found.gpu_mem_mib for found in told] == pytest.approx([3000.0, 3300.0, 3750.0])
    assert like.profile_of("ada", "train-1", 1, 30.0) is same, "the same object while it says the same"
    for user, name in (("bob", "train-1"), ("ada", "eval-1"), ("", "train-1")):
        assert like.profile_of(user, name, 1, 20.0) is None, (user, name)


def test_likeness_is_forgotten_in_time() -> None:
    like, small = LikeProfiles(keep_s=100.0), replace(LIGHT, gpu_mem_mib=1000.0)
    like.note("ada", "train-1", 1, LIGHT, 0.0)
    assert [bool(like.profile_of("ada", "train-1", 1, at_s)) for at_s in (100.0, 100.5)] == [True, False]
    like.note("ada", "train-1", 1, small, 200.0)
    assert like.profile_of("ada", "train-1", 1, 200.0) == small, "what is too old counts for nothing"
