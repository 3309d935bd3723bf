"""One absurd value in a trace ends in an error that names file, line and remedy; a long replay stays small."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from lucid.cli.main import lucidctl
from lucid.errors import TraceError
from lucid.simulator.engine import _MOST_SAMPLES, Series
from lucid.simulator.report.charts import time_lines
from lucid.simulator.scenario import Scenario, simulate
from lucid.simulator.traces.formats.own import write_trace
from lucid.simulator.traces.presets import preset, vc_layout
from lucid.simulator.traces.read import read_trace
from lucid.simulator.traces.synth import synthesise

HEADER = "job_id,user,vc,gpu_num,submit_time,duration,state,gpu_util,gmem_util,gmem"
SOUND = "1,ann,a,1,0,67,COMPLETED,34.9,11.8,2730"


def pack(folder: Path, row: str) -> Path:
    path = folder / "pack.csv"
    path.write_text("\n".join([HEADER, SOUND, row, ""]), encoding="utf-8")
    return path


ABSURD = [
    ("2,ann,a,1,599,1e300,,34.9,11.8,2730", "'1e+300 s' is a run time above 10 years"),
    ("2,ann,a,1,599,1e12,,34.9,11.8,2730", "'1e+12 s' is a run time above 10 years"),
    ("2,ann,a,1,1e18,63,,34.9,11.8,2730", "years after line 2; 20 are the most"),
    ("2,ann,a,1000000,599,63,,34.9,11.8,2730", "'1e+06 GPUs' for one job is above 100,000"),
    ("2,ann,a,1" + "0" * 30 + ",599,63,,34.9,11.8,2730", "'1e+30 GPUs' for one job is above 100,000"),
    ("2,ann,a,1,599,63,HAPPY,34.9,11.8,2730", "column 'state': 'HAPPY' is not a state of a Slurm job"),
    ("2,ann,a,1,599,63,,900,11.8,2730", "column 'gpu_util': '900' is above 100"),
]


@pytest.mark.parametrize(("row", "words"), ABSURD)
def test_an_absurd_value_is_refused_with_file_line_and_remedy(tmp_path: Path, row: str, words: str) -> None:
    path = pack(tmp_path, row)
    result = CliRunner().invoke(lucidctl, ["simulate", str(path), "--nodes", "2", "--policy", "fifo"])
    assert isinstance(result.exception, TraceError)
    said = str(result.exception)
    assert said.startswith(f"{path}, line 3")
    assert words in said
    assert "; correct the " in said


@pytest.mark.parametrize("row", [row for row, words in ABSURD if "years after" not in words])
def test_an_absurd_row_can_be_left_out(tmp_path: Path, row: str) -> None:
    trace = read_trace(pack(tmp_path, row), skip_bad=True)
    assert [item.job.id for item in trace.jobs] == ["1"]
    assert sum(count for _, count in trace.skipped) == 1


def test_values_at_the_bounds_are_taken(tmp_path: Path) -> None:
    trace = read_trace(pack(tmp_path, f"2,ann,a,100000,{20 * 365 * 86400},{10 * 365 * 86400},timeout,100,100,2730"))
    assert len(trace.jobs) == 2


@pytest.mark.parametrize("column", ["gpu_util", "mem_util"])
def test_our_own_format_refuses_a_utilisation_above_100(tmp_path: Path, column: str) -> None:
    path = tmp_path / "own.csv"
    write_trace(read_trace(pack(tmp_path, "2,ann,a,1,599,63,,77,78,2730")), path)
    at = path.read_text(encoding="utf-8").splitlines()[1].split(",").index(column)
    lines = path.read_text(encoding="utf-8").splitlines()
    cells = lines[-1].split(",")
    cells[at] = "900"
    path.write_text("\n".join([*lines[:-1], ",".join(cells), ""]), encoding="utf-8")
    with pytest.raises(TraceError, match=f"column '{column}': '900' is above 100"):
        read_trace(path)


def test_lines_that_end_in_a_carriage_return_alone_are_lines(tmp_path: Path) -> None:
    path = pack(tmp_path, "2,ann,a,1,599,63,,34.9,11.8,2730")
    whole = read_trace(path)
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r"))
    assert read_trace(path).jobs == whole.jobs


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
