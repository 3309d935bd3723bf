"""What people have at hand: accounting with other delimiters, as JSON, of PBS, other programs' tables, and Muri's."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from lucid.cli.main import lucidctl
from lucid.core.prediction import StageTimes
from lucid.errors import ConfigError, TraceError
from lucid.orchestrator.policies.muri.interleave import start_overhead_s
from lucid.simulator.traces.formats.own import write_trace
from lucid.simulator.traces.formats.table import columns_from
from lucid.simulator.traces.read import read_trace, sniff
from lucid.simulator.traces.record import Trace

NAMES = "JobID|User|Partition|Submit|Start|ElapsedRaw|State|NNodes|ReqTRES|AllocTRES|Timelimit|JobName"
ROWS = (
    "7|ada|gpu|2024-03-01T08:00:00|2024-03-01T08:01:00|3600|COMPLETED|2|billing=8,cpu=8,gres/gpu=4|"
    "billing=8,cpu=8,gres/gpu=4,mem=16G,node=2|1-00:00:00|train",
    "9|bob|gpu|2024-03-01T09:00:00|2024-03-01T09:00:00|60|CANCELLED by 1000|1|cpu=1,gres/gpu=1||UNLIMITED|",
)
PLAIN = "\n".join([NAMES, *ROWS]) + "\n"


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


def number(value: float | None) -> dict[str, object]:
    return {"set": value is not None, "infinite": value is None, "number": value or 0}


def slurm_job(
    job_id: int, state: str, submit_s: int, start_s: int, run_s: int, limit: int | None
) -> dict[str, object]:
    tres = [{"type": "cpu", "name": "", "id": 1, "count": 8}, {"type": "gres", "name": "gpu", "id": 1001, "count": 4}]
    return {
        "job_id": job_id, "user": "ada", "account": "lab", "partition": "gpu", "name": "a|b\nc",
        "array": {"job_id": 0, "task_id": number(None)}, "allocation_nodes": 2,
        "state": {"current": [state], "reason": "None"},
        "time": {"submission": submit_s, "start": start_s, "end": start_s + run_s, "elapsed": run_s,
                 "limit": number(limit)},
        "tres": {"requested": tres, "allocated": [*tres, {"type": "mem", "name": "", "id": 2, "count": 16384}]},
    }  # fmt: skip


def test_accounting_as_json(tmp_path: Path) -> None:
    jobs = [
        slurm_job(7, "COMPLETED", 1709280000, 1709280060, 3600, 1440),
        slurm_job(8, "FAILED", 1709280100, 1709280200, 5, None),
    ]
    trace = read(tmp_path, json.dumps({"meta": {}, "jobs": jobs}, indent=1))
    first, second = trace.jobs
    assert (first.job.id, first.job.gpus, first.job.cpus, first.job.mem_mib) == ("7", 4, 8, 16384)
    assert (first.job.time_limit_s, second.job.time_limit_s) == (86400.0, None)
    assert (first.duration_s, first.waited_s, second.job.submit_s, second.state) == (3600.0, 60.0, 100.0, "FAILED")
    assert trace.epoch_s == 1709280000.0


PBS = """\
03/01/2024 09:01:00;Q;12.head;queue=gpu
03/01/2024 10:01:00;E;12.head;user=ada group=lab project=_pbs jobname=train queue=gpu ctime=1709280000 \
qtime=1709280000 etime=1709280000 start=1709280060 exec_host=n1/0*8+n2/0*8 Resource_List.ncpus=16 \
Resource_List.ngpus=8 Resource_List.select=2:ncpus=8:ngpus=4 Resource_List.walltime=24:00:00 session=1 \
end=1709283660 Exit_status=0 resources_used.walltime=01:00:00
03/01/2024 10:05:00;E;13.head;user=bob jobname="my job" queue=gpu qtime=1709280100 start=1709283660 \
Resource_List.nodes=2:ppn=8:gpus=2 end=1709283900 Exit_status=271
"""


def test_accounting_of_pbs(tmp_path: Path) -> None:
    trace = read(tmp_path, PBS)
    first, second = trace.jobs
    assert sniff(tmp_path / "t.txt") == "pbs"
    assert (first.job.id, first.job.user, first.job.vc, first.job.gpus, first.job.cpus) == (
        "12.head",
        "ada",
        "gpu",
        8,
        16,
    )
    assert (first.job.time_limit_s, first.duration_s, first.waited_s, first.state) == (
        86400.0,
        3600.0,
        60.0,
        "COMPLETED",
    )
    assert (second.job.gpus, second.job.name, second.state, second.job.submit_s) == (4, "my job", "CANCELLED", 100.0)


@pytest.mark.parametrize("number", ["\u00b2", "9" * 5000, "-1", ""], ids=["superscript", "long", "negative", "empty"])
def test_what_is_no_number_in_accounting_of_pbs_is_no_traceback(number: str, tmp_path: Path) -> None:
    trace = read(tmp_path, PBS.replace("ncpus=16", f"ncpus={number}").replace("ngpus=8", f"ngpus={number}"))
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
    preset = tmp_path / "jobstats.columns"
    preset.write_text(
        "# jobstats\nid=jobid\nsubmit=submitted\nduration=elapsed\ngpus=ngpus\nuser=netid # Princeton\n"
    )
    trace = read(tmp_path, JOBSTATS, columns=columns_from(f"@{preset}"))
    assert [(one.job.id, one.job.gpus, one.duration_s, one.job.submit_s) for one in trace.jobs] == [
        ("101", 2, 93600.0, 0.0),
        ("103", 1, 90.0, 600.0),
    ]
    assert (trace.vcs, trace.skipped) == (("cluster",), (("asked for no GPU", 1),))
    words = "id=Local Job Id,vc=Queue,user=User,submit=Submit Time (Timestamp),start=Start Time (Timestamp),"
    trace = read(tmp_path, XDMOD, columns=columns_from(words + "end=End Time (Timestamp),gpus=GPU Count"))
    (one,) = trace.jobs
    assert (one.job.vc, one.duration_s, one.waited_s, trace.epoch_s) == ("gpu", 3600.0, 60.0, 1709280000.0)


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ("submit=a,gpus=b,duration=c", "says nothing of id; write id=COLUMN"),
        ("id=a,submit=b,gpus=c", r"says nothing of duration \(or start and end\); write duration=COLUMN"),
        ("id=a,submit=b,gpus=c,start=d", "says nothing of duration"),
        ("id=a,arrived=b", "'arrived=b' is not NAME=COLUMN with one of these names: id: the job's number"),
        ("id", "'id' is not NAME=COLUMN"),
        ("id=a,id=b", "id stands twice"),
        ("@/no/such/file", "--columns @/no/such/file: cannot be read"),
    ],
)
def test_columns_that_say_too_little(columns: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
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


MURI = (
    "job_id,num_gpu,submit_time,iterations,model_name,batch_size,duration,interval,iteration_time,"
    "resource_time_0,resource_time_1,resource_time_2,priority"
)
MURI_ROWS = ("7,8,5000,100,vgg16,16,21400,0,214,82,75,66,0", "9,1,6500,4,dqn,128,2000,0,490,446,8,0.5,1")


def written(folder: Path, *rows: str, header: str = MURI) -> Path:
    path = folder / "muri.csv"
    path.write_text("\n".join((header, *rows)) + "\n", encoding="utf-8")
    return path


def read_muri(folder: Path, *rows: str, header: str = MURI) -> Trace:
    return read_trace(written(folder, *rows, header=header))


def test_times_are_in_milliseconds_and_work_is_counted_in_iterations(tmp_path: Path) -> None:
    assert sniff(written(tmp_path, *MURI_ROWS)) == "muri"
    first, second = read_muri(tmp_path, *MURI_ROWS).jobs
    assert (first.job.id, first.job.gpus, first.job.submit_s, first.job.name) == ("7", 8, 0.0, "vgg16-16")
    assert second.job.submit_s == 1.5
    assert first.duration_s == pytest.approx(21.4)
    assert second.duration_s == pytest.approx(1.96)  # not the column's 2.000
    assert first.stages == StageTimes((0.082, 0.075, 0.066), 0.214, start_overhead_s("vgg16", 8))
    assert first.profile is None  # nothing is known of GPU memory or utilisation


def test_a_trace_without_iterations_takes_the_duration(tmp_path: Path) -> None:
    header = "job_id,num_gpu,submit_time,duration,iteration_time,resource_time_0,resource_time_1"
    (item,) = read_muri(tmp_path, "a,2,0,3000,100,60,40", header=header).jobs
    assert item.duration_s == 3.0
    assert item.stages == StageTimes((0.06, 0.04), 0.1, 10.0)


def test_stage_times_survive_our_own_format(tmp_path: Path) -> None:
    trace = read_muri(tmp_path, *MURI_ROWS)
    mixed = replace(trace, jobs=(trace.jobs[0], replace(trace.jobs[1], stages=None)))
    write_trace(mixed, tmp_path / "own.csv")
    assert read_trace(tmp_path / "own.csv") == mixed
    damaged = (tmp_path / "own.csv").read_text(encoding="utf-8").replace("0.082 0.075 0.066", "0.082 much")
    (tmp_path / "own.csv").write_text(damaged, encoding="utf-8")
    with pytest.raises(TraceError, match="stage_times_s"):
        read_trace(tmp_path / "own.csv")
