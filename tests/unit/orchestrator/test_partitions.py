"""Partitions apart: each has the policy of its own, and what raises for one is about that one alone."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from daemon_site import Site
from examples import examples
from lucid.binder.candidates import CalmSince
from lucid.binder.contention import contention_speeds
from lucid.config.load import settings_from, simulation_keys
from lucid.config.policy import PolicySettings
from lucid.core.decision import Action, EndProfiling, Hold, PartitionPlan, Plan, Plans, Resize, Start
from lucid.core.job import Job, Pending, Progress
from lucid.core.ports import Capability, Predictor
from lucid.core.reasons.queue import NextRound, Unplanned
from lucid.core.snapshot import ByName, Partition, Snapshot
from lucid.daemon.policies import LivePolicy, PolicyMemory, check_policy, needs_of
from lucid.errors import ConfigError, UnsafePlan
from lucid.orchestrator.forecast.plan_ahead import forecast
from lucid.orchestrator.planner import PoliciesByPartition, PolicyHost, isolated, make_policies
from lucid.orchestrator.policies.lucid.policy import LucidPolicy
from lucid.orchestrator.policy import Policy, PolicyRules
from lucid.orchestrator.registry import BUILT_IN, adding_policy, make_policy
from lucid.orchestrator.safety.check import SafetyCheck
from lucid.places import HELD_AT_MOST_S
from lucid.slurm.heartbeat import read_heartbeat
from lucid.store.plan_records import plan_bytes, read_record, record_bytes, replan
from lucid.store.sqlite import SqliteStore
from lucid.store.view import view_from, view_to_dict
from scenes.jobs import HEAVY, LIGHT, a_job, at, elastic, nodes, runs, waits
from scenes.plans import FixedPredictor, part, settings, snap

RULES = settings(profiling={"enabled": False}, fairness={"beyond_plain_s": 3600.0})
VCS = "abcde"
Raises = Callable[[str, Snapshot], object]
"""Called with the partition that is planned; raises, or does not."""


def brittle(raises: Raises, settings: PolicySettings, predictor: Predictor) -> LucidPolicy:
    """Lucid's own policy, which does half of its work for a partition before it fails."""

    class Brittle(LucidPolicy):
        def plan_partition(self, partition: Partition, snapshot: Snapshot) -> PartitionPlan:
            made = super().plan_partition(partition, snapshot)
            raises(partition.name, snapshot)
            return made

    return Brittle(settings, predictor)


class AtOnce:
    """A policy of somebody's own, which plans all partitions in one go."""

    name, needs, rules = "at-once", frozenset[Any](), PolicyRules(pairs=True)

    def __init__(self, inner: Policy, raises: Raises) -> None:
        self._inner, self._raises = inner, raises

    def profiled(self, job: Job) -> bool:
        return False

    def plan(self, snapshot: Snapshot) -> Plan:
        for name in snapshot.partitions:
            self._raises(name, snapshot)
        return self._inner.plan(snapshot)


def host(make: Callable[[Predictor], Policy], failed: dict[str, str]) -> PolicyHost:
    def note(name: str, error: Exception) -> None:
        failed[name] = str(error)

    return PolicyHost(make, FixedPredictor(speed=contention_speeds), forgot=lambda *_: None, failed=note)


def in_one(name: str, why: str = "it rained") -> Raises:
    def raises(planned: str, _: Snapshot) -> None:
        if planned == name:
            raise ValueError(why)

    return raises


def some(rng: random.Random, vc: str, number: int) -> Pending:
    gpus, user = rng.choice([1, 1, 2, 4]), rng.choice("uv")
    return waits(f"{vc}{number}", gpus, float(number), vc=vc, user=user, profile=rng.choice([LIGHT, HEAVY, None]))


