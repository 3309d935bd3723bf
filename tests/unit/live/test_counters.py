"""Counters and metrics of lucidd, and how Prometheus reads them."""

from __future__ import annotations

import json
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.exposition import big_store
from builders import LIGHT, FixedPredictor, a_cluster, a_job, a_trace, at, by, nodes, settings
from daemon_site import Site
from filled_site import filled_site
from lucid.config.load import settings_from
from lucid.config.policy import PolicySettings
from lucid.core.decision import Action, Decision, EndProfiling, Hold, Plan, Requeue, Start, decision_to_dict
from lucid.core.job import Running, Stage
from lucid.core.placement import NodeGpus
from lucid.core.ports import Applied
from lucid.core.snapshot import Partition, Snapshot
from lucid.daemon.learning.training import UPKEEP
from lucid.daemon.policies import LivePolicy
from lucid.daemon.reporting.counters import Counters, speeds_of
from lucid.daemon.reporting.metrics import render
from lucid.daemon.reporting.waste_inputs import MetricsSource
from lucid.errors import Refusal, StoreError
from lucid.orchestrator.cycle import CycleResult
from lucid.orchestrator.registry import make_policy
from lucid.profiler import waste
from lucid.simulator.cluster.state import JobOutcome, Semantics
from lucid.simulator.cluster.truth import PairsTable
from lucid.simulator.engine import Run, Series, run
from lucid.simulator.metrics import LARGE_GPUS, SIZES, group_metrics, run_metrics
from lucid.simulator.scenario import Scenario, simulate
from lucid.slurm.view.profiles import ProfileReading
from lucid.store.sqlite import SqliteStore


def counts(site: Site) -> dict[str, Any]:
    return dict(site.store.view("status")["counts"])


def runs(name: str, partner: str | None = None, **rest: Any) -> Running:
    return Running(a_job(name, gpus=2), 0.0, at("n1:0-1"), partner=partner, **rest)


def result(now_s: float, *running: Running, applied: tuple[Applied, ...] = ()) -> CycleResult:
    return CycleResult(Snapshot(now_s, {"vc": Partition("vc", (), running=running)}), Plan(now_s), applied)


def tallied(*results: CycleResult, tally: Counters | None = None) -> dict[str, Any]:
    """What was counted after these cycles."""
    tally = tally or Counters()
    for one in results:
        tally.cycle(one, {}, {}, 0.1)
    return tally.to_dict()


def pair(speeds: tuple[float, float] | None) -> CycleResult:
    start = Action("b", "vc", Start(at("n1:0-1"), (), "a", speeds=speeds))
    return result(0.0, runs("a"), applied=(Applied(start),))


def test_gpu_time_in_pairs_is_counted_once_for_the_gpus_and_by_what_is_known() -> None:
    tally, together = Counters(), (runs("a", "b"), runs("b", "a"))
    found = tallied(pair((0.9, 0.8)), result(10.0, *together), result(40.0, *together), tally=tally)
    assert found["shared_gpu_s"] == {"measured": 0.0, "promised": 80.0, "unknown": 0.0}
    assert found["saved_gpu_s"]["promised"] == pytest.approx(0.7 * 80.0)
    assert found["lost_gpu_s"]["promised"] == pytest.approx(0.3 * 80.0)
    later = tallied(result(4000.0, *together), tally=tally)["shared_gpu_s"]
    assert later["promised"] == 80.0 + 2 * 60.0, "what was not seen is not counted"
    stranger = tallied(result(4010.0, runs("a", "c"), runs("c", "a")), tally=tally)["shared_gpu_s"]
    assert stranger["unknown"] == 20.0, "promised beside another job"
    unasked = tallied(pair(None), result(10.0, *together), result(20.0, *together))
    assert unasked["shared_gpu_s"]["promised"] == 0.0, "nobody promised anything"


def test_a_pair_that_harms_saves_nothing_and_profiling_runs_do_not_count() -> None:
    tally = Counters()
    slow = [runs(one, by, profile=replace(LIGHT, seen_speed=0.4, seen_beside=by)) for one, by in ("ab", "ba")]
    found = tallied(result(0.0, *slow), result(10.0, *slow), tally=tally)
    assert (found["saved_gpu_s"]["measured"], found["lost_gpu_s"]["measured"]) == (0.0, pytest.approx(24.0))
    profiled = result(20.0, *[replace(one, stage=Stage.PROFILE) for one in slow])
    assert tallied(profiled, tally=tally)["shared_gpu_s"]["measured"] == 20.0


