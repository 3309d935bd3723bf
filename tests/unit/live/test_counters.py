"""What lucidd counts of its own work."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from builders import LIGHT, FixedPredictor, a_job, at
from daemon_site import Site
from lucid.core.decision import Action, EndProfiling, Plan, Requeue, Start
from lucid.core.job import Running, Stage
from lucid.core.ports import Applied, Capability
from lucid.core.snapshot import Partition, Snapshot
from lucid.daemon.learning.training import UPKEEP, Upkeep
from lucid.daemon.reporting.counters import Counters, speeds_of
from lucid.errors import ClusterUnavailable, Refusal
from lucid.orchestrator.cycle import CycleResult
from lucid.orchestrator.planner import PolicyHost
from lucid.orchestrator.policy import PolicyRules


def counts(site: Site) -> dict[str, Any]:
    found: dict[str, Any] = site.store.view("status")["counts"]
    return found


def runs(name: str, partner: str | None = None, **rest: Any) -> Running:
    return Running(a_job(name, gpus=2), 0.0, at("n1:0-1"), partner=partner, **rest)


def result(now_s: float, *running: Running, applied: tuple[Applied, ...] = ()) -> CycleResult:
    return CycleResult(Snapshot(now_s, {"vc": Partition("vc", (), running=running)}), Plan(now_s), applied)


def pair(own: float | None, other: float | None) -> Applied:
    speeds = None if own is None or other is None else (own, other)
    return Applied(Action("b", "vc", Start(at("n1:0-1"), (), "a", speeds=speeds)))


def test_gpu_time_in_pairs_is_counted_once_for_the_gpus_and_by_what_is_known() -> None:
    tally = Counters()
    tally.cycle(result(0.0, runs("a"), applied=(pair(0.9, 0.8),)), {}, {}, 0.1)
    together = runs("a", "b"), runs("b", "a")
    tally.cycle(result(10.0, *together), {}, {}, 0.1)
    tally.cycle(result(40.0, *together), {}, {}, 0.1)
    found = tally.to_dict()
    assert found["shared_gpu_s"] == {"measured": 0.0, "promised": 80.0, "unknown": 0.0}
    assert found["saved_gpu_s"]["promised"] == pytest.approx(0.7 * 80.0)
    assert found["lost_gpu_s"]["promised"] == pytest.approx(0.3 * 80.0)
    tally.cycle(result(4000.0, *together), {}, {}, 0.1)
    assert tally.to_dict()["shared_gpu_s"]["promised"] == 80.0 + 2 * 60.0, "what was not seen is not counted"
    unasked = Counters()
    unasked.cycle(result(0.0, runs("a"), applied=(pair(None, None),)), {}, {}, 0.1)
    unasked.cycle(result(10.0, *together), {}, {}, 0.1)
    unasked.cycle(result(20.0, *together), {}, {}, 0.1)
    assert unasked.to_dict()["shared_gpu_s"]["promised"] == 0.0, "nobody promised anything"
    stranger = runs("a", "c"), runs("c", "a")
    tally.cycle(result(4010.0, *stranger), {}, {}, 0.1)
    assert tally.to_dict()["shared_gpu_s"]["unknown"] == 20.0, "promised beside another job"


def test_a_pair_that_harms_saves_nothing_and_profiling_runs_do_not_count() -> None:
    tally = Counters()
    slow = [
        replace(runs(one, other), profile=replace(LIGHT, seen_speed=0.4, seen_beside=other))
        for one, other in (("a", "b"), ("b", "a"))
    ]
    tally.cycle(result(0.0, *slow), {}, {}, 0.1)
    tally.cycle(result(10.0, *slow), {}, {}, 0.1)
    found = tally.to_dict()
    assert (found["saved_gpu_s"]["measured"], found["lost_gpu_s"]["measured"]) == (0.0, pytest.approx(24.0))
    profiled = [replace(one, stage=Stage.PROFILE) for one in slow]
    tally.cycle(result(20.0, *profiled), {}, {}, 0.1)
    assert tally.to_dict()["shared_gpu_s"]["measured"] == 20.0


def test_speeds_are_measured_only_where_both_jobs_were_beside_this_partner() -> None:
    seen = replace(LIGHT, seen_speed=0.8, seen_beside="b")
    a, b = runs("a", "b", profile=seen), runs("b", "a")
    assert speeds_of(a, b, {}) == ("unknown", None)
    old = replace(b, profile=replace(LIGHT, seen_speed=0.7, seen_beside="x"))
    assert speeds_of(a, old, {"a": ("b", 0.9, 0.0), "b": ("a", 0.85, 0.0)}) == ("promised", (0.9, 0.85))
    new = replace(b, profile=replace(LIGHT, seen_speed=0.7, seen_beside="a"))
    assert speeds_of(a, new, {}) == ("measured", (0.8, 0.7))


def test_restarts_are_counted_by_cause_and_only_of_jobs_that_ran() -> None:
    tally = Counters()
    applied = (
        Applied(Action("a", "vc", EndProfiling(()))),
        Applied(Action("b", "vc", Requeue((), part=True))),
        Applied(Action("c", "vc", Requeue(()))),
        Applied(Action("waits", "vc", EndProfiling(()))),
        Applied(Action("d", "vc", Requeue(())), "job d is not running", Refusal.JOB_MOVED_ON),
    )
    tally.cycle(result(0.0, *(runs(name) for name in "abcd"), applied=applied), {}, {}, 0.1)
    found = tally.to_dict()
    assert found["restarts"] == {"profiled": 1, "parted": 1, "preempted": 1}
    assert found["done"] == {"release": 2, "part": 1, "requeue": 1}
    assert found["refused"]["job_moved_on"] == 1


def test_what_was_promised_outlives_a_restart_of_lucidd_and_not_its_jobs(tmp_path: Path) -> None:
    site = Site(tmp_path)
    for name in ("1", "2"):
        site.submit(name, 2, run_s=900.0)
    site.turns(400.0, every_s=5.0)
    before = counts(site)["promises"]
    assert set(before) == {"1", "2"}
    site.daemon.stop()
    site.start("two")
    site.turns(30.0)
    assert counts(site)["promises"] == before
    assert counts(site)["shared_gpu_s"]["promised"] > 0
    site.turns(2000.0, every_s=10.0)
    assert counts(site)["promises"] == {}


def test_cycles_are_timed_and_failed_turns_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site(tmp_path)
    site.submit("1", 2, run_s=900.0)
    site.turns(60.0)
    before = counts(site)
    assert sum(before["cycle_s"]["counts"]) == site.store.view("status")["cycles"] > 0
    assert sum(before["plan_s"]["counts"]) == sum(before["cycle_s"]["counts"])
    assert before["plan_s"]["sum_s"] > 0.0

    def silent() -> Any:
        raise ClusterUnavailable("slurmctld does not answer")

    with monkeypatch.context() as patch:
        patch.setattr(site.slurm, "jobs", silent)
        site.turns(30.0)
    failed = counts(site)["failed"]
    assert failed > 0
    site.turns(60.0)
    assert counts(site)["failed"] == failed


def test_another_version_left_something_else() -> None:
    for junk in (None, 3, [], {"promises": 3}, {"promises": {"a": 3}}, {"promises": {"a": ["b", "x", 1]}}):
        assert Counters(junk).to_dict()["promises"] == {}


def test_a_hosted_policy_is_the_policy_otherwise_and_its_plans_are_timed() -> None:
    class Inner:
        name, rules, needs = "inner", PolicyRules(claims=True), frozenset[Capability]()

        def plan(self, snapshot: Snapshot) -> Plan:
            return Plan(snapshot.now_s)

    ticks = iter([1.0, 1.25])
    took: list[float] = []
    host = PolicyHost(
        lambda _: Inner(),  # type: ignore[arg-type, return-value]
        FixedPredictor(),
        took=took.append,
        clock_s=lambda: next(ticks),
    )
    assert (host.name, host.rules, host.needs) == ("inner", Inner.rules, frozenset())
    assert host.plan(Snapshot(5.0, {})).now_s == 5.0
    assert took == [0.25]


def test_what_training_found_is_kept_for_the_metrics(tmp_path: Path) -> None:
    site = Site(tmp_path)
    found = [{"kind": "duration", "drift": {"error_ratio": 0.9, "jobs": 10, "psi": {}}}]
    models = site.settings.models.model_copy(update={"jobs": "x.log"})
    upkeep = Upkeep(site.settings.model_copy(update={"models": models}), site.store, lambda: found)
    assert upkeep() == found
    assert site.store.view(UPKEEP) == found
