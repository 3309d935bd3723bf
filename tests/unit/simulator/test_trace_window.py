"""Which jobs a replay is of, and on which nodes: days of a trace, synthetic histories, sizes, walls between VCs."""

from __future__ import annotations

import json
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from builders import a_trace, by, nodes
from kept import HERE, same_as
from lucid.cli.main import lucidctl
from lucid.core.node import Node
from lucid.errors import ConfigError, TraceError
from lucid.simulator.layout import (
    NodeShape,
    build_layout,
    lend_profiling_nodes,
    offered_load,
    read_vcs,
    sized_to_load,
    sized_vcs,
)
from lucid.simulator.traces.describe import describe
from lucid.simulator.traces.formats.own import write_trace
from lucid.simulator.traces.presets import preset, vc_layout
from lucid.simulator.traces.read import read_trace
from lucid.simulator.traces.record import Trace
from lucid.simulator.traces.synth import synthesise
from lucid.simulator.traces.window import days_of, pooled

ASSETS = Path(__file__).parents[2] / "assets" / "traces"
DAY = 86400.0
SEPTEMBER = 1598918400.0  # 2020-09-01
TEN = a_trace(*(by(f"d{i}", 1 + i % 2, 3600.0, i * DAY, vc="ab"[i % 2]) for i in range(10)))
DAILY = replace(TEN, epoch_s=SEPTEMBER)


def ids(trace: Trace) -> list[str]:
    return [item.job.id for item in trace.jobs]


WINDOWS: list[tuple[str | None, float | None, int, int]] = [
    (None, 2.0, 0, 2), ("7", None, 7, 10), ("6.5", 2.0, 7, 9), ("2020-09-03", 1.5, 2, 4),
    ("2020-09-03T00:00:01", 1.0, 3, 4), ("2020-09-03T02:00:00+02:00", 1.0, 2, 3),
]  # fmt: skip
NO_WINDOWS = [
    (DAILY, "20", None, r"no job of .* arrives in that window; .* from day 0 to day 9.00 \(2020-09-01T00:00 to"),
    (DAILY, "2.5", 0.25, "no job"),
    (DAILY, "-1", None, "neither a day of the trace .* nor a date"),
    (DAILY, "nan", None, "neither a day"),
    (DAILY, "2020-13-01", None, "neither a day"),
    (TEN, "2020-09-03", None, "is a date, and .* has none; give a day of the trace"),
]


@pytest.mark.parametrize(("begin", "days", "first", "after"), WINDOWS)
def test_a_window_has_the_jobs_that_arrive_in_it(begin: str, days: float, first: int, after: int) -> None:
    found = days_of(DAILY, begin, days)
    assert ids(found) == [f"d{i}" for i in range(first, after)]
    assert [item.job.rank for item in found.jobs] == list(range(after - first))
    assert found.jobs[0].job.submit_s == 0.0
    assert found.epoch_s == SEPTEMBER + first * DAY, "hours of the day stay"
    left_out = dict(found.skipped)
    assert left_out.get("submitted before the window", 0) == first
    assert sum(left_out.values()) + after - first == 10


