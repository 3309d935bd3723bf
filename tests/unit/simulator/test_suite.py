"""Every policy on every trace: what is at hand, published figures beside ours, cells that are not replayed twice."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from builders import VC, a_trace, by
from lucid.cli.main import lucidctl
from lucid.errors import ConfigError
from lucid.simulator.scenario import Scenario
from lucid.simulator.suite import Cell, Entry, cell_path, run_cells, suite_data, traces_at_hand, write_suite

SMALL = a_trace(*(by(f"j{i}", 1 + i % 2, 100.0 + i, 10.0 * i) for i in range(9)))


def suite(*words: str) -> Result:
    return CliRunner().invoke(lucidctl, ["compare", "--suite", "--workers", "1", *words], catch_exceptions=False)


def test_without_data_it_replays_what_it_generates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LUCID_SHARED", raising=False)
    out = tmp_path / "out"
    policies = ("--policy", "elastic", "--policy", "fifo", "--policy", "muri-s")
    words = ("--trace", "elastic-set", *policies, "--out", str(out))
    first = suite(*words, "--json")
    assert first.exit_code == 0, first.output
    data = json.loads(first.stdout)
    assert [item["trace"] for item in data["suite"]] == ["elastic-set"]
    results = data["suite"][0]["results"]
    assert results["elastic"]["figures"]["avg_jct_s"] < results["fifo"]["figures"]["avg_jct_s"]
    assert "needs the time that jobs spend" in results["muri-s"]["not_applicable"]
    assert any("synthetic" in line for line in data["suite"][0]["simplified"])
    assert "1/3" in first.stderr
    again = suite(*words)
    assert "3 of 3 cells are done already" in again.stderr
    assert "1/3" not in again.stderr
    page = (out / "suite.html").read_text(encoding="utf-8")
    assert "20 elastic jobs" in page
    assert "muri-s needs the time that jobs spend" in page


def test_a_cell_is_replayed_again_when_its_trace_or_lucid_has_changed(tmp_path: Path) -> None:
    path = tmp_path / "data.csv"
    entries = [Entry("elastic-set", "20 jobs", lambda: Scenario(SMALL, {VC: 2}), (path,))]
    heard: list[Cell | None] = []

    def cells() -> list[Cell]:
        heard.clear()
        return run_cells(entries, None, ["fifo"], tmp_path, 1, lambda cell, done, total: heard.append(cell))

    path.write_text("one")
    first = cells()
    assert len(heard) == 2
    assert cells() == first
    assert heard == [None], "kept"
    path.write_text("other")
    cells()
    assert len(heard) == 2, "another trace"
    kept = cell_path(tmp_path, "elastic-set", "fifo")
    kept.write_text(json.dumps({**json.loads(kept.read_text()), "version": "0.0"}))
    cells()
    assert len(heard) == 2, "another Lucid"
    kept.write_text("{")
    cells()
    assert len(heard) == 2, "a broken file"


def test_traces_at_hand_name_what_is_published(tmp_path: Path) -> None:
    (tmp_path / "data" / "muri").mkdir(parents=True)
    (tmp_path / "data" / "muri" / "trace3.csv").write_text("x")
    (tmp_path / "data" / "pollux").mkdir()
    (tmp_path / "data" / "pollux" / "workload-6.csv").write_text("x")
    found = {entry.name: entry for entry in traces_at_hand(tmp_path)}
    assert list(found) == ["muri-3", "pollux-6"]
    assert found["pollux-6"].published == {"tiresias": 3470.0, "optimus": 5302.0, "pollux": 2446.0}
    assert found["muri-3"].published["muri-s"] == 83_242.0
    assert [entry.name for entry in traces_at_hand(tmp_path / "data" / "pollux")] == ["month-small", "elastic-set"]
    for folder, words in ((tmp_path / "none", "is not a folder"), (tmp_path, "not at hand")):
        with pytest.raises(ConfigError, match=words):
            suite("--data", str(folder), "--trace", "P9")
    with pytest.raises(ConfigError, match="leave"):
        suite("trace.csv")
    assert CliRunner().invoke(lucidctl, ["compare"]).exit_code == 2


def test_a_published_figure_stands_beside_ours_and_a_wide_gap_is_marked(tmp_path: Path) -> None:
    entry = Entry(
        "t", "a trace", lambda: Scenario(SMALL, {VC: 2}), published={"fifo": 100.0, "srtf": 50.0}, source="somebody"
    )
    cells = [
        Cell("t", "fifo", {"avg_jct_s": 101.0}),
        Cell("t", "srtf", {"avg_jct_s": 60.0}),
        Cell("t", "lucid", {"avg_jct_s": 55.0}),
        Cell("t", "muri-s", reason="needs <b>stages"),
    ]
    results = suite_data([entry], cells)["suite"][0]["results"]
    assert results["fifo"]["difference"] == pytest.approx(0.01)
    assert results["lucid"]["published_avg_jct_s"] is None
    assert results["muri-s"]["figures"] is None
    write_suite(tmp_path / "suite.html", [entry], cells)
    page = (tmp_path / "suite.html").read_text(encoding="utf-8")
    assert "1 of 2 published figures came out within 5%. The largest difference is 20.0%." in page
    assert "+20.0% <span" in page
    assert "+1.0%</td>" in page
    assert "&lt;b&gt;stages" in page
    assert page.count('class="best"') == 1


def test_several_processes_give_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LUCID_SHARED", raising=False)
    entries = [entry for entry in traces_at_hand(None) if entry.name == "elastic-set"]
    names = ["elastic", "fifo"]
    found = [run_cells(entries, None, names, tmp_path / str(workers), workers) for workers in (1, 2)]
    one, two = ([replace(c, figures={k: v for k, v in c.figures.items() if k != "cpu_s"}) for c in f] for f in found)
    assert one == two
