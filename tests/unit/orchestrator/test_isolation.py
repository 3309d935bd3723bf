"""What raises for one partition is about that one alone."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from examples import examples
from lucid.binder.contention import contention_speeds
from lucid.config.policy import PolicySettings
from lucid.core.decision import EndProfiling, Hold, PartitionPlan, Plan, Start
from lucid.core.job import Job, Pending
from lucid.core.ports import Predictor
from lucid.core.reasons.queue import Unplanned
from lucid.core.snapshot import Partition, Snapshot
from lucid.orchestrator.forecast.plan_ahead import forecast
from lucid.orchestrator.planner import PoliciesByPartition, PolicyHost, isolated
from lucid.orchestrator.policies.lucid.policy import LucidPolicy
from lucid.orchestrator.policy import Policy, PolicyRules
from lucid.orchestrator.registry import BUILT_IN, adding_policy, make_policy
from lucid.places import HELD_AT_MOST_S
from lucid.store.plan_records import plan_bytes, read_record, record_bytes, replan
from scenes.jobs import HEAVY, LIGHT, a_job, nodes, waits
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


def host(make: Callable[[Predictor], Policy], failed: dict[str, str], forgot: list[str] | None = None) -> PolicyHost:
    told = [] if forgot is None else forgot
    return PolicyHost(
        make,
        FixedPredictor(speed=contention_speeds),
        forgot=lambda memory, _: told.extend(memory),
        failed=lambda name, error: failed.__setitem__(name, str(error)),
    )


def in_one(name: str, why: str = "it rained") -> Raises:
    def raises(planned: str, _: Snapshot) -> None:
        if planned == name:
            raise ValueError(why)

    return raises


def some(rng: random.Random, vc: str, number: int) -> Pending:
    job = a_job(f"{vc}{number}", rng.choice([1, 1, 2, 4]), float(number), vc=vc, user=rng.choice("uv"))
    return Pending(job, float(number), rng.choice([LIGHT, HEAVY, None]))


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


def run(planner: Any, snapshots: list[Snapshot]) -> list[Plan]:
    """Its plans, each with what the one before left."""
    made: list[Plan] = []
    for scene in snapshots:
        made.append(planner.plan(replace(scene, memory=made[-1].memory if made else {})))
    return made


def decided(plan: Plan, names: str) -> dict[str, bytes]:
    return {name: plan_bytes(plan.partitions[name]) for name in names}


@pytest.mark.parametrize("kind", ["its own", "one of two policies", "all at once"])
def test_a_policy_that_raises_at_random_in_one_of_five_partitions_changes_nothing_in_the_others(kind: str) -> None:
    for seed in range(examples(12, 2)):
        changes_nothing(random.Random(seed), kind)


def changes_nothing(rng: random.Random, kind: str) -> None:
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
            assert {type(decision) for decision in stood_in.decisions.values()} == {Hold}
            assert stood_in.decisions.keys() == quiet.partitions[bad].decisions.keys()


@pytest.mark.parametrize("name", BUILT_IN)
def test_every_policy_of_ours_is_kept_from_others(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    scene = snap(100.0, *(part(nodes(2, 4, vc), [waits(f"{vc}1", vc=vc)], name=vc) for vc in "ab"))
    calm = make_policy(name, RULES, FixedPredictor()).plan(scene)
    kind = type(make_policy(name, RULES, FixedPredictor()))
    inner = kind.plan_partition  # type: ignore[attr-defined]

    def fails(self: Any, partition: Partition, snapshot: Snapshot) -> PartitionPlan:
        if partition.name == "a":
            raise ZeroDivisionError
        return inner(self, partition, snapshot)  # type: ignore[no-any-return]

    monkeypatch.setattr(kind, "plan_partition", fails)
    failed: dict[str, str] = {}
    plan = host(lambda heard: make_policy(name, RULES, heard), failed).plan(scene)
    assert decided(plan, "b") == decided(calm, "b")
    assert (plan.partitions["a"].error, [*failed]) == ("ZeroDivisionError", ["a"])
    with pytest.raises(ZeroDivisionError):  # a replay hides nothing
        make_policy(name, RULES, FixedPredictor()).plan(scene)


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
    vcs = [part(nodes(1, 1, vc), [waits(f"{vc}{i}", vc=vc) for i in range(2)], name=vc) for vc in "ab"]
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

    for make in (
        lambda heard: brittle(raises, RULES, heard),
        lambda heard: AtOnce(LucidPolicy(RULES, heard), raises),
    ):
        with pytest.raises(KeyboardInterrupt):
            host(make, {}).plan(scenes(random.Random(0), 1)[0])


PROFILES = settings(profiling={"home_if_room": False}, fairness={"beyond_plain_s": 3600.0})


def with_profiling(now_s: float, since_s: float = 0.0) -> Snapshot:
    new = [Pending(a_job(f"{vc}new", 1, since_s, vc=vc), since_s) for vc in "ab"]
    vcs = [part(nodes(1, 4, vc), [Pending(a_job(f"{vc}1", 1, vc=vc), 0.0, LIGHT)], name=vc) for vc in "ab"]
    return snap(now_s, *vcs, part(nodes(1, 4, "p"), new, name="prof", profiling=True))


def test_where_profiling_fails_the_vcs_are_planned_and_who_has_waited_long_for_it_goes_home() -> None:
    made = host(lambda heard: brittle(in_one("prof"), PROFILES, heard), {})
    calm = LucidPolicy(PROFILES, FixedPredictor())
    scene = with_profiling(100.0)
    plan = made.plan(scene)
    assert decided(plan, "ab") == decided(calm.plan(scene), "ab")
    assert [type(plan.decision_of(job)) for job in ("anew", "bnew")] == [Hold, Hold]
    late = made.plan(with_profiling(HELD_AT_MOST_S))
    assert [type(late.decision_of(job)) for job in ("anew", "bnew", "a1")] == [EndProfiling, EndProfiling, Start]
    assert [action.job_id for action in late.actions if action.partition == "prof"] == ["anew", "bnew"]
    assert made.plan(with_profiling(HELD_AT_MOST_S, since_s=295.0)).wake_s == HELD_AT_MOST_S + 10.0


def test_where_a_vc_fails_profiling_goes_on_for_all() -> None:
    scene = with_profiling(100.0)
    plan = host(lambda heard: brittle(in_one("a"), PROFILES, heard), {}).plan(scene)
    calm = LucidPolicy(PROFILES, FixedPredictor()).plan(scene)
    assert plan_bytes(plan.partitions["prof"]) == plan_bytes(calm.partitions["prof"])
    assert isinstance(plan.decision_of("a1"), Hold)


def test_no_job_of_a_vc_that_fails_starts_on_profiling_nodes() -> None:
    in_place = settings(profiling={"restarts": "asked"})
    waiting = [Pending(a_job(f"{vc}{i}", 2, vc=vc), 0.0, LIGHT) for vc in "ab" for i in range(2)]
    vcs = [part(nodes(1, 1, vc), [e for e in waiting if e.job.vc == vc], name=vc) for vc in "ab"]
    scene = snap(100.0, *vcs, part(nodes(1, 8, "p"), name="prof", profiling=True))
    calm = LucidPolicy(in_place, FixedPredictor()).plan(scene)
    assert {action.job_id[0] for action in calm.actions} == {*"ab"}
    plan = host(lambda heard: brittle(in_one("a"), in_place, heard), {}).plan(scene)
    assert {action.job_id[0] for action in plan.actions} == {"b"}


def test_a_policy_that_plans_another_ones_partition_is_not_let_to() -> None:
    class Greedy(AtOnce):
        def plan(self, snapshot: Snapshot) -> Plan:
            return Plan(snapshot.now_s, {"a": PartitionPlan({}), **self._inner.plan(snapshot).partitions})

    scene = snap(9.0, *(part(nodes(1, 4, vc), [waits(f"{vc}1", vc=vc)], name=vc) for vc in "ab"))
    failed: dict[str, str] = {}

    def make(heard: Predictor) -> Policy:
        return PoliciesByPartition(LucidPolicy(RULES, heard), {"b": Greedy(LucidPolicy(RULES, heard), in_one(""))})

    plan = host(make, failed).plan(scene)
    assert [type(plan.decision_of(job)) for job in ("a1", "b1")] == [Start, Hold]
    assert "which is not its own" in failed["b"]


@pytest.mark.parametrize("at_once", [False, True])
def test_a_plan_with_a_partition_that_failed_is_recorded_and_can_be_made_again(at_once: bool, tmp_path: Path) -> None:
    def factory(rules: PolicySettings, heard: Predictor) -> Policy:
        if at_once:
            return AtOnce(LucidPolicy(rules, heard), in_one("c"))
        return brittle(in_one("c"), rules, heard)

    with adding_policy("brittle", factory):
        made = host(lambda heard: make_policy("brittle", RULES, heard), {})
        *_, plan = run(made, [*scenes(random.Random(3), 3), snap(500.0, part((), name="c"))][:3])
        path = tmp_path / "r"
        path.write_bytes(record_bytes(plan, made.made_from(), "brittle", RULES))
        record = read_record(path)
        assert b"it rained" in record.plans["c"]
        assert replan(record) == record.plans
    with adding_policy("brittle", LucidPolicy):  # mended since
        again = replan(record)
        assert {name for name in VCS if again[name] != record.plans[name]} == {"c"}


def test_looking_ahead_goes_on_for_the_others() -> None:
    policy = isolated(brittle(in_one("a"), RULES, FixedPredictor()))
    scene = snap(
        9.0, *(part(nodes(1, 1, vc), [waits(f"{vc}1", vc=vc), waits(f"{vc}2", vc=vc)], name=vc) for vc in "ab")
    )
    ahead = forecast(scene, policy.plan(scene), policy)
    assert ahead.starts_s.keys() == {"b1", "b2"}


def test_what_is_told_of_it() -> None:
    plan = host(lambda heard: brittle(in_one("a"), RULES, heard), {}).plan(scenes(random.Random(1), 1)[0])
    (why,) = plan.partitions["a"].decisions["a0"].reasons
    assert why == Unplanned("ValueError: it rained")
    assert not why
    assert plan.partitions["a"].error == "ValueError: it rained"
