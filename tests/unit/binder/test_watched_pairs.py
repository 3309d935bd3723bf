"""Pairs that are watched, whether jobs share where it is calm, and who may."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from builders import LIGHT, FixedPredictor, decide, guess, nodes, part, policy, reason, runs, snap, waits
from daemon_site import Site
from lucid.binder.candidates import CalmSince, calm_since
from lucid.binder.contention import memory_limit_mib
from lucid.core.decision import Decision, Hold, Start
from lucid.core.job import JobProfile, Pending
from lucid.core.reasons.queue import Borrows
from lucid.core.reasons.sharing import Calm, PairSpeed
from lucid.slurm.view.profiles import ProfileReading


@pytest.mark.parametrize(("speed", "parted"), [(0.4, True), (0.75, False)])
def test_a_pair_seen_at_less_than_half_speed_is_parted(
    speed: float, parted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From a summary of the sampler to what Slurm is told."""
    site = Site(tmp_path)
    for job in ("1", "2"):
        site.submit(job, 2, run_s=9000.0)
    site.turns(300.0, every_s=10.0)
    assert site.slurm.records["2"].request.shards
    seen = [
        ProfileReading(job, replace(LIGHT, seen_speed=speed, seen_beside=other), f"{job} together")
        for job, other in ("12", "21")
    ]
    monkeypatch.setattr(site.sampler, "new", lambda: seen)
    site.turns(100.0, every_s=10.0)
    story = json.loads(site.ctl("explain", "2", "--json"))
    found = [d["reasons"][0] for d in story["decisions"] if d["verb"] == "part"]
    assert [(why["kind"], why["seen"]) for why in found] == [("SeenSpeed", speed)] * parted
    assert bool(site.slurm.records["2"].request.shards) is not parted, "it runs on GPUs of its own"


DAY_S = 86400.0
ESTIMATE_S = 2 * DAY_S


def test_a_vc_is_calm_from_when_the_last_job_that_waited_has_started() -> None:
    calm = calm_since(None, 0, 10, 50.0)
    assert calm == CalmSince(50.0), "nothing is known of the time before"
    assert calm_since(calm, 0, 10, 99.0) == CalmSince(50.0)
    assert calm_since(calm, 1, 10, 99.0) == CalmSince(None)
    assert calm_since(CalmSince(None), 0, 10, 120.0) == CalmSince(120.0)


def test_one_waiting_job_in_a_hundred_is_calm() -> None:
    assert calm_since(CalmSince(50.0), 1, 100, 99.0) == CalmSince(50.0)
    assert calm_since(CalmSince(50.0), 2, 100, 99.0) == CalmSince(None)


def decided(
    calm_s: float | None, *, idle: bool = True, speed: float = 0.9, estimate_s: float = ESTIMATE_S, **packing: object
) -> Decision:
    """On a job that may join a running one, in a VC that has been calm for so long."""
    machines = nodes(2, 4) if idle else nodes(1, 1)
    vc = part(machines, [waits("new", profile=LIGHT)], [runs("old", "n1:0", profile=LIGHT)])
    found = snap(9000.0, vc, predictions={"new": guess(estimate_s, 0), "old": guess(9e9, 0)})
    found = replace(found, memory={"vc": CalmSince(None if calm_s is None else 9000.0 - calm_s)})
    predictor = FixedPredictor(speed=lambda a, b: (speed, 1.0))
    return decide("lucid", found, predictor, profiling={"enabled": False}, packing=packing).decisions["new"]


def beside(decision: Decision) -> str | None:
    assert isinstance(decision, Start)
    return decision.beside


