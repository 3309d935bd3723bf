"""Policies side by side: which can run on a trace, what each assumes, in one process or several."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from builders import VC, a_trace, by, policy
from lucid.cli.main import lucidctl
from lucid.core.job import Elastic
from lucid.core.prediction import StageTimes
from lucid.errors import ConfigError
from lucid.orchestrator.registry import requirements_of
from lucid.simulator.cluster.training import EpochTable
from lucid.simulator.compare import ABLATIONS, applicable, compare_policies, default_policies
from lucid.simulator.scenario import Scenario
from lucid.simulator.traces.formats.own import write_trace
from lucid.simulator.traces.record import Trace

PLAIN = a_trace(*(by(f"j{i}", 1 + i % 2, 100.0 + i, 10.0 * i) for i in range(12)))
STAGED = replace(
    PLAIN, jobs=tuple(replace(item, stages=StageTimes((0.5, 0.1, 0.3, 0.1), 1.0, 2.0)) for item in PLAIN.jobs)
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
    found = [applicable(scenario(trace), policy(name)) for trace in (PLAIN, STAGED, GROWING)]
    assert [reason is None for reason in found] == [plain, staged, growing]
    for reason in found:
        assert reason is None or reason.startswith("needs ")


def test_assumptions_are_read_off_what_a_policy_needs() -> None:
    words = {name: requirements_of(policy(name)).text() for name in ("fifo", "srtf", "lucid", "muri-l", "elastic")}
    assert words["fifo"] == "no durations; code: unchanged"
    assert words["lucid"] == "estimated durations; code: unchanged"
    assert words["srtf"] == "TRUE durations, preempts; code: checkpoints"
    assert words["muri-l"].startswith("no durations, preempts; code: an executor")
    assert "resizes" in words["elastic"]
    assert requirements_of(policy("srtf")).data()["durations"] == "true"


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
    jobs = tuple(replace(i, job=replace(i.job, vc="ab"[n % 2])) for n, i in enumerate(PLAIN.jobs))
    lends = Scenario(replace(PLAIN, jobs=jobs), {"a": 1, "b": 1}, lends=True)
    found = compare_policies(lends, ["lucid", "fifo"], 1, promise=True)
    assert found.metrics["lucid"]["promise"]["jobs"] > 0
    assert "promise" not in found.metrics["fifo"]
    assert not compare_policies(lends, ["lucid"], 1).runs["lucid"].promise


def test_a_policy_that_finds_no_room_says_so_and_the_others_go_on() -> None:
    asked = replace(scenario(PLAIN, nodes=1), profiling_nodes=1)
    found = compare_policies(asked, ["lucid", "fifo"], 1)
    assert list(found.runs) == ["fifo"]
    assert "only 0 of 1 nodes can be spared" in found.not_applicable["lucid"]
    with pytest.raises(ConfigError, match="no policy 'lucd'"):
        compare_policies(scenario(PLAIN), ["lucd"], 1)


def test_the_command_prints_one_table_one_page_and_json(tmp_path: Path) -> None:
    trace = tmp_path / "growing.csv"
    write_trace(replace(PLAIN, name="plain"), trace)
    words = ["compare", str(trace), "--nodes", "2", "--workers", "1", "--out", str(tmp_path / "out")]
    table = CliRunner().invoke(lucidctl, words, catch_exceptions=False, env={"COLUMNS": "160"})
    assert table.exit_code == 0
    assert "n/a" in table.output
    assert "needs elastic jobs" in table.output
    assert "TRUE durations, preempts" in table.output
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert "not applicable: elastic needs elastic jobs" in page
    assert "srtf assumes TRUE durations" in page
    assert (tmp_path / "out" / "fifo" / "jobs.csv").exists()
    summary = json.loads((tmp_path / "out" / "summary.json").read_text(encoding="utf-8"))
    data = json.loads(CliRunner().invoke(lucidctl, [*words[:-2], "--json"], catch_exceptions=False).output)
    assert data["semantics"] == "honest"
    for found in (summary, data):
        assert found["not_applicable"].keys() >= {"muri-s", "muri-l", "elastic"}
        assert found["assumptions"]["lucid"]["code"] == ""
        assert set(found["results"]) == set(found["assumptions"]) - set(found["not_applicable"])


def test_a_trace_that_none_can_run_is_an_error(tmp_path: Path) -> None:
    trace = tmp_path / "plain.csv"
    write_trace(PLAIN, trace)
    with pytest.raises(ConfigError, match="none of the policies can run"):
        CliRunner().invoke(lucidctl, ["compare", str(trace), "--policy", "muri-s"], catch_exceptions=False)
