"""A job that does nothing is host to one that would wait, and that one leaves when it wakes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from builders import LIGHT, check_plan, nodes, part, policy, runs, snap, waits
from lucid.binder.idle_hosts import VISITS
from lucid.core.decision import Action, Hold, PartitionPlan, Requeue, Start
from lucid.core.job import Idle, JobProfile, Pending, Running
from lucid.core.node import Window
from lucid.core.snapshot import Partition
from lucid.errors import UnsafePlan
from lucid.explain.reasons import reason_text

NOW_S = 20000.0
ON = {"idle": {"host": True}, "profiling": {"restarts": "asked"}}
QUIET = Idle(NOW_S - 3 * 3600.0, 6000.0)
ASKS: dict[str, Any] = {"user": "ann", "restart_asked": True, "profile": LIGHT}


def host(**rest: Any) -> Running:
    """One that holds the only GPU and does nothing; it was never measured at work."""
    made: dict[str, Any] = {"job": {"user": "ann"}, "idle": QUIET, **rest}
    return runs("host", "n1:0", **made)


def scene(*pending: Pending, running: tuple[Running, ...] | None = None) -> Partition:
    return part(nodes(1, 1), pending, (host(),) if running is None else running)


def guest_of(*pending: Pending, on: Any = ON, running: tuple[Running, ...] | None = None) -> dict[str, Any]:
    """What the policy decides, and what the safety check lets pass."""
    seen = snap(NOW_S, scene(*pending, running=running))
    plan = policy("lucid", **on).plan(seen)
    return dict(plan.partitions["vc"].decisions)


def test_a_job_that_would_wait_comes_beside_one_that_does_nothing() -> None:
    decision = guest_of(waits("g", **ASKS))["g"]
    assert isinstance(decision, Start)
    assert (decision.beside, decision.visits, decision.slots) == ("host", True, True)
    told = [reason_text(reason) for reason in decision.reasons]
    assert "beside job host, which has used no GPU for 3.0 h" in told
    assert "GPU memory 4,912 + 8,458 MiB fits in 24,576 MiB" in told, "the fence, and what the host held and a tenth"


@pytest.mark.parametrize(
    ("guest", "on", "who"),
    [
        ({}, {**ON, "idle": {"host": False}}, {}),
        ({}, {**ON, "packing": {"gss": 0}}, {}),
        ({}, {**ON, "packing": {"mps": False}}, {}),
        ({"restart_asked": False}, ON, {}),
        ({"user": "bob"}, ON, {}),
        ({"shareable": False}, ON, {}),
        ({"alone": True}, ON, {}),
        ({"profile": None}, ON, {}),
        ({"profile": replace(LIGHT, unstable=True)}, ON, {}),
        ({"profile": replace(LIGHT, gpu_mem_mib=14500.0)}, ON, {}),
        ({}, ON, {"idle": None}),
        ({}, ON, {"alone": True}),
        ({}, ON, {"group": ("host", "other")}),
        ({}, ON, {"job": {"user": "ann", "shareable": False}}),
    ],
)
def test_each_rule_keeps_a_guest_away(guest: dict[str, Any], on: Any, who: dict[str, Any]) -> None:
    assert isinstance(guest_of(waits("g", **{**ASKS, **guest}), on=on, running=(host(**who),))["g"], Hold)


def test_a_free_gpu_goes_before_a_host() -> None:
    seen = snap(NOW_S, part(nodes(1, 2), [waits("g", **ASKS)], [host()]))
    decision = policy("lucid", **ON).plan(seen).partitions["vc"].decisions["g"]
    assert isinstance(decision, Start)
    assert decision.beside is None


def test_others_come_where_the_site_says_so_and_each_host_has_one_guest() -> None:
    on = {**ON, "idle": {"host": True, "guests": "others"}}
    made = guest_of(waits("g", **{**ASKS, "user": "bob"}), waits("h", **{**ASKS, "user": "cid"}), on=on)
    assert sorted(type(decision).__name__ for decision in made.values()) == ["Hold", "Start"]


def test_one_users_job_that_waits_does_not_hide_anothers_host() -> None:
    made = guest_of(waits("b", **{**ASKS, "user": "bob"}), waits("g", submit_s=1.0, **ASKS))
    assert isinstance(made["b"], Hold)
    assert isinstance(made["g"], Start)


def test_the_job_that_has_been_idle_for_longest_is_host() -> None:
    first, second = (
        runs(name, f"n1:{i}", job={"user": "ann"}, idle=Idle(NOW_S - since_s, 0.0))
        for i, (name, since_s) in enumerate((("short", 2000.0), ("long", 9000.0)))
    )
    seen = snap(NOW_S, part(nodes(1, 2), [waits("g", **ASKS)], [first, second]))
    decision = policy("lucid", **ON).plan(seen).partitions["vc"].decisions["g"]
    assert isinstance(decision, Start)
    assert decision.beside == "long"


def test_in_plain_order_too_a_job_that_waits_is_a_guest() -> None:
    on = {**ON, "fairness": {"estimates": "never"}}
    decision = guest_of(waits("g", **ASKS), on=on)["g"]
    assert isinstance(decision, Start)
    assert decision.visits


def pair(idle: Idle | None, visits: str = "host", restarts: int = 0, **rest: Any) -> tuple[Running, Running]:
    asked = {"user": "ann", "restart_asked": True, **rest}
    guest = runs("g", "n1:0", 15000.0, profile=LIGHT, partner="host", visits=visits, restarts=restarts, job=asked)
    return host(idle=idle, partner="g"), guest


def test_the_guest_leaves_when_its_host_wakes_and_nobody_else_does() -> None:
    made = guest_of(running=pair(None))
    assert made.keys() == {"g"}
    assert isinstance(made["g"], Requeue)
    assert made["g"].part
    assert made["g"].again
    last = guest_of(running=pair(None, restarts=VISITS - 1))["g"]
    assert isinstance(last, Requeue)
    assert not last.again, "a guest so often, and no more"
    assert "job host, beside which it was, is at work again" in reason_text(made["g"].reasons[0])
    assert not guest_of(running=pair(QUIET)), "it stays while the host sleeps"
    assert not guest_of(running=pair(None, visits="")), "an ordinary pair has other rules"
    assert not guest_of(running=pair(None, visits="another")), "the host it came to has left"
    assert not guest_of(running=pair(None, restart_asked=False)), "nobody is killed who may not be started over"


def test_a_waking_host_is_seen_from_one_plan_to_the_next() -> None:
    lucid = policy("lucid", **ON)
    quiet = scene(running=pair(QUIET))
    assert not lucid.plan(snap(NOW_S, quiet)).partitions["vc"].decisions
    woken = scene(running=pair(None))
    assert lucid.plan(snap(NOW_S + 1, woken)).partitions["vc"].decisions.keys() == {"g"}


@pytest.mark.parametrize(
    ("guest", "on", "who", "words"),
    [
        ({}, {**ON, "idle": {}}, {}, "let no job be a host"),
        ({}, ON, {"idle": None}, "not known to do nothing"),
        ({"user": "bob"}, ON, {}, "same user"),
        ({"profile": None}, ON, {}, "not measured"),
        ({"shareable": False}, ON, {}, "does not share"),
        ({"restart_asked": False}, ON, {}, "may not be started over"),
        ({"profile": JobProfile(1.0, 1.0, 19000.0)}, ON, {}, "does not fit"),
    ],
)
def test_the_safety_check_holds_each_rule_by_itself(
    guest: dict[str, Any], on: Any, who: dict[str, Any], words: str
) -> None:
    entry, there = waits("g", **{**ASKS, **guest}), host(**who)
    start = Start(there.placement, (), "host", visits=True, slots=True)
    seen = scene(entry, running=(there,))
    with pytest.raises(UnsafePlan, match=words):
        check_plan(seen, PartitionPlan({"g": start}, (Action("g", "vc", start),)), **on)


def test_in_a_pool_a_guest_takes_nothing_of_its_vcs_quota() -> None:
    """VC a has one GPU by its quota, and its session has that; VC b works on the other."""
    on = {**ON, "lending": {"mode": "quota"}}
    session = host(job={"user": "ann", "vc": "a"})
    other = runs("other", "n1:1", job={"user": "bob", "vc": "b"})
    pool = part(nodes(1, 2), [waits("g", vc="a", **ASKS)], [session, other], "pool", quotas={"a": 1, "b": 1})
    seen = snap(NOW_S, pool)
    plan = policy("lucid", **on).plan(seen).partitions["pool"]
    decision = plan.decisions["g"]
    assert isinstance(decision, Start)
    assert decision.beside == "host"
    check_plan(pool, plan, snapshot=seen, **on)


def test_what_is_kept_for_others_keeps_guests_away_too() -> None:
    """The node goes down in an hour, and the guest might run for longer."""
    (node,) = nodes(1, 1)
    closing = replace(node, windows=(Window(NOW_S + 3600.0, NOW_S + 7200.0),)).at(NOW_S)
    for limit_s, kind in ((7200.0, Hold), (1800.0, Start)):
        seen = snap(NOW_S, part([closing], [waits("g", time_limit_s=limit_s, **ASKS)], [host()]))
        assert isinstance(policy("lucid", **ON).plan(seen).partitions["vc"].decisions["g"], kind)
