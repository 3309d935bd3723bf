"""Comparisons of replays, and what a policy gains."""

from __future__ import annotations

from array import array
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from builders import VC, a_trace, by, policy
from lucid.cli.main import lucidctl
from lucid.core.decision import Hold, PartitionPlan, Plan, Start
from lucid.core.job import Elastic, Job
from lucid.core.placement import NodeGpus
from lucid.core.prediction import StageTimes
from lucid.core.reasons.queue import FreeGpus, Reserved
from lucid.core.snapshot import Snapshot
from lucid.errors import ConfigError
from lucid.simulator.cluster.state import JobOutcome
from lucid.simulator.cluster.training import EpochTable
from lucid.simulator.compare import ABLATIONS, applicable, compare_policies, default_policies
from lucid.simulator.engine import Run, Series
from lucid.simulator.metrics import (
    gains,
    gains_headline,
    gains_to_dict,
    loss_text,
    times_baseline,
)
from lucid.simulator.record import DecisionLog
from lucid.simulator.scenario import Scenario
from lucid.simulator.traces.formats.own import write_trace
from lucid.simulator.traces.record import Trace

HOSTILE = "<script>alert(1)</script>"


def run_of(policy: str, waits_s: list[float], **more: Any) -> Run:
    """Three jobs of an hour, by two users in two VCs, each after its wait; ``more`` of the first one's outcome."""
    outcomes = []
    for i, wait_s in enumerate(waits_s):
        job = Job(f"j{i}", "left" if i < 2 else "right", 1, 0.0, user="ada" if i < 2 else HOSTILE, rank=i)
        outcomes.append(JobOutcome(job, 3600.0, wait_s, wait_s + 3600.0, wait_s))
    for name, value in more.items():
        setattr(outcomes[0], name, value)
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


def test_users_and_vcs_that_lose_come_first_and_are_counted() -> None:
    found = gains(run_of("lucid", [720.0, 0.0, 0.0]), PLAIN)
    assert found is not None
    assert [(party.name, party.later) for party in found.users] == [("ada", 1), (HOSTILE, 0)]
    assert [round(party.ratio, 3) for party in found.vcs] == [1.1, 0.5]
    assert (found.users_losing, found.vcs_losing, found.latest_s) == (1, 1, 720.0)
    assert gains_to_dict(found)["users_losing"] == 1
    assert "1 of 2 users lose more than 5% of their mean JCT, and 1 of 2 VCs lose" in gains_headline(found)
    little = gains(run_of("lucid", [350.0, 0.0, 0.0]), PLAIN)
    assert (little.users_losing, little.vcs_losing) == (0, 1), "a user loses from 5 % on, a VC from anything on"


def test_a_loss_is_divided_into_waiting_profiling_and_sharing() -> None:
    run = run_of("lucid", [100.0, 0.0, 0.0], end_s=100.0 + 80.0 + 4000.0, profiled_s=80.0, packed_s=2000.0)
    found = gains(run, PLAIN)
    (loss,) = found.losing
    assert (loss.wait_s, loss.profiled_s, loss.slower_s, loss.speed) == (100.0, 80.0, 400.0, 0.8)
    assert loss.lost_s == loss.wait_s + loss.profiled_s + loss.slower_s
    assert loss_text(loss, lambda s: f"{s:.0f} s") == (
        "waited 100 s longer; started over after a profiling run of 80 s; ran 400 s longer, sharing its GPUs at "
        "80% of its speed"
    )


def test_the_decisions_say_what_it_waited_for() -> None:
    log = DecisionLog()
    full = FreeGpus(1, 0, 0, False)
    kept = Reserved("big", 900.0, 600.0, 1)
    start = Start((NodeGpus("n1", 1),), (full,))
    for at_s, decision in ((0.0, Hold((full,))), (300.0, Hold((kept, full))), (1000.0, start)):
        log.record(Snapshot(at_s, {}), Plan(at_s, {"left": PartitionPlan({"j0": decision})}), ())
    found = gains(run_of("lucid", [1000.0, 0.0, 0.0]), PLAIN, log)
    assert found.losing[0].waits == (
        ("nodes are reserved for job big", 700.0),
        ("behind jobs with less work (estimate x GPUs)", 300.0),
    )


PLAIN_TRACE = a_trace(*(by(f"j{i}", 1 + i % 2, 100.0 + i, 10.0 * i) for i in range(12)))
STAGED = replace(
    PLAIN_TRACE,
    jobs=tuple(replace(item, stages=StageTimes((0.5, 0.1, 0.3, 0.1), 1.0, 2.0)) for item in PLAIN_TRACE.jobs),
)
TABLE = EpochTable(6.0, (10.0, 6.0, 4.0, 3.0))
GROWING = a_trace(
    *(replace(by(f"e{i}", 1, 60.0, 5.0 * i, elastic=Elastic(4, epochs=6.0)), learning=TABLE) for i in range(5))
)


def scenario(trace: Trace, nodes: int = 2) -> Scenario:
    return Scenario(trace, {VC: nodes})


@pytest.mark.parametrize(
    ("name", "plain", "staged", "growing"),
    [
        ("fifo", True, True, True),
        ("lucid", True, True, True),
        ("muri-s", False, True, False),
        ("elastic", False, False, True),
        ("elastic-ef", False, False, True),
    ],
)
def test_a_policy_runs_where_the_trace_has_what_it_needs(name: str, plain: bool, staged: bool, growing: bool) -> None:
    found = [applicable(scenario(trace), policy(name)) for trace in (PLAIN_TRACE, STAGED, GROWING)]
    assert [reason is None for reason in found] == [plain, staged, growing]
    for reason in found:
        assert reason is None or reason.startswith("needs ")


def test_ablations_are_for_those_who_ask() -> None:
    assert set(default_policies(True)) - set(default_policies()) == set(ABLATIONS)
    assert {"muri-s", "lucid", "elastic"} <= set(default_policies())
    assert "muri-l-2" in ABLATIONS


def test_several_processes_find_what_one_finds() -> None:
    heard: list[str] = []
    names = ["fifo", "srtf", "muri-l", "elastic", "tiresias"]
    alone = compare_policies(scenario(STAGED), names, 1, lambda name, done, total: heard.append(name))
    spread = compare_policies(scenario(STAGED), names, 2, lambda name, done, total: heard.append(name))
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


def test_a_policy_that_finds_no_room_says_so_and_the_others_go_on() -> None:
    asked = replace(scenario(PLAIN_TRACE, nodes=1), profiling_nodes=1)
    found = compare_policies(asked, ["lucid", "fifo"], 1)
    assert list(found.runs) == ["fifo"]
    assert "only 0 of 1 nodes can be spared" in found.not_applicable["lucid"]
    with pytest.raises(ConfigError, match="no policy 'lucd'"):
        compare_policies(scenario(PLAIN_TRACE), ["lucd"], 1)


def test_a_trace_that_none_can_run_is_an_error(tmp_path: Path) -> None:
    trace = tmp_path / "plain.csv"
    write_trace(PLAIN_TRACE, trace)
    with pytest.raises(ConfigError, match="none of the policies can run"):
        CliRunner().invoke(lucidctl, ["compare", str(trace), "--policy", "muri-s"], catch_exceptions=False)
