"""Replays as live: shares of accounts, and manners."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builders import a_job, a_trace, by, guess, nodes, part, policy, reason, runs, snap, waits
from examples import examples
from lucid.config.load import Settings, settings_from
from lucid.core.decision import PartitionPlan, Start
from lucid.core.job import JobProfile
from lucid.core.reasons.queue import FairShare, SlurmPriority
from lucid.errors import ClusterError, ClusterUnavailable
from lucid.orchestrator.order.queue_order import fair_share_of
from lucid.simulator.cluster.state import JobOutcome, Semantics
from lucid.simulator.cluster.usage import UsageBook, fair_shares
from lucid.simulator.layout import NodeShape
from lucid.simulator.scenario import Scenario, simulate
from lucid.simulator.traces.record import TraceJob
from lucid.slurm.records.configuration import FairShares, fair_shares_from

DAY = 86400.0
FACTORS: Mapping[tuple[str, str], float] = {("over", "ann"): 0.1, ("under", "bob"): 0.9, ("even", "eve"): 0.5}
OFF: Mapping[str, Any] = {"profiling": {"enabled": False}, "packing": {"gss": 0}}


def test_the_factor_is_two_to_the_minus_usage_over_shares() -> None:
    """Shares 1 and 3 of 4; usage half and half: 2^-(0.5/0.25) and 2^-(0.5/0.75)."""
    found = fair_shares({"a": 50.0, "b": 50.0}, {"b": 3.0})
    assert found == {"a": 0.25, "b": pytest.approx(2 ** (-2 / 3), abs=1e-3)}
    assert fair_shares({"a": 25.0, "b": 75.0}, {"b": 3.0}) == {"a": 0.5, "b": 0.5}
    assert fair_shares({"a": 0.0, "b": 0.0}, {}) == {"a": 1.0, "b": 1.0}
    assert fair_shares({"a": 5.0, "b": 0.0}, {"a": 0.0}) == {"a": 0.0, "b": 1.0}


def test_usage_counts_half_after_a_half_life() -> None:
    """a holds 2 GPUs for a day; b none, then as long as it takes to have used as much of it as is left."""
    book = UsageBook(7 * DAY, 300.0, {})
    a, b = a_job("1", account="a"), a_job("2", account="b")
    for job in (a, b):
        book.observe(job)
    assert set(book.factors(0.0).values()) == {1.0}
    book.holds(a, 2, 0.0)
    book.holds(a, -2, DAY)
    assert book.factors(DAY) == {("a", ""): 0.25, ("b", ""): 1.0}
    book.holds(b, 1, 8 * DAY)
    book.holds(b, -1, 9 * DAY)
    # a: just under 2 GPU-days, halved and a little more; b: just under 1, so nearly half each
    assert book.factors(10 * DAY) == pytest.approx({("a", ""): 0.5, ("b", ""): 0.5}, abs=0.05)


def planned(bound: float, **estimates_s: float) -> PartitionPlan:
    """One GPU, for which jobs of these accounts wait; estimates are as given."""
    users = dict(list(FACTORS))
    pending = [waits(name, 1, float(i), account=name, user=users.get(name, "")) for i, name in enumerate(estimates_s)]
    scene = snap(10.0, part(nodes(1, 1), pending), predictions={k: guess(v) for k, v in estimates_s.items()})
    scene = replace(scene, fair_share=FACTORS)
    return policy("lucid", None, fairness={"share_bound": bound}, **OFF).plan(scene).partitions["vc"]


def started(plan: PartitionPlan) -> list[str]:
    return [job for job, decision in plan.decisions.items() if isinstance(decision, Start)]


def test_an_account_over_its_share_yields_within_the_bound() -> None:
    # bound 4: 4^0.8 = 3.03 times for the one, 0.33 times for the other, 9.2 between them
    assert started(planned(4.0, over=100.0, under=900.0)) == ["under"]
    assert started(planned(4.0, over=100.0, under=930.0)) == ["over"]
    assert started(planned(1.0, over=100.0, under=101.0)) == ["over"], "off: as ever"


def test_one_at_its_share_or_unknown_keeps_its_value() -> None:
    assert fair_share_of(waits("a", account="even", user="eve").job, FACTORS, 4.0) == FairShare("even", 0.5, 1.0, 4.0)
    assert fair_share_of(waits("a", account="who", user="eve").job, FACTORS, 4.0) is None
    assert fair_share_of(waits("a", account="over", user="ann").job, FACTORS, 1.0) is None


@given(factor=st.floats(-1.0, 2.0), bound=st.floats(1.01, 100.0))
@settings(max_examples=examples(60), deadline=None)
def test_no_factor_moves_a_value_by_more_than_the_bound(factor: float, bound: float) -> None:
    found = fair_share_of(waits("a", account="x").job, {("x", ""): factor}, bound)
    assert 1 / bound - 1e-9 <= found.times <= bound + 1e-9


BESIDE = {"fairness": {"beyond_plain_s": 7200.0}, "backfill": {"weight_fair_share": 1000.0}}
"""The plain order is made, too."""


@pytest.mark.parametrize("rules", [{"fairness": {"share_bound": 4.0}}, BESIDE])
def test_a_kept_plan_is_made_anew_when_factors_change(rules: dict[str, Any]) -> None:
    room = part(nodes(1, 1), [waits("a", account="over", user="ann")], [runs("x", "n1:0")])
    chosen = policy("lucid", None, **rules, **OFF)
    scene = replace(snap(10.0, room), fair_share=FACTORS)
    first = chosen.plan(scene).partitions["vc"]
    assert chosen.plan(scene).partitions["vc"] is first
    assert chosen.plan(replace(scene, fair_share={("over", "ann"): 0.9})).partitions["vc"] is not first


def test_slurms_order_weighs_it_too() -> None:
    pending = [waits("a", 1, 0.0, account="over", user="ann"), waits("b", 1, 1.0, account="under", user="bob")]
    scene = replace(snap(10.0, part(nodes(1, 1), pending)), fair_share=FACTORS)
    plan = policy("backfill", None, backfill={"weight_fair_share": 1000.0}).plan(scene).partitions["vc"]
    assert started(plan) == ["b"]
    assert reason(plan.decisions["b"], SlurmPriority).value == pytest.approx(900.0)
    assert started(policy("backfill").plan(scene).partitions["vc"]) == ["a"]


def test_slurms_own_factors_are_read() -> None:
    rows = [
        {"name": name, "parent": "vision", "type": [kind], "fairshare": {"factor": factor, "level": 1.0}}
        for name, kind, factor in (
            ("root", "ASSOCIATION", {"set": True, "number": 0}),
            ("ann", "USER", {"set": True, "number": 0.25}),
            ("bob", "USER", {"set": False, "number": 0}),
            ("cyd", "USER", 0.5),  # as of Slurm 23.11
        )
    ]
    assert fair_shares_from({"shares": {"shares": rows}}) == {("vision", "ann"): 0.25, ("vision", "cyd"): 0.5}
    for wrong in ({}, {"shares": []}, {"shares": {"shares": "none"}}):
        with pytest.raises(ClusterError, match="list of shares"):
            fair_shares_from(wrong)


def test_slurm_is_asked_now_and_then_and_may_have_none() -> None:
    ann, trouble = {("a", "ann"): 0.5}, (ClusterError("no accounting"), ClusterUnavailable("down"))
    ask = Mock(side_effect=[ann, dict(ann), *trouble, {}])
    shares = FairShares(ask, 300.0)
    first = shares(0.0)
    assert shares(299.0) is first
    assert shares(300.0) is first
    assert shares(600.0) == {}
    assert shares.why_none == "no accounting"
    with pytest.raises(ClusterUnavailable):
        shares(900.0)
    assert shares(901.0) == {}
    assert (shares.why_none, ask.call_count) == ("", 5)


def test_in_a_replay_the_account_that_used_much_waits_longer() -> None:
    """heavy fills the cluster for two hours; then both ask for the same, heavy first."""
    jobs = [by(f"h{i}", 1, 7200.0, 0.0, account="heavy") for i in range(4)]
    for begin_s, name in ((10.0, "heavy"), (110.0, "light")):
        jobs += [by(f"{name}{i}", 1, 600.0, begin_s + i, account=name) for i in range(8)]
    scene = Scenario(a_trace(*jobs), {"vc": 1}, NodeShape(4), predictor="oracle")

    def mean_start(bound: float, account: str) -> float:
        rules = {"policy": {**OFF, "fairness": {"share_bound": bound}}}
        run = simulate(replace(scene, settings=settings_from(rules, "t")), "lucid")
        starts = [o.start_s for o in run.outcomes if o.job.account == account and o.duration_s == 600.0]
        return sum(starts) / len(starts)

    assert mean_start(1.0, "heavy") < mean_start(1.0, "light")
    assert mean_start(4.0, "light") < mean_start(4.0, "heavy")


LIGHT = JobProfile(20.0, 10.0, 1000.0)
RULES = {
    "profiling": {"t_prof_s": 80.0, "carry_on_share": 0.0, "restarts": "allowed"},
    "packing": {"least_partner_remaining_s": 0.0},
}
SETTINGS = settings_from({"policy": RULES, "overheads": {"requeue_s": 10.0, "start_s": 4.0}}, "test")


def job(number: int, at_s: float, user: str = "ada") -> TraceJob:
    return by(str(number), 1, 1000.0, at_s, rank=number, user=user, name="bert", profile=LIGHT)


def ran(*jobs: TraceJob, settings: Settings = SETTINGS, how: Semantics = Semantics.AS_LIVE) -> dict[str, JobOutcome]:
    shape = NodeShape(2)
    scenario = Scenario(a_trace(*jobs), {"vc": 2}, shape, settings=settings, profiling_nodes=1, semantics=how)
    return {outcome.job.id: outcome for outcome in simulate(scenario, "lucid").outcomes}


def test_a_job_like_one_measured_before_skips_profiling() -> None:
    jobs = (job(1, 0.0), job(2, 200.0), job(3, 200.0, user="bob"))
    known = ran(*jobs)
    assert [known[n].profiled_s for n in "123"] == [80.0, 0.0, 80.0], "likeness is the user's and the name's"
    assert known["2"].start_s == 200.0
    assert [ran(*jobs, how=Semantics.HONEST)[n].profiled_s for n in "123"] == [80.0, 80.0, 80.0]


def test_those_that_wait_for_a_profiling_node_go_home_once_one_of_them_is_measured() -> None:
    jobs = tuple(job(n, 0.0) for n in range(1, 5))
    found = ran(*jobs, settings=SETTINGS.changed({"policy.profiling.home_if_room": False}))
    profiled = [n for n, outcome in found.items() if outcome.profiled_s]
    assert profiled == ["1", "2"], "as many as fit on the profiling node"
    assert all(found[n].start_s == 80.0 and found[n].packed for n in "34")
