"""Scenarios, and values in them that nobody means."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from builders import a_trace, by
from lucid.config.load import settings_from
from lucid.core.job import Ended, JobProfile
from lucid.errors import ConfigError
from lucid.models.packing.measured import Usage
from lucid.models.packing.share_score import fit_share
from lucid.simulator.cluster.state import JobOutcome, Semantics
from lucid.simulator.cluster.truth import PairsTable
from lucid.simulator.engine import _MOST_SAMPLES, Series
from lucid.simulator.layout import NodeShape
from lucid.simulator.predictors import PackingModels
from lucid.simulator.report.charts import time_lines
from lucid.simulator.scenario import Scenario, simulate
from lucid.simulator.traces.presets import preset, vc_layout
from lucid.simulator.traces.synth import synthesise

ONE = a_trace(by("j", 1, 100.0))
WORKLOAD = JobProfile(10.0, 10.0, 1000.0, workload="w|x|1|0")


def ran(scenario: Scenario, policy: str) -> dict[str, JobOutcome]:
    return {outcome.job.id: outcome for outcome in simulate(scenario, policy).outcomes}


@pytest.mark.parametrize(
    ("policy", "predictor", "given", "told"),
    [
        ("fifo", "oracle", {"": {"j": 5.0}}, "history"),
        ("tiresias", "oracle", {}, "history"),
        ("sjf", "history", {"": {"j": 5.0}}, "oracle"),
        ("srtf", "history", {}, "oracle"),
        ("qssf", "history", {}, "history"),
        ("qssf", "oracle", {}, "oracle"),
        ("qssf", "oracle", {"": {"j": 5.0}}, "mine"),
        ("lucid", "history", {"qssf": {"j": 5.0}}, "history"),
        ("lucid", "history", {"lucid": {"j": 7.0}, "": {"j": 5.0}}, "mine"),
    ],
)
def test_policies_are_told_what_they_are_defined_on(
    policy: str, predictor: str, given: dict[str, dict[str, float]], told: str
) -> None:
    scenario = Scenario(ONE, durations_s=given, predictor=predictor, estimates_name="mine")
    found = scenario.predictor_for(policy)
    assert found.name == told
    if told == "mine":
        expected_s = given.get(policy, given.get("", {}))["j"]
        assert found.predict(ONE.jobs[0].job, None, 0.0).duration_s == expected_s


@pytest.mark.parametrize(("policy", "expected_s"), [("lucid", 10.0), ("qssf", 2220 / 22), ("backfill", 2220 / 22)])
def test_lucid_looks_back_on_20_jobs_and_what_others_published_on_all(policy: str, expected_s: float) -> None:
    found = Scenario(ONE).predictor_for(policy)
    found.learn([Ended(ONE.jobs[0].job, 0.0, ran_s) for ran_s in [1010.0] * 2 + [10.0] * 20])
    assert found.predict(ONE.jobs[0].job, None, 0.0).duration_s == pytest.approx(expected_s)


def test_an_unknown_predictor_is_an_error_that_lists_the_known() -> None:
    with pytest.raises(ConfigError, match=r"no predictor 'tarot' \(known: history, learned, oracle\)"):
        simulate(Scenario(ONE, predictor="tarot"), "qssf")


@pytest.mark.parametrize(
    ("profile", "nodes", "asked", "on", "profiled_s", "why"),
    [
        (WORKLOAD, 5, None, {}, 80.0, ""),
        (WORKLOAD, 4, None, {}, 0.0, "a quarter of the cluster"),
        (WORKLOAD, 4, 1, {}, 80.0, ""),
        (WORKLOAD, 4, None, {"enabled": True}, 80.0, ""),
        (None, 5, None, {}, 0.0, "the trace has no GPU readings"),
        (None, 2, 1, {}, 80.0, ""),
        (None, 2, None, {"enabled": True}, 80.0, ""),
        (None, 1, None, {"enabled": True}, 0.0, "no VC can spare a node"),
    ],
)
def test_nodes_are_set_aside_for_profiling_where_it_shows_something_or_was_asked_for(
    profile: JobProfile | None, nodes: int, asked: int | None, on: dict[str, bool], profiled_s: float, why: str
) -> None:
    trace = a_trace(by("j", 1, 1000.0, profile=profile))
    settings = settings_from({"policy": {"profiling": {"home_if_room": False, **on}}}, "a test")
    scenario = Scenario(trace, {"vc": nodes}, settings=settings, profiling_nodes=asked)
    assert ran(scenario, "lucid")["j"].profiled_s == profiled_s
    assert why in scenario.not_profiled
    assert bool(why) is bool(scenario.not_profiled)


@pytest.mark.parametrize(("policy", "jct_s"), [("fifo", 100.0), ("sjf", 100.0), ("srtf", 101.0), ("tiresias", 101.0)])
def test_published_loops_notice_an_end_one_tick_late(policy: str, jct_s: float) -> None:
    assert ran(Scenario(ONE, {"vc": 1}, semantics=Semantics.PUBLISHED), policy)["j"].jct_s == jct_s
    assert ran(Scenario(ONE, {"vc": 1}), policy)["j"].jct_s == 100.0


@pytest.mark.parametrize("how", [{}, {"remember_pairs": False}, {"semantics": Semantics.AS_LIVE}])
def test_pairs_that_were_seen_to_be_slow_are_not_made_again(how: dict[str, Any]) -> None:
    jobs = [("a", 0.0), ("b", 0.0), ("c", 5000.0), ("d", 5000.0)]
    trace = a_trace(
        *(by(name, 1, 1000.0, at_s, rank=i, profile=WORKLOAD, label=0) for i, (name, at_s) in enumerate(jobs))
    )
    table = PairsTable({(WORKLOAD.workload, WORKLOAD.workload): (0.5, 0.5)})
    durations_s = {"": {name: 1000.0 for name, _ in jobs}}
    scenario = Scenario(trace, {"vc": 2}, NodeShape(1), table, durations_s=durations_s, profiling_nodes=1)
    # a pair that may not be parted would not be made at all
    settings = scenario.settings.changed({"policy.profiling.restarts": "allowed"})
    outcomes = ran(replace(scenario, settings=settings, **how), "lucid")  # type: ignore[arg-type]
    forgets = "remember_pairs" in how
    assert [outcomes[name].packed for name, _ in jobs] == [True, True, forgets, forgets]


@pytest.mark.parametrize("given", [False, True])
def test_packing_models_answer_beside_given_estimates(given: bool) -> None:
    trace = a_trace(by("a", 1, 1000.0, profile=WORKLOAD, label=0))
    tree = fit_share([Usage(10.0, 5.0, 1000.0, False), Usage(90.0, 60.0, 9000.0, False)] * 8, [2, 2] * 8)
    durations_s = {"": {"a": 77.0}} if given else {}
    scenario = Scenario(trace, {"vc": 2}, durations_s=durations_s, predictor="learned", packing=PackingModels(tree))
    found = scenario.predictor_for("lucid").predict(trace.jobs[0].job, WORKLOAD, 0.0)
    assert (found.share_score, found.share_source) == (2, "share tree")
    assert (found.duration_s == 77.0) is given
    assert found.share_splits is not None


def test_published_profiling_ends_short_jobs_and_delays_nobody() -> None:
    trace = a_trace(
        by("short", 1, 50.0), by("one", 1, 200.0, rank=1), by("two", 1, 300.0, rank=2), by("wide", 8, 400.0, rank=3)
    )
    scenario = Scenario(trace, {"vc": 34}, NodeShape(1), semantics=Semantics.PUBLISHED_MENDED)
    outcomes = ran(scenario, "lucid")
    assert outcomes["short"].ended_in_profiling
    assert outcomes["short"].job.vc == "vc"
    assert outcomes["short"].jct_s == 50.0
    # two GPUs profile: the third job waits 50 s for one; that counts as its queueing, yet it started at once
    assert (outcomes["one"].queue_s, outcomes["one"].jct_s) == (0.0, 201.0)
    assert (outcomes["two"].queue_s, outcomes["two"].jct_s) == (50.0, 301.0)
    assert (outcomes["wide"].queue_s, outcomes["wide"].jct_s) == (0.0, 401.0)
    assert simulate(scenario, "lucid").total_gpus == 34


class _Cluster:
    """What a series asks of a cluster."""

    busy_gpus, shared_gpus, pending_gpus = 3, 1, 2

    def pending_by_vc(self) -> dict[str, int]:
        return {"a": 2}


def test_the_series_of_a_replay_does_not_grow_with_time() -> None:
    series, cluster = Series(), _Cluster()
    now_s = 0.0
    for end_s in (5e3, 3e7, 4e7, 3e8, 6e8):
        series.hold(cluster, now_s, end_s)  # type: ignore[arg-type]
        now_s = end_s
    for counts in (series.busy_gpus, series.shared_gpus, series.pending_gpus, series.pending_jobs["a"]):
        assert _MOST_SAMPLES / 2 <= len(counts) <= _MOST_SAMPLES
        assert len(set(counts)) == 1
    assert len(series.busy_gpus) == -(-6e8 // series.step_s)
    assert series.busy_gpu_s == pytest.approx(3 * 6e8)


def test_runs_of_different_length_are_brought_onto_one_grid() -> None:
    trace, vcs = synthesise(preset("month-small").resized(300, None), 1), vc_layout("month-small")
    runs = [simulate(Scenario(trace, vcs), policy) for policy in ("fifo", "sjf")]
    plain = time_lines(runs)
    runs[1].series._thin()
    lines = time_lines(runs)
    assert lines.step_s == 2 * plain.step_s
    ends = [len(values) * lines.bucket_s for values in lines.busy]
    assert ends == pytest.approx([len(values) * plain.bucket_s for values in plain.busy], abs=2 * lines.bucket_s)