def test_speeds_are_measured_only_where_both_jobs_were_beside_this_partner() -> None:
    seen = replace(LIGHT, seen_speed=0.8, seen_beside="b")
    a, b = runs("a", "b", profile=seen), runs("b", "a")
    assert speeds_of(a, b, {}) == ("unknown", None)
    old = replace(b, profile=replace(LIGHT, seen_speed=0.7, seen_beside="x"))
    assert speeds_of(a, old, {"a": ("b", 0.9, 0.0), "b": ("a", 0.85, 0.0)}) == ("promised", (0.9, 0.85))
    new = replace(b, profile=replace(LIGHT, seen_speed=0.7, seen_beside="a"))
    assert speeds_of(a, new, {}) == ("measured", (0.8, 0.7))


def test_restarts_are_counted_by_cause_and_only_of_jobs_that_ran() -> None:
    applied = (
        Applied(Action("a", "vc", EndProfiling(()))),
        Applied(Action("b", "vc", Requeue((), part=True))),
        Applied(Action("c", "vc", Requeue(()))),
        Applied(Action("waits", "vc", EndProfiling(()))),
        Applied(Action("d", "vc", Requeue(())), "job d is not running", Refusal.JOB_MOVED_ON),
    )
    found = tallied(result(0.0, *(runs(name) for name in "abcd"), applied=applied))
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