def test_L17_a_job_has_gpus_of_its_own_where_it_has_been_calm_for_a_day_and_as_long_as_the_job_runs() -> None:
    alone = decided(ESTIMATE_S)
    assert beside(alone) is None
    assert reason(alone, Calm) == Calm("vc", ESTIMATE_S, ESTIMATE_S)
    assert beside(decided(ESTIMATE_S - 1.0)) == "old"
    assert beside(decided(None)) == "old"
    assert [beside(decided(calm_s, estimate_s=60.0)) for calm_s in (DAY_S - 1.0, DAY_S)] == ["old", None]
    assert beside(decided(ESTIMATE_S, when_calm=True)) == "old"


@pytest.mark.parametrize(("speed", "joins"), [(1.0, "old"), (0.99, None)])
def test_a_pair_that_slows_nobody_is_made_even_then(speed: float, joins: str | None) -> None:
    decision = decided(ESTIMATE_S, speed=speed)
    assert beside(decision) == joins
    assert reason(decision, PairSpeed).floor == 1.0


def test_who_would_wait_shares_however_calm_it_is() -> None:
    decision = decided(ESTIMATE_S, idle=False)
    assert beside(decision) == "old"
    assert reason(decision, PairSpeed).floor == 0.5


def test_who_waits_ends_the_calm_and_who_starts_does_not() -> None:
    vc = part(nodes(1, 2), [waits("small"), waits("large", gpus=2)])
    calm = {"vc": CalmSince(0.0)}
    lucid = policy("lucid", profiling={"enabled": False})
    plan = lucid.plan(replace(snap(60.0, vc), memory=calm))
    assert [type(plan.partitions["vc"].decisions[name]) for name in ("small", "large")] == [Start, Hold]
    assert plan.memory == {"vc": CalmSince(None)}
    started = part(nodes(1, 2), [waits("small")])
    assert lucid.plan(replace(snap(70.0, started), memory=calm)).memory == calm


def test_an_empty_queue_keeps_the_calm_and_no_sharing_keeps_none() -> None:
    vc = part(nodes(1, 2), (), [runs("old", "n1:0")])
    assert policy("lucid").plan(snap(60.0, vc)).memory == {"vc": CalmSince(60.0)}
    assert policy("lucid").plan(replace(snap(60.0, vc), memory={"vc": CalmSince(5.0)})).memory == {
        "vc": CalmSince(5.0)
    }
    assert policy("lucid", packing={"gss": 0}).plan(snap(60.0, vc)).memory == {}


def test_in_a_calm_pool_a_job_borrows_rather_than_slow_another() -> None:
    """Without the calm it looks for a partner before it borrows."""

    def of(name: str) -> Pending:
        entry = waits(name, profile=LIGHT)
        return replace(entry, job=replace(entry.job, vc="a"))

    host = runs("old", "n1:0", profile=LIGHT)
    host = replace(host, job=replace(host.job, vc="a"))
    pool = replace(part(nodes(1, 2), [of("new")], [host]), quotas={"a": 1, "b": 1})
    found = snap(9000.0, pool, predictions={"new": guess(ESTIMATE_S, 0), "old": guess(9e9, 0)})
    predictor = FixedPredictor(speed=lambda a, b: (0.9, 0.9))
    rules = {"profiling": {"enabled": False}, "lending": {"mode": "borrow"}}
    for since_s, joins in ((9000.0 - ESTIMATE_S, None), (8000.0, "old")):
        calm = replace(found, memory={pool.name: CalmSince(since_s)})
        decision = decide("lucid", calm, predictor, **rules).decisions["new"]
        assert beside(decision) == joins
        if joins is None:
            assert reason(decision, Borrows)


def test_the_memory_limit_is_a_tenth_and_a_context_above_the_peak() -> None:
    assert memory_limit_mib(JobProfile(50, 20, 8000), 24576) == 9312


def test_an_unmeasured_job_and_one_that_fills_the_card_have_no_memory_limit() -> None:
    assert memory_limit_mib(None, 24576) is None
    assert memory_limit_mib(JobProfile(50, 20, 22000), 24576) is None
    assert memory_limit_mib(JobProfile(50, 20, 0), 24576) is None
