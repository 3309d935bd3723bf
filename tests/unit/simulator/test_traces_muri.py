"""Muri's columns, in milliseconds, found out from the header."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from lucid.core.prediction import StageTimes
from lucid.errors import TraceError
from lucid.orchestrator.policies.muri.interleave import start_overhead_s
from lucid.simulator.traces.formats.own import write_trace
from lucid.simulator.traces.read import read_trace, sniff
from lucid.simulator.traces.record import Trace

HEADER = (
    "job_id,num_gpu,submit_time,iterations,model_name,batch_size,duration,interval,iteration_time,"
    "resource_time_0,resource_time_1,resource_time_2,priority"
)
ROWS = ("7,8,5000,100,vgg16,16,21400,0,214,82,75,66,0", "9,1,6500,4,dqn,128,2000,0,490,446,8,0.5,1")


def written(folder: Path, *rows: str, header: str = HEADER) -> Path:
    path = folder / "muri.csv"
    path.write_text("\n".join((header, *rows)) + "\n", encoding="utf-8")
    return path


def read(folder: Path, *rows: str, header: str = HEADER) -> Trace:
    return read_trace(written(folder, *rows, header=header))


def test_times_are_in_milliseconds_and_work_is_counted_in_iterations(tmp_path: Path) -> None:
    assert sniff(written(tmp_path, *ROWS)) == "muri"
    first, second = read(tmp_path, *ROWS).jobs
    assert (first.job.id, first.job.gpus, first.job.submit_s, first.job.name) == ("7", 8, 0.0, "vgg16-16")
    assert second.job.submit_s == 1.5
    assert first.duration_s == pytest.approx(21.4)
    assert second.duration_s == pytest.approx(1.96)  # not the column's 2.000
    assert first.stages == StageTimes((0.082, 0.075, 0.066), 0.214, start_overhead_s("vgg16", 8))
    assert first.profile is None  # nothing is known of GPU memory or utilisation


def test_a_trace_without_iterations_takes_the_duration(tmp_path: Path) -> None:
    header = "job_id,num_gpu,submit_time,duration,iteration_time,resource_time_0,resource_time_1"
    (item,) = read(tmp_path, "a,2,0,3000,100,60,40", header=header).jobs
    assert item.duration_s == 3.0
    assert item.stages == StageTimes((0.06, 0.04), 0.1, 10.0)


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("7,8,5000,100,vgg16,16,21400,0,0,82,75,66,0", "line 2, column 'iteration_time'"),
        ("7,8,5000,100,vgg16,16,21400,0,214,0,0,0,0", "line 2, column 'resource_time_0'"),
        ("7,8,5000,100,vgg16,16,21400,0,214,82,-1,66,0", "line 2, column 'resource_time_1'"),
        ("7,x,5000,100,vgg16,16,21400,0,214,82,75,66,0", "line 2, column 'num_gpu'"),
    ],
)
def test_bad_rows_are_named(tmp_path: Path, row: str, words: str) -> None:
    with pytest.raises(TraceError, match=words):
        read(tmp_path, row)


def test_stage_times_survive_our_own_format(tmp_path: Path) -> None:
    trace = read(tmp_path, *ROWS)
    mixed = replace(trace, jobs=(trace.jobs[0], replace(trace.jobs[1], stages=None)))
    write_trace(mixed, tmp_path / "own.csv")
    assert read_trace(tmp_path / "own.csv") == mixed
    damaged = (tmp_path / "own.csv").read_text(encoding="utf-8").replace("0.082 0.075 0.066", "0.082 much")
    (tmp_path / "own.csv").write_text(damaged, encoding="utf-8")
    with pytest.raises(TraceError, match="stage_times_s"):
        read_trace(tmp_path / "own.csv")
