"""What people have at hand: accounting of Slurm and of PBS, other programs' tables, and Muri's."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from lucid.accounting.sacct import HEADERLESS
from lucid.accounting.values import ENDED, NOT_ENDED, limit_s, state_of
from lucid.cli.main import lucidctl
from lucid.core.prediction import StageTimes
from lucid.errors import ConfigError, TraceError
from lucid.models.duration.jobtable import read_jobs
from lucid.simulator.traces.formats.own import write_trace
from lucid.simulator.traces.formats.table import columns_from
from lucid.simulator.traces.read import read_trace, sniff
from lucid.simulator.traces.record import Trace
from lucid.simulator.traces.window import read_finished
from lucid.slurm.accounting import accounted_from
from scenes.models import light_training

PLAIN = """\
JobID|User|Partition|Submit|Start|ElapsedRaw|State|NNodes|ReqTRES|AllocTRES|Timelimit|JobName
7|ada|gpu|2024-03-01T08:00:00|2024-03-01T08:01:00|3600|COMPLETED|2|cpu=8,gres/gpu=4|cpu=8,gres/gpu=4|1-00:00:00|train
9|bob|gpu|2024-03-01T09:00:00|2024-03-01T09:00:00|60|CANCELLED by 1000|1|cpu=1,gres/gpu=1||UNLIMITED|
"""


def read(tmp_path: Path, text: str, **how: object) -> Trace:
    path = tmp_path / "t.txt"
    path.write_text(text)
    return read_trace(path, **how)  # type: ignore[arg-type]


@pytest.mark.parametrize("delimiter", [",", ";", "\t"], ids=["comma", "semicolon", "tab"])
@pytest.mark.parametrize("quoted", [True, False], ids=["quoted", "bare"])
def test_accounting_is_the_same_with_any_delimiter(delimiter: str, quoted: bool, tmp_path: Path) -> None:
    """Programs that write CSV quote a cell with commas; ``sacct --delimiter=,`` does not."""

    def line(text: str) -> str:
        return delimiter.join(f'"{cell}"' if quoted and delimiter in cell else cell for cell in text.split("|"))

    assert read(tmp_path, "\n".join(map(line, PLAIN.split("\n")))) == read(tmp_path, PLAIN)


@pytest.mark.parametrize("number", ["\u00b2", "9" * 5000, "-1", ""], ids=["superscript", "long", "negative", "empty"])
def test_what_is_no_number_in_accounting_of_pbs_is_no_traceback(number: str, tmp_path: Path) -> None:
    text = (ASSETS / "pbs.txt").read_text()
    trace = read(tmp_path, text.replace("ncpus=16", f"ncpus={number}").replace("ngpus=8", f"ngpus={number}"))
    assert [(one.job.cpus, one.job.gpus) for one in trace.jobs] == [(0, 8), (0, 4)]


JOBSTATS = """\
jobid;netid;cluster;partition;ngpus;elapsed;submitted;gpu-eff
101;ada;della;gpu;2;1-02:00:00;2024-03-01 08:00:00;37
102;bob;della;mig;0;00:10:00;2024-03-01 08:05:00;
103;cyd;della;gpu;1;90;2024-03-01 08:10:00;99
"""
XDMOD = """\
"Local Job Id","Queue","User","Submit Time (Timestamp)","Start Time (Timestamp)","End Time (Timestamp)","GPU Count"
"5","gpu","ada","1709280000","1709280060","1709283660","8"
"""


def test_tables_of_other_programs(tmp_path: Path) -> None:
    preset, names = tmp_path / "jobstats.columns", "id=jobid\nsubmit=submitted\nduration=elapsed\ngpus=ngpus"
    preset.write_text(f"# jobstats\n{names}\nuser=netid # Princeton\n")
    trace = read(tmp_path, JOBSTATS, columns=columns_from(f"@{preset}"))
    found = [(one.job.id, one.job.gpus, one.duration_s, one.job.submit_s) for one in trace.jobs]
    assert found == [("101", 2, 93600.0, 0.0), ("103", 1, 90.0, 600.0)]
    assert (trace.vcs, trace.skipped) == (("cluster",), (("asked for no GPU", 1),))
    words = "id=Local Job Id,vc=Queue,user=User,submit=Submit Time (Timestamp),start=Start Time (Timestamp),"
    trace = read(tmp_path, XDMOD, columns=columns_from(words + "end=End Time (Timestamp),gpus=GPU Count"))
    (one,) = trace.jobs
    assert (one.job.vc, one.duration_s, one.waited_s, trace.epoch_s) == ("gpu", 3600.0, 60.0, 1709280000.0)


TOO_LITTLE = {
    "submit=a,gpus=b,duration=c": "says nothing of id; write id=COLUMN",
    "id=a,submit=b,gpus=c": r"says nothing of duration \(or start and end\); write duration=COLUMN",
    "id=a,submit=b,gpus=c,start=d": "says nothing of duration",
    "id=a,arrived=b": "'arrived=b' is not NAME=COLUMN with one of these names: id: the job's number",
    "id": "'id' is not NAME=COLUMN",
    "id=a,id=b": "id stands twice",
    "@/no/such/file": "--columns @/no/such/file: cannot be read",
}


@pytest.mark.parametrize("columns", TOO_LITTLE)
def test_columns_that_say_too_little(columns: str) -> None:
    with pytest.raises(ConfigError, match=TOO_LITTLE[columns]):
        columns_from(columns)


def test_convert_makes_a_trace_of_a_table(tmp_path: Path) -> None:
    path, out = tmp_path / "in.csv", tmp_path / "out.csv"
    path.write_text("job,arrived,n,ran\n1,2024-03-01,5,60\n")
    words = ["trace", "convert", str(path), str(out), "--columns", "id=job,submit=arrived,gpus=n,duration=ran"]
    done = CliRunner().invoke(lucidctl, words)
    assert done.exit_code == 0, done.output
    assert read_trace(out).jobs[0].job.gpus == 5
    refused = CliRunner().invoke(lucidctl, [*words, "--format", "helios"])
    assert "not for --format helios" in str(refused.exception)


def test_a_trace_of_muri_without_iterations_takes_the_duration(tmp_path: Path) -> None:
    columns = "job_id,num_gpu,submit_time,duration,iteration_time,resource_time_0,resource_time_1"
    (item,) = read(tmp_path, f"{columns}\na,2,0,3000,100,60,40\n").jobs
    assert (item.duration_s, item.stages) == (3.0, StageTimes((0.06, 0.04), 0.1, 10.0))


def test_stage_times_survive_our_own_format(tmp_path: Path) -> None:
    trace = read_trace(ASSETS / "muri.csv")
    mixed = replace(trace, jobs=(trace.jobs[0], replace(trace.jobs[1], stages=None)))
    write_trace(mixed, tmp_path / "own.csv")
    assert read_trace(tmp_path / "own.csv") == mixed
    damaged = (tmp_path / "own.csv").read_text(encoding="utf-8").replace("0.082 0.075 0.066", "0.082 much")
    with pytest.raises(TraceError, match="stage_times_s"):
        read(tmp_path, damaged)


# -- one reader of Slurm's accounting for replays, learning and the live cluster


DOCUMENTED, PUBLIC = HEADERLESS
JOB = {
    "JobID": "7", "JobName": "train", "User": "ann", "Account": "lab", "Partition": "gpu", "QOS": "normal",
    "Submit": "2024-01-01T00:00:00", "Start": "2024-01-01T00:00:10", "End": "2024-01-01T00:01:40",
    "Elapsed": "00:01:30", "ElapsedRaw": "90", "State": "COMPLETED", "NNodes": "1", "NCPUS": "4", "ReqCPUS": "4",
    "ReqMem": "16G", "ReqTRES": "cpu=4,gres/gpu=2", "AllocTRES": "cpu=4,gres/gpu:a100=2,gres/gpu=2",
    "Timelimit": "01:00:00",
}  # fmt: skip


def log(folder: Path, columns: tuple[str, ...], *jobs: dict[str, str], header: bool = True, end: str = "") -> Path:
    lines = ["|".join(columns)] if header else []
    lines += ["|".join({**JOB, **job}.get(name, "") for name in columns) for job in jobs]
    path = folder / "sacct.txt"
    path.write_text("".join(f"{line}{end}\n" for line in lines))
    return path


@pytest.mark.parametrize("end", ["", "|"], ids=["parsable2", "parsable"])
@pytest.mark.parametrize("header", [True, False])
@pytest.mark.parametrize("columns", [DOCUMENTED, PUBLIC], ids=["documented", "public"])
def test_replays_and_learning_read_the_same_files(
    tmp_path: Path, columns: tuple[str, ...], header: bool, end: str
) -> None:
    path = log(tmp_path, columns, {}, {"JobID": "8", "JobName": ""}, header=header, end=end)
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
    path = log(tmp_path, PUBLIC, {"State": state}, header=False)
    assert read_trace(path).jobs[0].state == state_of(state)
    assert len(read_jobs(path)) == 1
    raw = {
        "job_id": 7, "state": {"current": [state_of(state)]}, "partition": "gpu", "user": "ann",
        "time": {"submission": 100, "start": 110, "end": 200, "limit": 60},
        "tres": {"requested": [{"type": "gres", "name": "gpu:a100", "count": 2},
                               {"type": "gres", "name": "gpu", "count": 2}, {"type": "cpu", "name": "", "count": 4}]},
    }  # fmt: skip
    ((ended, _),) = accounted_from({"jobs": [raw]})
    assert (ended.state, ended.job.gpus, ended.job.cpus) == (state_of(state), 2, 4)


@pytest.mark.parametrize("state", sorted(NOT_ENDED))
def test_a_job_that_goes_on_has_no_duration_yet(tmp_path: Path, state: str) -> None:
    assert ids(log(tmp_path, PUBLIC, {"State": state, "End": "Unknown"}, {"JobID": "8"})) == ["8"]


def test_a_name_in_the_last_column_may_hold_the_delimiter(tmp_path: Path) -> None:
    path = log(tmp_path, PUBLIC, {"JobName": "a|b"}, header=False)
    assert (read_trace(path).jobs[0].job.name, read_jobs(path).name[0]) == ("a|b", "a|b")


CUT = [{}, {"ElapsedRaw": "40"}]  # as ``sacct --truncate`` does at the ends of the time that was asked for
COMMENTED = ("JobID", "JobName", "User", "Comment", *DOCUMENTED[3:])
REFUSED = [
    ((*DOCUMENTED, "End"), [{}], False, "line 1, column 15: .* has 14 or 26 columns .*without --noheader"),
    (DOCUMENTED, CUT, True, "line 3, column 'JobID': '7' is told of otherwise in line 2; .*--truncate"),
    (COMMENTED, [{"JobName": "a|b"}], True, "line 2: .* in two ways; a text such as JobName may hold '.' or a line"),
]


@pytest.mark.parametrize(("columns", "jobs", "header", "says"), REFUSED)
def test_what_can_be_read_in_several_ways_is_refused(
    tmp_path: Path, columns: tuple[str, ...], jobs: list[dict[str, str]], header: bool, says: str
) -> None:
    path = log(tmp_path, columns, *jobs, header=header)
    for read in (read_trace, read_jobs):
        with pytest.raises(TraceError, match=says):
            read(path)


def test_limits() -> None:
    assert [limit_s(text) for text in ("30", "2-12", "UNLIMITED")] == [1800.0, 216000.0, math.inf]


def ids(path: Path) -> list[str]:
    found = [item.job.id for item in read_trace(path).jobs]
    assert found == read_jobs(path).job_id.tolist()
    return found


def test_answers_of_months_in_one_file_count_each_job_once(tmp_path: Path) -> None:
    one = log(tmp_path, PUBLIC, {}, {"JobID": "8", "State": "RUNNING", "End": "Unknown"}).read_text()
    path = log(tmp_path, (*reversed(PUBLIC),), {}, {"JobID": "8"}, {"JobID": "9"}, end="|")
    path.write_text(one + path.read_text())
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
    trace = read_trace(log(tmp_path, ("Cluster", *DOCUMENTED), *jobs))
    found = [(item.job.id, item.job.user, item.duration_s) for item in trace.jobs]
    assert found == [("7#3", "ann", 90.0), ("7", "ann", 5.0), ("7#2", "bob", 90.0)]
    assert trace.skipped == (("run before a requeue", 1),)


def test_texts_with_pipes_and_line_breaks(tmp_path: Path) -> None:
    first = {"JobName": "lr=0.1|bs=32", "SubmitLine": "sbatch a"}
    second = {"JobID": "8", "SubmitLine": "a &&\npython | tee b"}
    trace = read_trace(log(tmp_path, (*DOCUMENTED, "SubmitLine"), first, second, {"JobID": "9"}))
    found = [(item.job.id, item.job.name) for item in trace.jobs]
    assert found == [("7", "lr=0.1|bs=32"), ("8", "train"), ("9", "train")]


OLD = [("AllocGRES", "gpu:v100:4,nic:1", 4), ("AllocGRES", "gpu:2(IDX:0,1)", 2), ("ReqGRES", "gpu", 2)]


@pytest.mark.parametrize(("column", "cell", "gpus"), [*OLD, ("AllocTRES", "cpu=4,gres/shard=2", 2)])
def test_gpus_as_old_slurm_names_them_and_shards_count(tmp_path: Path, column: str, cell: str, gpus: int) -> None:
    others = DOCUMENTED if column in DOCUMENTED else (*DOCUMENTED[:-2], "AllocGRES", "ReqGRES")
    path = log(tmp_path, others, {"NNodes": "2", column: cell})
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


def test_a_row_and_a_time_begin_the_same_test(tmp_path: Path) -> None:
    begin, lines, path = datetime(2026, 1, 1, tzinfo=UTC), [], tmp_path / "log.csv"
    for n in range(160):
        at, ran = begin + timedelta(hours=n), 300 * (n % 2 + 1)
        lines.append(f"{n},u{n % 2},{at:%F %T},{at:%F %T},{at + timedelta(seconds=ran):%F %T},{ran},1,3600\n")
    path.write_text(LOG + "".join(lines))
    words = ["models", "evaluate", "duration", str(path), "--refits", "1", "--json", "--test-from"]
    with light_training():
        told = [CliRunner().invoke(lucidctl, [*words, at], catch_exceptions=False) for at in ("120", "2026-01-06")]
    by_row, by_time = (json.loads(result.stdout) for result in told)
    assert by_row == by_time
    assert (by_row["jobs"], by_row["users_tested"], by_row["jobs_of"]) == (40, 2, "user")


@pytest.mark.parametrize("words", ["0", "-1", "September"])
@pytest.mark.parametrize("kind", ["duration", "throughput"])
def test_what_is_neither_row_nor_time_is_refused(kind: str, words: str) -> None:
    result = CliRunner().invoke(lucidctl, ["models", "evaluate", kind, "x.csv", f"--test-from={words}"])
    assert (result.exit_code, "Invalid value for '--test-from'" in result.stderr) == (2, True)