def test_cycles_are_timed_and_failed_turns_counted(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.submit("1", 2, run_s=900.0)
    site.turns(60.0)
    before = counts(site)
    assert sum(before["plan_s"]["counts"]) == sum(before["cycle_s"]["counts"]) > 0
    assert before["plan_s"]["sum_s"] > 0.0
    site.slurm.down = True
    site.turns(30.0)
    site.slurm.down = False
    failed = counts(site)["failed"]
    assert failed > 0
    site.turns(60.0)
    assert counts(site)["failed"] == failed


def outcome(name: str, gpus: int, submit_s: float, queue_s: float, ran_s: float, **rest: object) -> JobOutcome:
    start_s, job = submit_s + queue_s, a_job(name, gpus, submit_s, vc=str(rest.pop("vc", "v")))
    made = JobOutcome(job, ran_s, start_s, start_s + ran_s, queue_s)
    for key, value in rest.items():
        setattr(made, key, value)
    return made


def a_run(*outcomes: JobOutcome, total_gpus: int = 16) -> Run:
    return Run("fifo", "history", list(outcomes), Series(), total_gpus, 3, 0.5, 0.25)


OUTCOMES = (
    outcome("a", 1, 0.0, 0.0, 100.0, packed=True),
    outcome("b", 4, 10.0, 30.0, 60.0, preemptions=2, vc="w"),
    outcome("c", 9, 20.0, 100.0, 200.0, packed=True, ended_in_profiling=True),
    outcome("d", 16, 20.0, 10.0, 90.0, preemptions=1),
)


def test_figures_of_a_run_by_hand() -> None:
    figures = run_metrics(a_run(*OUTCOMES, JobOutcome(a_job("never", 99), 50.0)))
    by_hand = {
        "jobs": 4, "impossible_jobs": 1, "avg_jct_s": (100 + 90 + 300 + 100) / 4, "median_jct_s": 100.0,
        "avg_queue_s": (0 + 30 + 100 + 10) / 4, "median_queue_s": 20.0, "makespan_s": 320.0, "preemptions": 3,
        # linear between ranks: the 90th of 0, 10, 30, 100 is seven tenths of the way from 30 to 100
        "p90_queue_s": 79.0, "p999_queue_s": 99.79, "packed_jobs": 2, "packed_share": 0.5, "ended_in_profiling": 1,
        "wall_s": 0.5, "cpu_s": 0.25, "large_jobs": 2, "avg_jct_large_s": (300 + 100) / 2,
    }  # fmt: skip
    assert {name: figures[name] for name in by_hand} == pytest.approx(by_hand)
    assert figures["predictor"] == "history"
    assert {vc: group["jobs"] for vc, group in figures["by_vc"].items()} == {"v": 3, "w": 1}
    assert figures["by_vc"]["w"]["avg_jct_s"] == 90.0
    sizes = {size: group["jobs"] for size, group in figures["by_size"].items()}
    assert sizes == {"1": 1, "2-4": 1, "5-8": 0, ">8": 2}
    assert {sum(inside(gpus) for _, inside in SIZES) for gpus in range(1, 40)} == {1}, "every size is in one class"
    assert LARGE_GPUS == 8
    assert run_metrics(a_run(*OUTCOMES, outcome("e", 8, 0.0, 0.0, 9999.0)))["large_jobs"] == 2
    assert group_metrics([]) == {"jobs": 0}, "without jobs there are no means"
    none = run_metrics(a_run())
    assert (none["jobs"], none["avg_jct_large_s"], none["gpu_use"]) == (0, None, 0.0)


def test_gpu_use_is_what_was_held_of_what_was_there_and_shared_gpus_are_held_once() -> None:
    figures = run_metrics(simulate(Scenario(a_trace(by("a", 2, 100.0), by("b", 1, 50.0)), {"vc": 1}), "fifo"))
    assert (figures["total_gpus"], figures["shared_gpu_use"]) == (8, 0.0)
    assert figures["gpu_use"] == pytest.approx((2 * 100 + 1 * 50) / (8 * 100))
    trace = a_trace(by("a", 1, 400.0, profile=LIGHT), by("b", 1, 400.0, profile=LIGHT))
    rules = settings(profiling={"enabled": False}, packing={"least_partner_remaining_s": 0.0})
    predictor = FixedPredictor(otherwise_s=400.0)
    made = make_policy("lucid", rules, predictor)
    parts = {"profiled": made.profiled, "profiling": rules.profiling, "semantics": Semantics.PUBLISHED_MENDED}
    cluster = a_cluster(trace, {"vc": nodes(1, 1)}, interference=PairsTable({}, (0.8, 0.8)), **parts)
    figures = run_metrics(run(cluster, made, predictor, settings=rules))
    assert figures["packed_jobs"] == 2
    assert figures["avg_jct_s"] == pytest.approx(400.0 / 0.8)
    assert (figures["gpu_use"], figures["shared_gpu_use"]) == (pytest.approx(1.0), pytest.approx(1.0))


Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def samples(text: bytes) -> Samples:
    families = text_string_to_metric_families(text.decode())
    return {(one.name, tuple(sorted(one.labels.items()))): one.value for f in families for one in f.samples}


def value(found: Samples, name: str, **labels: str) -> float | None:
    return found.get((name, tuple(sorted(labels.items()))))


def source_of(site: Site, **rest: Any) -> MetricsSource:
    return MetricsSource(site.settings, now_s=lambda: site.slurm.now, **rest)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    return filled_site(tmp_path_factory.mktemp("site"))


def test_what_lucidd_did_is_told(site: Site) -> None:
    found = samples(render(source_of(site)))
    status = site.store.view("status")
    assert value(found, "lucid_up") == 1.0
    assert value(found, "lucid_status_timestamp_seconds") == status["at_s"]
    assert value(found, "lucid_cycles_total") == status["cycles"] > 100
    assert value(found, "lucid_cycle_duration_seconds_count") == status["cycles"]
    plans = value(found, "lucid_decision_duration_seconds_count")
    assert plans == value(found, "lucid_decision_duration_seconds_bucket", le="+Inf")
    assert value(found, "lucid_slurm_requests_total", kind="read") == status["calls"]["reads"]
    assert value(found, "lucid_actions_total", verb="start") == sum(
        job.isdecimal() for _, job, _ in site.slurm.starts
    )
    assert value(found, "lucid_restarts_total", cause="profiled") == status["counts"]["restarts"]["profiled"] > 0
    assert value(found, "lucid_restarts_total", cause="parted") == 0.0
    assert [value(found, "lucid_refusals_total", cause=cause) is None for cause in Refusal] == [False] * len(Refusal)
    assert value(found, "lucid_partitions", mode="pack") == 1.0
    assert value(found, "lucid_starvation_bound_seconds", vc="vc") == 7200.0
    assert 0 < value(found, "lucid_starvation_margin_seconds", vc="vc") <= 7200.0
    assert value(found, "lucid_starvation_starts_total", vc="vc")


def test_measured_speeds_go_before_promised_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site(tmp_path)
    for name in "12":
        site.submit(name, 2, run_s=9000.0)
    site.turns(300.0, every_s=10.0)
    found = samples(render(source_of(site)))
    labels = {"partition": "vc", "job": "1", "partner": "2"}
    assert 0.5 < value(found, "lucid_pair_job_promised_speed_ratio", **labels) <= 1.0
    assert value(found, "lucid_pair_job_measured_speed_ratio", **labels) is None, "not measured is absent, not 0"
    assert value(found, "lucid_pairs", partition="vc", speed="promised") == 1.0
    shared, saved, lost = (
        value(found, f"lucid_{name}_gpu_seconds_total", speed="promised")
        for name in ("shared", "sharing_saved", "sharing_lost")
    )
    assert saved + lost == pytest.approx(shared, rel=1e-3), "speeds of at most 1: a + b - 1 and 2 - a - b"
    seen = [
        ProfileReading(job, replace(LIGHT, seen_speed=speed, seen_beside=beside), f"{job} together")
        for job, beside, speed in (("1", "2", 0.75), ("2", "1", 0.875))
    ]
    monkeypatch.setattr(site.sampler, "new", lambda: seen)
    site.turns(300.0, every_s=10.0)
    found = samples(render(source_of(site)))
    assert value(found, "lucid_pairs", partition="vc", speed="measured") == 1.0
    assert value(found, "lucid_pair_job_measured_speed_ratio", **labels) == 0.75
    assert value(found, "lucid_pair_speed_lowest_ratio", partition="vc", speed="measured") == 0.75
    assert value(found, "lucid_pair_speed_mean_ratio", partition="vc", speed="measured") == 0.8125
    shared = value(found, "lucid_shared_gpu_seconds_total", speed="measured")
    assert shared
    assert value(found, "lucid_sharing_saved_gpu_seconds_total", speed="measured") == pytest.approx(0.625 * shared)
    assert value(found, "lucid_sharing_lost_gpu_seconds_total", speed="measured") == pytest.approx(0.375 * shared)


def test_idle_hours_in_metrics_are_those_of_the_command(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waste, "IDLE_START_S", 600.0)
    monkeypatch.setattr(waste, "LEAST_GPU_H", 0.1)
    found = samples(render(source_of(site)))
    idle_s = 2 * next(one.ran_s for one in site.store.ended() if one.job.id == "1")
    wasted = value(found, "lucid_waste_gpu_seconds", vc="vc", kind="idle_from_start")
    assert wasted == pytest.approx(idle_s)
    assert value(found, "lucid_waste_gpu_seconds", vc="vc", kind="no_process") == 0.0
    not_measured = value(found, "lucid_efficiency_not_measured_gpu_seconds", vc="vc")
    assert 0 < not_measured < value(found, "lucid_efficiency_held_gpu_seconds", vc="vc")
    assert not [labels for _, labels in found if {"ada", "bob", "cyd"} & {*dict(labels).values()}], "it names no user"
    data = json.loads(site.ctl("efficiency", "--json"))
    assert data["total"]["wasted_gpu_h"] == {"idle_from_start": pytest.approx(idle_s / 3600.0, abs=1e-3)}
    (one,) = [job for job in data["jobs"] if job["waste"]]
    assert (one["job"], one["user"]) == ("1", "ada")


def test_drift_and_coverage_are_told_where_they_are_known(site: Site) -> None:
    site.store.put_view(UPKEEP, [{"kind": "pairs"}])
    assert not [name for name, _ in samples(render(source_of(site))) if name.startswith("lucid_model_error")]
    drift = {"error_ratio": 0.8, "jobs": 120, "psi": {"gpus": 0.1, "limit": 0.3}}
    site.store.put_view(UPKEEP, [{"kind": "duration", "drift": drift, "trouble": None}, {"kind": "pairs"}])
    found = samples(render(source_of(site)))
    assert value(found, "lucid_model_error_ratio", kind="duration") == 0.8
    assert value(found, "lucid_model_input_shift", kind="duration") == 0.3
    assert value(found, "lucid_model_error_ratio", kind="pairs") is None
    coverage = value(found, "lucid_start_forecast_coverage_ratio")
    judged = value(found, "lucid_start_forecast_judged_jobs")
    assert (coverage is None) == (judged == 0.0)


def source_at(folder: Path, *store: Any) -> MetricsSource:
    data = {"daemon": {"partitions": {"vc": "pack"}, "state_dir": str(folder)}}
    return MetricsSource(settings_from(data, "test"), *store)


def test_without_a_store_only_that_is_told_and_an_empty_one_or_another_versions_is_no_trouble(tmp_path: Path) -> None:
    def fails() -> SqliteStore:
        raise StoreError("locked")

    for without in (source_at(tmp_path), source_at(tmp_path, fails)):
        assert samples(render(without)) == {("lucid_up", ()): 0.0}
    store, source = SqliteStore(tmp_path / "lucid.db"), source_at(tmp_path)
    found = samples(render(source))
    assert (value(found, "lucid_up"), value(found, "lucid_cycles_total")) == (1.0, None)
    wrong: list[Any] = [{"partitions": 4}, {"now_s": "x", "partitions": {"a": {}}}, {"calls": [], "models": 3}]
    for one in (3, "x", [], *wrong):
        for name in ("status", "snapshot", UPKEEP, "start_times"):
            store.put_view(name, one)
        assert value(samples(render(source)), "lucid_up") == 1.0
    store.put_view("status", {"counts": {"cycle_s": {"counts": [1]}, "starvation": {"a": 3}, "promises": [1]}})
    assert value(samples(render(source)), "lucid_up") == 1.0


def test_only_jobs_that_lucid_holds_are_held_and_names_end_no_line(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "lucid.db")
    jobs = {"1": ("start", 100.0), "2": ("hold", 300.0), "3": ("hold", 200.0)}
    job = {"vc": "v", "gpus": 1, "submit_s": 1.0}
    pending = [{"job": {**job, "id": n}, "since_s": at_s} for n, (_, at_s) in jobs.items()]
    name = 'v"\nlucid_up 0\n\x1b\\'
    part = {"nodes": [{"name": "n1", "gpus": 8}], "pending": pending, "running": []}
    made: dict[str, Decision] = {"start": Start((NodeGpus("n1", 1),), ()), "hold": Hold(())}
    plan = {n: decision_to_dict(made[verb]) for n, (verb, _) in jobs.items()}
    for acting in (True, False):
        one = {**part, "acting": acting}
        drawn = {"predictions": {}, "wake_s": None, "policy": LivePolicy("lucid", PolicySettings()).to_dict()}
        store.put_view("snapshot", {"now_s": 1000.0, "partitions": {name: one}, "plan": {name: plan}, **drawn})
        text = render(source_at(tmp_path))
        found = samples(text)
        (said,) = [dict(labels)["partition"] for key, labels in found if key == "lucid_pending_jobs"]
        assert text.count(b"\nlucid_up ") == 1
        assert "\x1b" not in said
        assert value(found, "lucid_held_jobs", partition=said) == (2.0 if acting else 0.0)
        oldest_s = value(found, "lucid_oldest_hold_seconds", partition=said)
        assert oldest_s == (800.0 if acting else None), "a job that starts is not held, nor one that is only observed"


@pytest.mark.parametrize("vcs", [10, 100])
def test_at_ten_thousand_waiting_jobs_there_are_at_most_two_thousand_series(tmp_path: Path, vcs: int) -> None:
    found = samples(render(big_store(tmp_path, vcs, pending=10_000, running=1000)))
    assert 300 < len(found) <= 2000
    assert sum(v for (name, _), v in found.items() if name == "lucid_pending_jobs") == 10_000
    assert sum(v for (name, _), v in found.items() if name == "lucid_pairs") == 1000
    assert not [labels for _, labels in found if "user" in dict(labels)]


def test_promtool_has_nothing_to_say_against_it(site: Site, tmp_path: Path) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("no promtool: apt-get install prometheus")
    for text in (render(source_of(site)), render(big_store(tmp_path, 5, 100, 20))):
        done = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True, check=False)
        assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_the_command_prints_the_same_and_writes_a_file_for_the_textfile_collector(site: Site, tmp_path: Path) -> None:
    printed = site.ctl("metrics")
    names = {name for name, _ in samples(printed.encode())}
    assert names == {name for name, _ in samples(render(MetricsSource(site.settings)))}
    out = tmp_path / "lucid.prom"
    assert site.ctl("metrics", "--out", str(out)) == ""
    assert {name for name, _ in samples(out.read_bytes())} == names
    assert out.stat().st_mode & 0o777 == 0o644
