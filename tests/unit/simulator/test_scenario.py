"""Scenarios, comparisons of replays, and what a policy gains."""

from __future__ import annotations

from array import array
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from builders import VC, a_trace, by, elastic, policy
from lucid.cli.console import answer
from lucid.cli.main import lucidctl
from lucid.cli.replay.simulate import gains_words
from lucid.config.load import settings_from
from lucid.core.decision import Hold, PartitionPlan, Plan, Start
from lucid.core.job import Ended, Job, JobProfile
from lucid.core.placement import NodeGpus
from lucid.core.prediction import StageTimes
from lucid.core.reasons.queue import FreeGpus, Reserved
from lucid.core.snapshot import Snapshot
from lucid.errors import ConfigError
from lucid.models.packing.measured import Usage
from lucid.models.packing.share_score import fit_share
from lucid.simulator.cluster.state import JobOutcome, Semantics
from lucid.simulator.cluster.truth import PairsTable
from lucid.simulator.compare import ABLATIONS, applicable, compare_policies, default_policies
from lucid.simulator.engine import _MOST_SAMPLES, Run, Series
from lucid.simulator.layout import NodeShape
from lucid.simulator.metrics import gains, gains_headline, gains_to_dict, loss_text, times_baseline
from lucid.simulator.predictors import PackingModels
from lucid.simulator.record import DecisionLog
from lucid.simulator.report.charts import time_lines
from lucid.simulator.scenario import Scenario, simulate
from lucid.simulator.traces.formats.own import write_trace
from lucid.simulator.traces.presets import preset, vc_layout
from lucid.simulator.traces.record import Trace
from lucid.simulator.traces.synth import synthesise

ONE = a_trace(by("j", 1, 100.0))
WORKLOAD = JobProfile(10.0, 10.0, 1000.0, workload="w|x|1|0")


def ran(scenario: Scenario, policy: str) -> dict[str, JobOutcome]:
    return {outcome.job.id: outcome for outcome in simulate(scenario, policy).outcomes}


TOLD: list[tuple[str, str, dict[str, float], str]] = [
    ("fifo", "oracle", {"": 5.0}, "history"), ("tiresias", "oracle", {}, "history"),
    ("sjf", "history", {"": 5.0}, "oracle"), ("srtf", "history", {}, "oracle"),
    ("qssf", "history", {}, "history"), ("backfill", "history", {}, "history"),
    ("qssf", "oracle", {}, "oracle"), ("backfill", "oracle", {}, "oracle"), ("qssf", "oracle", {"": 5.0}, "mine"),
    ("lucid", "history", {"qssf": 5.0}, "history"), ("lucid", "history", {"lucid": 7.0, "": 5.0}, "mine"),
]  # fmt: skip


@pytest.mark.parametrize(("policy", "predictor", "given", "told"), TOLD)
def test_policies_are_told_what_they_are_defined_on(
    policy: str, predictor: str, given: dict[str, float], told: str
) -> None:
    durations_s = {name: {"j": seconds} for name, seconds in given.items()}
    found = Scenario(ONE, durations_s=durations_s, predictor=predictor, estimates_name="mine").predictor_for(policy)
    assert found.name == told
    if told == "mine":
        assert found.predict(ONE.jobs[0].job, None, 0.0).duration_s == given.get(policy, given[""])


@pytest.mark.parametrize(("policy", "expected_s"), [("lucid", 10.0), ("qssf", 2220 / 22), ("backfill", 2220 / 22)])
def test_lucid_looks_back_on_20_jobs_and_what_others_published_on_all(policy: str, expected_s: float) -> None:
    found = Scenario(ONE).predictor_for(policy)
    found.learn([Ended(ONE.jobs[0].job, 0.0, ran_s) for ran_s in [1010.0] * 2 + [10.0] * 20])
    assert found.predict(ONE.jobs[0].job, None, 0.0).duration_s == pytest.approx(expected_s)


ON = {"enabled": True}
PROFILES: list[tuple[JobProfile | None, int, int | None, dict[str, bool], str]] = [
    (WORKLOAD, 5, None, {}, ""), (WORKLOAD, 4, 1, {}, ""), (WORKLOAD, 4, None, ON, ""),
    (None, 2, 1, {}, ""), (None, 2, None, ON, ""), (None, 1, None, ON, "no VC can spare a node"),
    (WORKLOAD, 4, None, {}, "a quarter of the cluster"), (None, 5, None, {}, "the trace has no GPU readings"),
]  # fmt: skip


