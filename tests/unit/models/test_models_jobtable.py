"""Reading logs of finished jobs: units, unknown values, and refusals that name the place."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from lucid.errors import ModelError, TraceError
from lucid.models.duration.jobtable import JobTable, read_jobs

SACCT = (
    "7|7|c|batch|normal|acct|g|1|ann|2|2017-01-01T00:00:10|2017-01-01T00:00:10|2017-01-01T00:01:00|"
    "2017-01-02T00:01:05|1-00:00:05|0:0|COMPLETED|2|8|8|{memory}|cpu=8,gres/gpu=3|cpu=8|{limit}|n1|train-1"
)


def write(path: Path, text: str) -> Path:
    path.write_text(text + "\n", encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("memory", "mib"),
    [
        ("1000Mn", 2000.0),
        ("2Gc", 16384.0),
        ("2147486448Mn", 2800.0 * 8),
        ("4G", 4096.0),  # sacct since 21.08: without a letter, of the whole job
        ("0", math.nan),
    ],
)
def test_sacct_memory_is_the_jobs_total(tmp_path: Path, memory: str, mib: float) -> None:
    table = read_jobs(write(tmp_path / "a.log", SACCT.format(memory=memory, limit="1-00:00:00")))
    np.testing.assert_equal(table.memory_mib, [mib])


@pytest.mark.parametrize(
    ("limit", "seconds"),
    [
        ("1-02:03:04", 93784.0),
        ("02:03:04", 7384.0),
        ("03:04", 184.0),
        ("30", 1800.0),
        ("2-12", 216000.0),
        ("Partition_Limit", math.nan),
        ("UNLIMITED", math.nan),
    ],
)
def test_sacct_limits(tmp_path: Path, limit: str, seconds: float) -> None:
    table = read_jobs(write(tmp_path / "a.log", SACCT.format(memory="1G", limit=limit)))
    np.testing.assert_equal(table.limit_s, [seconds])


def test_sacct_line(tmp_path: Path) -> None:
    table = read_jobs(write(tmp_path / "a.log", SACCT.format(memory="1G", limit="1-00:00:00")))
    assert (table.user[0], table.account[0], table.name[0]) == ("ann", "acct", "train-1")
    assert (table.gpus[0], table.cpus[0], table.nodes[0]) == (3.0, 8.0, 2.0)
    assert table.duration_s[0] == 86405.0
    assert table.end_s[0] - table.submit_s[0] == 86455.0


def test_a_job_that_never_started_keeps_its_row(tmp_path: Path) -> None:
    line = SACCT.format(memory="1G", limit="1-00:00:00").replace("2017-01-01T00:01:00", "Unknown")
    table = read_jobs(write(tmp_path / "a.log", line))
    assert len(table) == 1
    assert math.isnan(table.duration_s[0])


def test_short_csv_orders_by_submission_and_ends_without_a_queue(tmp_path: Path) -> None:
    text = (
        "job_id,user,submit_time,duration,nodes,tasks,time_limit,partition,qos,mem,gres\n"
        "b,u,20,5,2,4,01:00:00,p,q,1G,gpu:2\n"
        "a,u,10,7,1,4,01:00:00,p,q,,"
    )
    table = read_jobs(write(tmp_path / "a.csv", text))
    assert table.job_id.tolist() == ["a", "b"]
    assert table.end_s.tolist() == [17.0, 25.0]
    assert table.gpus.tolist() == [0.0, 4.0]
    np.testing.assert_equal(table.memory_mib, [math.nan, 2048.0])


def test_long_csv(tmp_path: Path) -> None:
    text = (
        "job_id,user,account,partition,qos,wallclock_req,nodes_req,processors_req,gpus_req,mem_req,"
        "submit_time,start_time,end_time,run_time,state,name\n"
        "1,u,a,p,q,60,1,2,0,0.0,2019-01-01 00:00:00,2019-01-01 00:00:30,2019-01-01 00:01:00,30,DONE,n"
    )
    table = read_jobs(write(tmp_path / "a.csv", text))
    assert table.end_s[0] - table.submit_s[0] == 60.0
    assert (table.duration_s[0], table.limit_s[0]) == (30.0, 60.0)


def test_refusals_name_file_line_column_value_and_remedy(tmp_path: Path) -> None:
    path = write(tmp_path / "a.log", SACCT.format(memory="plenty", limit="1-00:00:00"))
    with pytest.raises(TraceError, match=r"a\.log, line 1, column 'ReqMem': 'plenty'.*correct or delete the row"):
        read_jobs(path)
    with pytest.raises(TraceError, match=r"line 1: not the first line of a log of jobs: .*sacct --parsable2"):
        read_jobs(write(tmp_path / "b.csv", "what,ever"))
    with pytest.raises(TraceError, match="cannot be read"):
        read_jobs(tmp_path / "none.csv")


def test_tables_refuse_unknown_and_uneven_columns() -> None:
    with pytest.raises(ModelError, match=r"\['colour'\]"):
        JobTable.of(colour=["red"])
    with pytest.raises(ModelError, match="differ in length"):
        JobTable.of(user=["a"], submit_s=[1.0, 2.0])
