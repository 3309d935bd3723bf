"""Policies that lie about quotas: what they call a turn, a loan or the large job of a VC decides nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from lucid.core.decision import Decision
from lucid.core.job import Pending
from lucid.orchestrator.cycle import Cycle
from scenes.hostile import Says, Still, done, start
from scenes.jobs import nodes, runs, waits
from scenes.plans import ANYTHING, FixedPredictor, part, settings, snap

LENDS: dict[str, Any] = {"lending": {"mode": "borrow", "longest_s": 1000.0, "bound_s": 4000.0}}


def pool(
    now_s: float, *pending: Pending, quota: int = 16, predicted_s: float = 90_000.0, **sections: Any
) -> set[str]:
    """Who starts in a pool whose VC a holds its whole quota, if the policy says that all may."""
    running = [runs(f"r{i}", f"n{i + 1}:0-7", job={"vc": "a"}) for i in range(quota // 8)]
    room = replace(part(nodes(12), pending, running, "pool"), quotas={"a": quota, "b": 96 - quota})
    seen = snap(now_s, room)
    guesses = {e.job.id: replace(seen.predictions[e.job.id], duration_s=predicted_s) for e in pending}
    seen = replace(seen, predictions={**seen.predictions, **guesses})
    decisions: dict[str, Decision] = {}
    node = quota // 8
    for entry in pending:
        wanted = -(-entry.job.gpus // 8)
        names = [f"n{node + i + 1}:0-{min(entry.job.gpus, 8) - 1}" for i in range(wanted)]
        node += wanted
        decisions[entry.job.id] = start(" ".join(names))
    return set(done(seen, {"pool": decisions}, **{**LENDS, **sections}))


def mine(name: str, gpus: int = 8, submit_s: float = 0.0, **rest: Any) -> Pending:
    return waits(name, gpus, submit_s, vc="a", **rest)


def test_a_turn_is_not_what_a_plan_calls_one() -> None:
    """In plain order nobody starts before he was submitted: no turn comes before half of the bound is over."""
    assert pool(1999.0, mine("j")) == set()
    assert pool(2000.0, mine("j")) == {"j"}
    assert pool(9999.0, mine("j"), lending={**LENDS["lending"], "bound_s": None}) == set(), "no bound, no turn"
    assert pool(2000.0, mine("j"), fairness={"keep_from": 1.0}) == set()


def test_who_goes_beyond_a_quota_in_his_turn_holds_no_more_than_plain_order_could_have_given_the_vc() -> None:
    assert pool(2000.0, *(mine(name) for name in "jkl")) == {"j", "k"}
    home = replace(part(nodes(9), [mine(name) for name in "jkl"], name="pool"), quotas={"a": 8, "b": 64})
    decisions: dict[str, Decision] = {name: start(f"n{i + 2}:0-7") for i, name in enumerate("jkl")}
    said, cluster = Says({"pool": decisions}, ANYTHING), Still(snap(2000.0, home))
    cycle = Cycle(cluster, FixedPredictor(otherwise_s=90_000.0), said, settings(**LENDS), tolerant=True)
    ran = [item.action.job_id for item in cycle.run().applied]
    assert ran == ["j", "k"], "one within the quota, one in its turn"
    running = [runs(name, f"n{i + 2}:0-7", job={"vc": "a"}) for i, name in enumerate("jk")]
    cluster.snapshot = snap(9999.0, replace(home, pending=(mine("l"),), running=tuple(running)))
    said.decisions = {"pool": {"l": decisions["l"]}}
    assert not cycle.run().applied, "and this one has its GPUs yet"


def test_of_the_large_jobs_the_one_that_has_waited_longest_borrows_and_no_other() -> None:
    line = (mine("small"), mine("later", 16, 2.0), mine("first", 16, 1.0), mine("last", 16, 3.0))
    assert pool(100.0, *line) == {"first"}
    assert pool(100.0, *line, lending={**LENDS["lending"], "large": False}) == set()
    assert pool(100.0, *line, reservation={"above_gpus": 16}) == set()
    barred = replace(mine("barred", 16), barred="AssocGrpGRES")
    assert pool(100.0, barred, *line) == {"first"}, "one that Slurm bars does not stand before others"


def test_what_is_lent_is_the_administrators_word() -> None:
    assert pool(100.0, mine("j"), predicted_s=1000.0) == {"j"}
    assert pool(100.0, mine("j"), predicted_s=1001.0) == set()
    assert pool(9999.0, mine("j"), predicted_s=1.0, lending={"mode": "quota", "bound_s": None}) == set()
    assert pool(9999.0, mine("j", 24), predicted_s=1.0) == set(), "larger than its VC's quota"