def scenes(rng: random.Random, cycles: int) -> list[Snapshot]:
    """Five VCs whose jobs wait, some more of them in each cycle; a partition without news is the same object."""
    parts = {vc: part(nodes(2, 4, vc), [some(rng, vc, i) for i in range(4)], name=vc) for vc in VCS}
    found = []
    for cycle in range(cycles):
        for vc in rng.sample(VCS, 2):
            more = (*parts[vc].pending, some(rng, vc, 10 + cycle))
            parts = {**parts, vc: replace(parts[vc], pending=more)}
        found.append(snap(100.0 + 30.0 * cycle, *parts.values()))
    return found


def two_vcs(now_s: float, jobs: int = 1, size: int = 4) -> Snapshot:
    """VCs a and b of a node each, in which jobs a1, a2, ... and b1, b2, ... wait."""
    waiting = {vc: [waits(f"{vc}{i + 1}", vc=vc) for i in range(jobs)] for vc in "ab"}
    return snap(now_s, *(part(nodes(1, size, vc), waiting[vc], name=vc) for vc in "ab"))


def run(planner: Any, snapshots: list[Snapshot]) -> list[Plan]:
    """Its plans, each with what the one before left."""
    made: list[Plan] = []
    for scene in snapshots:
        made.append(planner.plan(replace(scene, memory=made[-1].memory if made else {})))
    return made


def decided(plan: Plan, names: str) -> dict[str, bytes]:
    return {name: plan_bytes(plan.partitions[name]) for name in names}


@pytest.mark.parametrize("kind", ["its own", "one of two policies", "all at once"])
@pytest.mark.parametrize("seed", range(examples(12, 2)))
def test_a_policy_that_raises_at_random_in_one_of_five_partitions_changes_nothing_in_the_others(
    kind: str, seed: int
) -> None:
    rng = random.Random(seed)
    bad, snapshots, share = rng.choice(VCS), scenes(rng, 5), rng.choice([0.3, 0.7, 1.0])
    rained: list[float] = []

    def raises(planned: str, seen: Snapshot) -> None:
        if planned == bad and (not rained or rng.random() < share):
            rained.append(seen.now_s)
            raise rng.choice([ValueError, KeyError, MemoryError, RecursionError])("it rained")

    def make(heard: Predictor, raises: Raises = raises) -> Policy:
        if kind == "all at once":
            return AtOnce(LucidPolicy(RULES, heard), raises)
        one = brittle(raises, RULES, heard)
        if kind == "its own":
            return one
        return PoliciesByPartition(make_policy("fifo", RULES, heard), {bad: one, "a": one})

    failed: dict[str, str] = {}
    made = run(host(make, failed), snapshots)
    calm = run(host(lambda heard: make(heard, lambda *_: None), {}), snapshots)
    others = VCS.replace(bad, "")
    assert [decided(plan, others) for plan in made] == [decided(plan, others) for plan in calm]
    assert rained
    assert {*failed} <= {bad, ""}
    for plan, quiet in zip(made, calm, strict=True):
        stood_in = plan.partitions[bad]
        if stood_in.error:
            assert stood_in.decisions.keys() == quiet.partitions[bad].decisions.keys()
            assert {*stood_in.decisions.values()} == {Hold((Unplanned(stood_in.error),))}
            assert not Unplanned(stood_in.error)


