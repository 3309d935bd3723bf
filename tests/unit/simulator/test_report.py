"""The report of a replay: its page, and what it keeps of each job."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import random
import re
from array import array
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from lucid.cli.replay.simulate import compare, write_run
from lucid.core.decision import DecisionRow
from lucid.core.job import Job
from lucid.core.placement import NodeGpus
from lucid.explain.replayed_story import run_story, story_teller
from lucid.html.charts import time_ticks
from lucid.html.page import show_change, show_duration
from lucid.simulator.cluster.jobs import PROFILING
from lucid.simulator.cluster.state import JobOutcome
from lucid.simulator.engine import Run, Series
from lucid.simulator.metrics import run_metrics
from lucid.simulator.record import DecisionLog
from lucid.simulator.report import tables as report_jobs
from lucid.simulator.report.charts import MOST_POINTS, time_lines
from lucid.simulator.report.page import write_report
from lucid.simulator.report.tables import pack_jobs
from lucid.simulator.scenario import Scenario
from lucid.simulator.traces.presets import preset, vc_layout
from lucid.simulator.traces.synth import synthesise

SAMPLES = (("busy", 40, 20), ("shared", 0, 10), ("pending", 0, 7))
HOSTILE = "</script><script>alert(1)</script>\"><img src=x onerror=alert(2)>'{{ 7*7 }}"


def make_run(
    policy: str, slower: float = 1.0, predictor: str = "history", vcs: Sequence[str] = ("alpha", "beta")
) -> Run:
    """Three days made up from chance: every policy has the same jobs, the queueing delay ``slower`` times as long."""
    chance, outcomes = random.Random(1), []
    for i in range(200):
        submit_s = round(i * 1036.8, 3)
        duration_s, queue_s = chance.lognormvariate(7, 2), slower * chance.lognormvariate(6, 2)
        job = Job(f"j{i}", vcs[i % len(vcs)], (1, 1, 1, 2, 8, 16)[i % 6], submit_s)
        outcomes.append(JobOutcome(job, duration_s, submit_s + queue_s, submit_s + queue_s + duration_s, queue_s))
    gpus = {f"{name}_gpus": array("l", [least + i % most for i in range(432)]) for name, least, most in SAMPLES}
    pending = {vc: array("l", [int(slower * (i % 30)) for i in range(432)]) for vc in vcs}
    series = Series(pending_jobs=pending, busy_gpu_s=50 * 259200.0, **gpus)  # type: ignore[arg-type]
    return Run(policy, predictor, outcomes, series, 64, 1000, 1.5, 1.5)


class Page(HTMLParser):
    """What a browser would make of the file."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.words: dict[str, list[str]] = {}
        self.cells: dict[tuple[str, str], tuple[float, bool]] = {}
        """Of the table: value, and whether it is marked as the best, by policy and figure."""
        self._open: list[str] = []
        self._policy = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_startendtag(tag, attrs)
        _, found = self.elements[-1]
        if tag not in ("meta", "line", "path", "rect", "img", "link", "input"):
            self._open.append(tag)
        self._policy = found.get("data-policy", self._policy)
        if "data-key" in found:
            value = float(found["data-value"] or "nan")
            self.cells[self._policy, found["data-key"]] = (value, found.get("class") == "best")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {key: value or "" for key, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag, f"</{tag}> closes something else"

    def handle_data(self, data: str) -> None:
        if self._open:
            self.words.setdefault(self._open[-1], []).append(data)

    @property
    def seen(self) -> str:
        """All that a reader sees."""
        return " ".join(" ".join(words) for tag, words in self.words.items() if tag not in ("script", "style"))


def report(tmp_path: Path, runs: Sequence[Run], name: str = "a-trace", notes: Sequence[str] = ()) -> Page:
    path = tmp_path / "report.html"
    write_report(path, name, runs, {run.policy: run_metrics(run) for run in runs}, notes)
    return Page(path.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def four() -> list[Run]:
    """Nobody changes them."""
    return [make_run("fifo", 9.0), make_run("sjf", 2.0, "oracle"), make_run("tiresias", 3.0), make_run("lucid")]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory, four: list[Run]) -> Page:
    """Of the four."""
    return report(tmp_path_factory.mktemp("report"), four)


def test_table_holds_the_figures_of_the_metrics_and_marks_the_best_of_each_column(
    page: Page, four: list[Run]
) -> None:
    keys = [f"{key}_{name}_s" for name in ("jct", "queue") for key in ("avg", "median", "p90", "p999")]
    keys += ["avg_jct_large_s", "makespan_s", "gpu_use", "packed_share", "preemptions"]
    figures = {run.policy: run_metrics(run) for run in four}
    assert {cell: value for cell, (value, _) in page.cells.items()} == {
        (policy, key): found[key] for policy, found in figures.items() for key in keys
    }
    for key in keys:
        values = {policy: found[key] for policy, found in figures.items()}
        alike = len(set(values.values())) == 1 or key in ("gpu_use", "packed_share")
        best = set() if alike else {name for name, value in values.items() if value == min(values.values())}
        assert {run.policy for run in four if page.cells[run.policy, key][1]} == best, key


def test_plain_slurm_is_the_yardstick_and_who_knows_the_truth_is_named_apart(tmp_path: Path) -> None:
    best, plain, ours = make_run("srtf", 0.5, "oracle"), make_run("backfill", 2.0), make_run("lucid")
    best.outcomes[0].preemptions = 1
    seen = report(tmp_path, [make_run("fifo", slower=9), best, plain, ours]).seen
    ratio = run_metrics(ours)["avg_jct_s"] / run_metrics(plain)["avg_jct_s"]
    assert "Of the policies that a real cluster can have, lucid has the shortest" in seen
    assert f"{100 * (1 - ratio):.1f} % less than backfill" in seen
    assert "no real cluster can have it: it knows the true run times, and it preempts jobs that lose no work" in seen
    assert "lucid against backfill" in seen
    slow = report(tmp_path, [best, plain, make_run("lucid", slower=3)])
    assert re.search(r"backfill has the shortest average job completion time: .*; lucid follows with", slow.seen)


NOTES = {
    "The trace is synthetic: preset month-small, seed 1.": True,
    "This is a real trace, not a synthetic one.": False,
    "the trace has no GPU readings; --workloads synthetic supplies some": False,
}


@pytest.mark.parametrize("note", NOTES)
def test_synthetic_traces_are_called_so_and_jobs_that_could_never_run_are_owned_up_to(
    tmp_path: Path, note: str
) -> None:
    run, synthetic = make_run("fifo"), NOTES[note]
    if synthetic:
        run.outcomes[0].end_s = run.outcomes[1].end_s = -1
    page = report(tmp_path, [run], notes=[note])
    assert ("synthetic trace" in "".join(page.words["h1"] + page.words.get("span", []))) is synthetic
    assert ("(synthetic trace)" in page.words["title"][0]) is synthetic
    assert note in page.seen
    assert ("fifo: 2 jobs could never run" in page.seen) is ("could never run" in page.seen) is synthetic


def test_hostile_names_stay_text(tmp_path: Path) -> None:
    tame = report(tmp_path, [make_run("fifo"), make_run("lucid")], notes=["n"])
    runs = [make_run(name, vcs=(HOSTILE, "beta")) for name in ("fifo", f"lucid {HOSTILE}")]
    page = report(tmp_path, runs, HOSTILE, [HOSTILE])
    assert [tag for tag, _ in page.elements] == [tag for tag, _ in tame.elements]
    attributes = {key for _, found in page.elements for key in found}
    assert attributes == {key for _, found in tame.elements for key in found}
    assert not any(key.startswith("on") for key in attributes)
    assert HOSTILE in page.seen
    assert "49" not in page.words["h1"][0]
    assert json.loads(page.words["script"][0])["jct"]["series"][1]["name"] == f"lucid {HOSTILE}"


def test_page_needs_nothing_from_outside_and_runs_no_script_but_ours(page: Page) -> None:
    assert not re.search(r"(?i)https?:|url\(|@import|\bfetch\(|XMLHttpRequest|\bimport\(", page.text)
    assert not re.search(r"(?i)\s(src|href|srcset|action|data|poster)=", page.text)
    assert not {"link", "iframe", "img", "object", "embed", "base"} & {tag for tag, _ in page.elements}
    assert not re.search(r'\sstyle="', page.text), "the page's own policy forbids style attributes"
    policy = next(found["content"] or "" for tag, found in page.elements if tag == "meta" and "http-equiv" in found)
    assert policy.startswith("default-src 'none'")
    for tag, text in (("script", page.words["script"][-1]), ("style", page.words["style"][0])):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy


def test_a_run_without_jobs_still_gives_a_page(tmp_path: Path) -> None:
    page = report(tmp_path, [Run("fifo", "history", [], Series(), 8, 0, 0.0, 0.0)])
    assert "No job ended" in page.seen
    assert page.seen.count("Nothing to show") == 5
    with pytest.raises(ValueError, match="at least one run"):
        write_report(tmp_path / "none.html", "t", [], {})


def test_durations_changes_and_times_of_a_trace_read_well() -> None:
    shown = [show_duration(s) for s in (None, 0.25, 99, 150, 47890, 10.5 * 86400, 2419 * 86400)]
    assert shown == ["–", "0.25 s", "99 s", "2.50 min", "13.3 h", "10.5 d", "2,419 d"]
    changes = [show_change(*pair) for pair in ((75, 100), (110, 100), (100.01, 100), (5, 0))]
    assert changes == ["25.0 % less", "10.0 % more", "the same", ""]
    for span_h, labels in ((1, "0 10 20 30 40 50 60"), (10, "0 2 4 6 8 10"), (30 * 24, "0 7 14 21 28")):
        assert [tick.label for tick in time_ticks(span_h * 3600.0)] == labels.split()


def _run(samples: list[int], **pending: list[int]) -> Run:
    kept = {name: array("l", values) for name, values in pending.items()}
    series = Series(busy_gpus=array("l", samples), shared_gpus=array("l", [0] * len(samples)), pending_jobs=kept)
    return Run("p", "history", [], series, 8, 0, 0.0, 0.0)


def test_lines_are_means_of_equal_spans_on_one_grid() -> None:
    long = _run(list(range(1000)), a=[1] * 1000, profiling=[2] * 1000)
    short = _run([7] * 10, a=[4] * 9 + [40])
    lines = time_lines([long, short])
    assert len(lines.at_s) == 334 <= MOST_POINTS
    assert lines.bucket_s == 3 * 600
    assert lines.at_s[:2] == [600, 2400]
    assert lines.busy[0][:2].tolist() == [1, 4]
    assert lines.busy[0][-1] == 999, "the last span holds one sample, and is its own mean"
    assert set(lines.pending[0].tolist()) == {3}
    assert lines.pending[1].tolist() == [4, 4, 4, 40]
    assert lines.peak_pending == [3, 40]


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
    job, where = Job(name, "vc", 2, submit_s, 0, "ann"), (NodeGpus("n9", 0b11),)
    return JobOutcome(job, 50.0, start_s, end_s, start_s - submit_s, placement=where)


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


def test_a_profiled_job_that_carries_on_keeps_its_place_and_without_decisions_one_stands_where_it_ended() -> None:
    run = run_of(outcome("a", 0.0, 10.0, 200.0))
    rows = [DecisionRow(10.0, "a", PROFILING, "start", (), "p1:0"), DecisionRow(70.0, "a", PROFILING, "keep", ())]
    assert stays(run, Log(rows)) == [(0, "p1", 1, 10, 190, report_jobs.PROFILED)]
    never = JobOutcome(Job("b", "vc", 99, 0.0, 0, "ann"), 50.0)
    assert stays(run_of(*run.outcomes, never), None) == [(0, "n9", 3, 10, 190, report_jobs.ALONE)]


def test_beyond_the_most_jobs_the_first_by_submission_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report_jobs, "MOST_JOBS", 2)
    pack = pack_jobs([run_of(*(outcome(str(n), float(-n), 10.0, 20.0) for n in range(4)))], [0], {})
    assert (pack.listed, pack.jobs) == (2, 4)
    facts = unpacked(pack.facts)
    assert (facts["id"], facts["whole"]) == (["3", "2"], False)


