"""Policies that lie about quotas: what they call a turn or a loan decides nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from lucid.core.decision import Decision
from lucid.core.job import Pending
from lucid.orchestrator.cycle import Cycle
from scenes.hostile import Says, Still, done, start
from scenes.jobs import nodes, runs, waits
from scenes.plans import ANYTHING, FixedPredictor, part, settings, snap

TURNS: dict[str, Any] = {"lending": {"mode": "quota"}, "fairness": {"beyond_plain_s": 4000.0}}
"""Nobody borrows: beyond its quota a VC has only what a turn brings."""


def pool(now_s: float, *pending: Pending, quota: int = 16, **sections: Any) -> set[str]:
    """Who starts in a pool whose VC a holds its whole quota, if the policy says that all may."""
    running = [runs(f"r{i}", f"n{i + 1}:0-7", job={"vc": "a"}) for i in range(quota // 8)]
    room = replace(part(nodes(12), pending, running, "pool"), quotas={"a": quota, "b": 96 - quota})
    seen = snap(now_s, room)
    decisions: dict[str, Decision] = {}
    node = quota // 8
    for entry in pending:
        wanted = -(-entry.job.gpus // 8)
        names = [f"n{node + i + 1}:0-{min(entry.job.gpus, 8) - 1}" for i in range(wanted)]
        node += wanted
        decisions[entry.job.id] = start(" ".join(names))
    return set(done(seen, {"pool": decisions}, **{**TURNS, **sections}))


def mine(name: str, gpus: int = 8, submit_s: float = 0.0, **rest: Any) -> Pending:
    return waits(name, gpus, submit_s, vc="a", **rest)


def test_a_turn_is_not_what_a_plan_calls_one() -> None:
    """In plain order nobody starts before he was submitted: no turn comes before half of the bound is over."""
    assert pool(1999.0, mine("j")) == set()
    assert pool(2000.0, mine("j")) == {"j"}
    assert pool(9999.0, mine("j"), fairness={"beyond_plain_s": 0}) == set(), "no bound, no turn"
    assert pool(2000.0, mine("j"), fairness={"beyond_plain_s": 4000.0, "keep_from": 1.0}) == set()


def test_who_goes_beyond_a_quota_in_his_turn_holds_no_more_than_plain_order_could_have_given_the_vc() -> None:
    assert pool(2000.0, *(mine(name) for name in "jkl")) == {"j", "k"}
    home = replace(part(nodes(9), [mine(name) for name in "jkl"], name="pool"), quotas={"a": 8, "b": 64})
    decisions: dict[str, Decision] = {name: start(f"n{i + 2}:0-7") for i, name in enumerate("jkl")}
    said, cluster = Says({"pool": decisions}, ANYTHING), Still(snap(2000.0, home))
    cycle = Cycle(cluster, FixedPredictor(otherwise_s=90_000.0), said, settings(**TURNS), tolerant=True)
    ran = [item.action.job_id for item in cycle.run().applied]
    assert ran == ["j", "k"], "one within the quota, one in its turn"
    running = [runs(name, f"n{i + 2}:0-7", job={"vc": "a"}) for i, name in enumerate("jk")]
    cluster.snapshot = snap(9999.0, replace(home, pending=(mine("l"),), running=tuple(running)))
    said.decisions = {"pool": {"l": decisions["l"]}}
    assert not cycle.run().applied, "and this one has its GPUs yet"


def test_what_is_lent_is_the_administrators_word() -> None:
    lends = {"lending": {"mode": "borrow"}}
    assert pool(100.0, mine("j"), **lends) == {"j"}
    assert pool(100.0, mine("j")) == set()
    stays = mine("j", borrows=False)
    assert pool(100.0, stays, **lends) == pool(2000.0, stays) == set(), (
        "neither a loan nor a turn takes it from its VC"
    )
    assert pool(9999.0, mine("j", 24), **lends) == set(), "larger than its VC's quota"