@pytest.mark.parametrize(("profile", "nodes", "asked", "on", "why"), PROFILES)
def test_nodes_are_set_aside_for_profiling_where_it_shows_something_or_was_asked_for(
    profile: JobProfile | None, nodes: int, asked: int | None, on: dict[str, bool], why: str
) -> None:
    trace = a_trace(by("j", 1, 1000.0, profile=profile))
    settings = settings_from({"policy": {"profiling": {"home_if_room": False, **on}}}, "a test")
    scenario = Scenario(trace, {"vc": nodes}, settings=settings, profiling_nodes=asked)
    assert ran(scenario, "lucid")["j"].profiled_s == (0.0 if why else 80.0)
    assert why in scenario.not_profiled
    assert bool(why) is bool(scenario.not_profiled)


@pytest.mark.parametrize(("policy", "jct_s"), [("fifo", 100.0), ("sjf", 100.0), ("srtf", 101.0), ("tiresias", 101.0)])
def test_published_loops_notice_an_end_one_tick_late(policy: str, jct_s: float) -> None:
    assert ran(Scenario(ONE, {"vc": 1}, semantics=Semantics.PUBLISHED), policy)["j"].jct_s == jct_s
    assert ran(Scenario(ONE, {"vc": 1}), policy)["j"].jct_s == 100.0