def test_stories_that_would_not_fit_are_named_and_the_policy_looked_at_goes_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runs = [run_of(outcome("a", 0.0, 10.0, 60.0), policy=name) for name in ("fifo", "lucid")]
    logs = {run.policy: Log([]) for run in runs}
    whole = pack_jobs(runs, [0, 1], logs, lambda run, o: run.policy, "lucid")
    assert {name: unpacked(text) for name, text in whole.stories.items()} == {"fifo": ["fifo"], "lucid": ["lucid"]}
    monkeypatch.setattr(report_jobs, "MOST_BYTES", len(whole.facts) + len(whole.stories["lucid"]))
    less = pack_jobs(runs, [0, 1], logs, lambda run, o: run.policy, "lucid")
    assert (list(less.stories), less.without) == (["lucid"], ["fifo"])


def test_jobs_tell_what_explain_tells_and_take_their_share_of_five_mib(tmp_path: Path) -> None:
    """10,000 jobs may take 5 MiB: 524 bytes each, of which 30 are left for the charts."""
    jobs = 400
    scenario = Scenario(synthesise(preset("month-small").resized(jobs, None), 6), vc_layout("month-small"))
    metrics, runs, logs = compare(scenario, ("fifo", "lucid"), keep_decisions=True)
    pack = pack_jobs(runs, [1, 0], logs, story_teller(logs), "lucid")
    assert set(pack.stories) == {"fifo", "lucid"}
    assert (len(pack.facts) + sum(map(len, pack.stories.values()))) / jobs < 494
    write_run(tmp_path, scenario, runs, metrics, logs, ())
    assert pack.facts in (tmp_path / "report.html").read_text(encoding="utf-8")
    stories, names = unpacked(pack.stories["lucid"]), unpacked(pack.facts)["id"]
    for i in range(0, jobs, 39):
        assert stories[i] == run_story(tmp_path / "lucid", names[i])[0].text(10_000)
