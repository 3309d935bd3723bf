"""One reader of Slurm's accounting for replays, learning and the live cluster; ``models`` reads all traces."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from lucid.accounting.sacct import HEADERLESS
from lucid.accounting.values import ENDED, NOT_ENDED, limit_s, state_of
from lucid.cli.main import lucidctl
from lucid.errors import TraceError
from lucid.models.duration.jobtable import read_jobs
from lucid.simulator.traces.read import read_trace, sniff
from lucid.simulator.traces.window import read_finished
from lucid.slurm.accounting import accounted_from
from scenes.models import light_training

DOCUMENTED, PUBLIC = HEADERLESS
JOB = {
    "JobID": "7", "JobName": "train", "User": "ann", "Account": "lab", "Partition": "gpu", "QOS": "normal",
    "Submit": "2024-01-01T00:00:00", "Start": "2024-01-01T00:00:10", "End": "2024-01-01T00:01:40",
    "Elapsed": "00:01:30", "ElapsedRaw": "90", "State": "COMPLETED", "NNodes": "1", "NCPUS": "4", "ReqCPUS": "4",
    "ReqMem": "16G", "ReqTRES": "cpu=4,gres/gpu=2", "AllocTRES": "cpu=4,gres/gpu:a100=2,gres/gpu=2",
    "Timelimit": "01:00:00",
}  # fmt: skip


def log(path: Path, columns: tuple[str, ...], *jobs: dict[str, str], header: bool, end: str = "") -> Path:
    lines = ["|".join(columns)] if header else []
    lines += ["|".join({**JOB, **job}.get(name, "") for name in columns) for job in jobs]
    path.write_text("".join(f"{line}{end}\n" for line in lines))
    return path


@pytest.mark.parametrize("end", ["", "|"], ids=["parsable2", "parsable"])
@pytest.mark.parametrize("header", [True, False])
@pytest.mark.parametrize("columns", [DOCUMENTED, PUBLIC], ids=["documented", "public"])
def test_replays_and_learning_read_the_same_files(
    tmp_path: Path, columns: tuple[str, ...], header: bool, end: str
) -> None:
    path = log(tmp_path / "sacct.txt", columns, {}, {"JobID": "8", "JobName": ""}, header=header, end=end)
    assert sniff(path) == "sacct"
    first = read_trace(path).jobs[0]
    table = read_jobs(path)
    assert (first.job.gpus, first.job.cpus, first.job.mem_mib, first.job.time_limit_s) == (2, 4, 16384, 3600.0)
    assert (table.gpus[0], table.cpus[0], table.memory_mib[0], table.limit_s[0]) == (2.0, 4.0, 16384.0, 3600.0)
    assert (first.duration_s, first.waited_s, first.job.name) == (90.0, 10.0, "train")
    assert (table.duration_s[0], table.end_s[0] - table.submit_s[0], table.name[0]) == (90.0, 100.0, "train")
    assert (len(read_trace(path).jobs), len(table)) == (2, 2)


@pytest.mark.parametrize("state", sorted({*ENDED, "CANCELLED by 1000", "CANCELLED+"}))
def test_every_state_that_ends_a_job(tmp_path: Path, state: str) -> None:
    path = log(tmp_path / "sacct.txt", PUBLIC, {"State": state}, header=False)
    assert read_trace(path).jobs[0].state == state_of(state)
    assert len(read_jobs(path)) == 1
    raw = {
        "job_id": 7, "state": {"current": [state_of(state)]}, "partition": "gpu", "user": "ann",
        "time": {"submission": 100, "start": 110, "end": 200, "limit": 60},
        "tres": {"requested": [{"type": "gres", "name": "gpu:a100", "count": 2},
                               {"type": "gres", "name": "gpu", "count": 2}, {"type": "cpu", "name": "", "count": 4}]},
    }  # fmt: skip
    (job,) = accounted_from({"jobs": [raw]})
    assert (job.state, job.gpus, job.cpus) == (state_of(state), 2, 4)


@pytest.mark.parametrize("state", sorted(NOT_ENDED))
def test_a_job_that_goes_on_has_no_duration_yet(tmp_path: Path, state: str) -> None:
    jobs = ({"State": state, "End": "Unknown"}, {"JobID": "8"})
    path = log(tmp_path / "sacct.txt", PUBLIC, *jobs, header=True)
    assert [item.job.id for item in read_trace(path).jobs] == ["8"]
    assert read_jobs(path).job_id.tolist() == ["8"]


def test_a_job_in_slots_counts_its_shards(tmp_path: Path) -> None:
    path = log(tmp_path / "sacct.txt", DOCUMENTED, {"AllocTRES": "cpu=4,gres/shard=2"}, header=True)
    assert (read_trace(path).jobs[0].job.gpus, read_jobs(path).gpus[0]) == (2, 2.0)


def test_a_name_in_the_last_column_may_hold_the_delimiter(tmp_path: Path) -> None:
    path = log(tmp_path / "sacct.txt", PUBLIC, {"JobName": "a|b"}, header=False)
    assert (read_trace(path).jobs[0].job.name, read_jobs(path).name[0]) == ("a|b", "a|b")


def test_without_a_header_an_unknown_number_of_columns_is_refused(tmp_path: Path) -> None:
    path = log(tmp_path / "sacct.txt", (*DOCUMENTED, "End"), {}, header=False)
    for read in (read_trace, read_jobs):
        with pytest.raises(TraceError, match=r", line 1, column 15: .* has 14 or 26 columns .*without --noheader"):
            read(path)


@pytest.mark.parametrize(("text", "seconds"), [("30", 1800.0), ("2-12", 216000.0), ("UNLIMITED", math.inf)])
def test_limits(text: str, seconds: float) -> None:
    assert limit_s(text) == seconds


def ids(path: Path) -> list[str]:
    found = [item.job.id for item in read_trace(path).jobs]
    assert found == read_jobs(path).job_id.tolist()
    return found


def test_answers_of_months_in_one_file_count_each_job_once(tmp_path: Path) -> None:
    path = log(tmp_path / "one.txt", PUBLIC, {}, {"JobID": "8", "State": "RUNNING", "End": "Unknown"}, header=True)
    more = log(tmp_path / "two.txt", (*reversed(PUBLIC),), {}, {"JobID": "8"}, {"JobID": "9"}, header=True, end="|")
    path.write_text(path.read_text() + more.read_text())
    assert ids(path) == ["7", "8", "9"]
    assert read_trace(path).skipped == ()


def test_a_job_number_that_comes_again_is_another_job_unless_it_was_requeued(tmp_path: Path) -> None:
    end, later = "2024-01-01T00:01:40", "2027-01-01T00:00:00"
    runs = [
        {"State": "NODE_FAIL"},
        {"Submit": end, "Start": end, "ElapsedRaw": "5"},
        {"Submit": later, "User": "bob"},
    ]
    jobs = [{"Cluster": "big", **run} for run in runs] + [{"Cluster": "other"}]
    columns = ("Cluster", *DOCUMENTED)
    trace = read_trace(log(tmp_path / "sacct.txt", columns, *jobs, header=True))
    assert [(item.job.id, item.job.user, item.duration_s) for item in trace.jobs] == [
        ("7#3", "ann", 90.0), ("7", "ann", 5.0), ("7#2", "bob", 90.0),
    ]  # fmt: skip
    assert trace.skipped == (("run before a requeue", 1),)


def test_a_job_that_two_rows_tell_differently_is_refused(tmp_path: Path) -> None:
    """``sacct --truncate`` cuts a job at the ends of the time that was asked for."""
    path = log(tmp_path / "sacct.txt", DOCUMENTED, {}, {"ElapsedRaw": "40"}, header=True)
    for read in (read_trace, read_jobs):
        with pytest.raises(
            TraceError, match=r"line 3, column 'JobID': '7' is told of otherwise in line 2; .*--truncate"
        ):
            read(path)


def test_texts_with_pipes_and_line_breaks(tmp_path: Path) -> None:
    columns = (*DOCUMENTED, "SubmitLine")
    jobs = (
        {"JobName": "lr=0.1|bs=32", "SubmitLine": "sbatch a"},
        {"JobID": "8", "SubmitLine": "a &&\npython | tee b"},
    )
    trace = read_trace(log(tmp_path / "sacct.txt", columns, *jobs, {"JobID": "9"}, header=True))
    assert [(item.job.id, item.job.name) for item in trace.jobs] == [
        ("7", "lr=0.1|bs=32"),
        ("8", "train"),
        ("9", "train"),
    ]
    columns = ("JobID", "JobName", "User", "Comment", *DOCUMENTED[3:])
    path = log(tmp_path / "sacct.txt", columns, {"JobName": "a|b"}, header=True)
    with pytest.raises(
        TraceError, match=r"line 2: .* in two ways; a text such as JobName may hold '|' or a line break"
    ):
        read_trace(path)


@pytest.mark.parametrize(
    ("cells", "gpus"),
    [({"AllocGRES": "gpu:v100:4,nic:1"}, 4), ({"AllocGRES": "gpu:2(IDX:0,1)"}, 2), ({"ReqGRES": "gpu"}, 2)],
)
def test_gpus_as_old_slurm_names_them(tmp_path: Path, cells: dict[str, str], gpus: int) -> None:
    columns = (*DOCUMENTED[:-2], "AllocGRES", "ReqGRES")
    path = log(tmp_path / "sacct.txt", columns, {"NNodes": "2", **cells}, header=True)
    assert (read_trace(path).jobs[0].job.gpus, read_jobs(path).gpus[0]) == (gpus, gpus)


ASSETS = Path(__file__).parents[2] / "assets" / "traces"
LOG = "job_id,user,submit_time,start_time,end_time,duration_s,gpus,time_limit_s\n"


@pytest.mark.parametrize("file", ["pack.csv", "philly.csv", "helios.csv", "helios_full.csv", "swf.txt", "sacct.txt"])
def test_every_trace_is_read_as_finished_jobs(file: str) -> None:
    table, trace = read_finished(ASSETS / file), read_trace(ASSETS / file, keep_cpu_jobs=True)
    assert len(table) >= len(trace.jobs)
    assert np.isfinite(table.submit_s).all()
    assert set(table.gpus.tolist()) >= {float(item.job.gpus) for item in trace.jobs}


def test_what_is_neither_names_what_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "what.csv"
    path.write_text("what,is,this\n1,2,3\n")
    with pytest.raises(TraceError, match="give output of sacct"):
        read_finished(path)


def rows() -> str:
    begin, lines = datetime(2026, 1, 1, tzinfo=UTC), []
    for n in range(160):
        at, ran = begin + timedelta(hours=n), 300 * (n % 2 + 1)
        lines.append(f"{n},u{n % 2},{at:%F %T},{at:%F %T},{at + timedelta(seconds=ran):%F %T},{ran},1,3600")
    return LOG + "\n".join(lines) + "\n"


def evaluated(path: Path, test_from: str) -> dict[str, object]:
    words = ["models", "evaluate", "duration", str(path), "--test-from", test_from, "--refits", "1", "--json"]
    result = CliRunner().invoke(lucidctl, words, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    found: dict[str, object] = json.loads(result.stdout)
    return found


def test_a_row_and_a_time_begin_the_same_test(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text(rows())
    with light_training():
        by_row, by_time = evaluated(path, "120"), evaluated(path, "2026-01-06")
    assert by_row == by_time
    assert (by_row["jobs"], by_row["users_tested"], by_row["jobs_of"]) == (40, 2, "user")


@pytest.mark.parametrize("words", ["0", "-1", "September"])
def test_what_is_neither_row_nor_time_is_refused(words: str) -> None:
    for kind in ("duration", "throughput"):
        result = CliRunner().invoke(lucidctl, ["models", "evaluate", kind, "x.csv", f"--test-from={words}"])
        assert result.exit_code == 2
        assert "Invalid value for '--test-from'" in result.stderr