@pytest.mark.parametrize("name", BUILT_IN)
def test_every_policy_of_ours_is_kept_from_others(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make, scene, failed = partial(make_policy, name, RULES), two_vcs(100.0), dict[str, str]()
    calm, kind = make(FixedPredictor()).plan(scene), type(make(FixedPredictor()))
    inner = kind.plan_partition  # type: ignore[attr-defined]

    def fails(self: Any, partition: Partition, snapshot: Snapshot) -> PartitionPlan:
        if partition.name == "a":
            raise ZeroDivisionError
        return inner(self, partition, snapshot)  # type: ignore[no-any-return]

    monkeypatch.setattr(kind, "plan_partition", fails)
    plan = host(make, failed).plan(scene)
    assert decided(plan, "b") == decided(calm, "b")
    assert (plan.partitions["a"].error, [*failed]) == ("ZeroDivisionError", ["a"])
    with pytest.raises(ZeroDivisionError):  # a replay hides nothing
        make(FixedPredictor()).plan(scene)


def followed(rng: random.Random) -> Iterator[Snapshot]:
    """Jobs come to and leave five VCs, of which three are full; Slurm bars some. Some mappings nobody sees."""
    full = {vc: [runs(f"all{vc}", f"{vc}1:0-3 {vc}2:0-3")] for vc in "cde"}
    seen = ByName({vc: part(nodes(2, 4, vc), (), full.get(vc, ()), name=vc) for vc in VCS})
    for cycle in range(20):
        for _ in range(rng.choice((1, 1, 2))):
            jobs = {
                vc: [some(rng, vc, n) for n in range(rng.randrange(4))] for vc in rng.sample(VCS, rng.randrange(3))
            }
            barred = {vc: [replace(job, barred=rng.choice(("", "Licenses"))) for job in jobs[vc]] for vc in jobs}
            seen = ByName(seen, {vc: replace(seen[vc], pending=tuple(barred[vc])) for vc in jobs})
        yield replace(snap(100.0 + 900.0 * cycle, *seen.values()), partitions=seen)


@pytest.mark.parametrize("name", ["backfill", "lucid", "tiresias"])
@pytest.mark.parametrize("seed", range(examples(12, 2)))
def test_to_follow_what_changed_gives_what_planning_and_checking_all_gives(name: str, seed: int) -> None:
    snapshots = [*followed(random.Random(seed))]
    anew = [replace(scene, partitions=dict(scene.partitions)) for scene in snapshots]
    plans, others = (run(make_policy(name, RULES, FixedPredictor()), each) for each in (snapshots, anew))
    check = SafetyCheck(make_policy(name, RULES, FixedPredictor()).rules, RULES)
    for scene, plan, other in zip(snapshots, plans, others, strict=True):
        assert (decided(plan, VCS), plan.wake_s) == (decided(other, VCS), other.wake_s)
        summed = Plan(plan.now_s, dict(plan.partitions))
        assert (plan.actions, plan.wake_s, plan.memory) == (summed.actions, summed.wake_s, summed.memory)
        check(scene, plan)
        assert isinstance(plan.partitions, Plans)
        if scene.partitions["c"].pending:
            with pytest.raises(UnsafePlan, match="does not decide it"):
                check(scene, Plan(plan.now_s, Plans({"c": PartitionPlan({})}, plan.partitions)))
            check(scene, plan)


def test_a_job_that_profiling_starts_no_more_is_missed_in_its_vc_though_nothing_changed_there() -> None:
    rooms = ByName({"vc": part(nodes(1), [waits("j")]), "prof": part(nodes(1, 4, "p"), name="prof", profiling=True)})
    start, check = Start(at("p1:0"), (NextRound(0.0),)), SafetyCheck(PolicyRules(profiles=True), PolicySettings())
    plans = Plans({"vc": PartitionPlan({}), "prof": PartitionPlan({"j": start}, (Action("j", "prof", start),))})
    check(snap(0.0), Plan(0.0, Plans({})))
    check(Snapshot(0.0, rooms), Plan(0.0, plans))
    with pytest.raises(UnsafePlan, match="job j: it is pending in 'vc', and the plan does not decide it"):
        check(Snapshot(0.0, rooms), Plan(0.0, Plans({"prof": PartitionPlan({})}, plans)))


def test_after_the_error_a_partition_is_planned_as_if_there_had_been_none() -> None:
    """Whatever the policy had done by halves, and with what the last good plan left."""
    rng = random.Random(7)
    snapshots, bad = scenes(rng, 6), {130.0, 160.0, 190.0}

    def raises(planned: str, seen: Snapshot) -> None:
        if planned == "c" and seen.now_s in bad:
            raise ValueError

    made = run(host(lambda heard: brittle(raises, RULES, heard), {}), snapshots)
    memory = made[0].memory["c"]
    assert [plan.memory["c"] is memory for plan in made] == [True, True, True, True, False, False]
    fresh = LucidPolicy(RULES, FixedPredictor(speed=contention_speeds))
    again = fresh.plan(replace(snapshots[4], memory=made[3].memory))
    assert decided(made[4], VCS) == decided(again, VCS)


def test_while_it_fails_a_partition_is_tried_at_a_change_or_after_ten_seconds_and_no_other_is_planned_anew() -> None:
    tried: list[str] = []

    def raises(planned: str, _: Snapshot) -> None:
        tried.append(planned)
        in_one("a")(planned, _)

    made = host(lambda heard: brittle(raises, settings(profiling={"enabled": False}), heard), {})
    vcs = [*two_vcs(0.0, jobs=2, size=1).partitions.values()]
    full = [replace(vc, pending=(), running=()) for vc in vcs]
    for now_s, expected in ((100.0, "aab"), (101.0, "ab"), (102.0, ""), (105.0, ""), (111.0, "a"), (120.0, "")):
        made.plan(snap(now_s, *full))
        assert "".join(tried) == expected, now_s  # in the second plan a new policy plans the other
        tried.clear()
    made.plan(snap(120.5, vcs[0], full[1]))
    assert tried == ["a"]


def test_an_interrupt_is_no_error_of_a_partition() -> None:
    def raises(planned: str, _: Snapshot) -> None:
        raise KeyboardInterrupt

    for make in (partial(brittle, raises, RULES), lambda heard: AtOnce(LucidPolicy(RULES, heard), raises)):
        with pytest.raises(KeyboardInterrupt):
            host(make, {}).plan(two_vcs(9.0))


PROFILES = settings(profiling={"home_if_room": False}, fairness={"beyond_plain_s": 3600.0})


def with_profiling(now_s: float, since_s: float = 0.0) -> Snapshot:
    new = [waits(f"{vc}new", 1, since_s, vc=vc) for vc in "ab"]
    vcs = [part(nodes(1, 4, vc), [waits(f"{vc}1", vc=vc, profile=LIGHT)], name=vc) for vc in "ab"]
    return snap(now_s, *vcs, part(nodes(1, 4, "p"), new, name="prof", profiling=True))


def test_where_profiling_fails_the_vcs_are_planned_and_who_has_waited_long_for_it_goes_home() -> None:
    made, scene = host(partial(brittle, in_one("prof"), PROFILES), {}), with_profiling(100.0)
    plan = made.plan(scene)
    assert decided(plan, "ab") == decided(LucidPolicy(PROFILES, FixedPredictor()).plan(scene), "ab")
    assert [type(plan.decision_of(job)) for job in ("anew", "bnew")] == [Hold, Hold]
    late = made.plan(with_profiling(HELD_AT_MOST_S))
    assert [type(late.decision_of(job)) for job in ("anew", "bnew", "a1")] == [EndProfiling, EndProfiling, Start]
    assert [action.job_id for action in late.actions if action.partition == "prof"] == ["anew", "bnew"]
    assert made.plan(with_profiling(HELD_AT_MOST_S, since_s=295.0)).wake_s == HELD_AT_MOST_S + 10.0


def test_no_job_of_a_vc_that_fails_starts_on_profiling_nodes() -> None:
    in_place = settings(profiling={"restarts": "asked"})
    waiting = {vc: [waits(f"{vc}{i}", 2, vc=vc, profile=LIGHT) for i in range(2)] for vc in "ab"}
    vcs = [part(nodes(1, 1, vc), waiting[vc], name=vc) for vc in "ab"]
    scene = snap(100.0, *vcs, part(nodes(1, 8, "p"), name="prof", profiling=True))
    calm = LucidPolicy(in_place, FixedPredictor()).plan(scene)
    assert {action.job_id[0] for action in calm.actions} == {*"ab"}
    plan = host(partial(brittle, in_one("a"), in_place), {}).plan(scene)
    assert {action.job_id[0] for action in plan.actions} == {"b"}


def test_a_policy_that_plans_another_ones_partition_is_not_let_to() -> None:
    class Greedy(AtOnce):
        def plan(self, snapshot: Snapshot) -> Plan:
            return Plan(snapshot.now_s, {"a": PartitionPlan({}), **self._inner.plan(snapshot).partitions})

    def make(heard: Predictor) -> Policy:
        return PoliciesByPartition(LucidPolicy(RULES, heard), {"b": Greedy(LucidPolicy(RULES, heard), in_one(""))})

    failed: dict[str, str] = {}
    plan = host(make, failed).plan(two_vcs(9.0))
    assert [type(plan.decision_of(job)) for job in ("a1", "b1")] == [Start, Hold]
    assert "which is not its own" in failed["b"]


@pytest.mark.parametrize("at_once", [False, True])
def test_a_plan_with_a_partition_that_failed_is_recorded_and_can_be_made_again(at_once: bool, tmp_path: Path) -> None:
    def factory(rules: PolicySettings, heard: Predictor) -> Policy:
        rains = in_one("c")
        return AtOnce(LucidPolicy(rules, heard), rains) if at_once else brittle(rains, rules, heard)

    with adding_policy("brittle", factory):
        made = host(partial(make_policy, "brittle", RULES), {})
        *_, plan = run(made, scenes(random.Random(3), 3))
        path = tmp_path / "r"
        path.write_bytes(record_bytes(plan, made.made_from(), "brittle", RULES))
        record = read_record(path)
        assert b"it rained" in record.plans["c"]
        assert replan(record) == record.plans
    with adding_policy("brittle", LucidPolicy):  # mended since
        again = replan(record)
        assert {name for name in VCS if again[name] != record.plans[name]} == {"c"}


def test_looking_ahead_goes_on_for_the_others() -> None:
    policy, scene = isolated(brittle(in_one("a"), RULES, FixedPredictor())), two_vcs(9.0, jobs=2, size=1)
    assert forecast(scene, policy.plan(scene), policy).starts_s.keys() == {"b1", "b2"}


# -- policies of their own -------------------------------------------------------------------------------------------

OWN = {"grow": "elastic", "rounds": "pollux"}


def policies(own: Mapping[str, str] = OWN, predictor: Any = None) -> Any:
    return make_policies("lucid", own, RULES, predictor or FixedPredictor(speed=contention_speeds))


def scene(now_s: float = 90.0) -> Snapshot:
    """In each partition a node of four GPUs. ``main``: a pair could be made. ``grow``: a job that could have more."""
    growing = elastic("e", limits={"epochs": 10.0}, vc="grow").job
    grown = runs("e", "g1:0", job={"elastic": growing.elastic, "vc": "grow"}, progress=Progress(1.0, ((1, 100.0),)))
    beside = runs("a", "m1:0-3", profile=HEAVY)
    return snap(
        now_s,
        part(nodes(1, 4, "m"), [waits("b", 4, profile=LIGHT, vc="main")], [beside], "main"),
        part(nodes(1, 4, "g"), [], [grown], "grow"),
        part(nodes(1, 4, "r"), [waits("p", 4, vc="rounds")], [], "rounds"),
    )


def test_no_policy_sees_the_partitions_of_another() -> None:
    made = policies({"grow": "elastic", "rounds": "elastic"})
    seen = [(policy.name, set(snapshot.partitions)) for policy, snapshot in made.split(scene())]
    assert seen == [("lucid", {"main"}), ("elastic", {"grow", "rounds"})]
    assert not isinstance(policies({}), PoliciesByPartition), "without such partitions it is the policy itself"


def test_each_partition_is_planned_by_its_own_policy() -> None:
    plan = policies().plan(scene())
    found = {name: {a.job_id: type(a.decision) for a in p.actions} for name, p in plan.partitions.items()}
    assert found == {"main": {"b": Start}, "grow": {"e": Resize}, "rounds": {}}
    assert plan.decision_of("b").beside == "a", "lucid makes pairs"
    assert isinstance(plan.decision_of("p").reasons[0], NextRound)
    assert plan.wake_s == 120.0, "the round"


def test_a_job_is_profiled_as_the_policy_of_its_partition_has_it() -> None:
    made = make_policies("lucid", OWN, settings(), FixedPredictor())
    assert [made.profiled(a_job("j", vc=vc)) for vc in ("main", "grow", "rounds")] == [True, False, False]
    assert made.needs >= {Capability.PROFILE, Capability.RESIZE, Capability.ADAPT}


def test_rules_of_one_partition_do_not_hold_in_another() -> None:
    """Only muri may form groups, and only lucid's jobs start in slots."""
    made = policies({"turns": "muri-l", "plain": "fifo"})
    assert (made.rules.for_partition("main").group_limit, made.rules.for_partition("turns").group_limit) == (1, 4)
    check, start = SafetyCheck(made.rules, RULES), Start(at("n1:0"), (), slots=True)
    for name, refused in (("main", nullcontext()), ("plain", pytest.raises(UnsafePlan, match="pairs"))):
        seen = snap(0.0, part(nodes(1, 4), [waits("c", profile=LIGHT)], name=name))
        with refused:
            check(seen, Plan(0.0, {name: PartitionPlan({"c": start}, (Action("c", name, start),))}))


def test_a_record_of_such_a_plan_can_be_planned_again(tmp_path: Path) -> None:
    made = PolicyHost(lambda heard: policies(predictor=heard), FixedPredictor(speed=contention_speeds))
    plan = made.plan(scene())
    path = tmp_path / "0000000000090.000.plan.gz"
    path.write_bytes(record_bytes(plan, made.made_from(), made.name, RULES, made.own_names))
    record = read_record(path)
    assert record.own == OWN
    assert set(record.plans) == {"main", "grow", "rounds"}
    assert replan(record) == record.plans


def test_each_partition_is_planned_ahead_as_far_as_its_policy_can_be() -> None:
    seen, made = scene(), policies()
    plan = made.plan(seen)
    ahead = forecast(seen, plan, made)
    assert ahead.starts_s == {"b": 0.0}
    assert ahead.ahead_of("p") == 30.0, "until the round"
    stored = view_from({**view_to_dict(seen, plan), "wake_s": 4000.0}).plan()  # with one wake time for all
    assert forecast(seen, stored, made).ahead_of("p") == 30.0
    only = forecast(seen, plan, made, until=frozenset("p"))
    assert only.visits <= 1, "what waits elsewhere is not planned ahead"
    assert only.ahead_of("p") == 30.0


def test_memory_is_kept_by_partition_as_long_as_its_policy_stays(tmp_path: Path) -> None:
    store, rounds = SqliteStore(tmp_path / "lucid.db"), {"rounds": "pollux"}
    memory = {"main": CalmSince(12.5), "rounds": CalmSince(None)}
    PolicyMemory(store, "lucid").keep(memory)
    assert PolicyMemory(store, "lucid", rounds).load() == {"main": memory["main"]}
    PolicyMemory(store, "lucid", rounds).keep(memory, now=True)
    assert PolicyMemory(store, "lucid", rounds).load() == memory
    assert PolicyMemory(store, "fifo", rounds).load() == {"rounds": memory["rounds"]}
    assert PolicyMemory(store, "lucid").load() == {"main": memory["main"]}


def test_lucidd_writes_which_policy_plans_where() -> None:
    for live in (LivePolicy("lucid", RULES, OWN), LivePolicy("lucid", RULES)):
        again = LivePolicy.from_dict(json.loads(json.dumps(live.to_dict())))
        assert (again.name, again.own, again.settings) == (live.name, live.own, live.settings)
    assert LivePolicy("lucid", RULES, OWN).make(FixedPredictor()).own_names == OWN


def config(**daemon: Any) -> Any:
    vcs = {"main": "pack", "grow": "pack"}
    found = {"partitions": vcs, "profiling_partition": "prof", "elastic": {"reports_dir": "/r"}, **daemon}
    return settings_from({"daemon": found}, "t")


def test_what_policies_need_is_asked_by_partition() -> None:
    needs, both = needs_of(config(policies={"grow": "pollux"})), {Capability.RESIZE, Capability.PROFILE}
    assert [needs(name) & both for name in ("grow", "main")] == [{Capability.RESIZE}, {Capability.PROFILE}]


@pytest.mark.parametrize(
    ("daemon", "words"),
    [
        ({"policies": {"grow": "polux"}}, r"policies\.grow = 'polux': there is no such policy; did you mean"),
        ({"policies": {"prof": "fifo"}}, r"daemon\.policies\.prof = 'fifo': this is the profiling partition"),
        ({"policies": {"elsewhere": "fifo"}}, r"not in daemon\.partitions \(there: main, grow\)"),
        ({"policies": {"grow": "optimus"}}, r"daemon\.policies\.grow = 'optimus': .*only a replay knows"),
        ({"policies": {"grow": "pollux"}, "elastic": {}}, r"daemon\.policies\.grow = 'pollux': it resizes jobs"),
        ({"policies": {"grow": "fifo"}, "pool": {"partition": "all", "quotas": {"main": 4, "grow": 4}}}, "VC lends"),
    ],
)  # fmt: skip
def test_a_partition_that_cannot_have_the_policy_is_refused_by_name(daemon: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=f"lucid.toml: .*{words}"):
        check_policy(config(**daemon), "lucid.toml")


def test_a_setting_of_a_policy_that_plans_some_partition_is_read() -> None:
    rules = {"pollux": {"interval_s": 30.0}, "tiresias": {"threshold_gpu_s": 30.0}}
    live = settings_from({"policy": rules, "daemon": {"policies": {"grow": "pollux"}}}, "t")
    assert simulation_keys(live) == ["policy.tiresias.threshold_gpu_s"]


@pytest.mark.parametrize(("policies", "unrouted", "rooms"), [({}, (), {"p1"}), ({"vc": "fifo"}, ("vc",), {"n1"})])
def test_lucidd_profiles_nobody_where_the_policy_of_the_partition_does_not(
    tmp_path: Path, policies: dict[str, str], unrouted: tuple[str, ...], rooms: set[str]
) -> None:
    site = Site(tmp_path, policies=policies)
    site.submit("1", 4)
    site.turns(5.0)
    assert read_heartbeat(tmp_path / "run/heartbeat").unrouted == unrouted  # type: ignore[union-attr]
    assert {where[0].node for _, _, where in site.slurm.starts} == rooms
    assert json.loads(site.ctl("status", "--json"))["policies"] == {"vc": policies.get("vc", "lucid")}


def test_jobs_are_elastic_or_take_turns_only_where_their_policy_asks(tmp_path: Path) -> None:
    resizes_none, forms_none = "of its partition resizes no job", "of its partition forms no groups"
    said = {"comment": "lucid:elastic=1-4 lucid:turns", "admin_comment": "lucid:vc=vc;held=1;elastic=1;turns=1;v=2"}
    for own, told in (("", [True, True]), ("elastic", [False, True]), ("muri-l", [True, False])):
        folder = tmp_path / (own or "lucid")
        folder.mkdir()
        site = Site(folder, policies={"vc": own} if own else {}, elastic={"reports_dir": str(folder)})
        site.submit("1", 1, **said)
        site.turns(5.0)
        words = site.ctl("explain", "1")
        assert [f"the policy {words_of}" in words for words_of in (resizes_none, forms_none)] == told, own