@pytest.mark.parametrize("how", [{}, {"remember_pairs": False}, {"semantics": Semantics.AS_LIVE}])
def test_pairs_that_were_seen_to_be_slow_are_not_made_again(how: dict[str, Any]) -> None:
    same = {"profile": WORKLOAD, "label": 0}
    trace = a_trace(*(by(name, 1, 1000.0, i // 2 * 5000.0, rank=i, **same) for i, name in enumerate("abcd")))
    table = PairsTable({(WORKLOAD.workload, WORKLOAD.workload): (0.5, 0.5)})
    durations_s = {"": dict.fromkeys("abcd", 1000.0)}
    scenario = Scenario(trace, {"vc": 2}, NodeShape(1), table, durations_s=durations_s, profiling_nodes=1)
    # a pair that may not be parted would not be made at all
    settings = scenario.settings.changed({"policy.profiling.restarts": "allowed"})
    outcomes = ran(replace(scenario, settings=settings, **how), "lucid")  # type: ignore[arg-type]
    forgets = "remember_pairs" in how
    assert [outcomes[name].packed for name in "abcd"] == [True, True, forgets, forgets]


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
    rows = [("short", 1, 50.0), ("one", 1, 200.0), ("two", 1, 300.0), ("wide", 8, 400.0)]
    trace = a_trace(*(by(*row, rank=rank) for rank, row in enumerate(rows)))
    run = simulate(Scenario(trace, {"vc": 34}, NodeShape(1), semantics=Semantics.PUBLISHED_MENDED), "lucid")
    outcomes = {outcome.job.id: outcome for outcome in run.outcomes}
    assert outcomes["short"].ended_in_profiling
    assert (outcomes["short"].job.vc, outcomes["short"].jct_s) == ("vc", 50.0)
    # two GPUs profile: the third job waits 50 s for one; that counts as its queueing, yet it started at once
    found = [(outcomes[name].queue_s, outcomes[name].jct_s) for name in ("one", "two", "wide")]
    assert found == [(0.0, 201.0), (50.0, 301.0), (0.0, 401.0)]
    assert run.total_gpus == 34


def test_the_series_of_a_replay_does_not_grow_with_time() -> None:
    cluster = Mock(busy_gpus=3, shared_gpus=1, pending_gpus=2, pending_by_vc=lambda: {"a": 2})
    series = Series()
    for begin_s, end_s in pairwise((0.0, 5e3, 3e7, 4e7, 3e8, 6e8)):
        series.hold(cluster, begin_s, end_s)
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


# -- comparisons of replays, and what a policy gains


HOSTILE = "<script>alert(1)</script>"


def run_of(policy: str, waits_s: list[float], **more: Any) -> Run:
    """Three jobs of an hour, by two users in two VCs, each after its wait; ``more`` of the first one's outcome."""
    owners = (("left", "ada"), ("left", "ada"), ("right", HOSTILE))
    jobs = [Job(f"j{i}", vc, 1, 0.0, user=user, rank=i) for i, (vc, user) in enumerate(owners)]
    outcomes = [JobOutcome(job, 3600.0, s, s + 3600.0, s) for job, s in zip(jobs, waits_s, strict=True)]
    outcomes[0] = replace(outcomes[0], **more)
    return Run(policy, "history", outcomes, Series(busy_gpus=array("l", [1])), 8, 1, 0.1, 0.1)


PLAIN = run_of("backfill", [0.0, 0.0, 3600.0])


def test_figures_stand_beside_plain_slurms_else_the_first_policys() -> None:
    metrics = {
        "fifo": {"avg_jct_s": 30.0, "avg_jct_large_s": None, "p999_queue_s": 8.0},
        "backfill": {"avg_jct_s": 20.0, "avg_jct_large_s": 5.0, "p999_queue_s": 0.0},
        "lucid": {"avg_jct_s": 10.0, "avg_jct_large_s": 6.0, "p999_queue_s": 2.0},
    }
    found = times_baseline(metrics)
    assert found["policy"] == "backfill"
    assert found["by_policy"]["fifo"] == {"avg_jct": 1.5, "avg_jct_large": None, "p999_queue": None}
    assert found["by_policy"]["lucid"] == {"avg_jct": 0.5, "avg_jct_large": 1.2, "p999_queue": None}
    del metrics["backfill"]
    assert times_baseline(metrics)["policy"] == "fifo"
    assert times_baseline({"lucid": metrics["lucid"]}) == {}


def test_users_and_vcs_that_lose_come_first_and_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    found = gains(run_of("lucid", [720.0, 0.0, 0.0]), PLAIN)
    assert found is not None
    assert [(party.name, party.later) for party in found.users] == [("ada", 1), (HOSTILE, 0)]
    assert [round(party.ratio, 3) for party in found.vcs] == [1.1, 0.5]
    assert (found.users_losing, found.vcs_losing, found.latest_s) == (1, 1, 720.0)
    assert gains_to_dict(found)["users_losing"] == 1
    assert "1 of 2 users lose more than 5% of their mean JCT, and 1 of 2 VCs lose" in gains_headline(found)
    answer(None, False, gains_words(found))
    said = capsys.readouterr().out
    assert said.index("│ ada") < said.index("job j0 ends 12 min later: waited 12 min longer")
    little = gains(run_of("lucid", [350.0, 0.0, 0.0]), PLAIN)
    assert (little.users_losing, little.vcs_losing) == (0, 1), "a user loses from 5 % on, a VC from anything on"


def test_a_loss_is_divided_into_waiting_profiling_and_sharing() -> None:
    run = run_of("lucid", [100.0, 0.0, 0.0], end_s=100.0 + 80.0 + 4000.0, profiled_s=80.0, packed_s=2000.0)
    found = gains(run, PLAIN)
    (loss,) = found.losing
    assert (loss.wait_s, loss.profiled_s, loss.slower_s, loss.speed) == (100.0, 80.0, 400.0, 0.8)
    assert loss.lost_s == loss.wait_s + loss.profiled_s + loss.slower_s
    parts = loss_text(loss, lambda s: f"{s:.0f} s").split("; ")
    assert parts[:2] == ["waited 100 s longer", "started over after a profiling run of 80 s"]
    assert parts[2:] == ["ran 400 s longer, sharing its GPUs at 80% of its speed"]


def test_the_decisions_say_what_it_waited_for() -> None:
    log, full, kept = DecisionLog(), FreeGpus(1, 0, 0, False), Reserved("big", 900.0, 600.0, 1)
    start = Start((NodeGpus("n1", 1),), (full,))
    for at_s, decision in ((0.0, Hold((full,))), (300.0, Hold((kept, full))), (1000.0, start)):
        log.record(Snapshot(at_s, {}), Plan(at_s, {"left": PartitionPlan({"j0": decision})}), ())
    found = gains(run_of("lucid", [1000.0, 0.0, 0.0]), PLAIN, log)
    behind = ("behind jobs with less work (estimate x GPUs)", 300.0)
    assert found.losing[0].waits == (("nodes are reserved for job big", 700.0), behind)


PLAIN_TRACE = a_trace(*(by(f"j{i}", 1 + i % 2, 100.0 + i, 10.0 * i) for i in range(12)))
STAGES = StageTimes((0.5, 0.1, 0.3, 0.1), 1.0, 2.0)
STAGED = replace(PLAIN_TRACE, jobs=tuple(replace(item, stages=STAGES) for item in PLAIN_TRACE.jobs))
CURVE: dict[str, Any] = {"epochs": 6.0, "table": (10.0, 6.0, 4.0, 3.0), "limits": {"epochs": 6.0}}
GROWING = a_trace(*(elastic(f"e{i}", 1, 5.0 * i, **CURVE) for i in range(5)))


def scenario(trace: Trace, nodes: int = 2) -> Scenario:
    return Scenario(trace, {VC: nodes})


TRACES = {"plain": PLAIN_TRACE, "staged": STAGED, "growing": GROWING}
NEEDS = {"fifo": "plain staged growing", "lucid": "plain staged growing", "muri-s": "staged", "elastic": "growing"}


@pytest.mark.parametrize(("name", "runs"), [*NEEDS.items(), ("elastic-ef", "growing")])
def test_a_policy_runs_where_the_trace_has_what_it_needs(name: str, runs: str) -> None:
    found = {kind: applicable(scenario(trace), policy(name)) for kind, trace in TRACES.items()}
    assert [kind for kind, reason in found.items() if reason is None] == runs.split()
    assert all(reason is None or reason.startswith("needs ") for reason in found.values())


def test_ablations_are_for_those_who_ask() -> None:
    assert set(default_policies(True)) - set(default_policies()) == set(ABLATIONS)
    assert {"muri-s", "lucid", "elastic"} <= set(default_policies())
    assert "muri-l-2" in ABLATIONS


def test_several_processes_find_what_one_finds() -> None:
    names = ["fifo", "srtf", "muri-l", "elastic", "tiresias"]
    alone, spread = (
        compare_policies(scenario(STAGED), names, processes, lambda *heard: None) for processes in (1, 2)
    )
    assert list(alone.runs) == list(spread.runs) == ["fifo", "srtf", "muri-l", "tiresias"]
    assert list(alone.not_applicable) == list(spread.not_applicable) == ["elastic"]
    for name, run in alone.runs.items():
        assert run.outcomes == spread.runs[name].outcomes
        assert alone.metrics[name]["avg_jct_s"] == spread.metrics[name]["avg_jct_s"]


def test_what_lending_costs_is_measured_where_that_is_asked_for() -> None:
    jobs = tuple(replace(i, job=replace(i.job, vc="ab"[n % 2])) for n, i in enumerate(PLAIN_TRACE.jobs))
    lends = Scenario(replace(PLAIN_TRACE, jobs=jobs), {"a": 1, "b": 1}, lends=True)
    found = compare_policies(lends, ["lucid", "fifo"], 1, promise=True)
    assert found.metrics["lucid"]["promise"]["jobs"] > 0
    assert "promise" not in found.metrics["fifo"]
    assert not compare_policies(lends, ["lucid"], 1).runs["lucid"].promise


def test_a_policy_that_finds_no_room_says_so_and_others_go_on_but_for_none_it_is_an_error(tmp_path: Path) -> None:
    asked = replace(scenario(PLAIN_TRACE, nodes=1), profiling_nodes=1)
    found = compare_policies(asked, ["lucid", "fifo"], 1)
    assert list(found.runs) == ["fifo"]
    assert "only 0 of 1 nodes can be spared" in found.not_applicable["lucid"]
    with pytest.raises(ConfigError, match="no policy 'lucd'"):
        compare_policies(scenario(PLAIN_TRACE), ["lucd"], 1)
    with pytest.raises(ConfigError, match=r"no predictor 'tarot' \(known: history, learned, oracle\)"):
        simulate(replace(asked, predictor="tarot"), "qssf")
    write_trace(PLAIN_TRACE, tmp_path / "plain.csv")
    with pytest.raises(ConfigError, match="none of the policies can run"):
        lucidctl.main(["compare", f"{tmp_path}/plain.csv", "--policy", "muri-s"], standalone_mode=False)
