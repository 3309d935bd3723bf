"""Several policies on one cluster, each in partitions of its own."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from daemon_site import Site
from lucid.binder.candidates import CalmSince
from lucid.binder.contention import contention_speeds
from lucid.config.load import settings_from, simulation_keys
from lucid.core.decision import Action, PartitionPlan, Plan, Regroup, Resize, Start
from lucid.core.job import Progress
from lucid.core.placement import NodeGpus
from lucid.core.ports import Capability
from lucid.core.reasons.queue import NextRound
from lucid.core.snapshot import Snapshot
from lucid.daemon.policies import LivePolicy, PolicyMemory, check_policy, needs_of
from lucid.errors import ConfigError, UnsafePlan
from lucid.orchestrator.forecast.plan_ahead import forecast
from lucid.orchestrator.planner import PoliciesByPartition, PolicyHost, make_policies
from lucid.orchestrator.safety.check import SafetyCheck
from lucid.slurm.heartbeat import read_heartbeat
from lucid.store.plan_records import read_record, record_bytes, replan
from lucid.store.sqlite import SqliteStore
from lucid.store.view import view_from, view_to_dict
from scenes.jobs import HEAVY, LIGHT, a_job, elastic, nodes, runs, waits
from scenes.plans import FixedPredictor, part, settings, snap

OWN = {"grow": "elastic", "rounds": "pollux"}
RULES = settings(profiling={"enabled": False})


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


def test_without_partitions_of_their_own_it_is_the_policy_itself() -> None:
    assert not isinstance(make_policies("lucid", {}, RULES, FixedPredictor()), PoliciesByPartition)


def test_each_partition_is_planned_by_its_own_policy() -> None:
    plan = policies().plan(scene())
    found = {name: {a.job_id: type(a.decision) for a in p.actions} for name, p in plan.partitions.items()}
    assert found == {"main": {"b": Start}, "grow": {"e": Resize}, "rounds": {}}
    (start,) = [a.decision for a in plan.partitions["main"].actions]
    assert start.beside == "a", "lucid makes pairs"
    assert isinstance(plan.partitions["rounds"].decisions["p"].reasons[0], NextRound)
    assert plan.wake_s == 120.0, "the round"


def test_no_policy_sees_the_partitions_of_another() -> None:
    made = policies({"grow": "elastic", "rounds": "elastic"})
    seen = [(policy.name, set(snapshot.partitions)) for policy, snapshot in made.split(scene())]
    assert seen == [("lucid", {"main"}), ("elastic", {"grow", "rounds"})]


def test_a_job_is_profiled_as_the_policy_of_its_partition_has_it() -> None:
    made = make_policies("lucid", OWN, settings(), FixedPredictor())
    assert [made.profiled(a_job("j", vc=vc)) for vc in ("main", "grow", "rounds")] == [True, False, False]
    assert made.needs >= {Capability.PROFILE, Capability.RESIZE, Capability.ADAPT}


def test_rules_of_one_partition_do_not_hold_in_another() -> None:
    """Only muri may form groups: one in a partition of lucid's is refused."""
    made = policies({"turns": "muri-l"})
    assert (made.rules.for_partition("main").group_limit, made.rules.for_partition("turns").group_limit) == (1, 4)
    check = SafetyCheck(made.rules, RULES)
    place, group = (NodeGpus("n1", 15),), ("a", "b", "c")
    regroup, start = Regroup(place, (), group), Start(place, (), group=group, slots=True)
    facts: dict[str, Any] = {"takes_turns": True}
    running = [runs(name, "n1:0-3", job=facts, group=("a", "b"), profile=LIGHT) for name in "ab"]
    third = waits("c", 4, profile=LIGHT, **facts)
    for name in ("turns", "main"):
        seen = snap(0.0, part(nodes(1, 4, slots=4), [third], running, name))
        actions = tuple(Action(job, name, start if job == "c" else regroup) for job in group)
        plan = Plan(0.0, {name: PartitionPlan({action.job_id: action.decision for action in actions}, actions)})
        if name == "turns":
            check(seen, plan)
        else:
            with pytest.raises(UnsafePlan, match="group"):
                check(seen, plan)


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
    store = SqliteStore(tmp_path / "lucid.db")
    memory = {"main": CalmSince(12.5), "rounds": CalmSince(None)}
    PolicyMemory(store, "lucid").keep(memory)
    assert PolicyMemory(store, "lucid", {"rounds": "pollux"}).load() == {"main": memory["main"]}
    PolicyMemory(store, "lucid", {"rounds": "pollux"}).keep(memory, now=True)
    assert PolicyMemory(store, "lucid", {"rounds": "pollux"}).load() == memory
    assert PolicyMemory(store, "fifo", {"rounds": "pollux"}).load() == {"rounds": memory["rounds"]}
    assert PolicyMemory(store, "lucid").load() == {"main": memory["main"]}


