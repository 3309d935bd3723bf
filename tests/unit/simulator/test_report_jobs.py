"""What the report keeps of each job: when it held which GPUs, its story, and how many bytes all that takes."""

from __future__ import annotations

import base64
import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from lucid.cli.replay.simulate import compare, write_run
from lucid.core.decision import DecisionRow
from lucid.core.job import Job
from lucid.core.placement import NodeGpus
from lucid.explain.replayed_story import run_story, story_teller
from lucid.simulator.cluster.jobs import PROFILING
from lucid.simulator.cluster.state import JobOutcome
from lucid.simulator.engine import Run, Series
from lucid.simulator.record import DecisionLog
from lucid.simulator.report import tables as report_jobs
from lucid.simulator.report.tables import pack_jobs
from lucid.simulator.scenario import Scenario
from lucid.simulator.traces.presets import preset, vc_layout
from lucid.simulator.traces.synth import synthesise


def unpacked(text: str) -> Any:
    return json.loads(gzip.decompress(base64.b64decode(text)))


class Log(DecisionLog):
    def __init__(self, rows: list[DecisionRow]) -> None:
        super().__init__()
        for row in rows:
            self._entries.setdefault(row.job_id, []).append(row)


def run_of(*outcomes: JobOutcome, policy: str = "lucid") -> Run:
    return Run(policy, "history", list(outcomes), Series(), 8, 0, 0.0, 0.0)


def outcome(name: str, submit_s: float, start_s: float, end_s: float) -> JobOutcome:
    where = (NodeGpus("n9", 0b11),)
    return JobOutcome(
        Job(name, "vc", 2, submit_s, 0, "ann"), 50.0, start_s, end_s, start_s - submit_s, placement=where
    )


def stays(run: Run, log: DecisionLog | None) -> list[tuple[int, str, int, int, int, int]]:
    facts = unpacked(pack_jobs([run], [0], {} if log is None else {run.policy: log}).facts)
    columns = facts["policies"][0]["stays"]
    return [(job, facts["nodes"][node], *rest) for job, node, *rest in zip(*columns, strict=True)]


def test_a_job_stands_where_its_decisions_put_it() -> None:
    rows = [
        DecisionRow(10.0, "a", PROFILING, "start", (), "p1:0-1"),
        DecisionRow(70.0, "a", PROFILING, "release", ()),
        DecisionRow(70.0, "a", "vc", "hold", ()),
        DecisionRow(100.0, "a", "vc", "start", (), "n1:0,3 n2:4-5", "b"),
        DecisionRow(130.0, "a", "vc", "requeue", ()),
        DecisionRow(150.0, "a", "vc", "start", (), "n1:1"),
    ]
    assert stays(run_of(outcome("a", 0.0, 10.0, 200.0)), Log(rows)) == [
        (0, "p1", 0b11, 10, 60, report_jobs.PROFILED),
        (0, "n1", 0b1001, 100, 30, report_jobs.SHARED),
        (0, "n2", 0b110000, 100, 30, report_jobs.SHARED),
        (0, "n1", 0b10, 150, 50, report_jobs.ALONE),
    ]


def test_a_profiled_job_that_carries_on_keeps_its_place() -> None:
    rows = [DecisionRow(10.0, "a", PROFILING, "start", (), "p1:0"), DecisionRow(70.0, "a", PROFILING, "keep", ())]
    assert stays(run_of(outcome("a", 0.0, 10.0, 200.0)), Log(rows)) == [(0, "p1", 1, 10, 190, report_jobs.PROFILED)]


def test_without_decisions_a_job_stands_where_it_ended_and_one_that_never_ran_nowhere() -> None:
    never = JobOutcome(Job("b", "vc", 99, 0.0, 0, "ann"), 50.0)
    assert stays(run_of(outcome("a", 0.0, 10.0, 60.0), never), None) == [(0, "n9", 3, 10, 50, report_jobs.ALONE)]


def test_beyond_the_most_jobs_the_first_by_submission_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report_jobs, "MOST_JOBS", 2)
    run = run_of(*(outcome(str(n), float(-n), 10.0, 20.0) for n in range(4)))
    pack = pack_jobs([run], [0], {})
    assert (pack.listed, pack.jobs) == (2, 4)
    facts = unpacked(pack.facts)
    assert facts["id"] == ["3", "2"]
    assert facts["whole"] is False


def test_stories_that_would_not_fit_are_named_and_the_policy_looked_at_goes_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runs = [run_of(outcome("a", 0.0, 10.0, 60.0), policy=name) for name in ("fifo", "lucid")]
    logs = {run.policy: Log([]) for run in runs}
    whole = pack_jobs(runs, [0, 1], logs, lambda run, o: run.policy, "lucid")
    assert {name: unpacked(text) for name, text in whole.stories.items()} == {"fifo": ["fifo"], "lucid": ["lucid"]}
    monkeypatch.setattr(report_jobs, "MOST_BYTES", len(whole.facts) + len(whole.stories["lucid"]))
    less = pack_jobs(runs, [0, 1], logs, lambda run, o: run.policy, "lucid")
    assert list(less.stories) == ["lucid"]
    assert less.without == ["fifo"]


def test_jobs_tell_what_explain_tells_and_take_their_share_of_five_mib(tmp_path: Path) -> None:
    """10,000 jobs may take 5 MiB: 524 bytes each, of which 30 are left for the charts."""
    jobs = 400
    trace = synthesise(preset("month-small").resized(jobs, None), 6)
    scenario = Scenario(trace, vc_layout("month-small"))
    metrics, runs, logs = compare(scenario, ("fifo", "lucid"), keep_decisions=True)
    tell = story_teller(logs)
    pack = pack_jobs(runs, [1, 0], logs, tell, "lucid")
    assert set(pack.stories) == {"fifo", "lucid"}
    assert (len(pack.facts) + sum(map(len, pack.stories.values()))) / jobs < 494
    write_run(tmp_path, scenario, runs, metrics, logs, ())
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert pack.facts in page
    stories = unpacked(pack.stories["lucid"])
    for i in range(0, jobs, 39):
        name = unpacked(pack.facts)["id"][i]
        assert stories[i] == run_story(tmp_path / "lucid", name)[0].text(10_000)
