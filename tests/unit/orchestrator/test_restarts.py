"""Measured in place, and started over by nobody who did not ask for it (policy.profiling.restarts)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lucid.config.load import Settings, settings_from
from lucid.config.policy import LIVE_DEFAULTS, ProfilingSettings, with_defaults
from lucid.core.decision import (
    Action,
    EndProfiling,
    Hold,
    Keep,
    Plan,
    Requeue,
    Start,
    decision_to_dict,
)
from lucid.core.job import JobProfile, Pending, Running, Stage
from lucid.core.ports import Capability
from lucid.core.reason import Reason
from lucid.core.reasons.profiling import Overflow, Requeueable
from lucid.core.reasons.sharing import InSlots, PairHarm
from lucid.core.snapshot import Snapshot
from lucid.daemon.modes import live_profiling, policy_settings
from lucid.models.packing.like_profiles import LikeProfiles
from lucid.orchestrator.policies.lucid.policy import LucidPolicy
from lucid.orchestrator.safety.check import SafetyCheck
from lucid.simulator.cluster.jobs import PROFILING
from lucid.store.values import value_from_json, value_to_json
from scenes.jobs import HEAVY, LIGHT, VC, at, by, nodes, runs, waits
from scenes.plans import FixedPredictor, guess, kinds, part, policy, reason, settings, snap
from scenes.replays import a_cluster, a_trace, replay

SHAKY = replace(LIGHT, unstable=True)


def scene(
    pending: list[Pending],
    running: list[Running] | None = None,
    lent: list[Running] | None = None,
    now_s: float = 0.0,
    **predictions: float,
) -> Snapshot:
    """A VC of one GPU and a profiling node of two."""
    home = part(nodes(1, 1), pending, running or ())
    prof = part(nodes(1, 2, prefix="p"), (), lent or (), name=PROFILING, profiling=True)
    return snap(now_s, home, prof, predictions={name: guess(value_s) for name, value_s in predictions.items()})


def plan_of(snapshot: Snapshot, restarts: str = "asked", **profiling: object) -> Plan:
    chosen = policy("lucid", profiling={"restarts": restarts, **profiling})
    made = chosen.plan(snapshot)
    SafetyCheck(LucidPolicy.rules, settings(profiling={"restarts": restarts}))(snapshot, made)
    return made


HOST = runs("host", "n1:0")


def test_a_job_that_nobody_measured_starts_in_its_own_vc_in_slots_in_one_cycle() -> None:
    made = plan_of(scene([waits("j")]))
    assert made.decision_of("j") == Start(at("n1:0"), made.decision_of("j").reasons, slots=True)  # type: ignore[union-attr]
    assert reason(made.decision_of("j"), InSlots) == InSlots(True, False, 1, False, False, None, 2)


def test_who_finds_no_place_at_home_starts_on_a_profiling_node_the_shortest_first() -> None:
    waiting = [waits("long"), waits("short"), waits("mid")]
    made = plan_of(scene(waiting, [HOST], long=9000.0, short=10.0, mid=100.0))
    placed = {a.job_id: (a.partition, a.decision.placement) for a in made.actions if isinstance(a.decision, Start)}
    assert placed == {"short": (PROFILING, at("p1:0")), "mid": (PROFILING, at("p1:1"))}
    assert kinds(made.decision_of("short"))[0] == "Overflow"
    assert reason(made.decision_of("short"), Overflow) == Overflow(VC, False)
    assert isinstance(made.decision_of("long"), Hold)
    assert made.partitions[VC].decisions.keys() == {"long"}, "each job has one decision"


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        (waits("j", 3), "no profiling node holds it"),
        (waits("j", shareable=False), "it may ask for what only its VC has"),
        (waits("late"), "expected to take too long"),
    ],
)
def test_who_stays_at_home_all_the_same(entry: Pending, why: str) -> None:
    assert not plan_of(scene([entry], [HOST], late=21601.0)).actions, why


def test_profiling_nodes_take_in_nobody_from_where_lucid_only_watches() -> None:
    snapshot = scene([waits("j")], [HOST])
    watched = replace(snapshot.partitions[VC], acting=False)
    made = plan_of(replace(snapshot, partitions={**snapshot.partitions, VC: watched}))
    assert not made.actions, "it would be refused, in every cycle, before anybody else was asked"


def test_where_restarts_are_allowed_nothing_overflows() -> None:
    assert not plan_of(scene([waits("j", profile=HEAVY)], [HOST]), "allowed").actions


@pytest.mark.parametrize(("asked", "ends"), [(False, Keep), (True, EndProfiling)])
def test_after_t_prof_who_may_not_be_started_over_carries_on(asked: bool, ends: type) -> None:
    entry = runs("j", "p1:0", stage=Stage.PROFILE, job={"restart_asked": asked})
    assert isinstance(plan_of(scene([], lent=[entry], now_s=80.0)).decision_of("j"), ends)
    assert isinstance(plan_of(scene([], lent=[entry], now_s=80.0), "never").decision_of("j"), Keep)


def test_a_job_that_came_home_from_a_profiling_node_is_not_lent_out_and_started_over_for_ever() -> None:
    trace = a_trace(by("large", gpus=2, duration_s=500.0, profile=LIGHT, restart_asked=True))
    found, tape = replay(
        "lucid", trace, {VC: nodes(1, 1)}, profiling_nodes=nodes(1, 8, prefix="p"), profiling={"restarts": "asked"}
    )
    made = [type(action.decision) for _, action in tape.actions("large")]
    assert made == [Start, EndProfiling], "no node of its VC can hold it: Slurm would make it wait, too"
    assert found["large"].end_s < 0


def test_a_job_that_came_home_stays_there_when_it_is_parted() -> None:
    """The second time it waits, it was not released: what it came from is known all the same."""
    cluster = a_cluster(
        a_trace(by("j", duration_s=900.0, profile=LIGHT, restart_asked=True)),
        {VC: nodes(1, 1)},
        profiling_nodes=nodes(1, 1, prefix="p"),
        profiled=lambda job: False,
        profiling=ProfilingSettings(restarts="asked"),
    )
    cluster.advance(0.0)
    there = PROFILING, Start(at("p1:0"), ()), EndProfiling(())
    here = VC, Start(at("n1:0"), ()), Requeue((), part=True)
    for where, *decisions in (there, here):
        for decision in decisions:
            assert cluster.apply([Action("j", where, decision)])[0].refused is None
        assert cluster.observe().partitions[VC].pending[0].home_only


def pair(**job: object) -> tuple[Running, ...]:
    one = runs("one", "n1:0", profile=SHAKY, partner="two", job=job)
    return one, runs("two", "n1:0", 1.0, profile=LIGHT, partner="one", job={})


def test_a_bad_pair_is_parted_by_who_may_be_started_over() -> None:
    bare = {"enabled": False}
    for rule, job, leaver in (
        ("allowed", {}, "one"),
        ("asked", {}, None),
        ("asked", {"restart_asked": True}, "one"),
        ("never", {"restart_asked": True}, None),
    ):
        chosen = policy("lucid", profiling={**bare, "restarts": rule})
        made = chosen.plan(snap(700.0, part(nodes(1, 1), (), pair(**job))))
        assert [a.job_id for a in made.actions] == ([] if leaver is None else [leaver])
        for action in made.actions:
            assert reason(action.decision, Requeueable) == Requeueable(True, rule, bool(job))


def beside(rule: str, speed: float, guest: dict[str, object] | None = None, **packing: object) -> Start | Hold:
    predictor = FixedPredictor(speed=lambda a, b: (speed, speed))
    chosen = policy("lucid", predictor, profiling={"enabled": False, "restarts": rule}, packing=packing)
    host = runs("host", "n1:0", profile=LIGHT)
    made = chosen.plan(snap(0.0, part(nodes(1, 1), [waits("guest", profile=LIGHT, **(guest or {}))], [host])))
    decision = made.decision_of("guest")
    assert isinstance(decision, Start | Hold)
    return decision


def test_a_pair_that_cannot_be_parted_is_made_only_where_it_can_cost_little() -> None:
    assert isinstance(beside("allowed", 0.87), Start)
    refused = beside("asked", 0.87)
    assert isinstance(refused, Hold)
    harm = reason(refused, PairHarm)
    assert not harm
    assert harm.worst == pytest.approx(0.72)
    assert isinstance(beside("asked", 0.87, {"restart_asked": True}), Start), "then it can be parted"
    assert reason(beside("asked", 0.95), PairHarm, Start)
    assert isinstance(beside("asked", 0.87, unparted_harm=0.5), Start)


def test_a_pair_that_cannot_be_parted_is_not_taken_to_be_parted_in_time() -> None:
    refused = beside("asked", 0.45, least_pair_speed=0.4)
    assert reason(refused, PairHarm, Hold).worst == pytest.approx(0.3)


def test_lucidd_asks_first_and_so_does_a_replay_as_live() -> None:
    assert Settings().policy.profiling.restarts == "allowed", "as published"
    assert live_profiling(Settings()).restarts == "asked"
    said = settings_from({"policy": {"profiling": {"restarts": "allowed"}}}, "t")
    assert live_profiling(said).restarts == "allowed"
    able = frozenset({Capability.SHARE, Capability.PROFILE})
    assert policy_settings(Settings(), able).profiling.restarts == "asked"
    assert with_defaults(said.policy, LIVE_DEFAULTS, said.given).profiling.restarts == "allowed"


def test_a_reason_that_an_older_version_wrote_is_read() -> None:
    assert Reason.from_json({"kind": "Requeueable", "requeueable": True, "holds": True}) == Requeueable(True)


def test_whether_in_slots_is_told_and_an_older_record_of_a_start_is_read() -> None:
    made = plan_of(scene([waits("j")])).decision_of("j")
    assert made is not None
    assert decision_to_dict(made)["slots"] is True
    assert value_from_json(value_to_json(made)) == made
    older = {"is": "lucid.core.decision:Start", "placement": [], "reasons": []}
    assert value_from_json(older) == Start((), (), slots=False)


def of_size(mib: float) -> JobProfile:
    return JobProfile(20.0, 10.0, mib)


def test_like_jobs_foretell_the_largest_memory_and_a_margin_the_looser_the_likeness() -> None:
    like = LikeProfiles()
    like.note("ada", "train-1", 1, of_size(3000.0), 0.0)
    like.note("ada", "train-1", 1, of_size(1000.0), 10.0)
    told = {
        (name, gpus): like.profile_of("ada", name, gpus, 20.0)
        for name, gpus in (("train-1", 1), ("Train-22", 1), ("train-1", 2))
    }
    assert {key: found and found.gpu_mem_mib for key, found in told.items()} == {
        ("train-1", 1): pytest.approx(3000.0),
        ("Train-22", 1): pytest.approx(3300.0),
        ("train-1", 2): pytest.approx(3750.0),
    }
    assert like.profile_of("ada", "train-1", 1, 30.0) is told["train-1", 1], "the same object while it says the same"
    assert like.profile_of("bob", "train-1", 1, 20.0) is None
    assert like.profile_of("ada", "eval-1", 1, 20.0) is None
    assert like.profile_of("", "train-1", 1, 20.0) is None


def test_likeness_is_forgotten_in_time_and_can_be_narrow() -> None:
    like = LikeProfiles(keep_s=100.0, similar=False)
    like.note("ada", "train-1", 1, of_size(3000.0), 0.0)
    assert like.profile_of("ada", "train-1", 1, 100.0) is not None
    assert like.profile_of("ada", "train-1", 1, 100.5) is None
    assert like.profile_of("ada", "train-2", 1, 0.0) is None
    like.note("ada", "train-1", 1, of_size(1000.0), 200.0)
    assert like.profile_of("ada", "train-1", 1, 200.0) == of_size(1000.0), "what is too old counts for nothing"