def test_lucidd_writes_which_policy_plans_where() -> None:
    live = LivePolicy("lucid", RULES, OWN)
    again = LivePolicy.from_dict(json.loads(json.dumps(live.to_dict())))
    assert (again.name, again.own) == (live.name, live.own)
    assert again.settings == live.settings
    assert again.make(FixedPredictor()).own_names == OWN
    assert LivePolicy.from_dict(LivePolicy("lucid", RULES).to_dict()).own == {}


def config(**daemon: Any) -> Any:
    vcs = {"main": "pack", "grow": "pack"}
    found = {"partitions": vcs, "profiling_partition": "prof", "elastic": {"reports_dir": "/r"}, **daemon}
    return settings_from({"daemon": found}, "t")


def test_what_policies_need_is_asked_by_partition() -> None:
    needs = needs_of(config(policies={"grow": "pollux"}))
    assert Capability.RESIZE in needs("grow")
    assert Capability.PROFILE not in needs("grow")
    assert Capability.RESIZE not in needs("main")
    assert Capability.PROFILE in needs("main")


@pytest.mark.parametrize(
    ("daemon", "words"),
    [
        ({"policies": {"grow": "polux"}}, r"policies\.grow = 'polux': there is no such policy; did you mean"),
        ({"policies": {"prof": "fifo"}}, r"daemon\.policies\.prof = 'fifo': this is the profiling partition"),
        ({"policies": {"elsewhere": "fifo"}}, r"not in daemon\.partitions \(there: main, grow\)"),
        ({"policies": {"grow": "optimus"}}, r"daemon\.policies\.grow = 'optimus': .*only a replay knows"),
        ({"policies": {"grow": "pollux"}, "elastic": {}}, r"daemon\.policies\.grow = 'pollux': it resizes jobs"),
        (
            {"policies": {"grow": "fifo"}, "pool": {"partition": "all", "quotas": {"main": 4, "grow": 4}}},
            r"this VC lends GPUs",
        ),
    ],
)  # fmt: skip
def test_a_partition_that_cannot_have_the_policy_is_refused_by_name(daemon: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=f"lucid.toml: .*{words}"):
        check_policy(config(**daemon), "lucid.toml")


def test_a_setting_of_a_policy_that_plans_some_partition_is_read() -> None:
    data: dict[str, Any] = {"policy": {"pollux": {"interval_s": 30.0}, "tiresias": {"threshold_gpu_s": 30.0}}}
    live = settings_from({**data, "daemon": {"policies": {"grow": "pollux"}}}, "t")
    assert simulation_keys(live) == ["policy.tiresias.threshold_gpu_s"]


@pytest.mark.parametrize(("policies", "unrouted", "rooms"), [({}, (), {"p1"}), ({"vc": "fifo"}, ("vc",), {"n1"})])
def test_lucidd_profiles_nobody_where_the_policy_of_the_partition_does_not(
    tmp_path: Path, policies: dict[str, str], unrouted: tuple[str, ...], rooms: set[str]
) -> None:
    site = Site(tmp_path, policies=policies)
    site.submit("1", 4)
    site.turns(5.0)
    beat = read_heartbeat(tmp_path / "run/heartbeat")
    assert beat is not None
    assert beat.unrouted == unrouted
    assert {where[0].node for _, _, where in site.slurm.starts} == rooms
    assert json.loads(site.ctl("status", "--json"))["policies"] == {"vc": policies.get("vc", "lucid")}


def test_jobs_are_elastic_or_take_turns_only_where_their_policy_asks(tmp_path: Path) -> None:
    words = []
    for own in ({}, {"vc": "elastic"}, {"vc": "muri-l"}):
        folder = tmp_path / "-".join(own.values() or ["lucid"])
        folder.mkdir()
        site = Site(folder, policies=own, elastic={"reports_dir": str(folder)})
        site.submit(
            "1", 1, comment="lucid:elastic=1-4 lucid:turns", admin_comment="lucid:vc=vc;held=1;elastic=1;turns=1;v=2"
        )
        site.turns(5.0)
        words.append(site.ctl("explain", "1"))
    nowhere, resized, grouped = words
    assert "the policy of its partition resizes no job" in nowhere
    assert "the policy of its partition forms no groups" in nowhere
    assert "the policy of its partition resizes no job" not in resized
    assert "the policy of its partition forms no groups" not in grouped