@pytest.mark.parametrize(("trace", "begin", "days", "says"), NO_WINDOWS)
def test_a_window_without_jobs_and_a_begin_that_is_no_time_are_refused(
    trace: Trace, begin: str, days: float, says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        days_of(trace, begin, days)


def test_a_cluster_is_sized_to_a_load_until_the_last_submission_and_holds_the_largest_jobs_beside_profiling() -> None:
    assert offered_load(a_trace(by("a", 4, 100.0, vc="x"), by("b", 8, 50.0, 100.0, vc="y")), 8) == 1.0
    assert offered_load(a_trace(by("a"), by("b")), 8) is None
    long = a_trace(*(by(f"j{i}", 8, 4000.0, 100.0 * i, vc="xy"[i % 2]) for i in range(101)))
    assert sized_to_load(long, 8, 1.0) == {"x": 20, "y": 20}
    assert sum(sized_to_load(long, 8, 0.8).values()) == 50
    rare = a_trace(by("big", 80, 1.0), by("small", 1, 1.0, 1000.0))
    assert sized_to_load(rare, 8, 0.9) == {"vc": 11}
    assert sized_to_load(rare, 8, 0.9, 3) == {"vc": 13}
    with pytest.raises(ConfigError, match="submitted at once; give --nodes"):
        sized_to_load(a_trace(by("a"), by("b")), 8, 0.9)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    write_trace(DAILY, tmp_path / "log.csv")
    return tmp_path / "log.csv"


def said(*words: str | Path) -> Any:
    told = CliRunner().invoke(lucidctl, [*map(str, words), "--json"], catch_exceptions=False)
    assert told.exit_code == 0, told.output
    return json.loads(told.stdout)


def test_options_choose_days_nodes_and_walls(log: Path, tmp_path: Path) -> None:
    assert (pooled(DAILY).vcs, ids(pooled(DAILY))) == (("pool",), ids(DAILY)), "the same jobs in one VC"
    (tmp_path / "vcs.csv").write_text(",num\na,3\nb,2\n")
    plain = ("simulate", log, "--policy", "backfill", "--policy", "fifo")
    walls, pool = (said(*plain, "--vcs", tmp_path / "vcs.csv", *more) for more in ((), ("--pool",)))
    assert walls["vcs"] == {"a": 3, "b": 2}
    assert pool["vcs"] == {"pool": 5}
    assert walls["load"] == pool["load"] == pytest.approx(15 / (9 * 24 * 40))
    for command in ("simulate", "compare"):
        assert said(command, *plain[1:], "--pool", "--nodes", "2")["vcs"] == {"pool": 2}
    assert said(*plain)["vcs"] == {"a": 1, "b": 1}
    assert said(*plain, "--pool")["vcs"] == {"pool": 2}, "as many nodes as with walls"
    assert said(*plain, "--days", "1", "--out", tmp_path / "out")["load"] is None, "one job"
    assert (tmp_path / "out/report.html").exists()
    part = said(*plain, "--from", "2020-09-04", "--days", "3", "--gpus-per-node", "2", "--load", "0.01")
    assert part["jobs"] == 3
    counts = ((3, "before"), (4, "after"))
    assert part["notes"][:2] == [f"left out of the trace: {n} rows, submitted {at} the window" for n, at in counts]
    assert part["load"] == pytest.approx(0.01, rel=0.1)
    assert any("chosen for a load of 0.01; on whole nodes it is 0.01" in note for note in part["notes"])


CONTRADICT = {
    "--load 0.9 --nodes 3": "--nodes and --load each say how many nodes there are; give one of them",
    "--pool --lending borrow": "--pool leaves one VC",
    "--from tomorrow": "--from tomorrow: is neither",
}


@pytest.mark.parametrize("options", CONTRADICT)
def test_options_that_contradict_each_other_are_refused(log: Path, options: str) -> None:
    with pytest.raises(ConfigError, match=CONTRADICT[options]):
        said("simulate", log, *options.split())


def test_figures_of_a_trace_are_as_recorded() -> None:
    trace = read_trace(ASSETS / "own.csv")
    figures = describe(trace)
    same_as(HERE / "traces" / "own-figures.json", json.dumps(figures, indent=1) + "\n")
    arrivals = describe(replace(trace, epoch_s=None))["arrivals"]
    assert (arrivals["by_hour_of_day"], arrivals["by_weekday"]) == (None, None), "without dates there is no rhythm"


# -- nodes


BAD_VCS = {
    b",num\na,0\n": "line 2: column num: '0' is not a number of nodes of at least 1",
    b",num\na,-1\n": "line 2: column num: '-1'",
    b",num\na,2\n\nb\n": "line 4: 'b' has no second column",
    b",num\n,2\n": "line 2: column 1: VC name '' is empty",
    b",num\na,1\na,1\n": "line 3: column 1: VC name 'a' is empty or is in the file twice",
    b"": "names no VC",
    b",num\n\xff\xfe,1\n": "cannot be read",
}


@pytest.mark.parametrize("content", BAD_VCS)
def test_a_bad_file_of_vcs_is_refused_with_its_place(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "vcs.csv"
    path.write_bytes(content)
    with pytest.raises(TraceError, match=f"{path}.*{BAD_VCS[content]}"):
        read_vcs(path)


def test_nodes_have_the_shape_and_names_of_their_vc() -> None:
    layout = build_layout({"a": 2, "b": 1}, NodeShape(4, 11000, 32, 64000))
    assert layout["a"] == [Node("a-000", 4, 11000, 32, 64000), Node("a-001", 4, 11000, 32, 64000)]
    assert [node.name for node in layout["b"]] == ["b-000"]


def test_a_vc_is_sized_for_what_its_jobs_hold_at_once_for_95_percent_of_the_time() -> None:
    steady = [by(f"s{i}", 4, 100.0, 100.0 * i) for i in range(11)]
    # 44 GPUs are held for 10 s of the 1,000 s, 4 for the rest: the burst queues
    for burst_s, sized in ((10.0, 1), (100.0, 11)):
        assert sized_vcs(a_trace(*(by(f"b{i}", 1, burst_s) for i in range(40)), *steady), 4) == {"vc": sized}


def test_nodes_are_shared_out_by_gpu_hours() -> None:
    two_vcs = a_trace(by("a", 8, 300.0, vc="x"), by("b", 8, 100.0, vc="y"))
    assert sized_vcs(two_vcs, 8, 8) == {"x": 6, "y": 2}
    assert sized_vcs(two_vcs, 8, 2) == {"x": 1, "y": 1}
    with pytest.raises(ConfigError, match=r"1 nodes of 8 GPUs cannot hold .* \(that takes 2\); give --nodes more"):
        sized_vcs(two_vcs, 8, 1)


def test_profiling_nodes_are_lent_by_the_largest_vcs_in_turn() -> None:
    layout = {"small": nodes(2, prefix="s"), "large": nodes(5, prefix="l"), "middle": nodes(3, prefix="m")}
    left, lent = lend_profiling_nodes(layout, a_trace(by("j", 8, vc="large")), 4)
    assert [node.name for node in lent] == ["l5", "m3", "s2", "l4"]
    assert {vc: len(own) for vc, own in left.items()} == {"small": 1, "large": 3, "middle": 2}
    assert len(layout["large"]) == 5, "the layout given stays as it was"


def test_two_percent_of_the_nodes_profile_unless_told_at_least_one_and_a_vc_keeps_room_for_its_largest_job() -> None:
    for count, lent in ((4, 1), (96, 2), (150, 3)):
        assert len(lend_profiling_nodes({"vc": nodes(count)}, a_trace(), None)[1]) == lent
    layout = {"vc": nodes(3, 8)}
    assert len(lend_profiling_nodes(layout, a_trace(by("j", 16)), 1)[1]) == 1
    assert lend_profiling_nodes(layout, a_trace(by("j", 17)), None)[1] == []
    with pytest.raises(ConfigError, match=r"only 1 of 3 nodes can be spared .* give --profiling-nodes 1"):
        lend_profiling_nodes(layout, a_trace(by("j", 16)), 2)


# -- synthetic histories


MADE = {"month-small": "6a9e425bdd7c89ab", "month-10k": "8cf73aa42373b19c", "burst": "dfe3590fe4a33c20"}
MADE |= {"month-logs": "e6c56f60417946ea"}


@pytest.mark.parametrize("name", MADE)
def test_the_presets_are_byte_for_byte_what_they_were(name: str, tmp_path: Path) -> None:
    """Every figure of the documentation is of these histories."""
    write_trace(synthesise(preset(name), 1), tmp_path / "made.csv")
    assert sha256((tmp_path / "made.csv").read_bytes()).hexdigest()[:16] == MADE[name]


def test_resizing_keeps_the_rate_and_a_history_reads_back_as_it_was_made(tmp_path: Path) -> None:
    small = preset("month-small").resized(400, None)
    assert (small.jobs, small.days) == (400, pytest.approx(2.8))
    week = preset("month-small").resized(None, 7)
    assert (week.jobs, week.days) == (1000, 7)
    assert preset("burst").resized(None, None) is preset("burst")
    trace = synthesise(week, 3)
    assert synthesise(week, 4).jobs != trace.jobs, "the seed tells"
    write_trace(trace, tmp_path / "week.csv")
    assert read_trace(tmp_path / "week.csv") == trace
    asked = sum(vc.nodes * vc.utilisation for vc in week.vcs) * week.gpus_per_node * week.days * 24
    assert describe(trace)["offered_gpu_h"] == pytest.approx(asked, rel=0.005)


def test_wrong_presets_and_settings_are_refused() -> None:
    with pytest.raises(ConfigError, match="ask for more jobs"):
        synthesise(preset("month-small").resized(20, 28))
    for ask in (preset, vc_layout):
        with pytest.raises(ConfigError, match=r"'moon' \(known: burst, month-10k, month-logs, month-small\)"):
            ask("moon")
    for change, says in (({"jobs": 0}, "jobs = 0"), ({"days": float("nan")}, "days = nan")):
        with pytest.raises(ConfigError, match=says):
            replace(preset("burst"), **change)  # type: ignore[arg-type]
