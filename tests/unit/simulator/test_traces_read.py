"""Each reader on a tiny file, sniffing, and what a bad file earns."""

from __future__ import annotations

from pathlib import Path

import pytest

from kept import HERE, same_as
from lucid.accounting.values import elapsed_s, mem_mib, tres
from lucid.errors import ConfigError, TraceError
from lucid.simulator.traces.formats.own import write_trace
from lucid.simulator.traces.formats.table import columns_from
from lucid.simulator.traces.read import FORMATS, read_trace, sniff

ASSETS = Path(__file__).parents[2] / "assets" / "traces"


KINDS = ("pack.csv", "philly.csv", "helios.csv", "helios_full.csv", "sacct_raw.txt", "sacct.json", "pbs.txt")
PECULIAR = {
    "parallel.csv": "time goes on through rows that are left out",
    "openb.csv": "parts of a GPU are whole ones",
    "sacct.txt": "GPUs typed and untyped count once; memory per node, per CPU and of the job",
    "swf.txt": "what was asked for where nothing is known to have been given",
    "muri.csv": "times in milliseconds; work counted in iterations, whatever the duration says",
}


@pytest.mark.parametrize("file", [*KINDS, *PECULIAR])
def test_each_reader_is_as_recorded_and_survives_conversion(file: str, tmp_path: Path) -> None:
    format = file.partition(".")[0].partition("_")[0]
    assert sniff(ASSETS / file) == format
    out, trace = tmp_path / "out.csv", read_trace(ASSETS / file)
    write_trace(trace, out)
    same_as(HERE / "traces" / f"{file.replace('.', '-')}.csv", out.read_text(encoding="utf-8"))
    assert sniff(out) == "lucid"
    assert read_trace(out) == trace == read_trace(ASSETS / file, format)


@pytest.mark.parametrize(("written", "limit_s"), [("7200", 7200.0), ("0", None), ("", None)])
def test_helios_has_a_time_limit_where_the_file_has_one(tmp_path: Path, written: str, limit_s: float | None) -> None:
    header, first, *_ = (ASSETS / "helios.csv").read_text().splitlines()
    (tmp_path / "limits.csv").write_text(f"{header},wall_time\n{first},{written}\n")
    (h1,) = read_trace(tmp_path / "limits.csv").jobs
    assert h1.job.time_limit_s == limit_s


def test_swf_processors_to_a_gpu_are_rounded_up() -> None:
    gpus = {item.job.id: item.job.gpus for item in read_trace(ASSETS / "swf.txt", swf_procs_per_gpu=3).jobs}
    assert gpus == {"1": 3, "2": 2, "6": 1}


def test_byte_order_mark_and_windows_line_ends(tmp_path: Path) -> None:
    path = tmp_path / "bom.csv"
    path.write_bytes(b"\xef\xbb\xbf" + (ASSETS / "philly.csv").read_bytes().replace(b"\n", b"\r\n"))
    assert read_trace(path).jobs == read_trace(ASSETS / "philly.csv").jobs
    assert [job.job.rank for job in read_trace(path).jobs] == [1, 0, 2], "sorted stably"


SMALL = "job_id,user,vc,gpu_num,submit_time,duration\n"


TIMES = [("100", "160", None), ("2026-05-01 08:00", "2026-05-01T08:01:00", 1777622400.0)]


@pytest.mark.parametrize(("first", "second", "epoch_s"), TIMES)
def test_the_smallest_natural_table_is_read_with_seconds_or_dates(
    tmp_path: Path, first: str, second: str, epoch_s: float | None
) -> None:
    path = tmp_path / "small.csv"
    path.write_text(f"{SMALL}a1,ann,vision,1,{first},3600\na2,bob,speech,8,{second},7200\n")
    trace = read_trace(path)
    found = [(item.job.id, item.job.user, item.job.submit_s, item.profile) for item in trace.jobs]
    assert (found, trace.epoch_s) == ([("a1", "ann", 0.0, None), ("a2", "bob", 60.0, None)], epoch_s)


PHILLY = "timestamp,duration,num_gpus,gpu_time,cluster\n"
GOOD = PHILLY + "2017-10-09 07:01:55,66.0,1,66.0,red\n"
PACK = "job_id,vc,gpu_num,submit_time,duration,gpu_util,gmem_util,gmem\n1,a,1,0,5,1,1,1\n"
SECONDS, DATES = (f"{SMALL}1,u,a,1,{at},5\n" for at in ("0", "2026-05-01"))
STATED = "job_id,user,vc,gpu_num,submit_time,duration,state\n1,ann,a,1,0,67,COMPLETED\n"
SACCT = "JobID|Submit|Elapsed|State|AllocTRES|ReqMem|Timelimit\n1|1700000000|00:09|FAILED|gres/gpu=1||\n"
SWF = "1 5 0 100 8 -1 -1 8 200 -1 1 3 1 7 2 1 -1 -1\n"
LIMITS = "job_id,user,vc,gpu_num,cpu_num,submit_time,duration,wall_time\n1,u,v,1,1,2020-04-01 00:00:00,5,9\n"
PASSES = "u_id,user,gpu_num,cpu_num,node_num,interval,run_time,wall_time,new_status\n0,1,8,1,1,0,60,90,Pass\n"
MURI = (
    "job_id,num_gpu,submit_time,duration,iteration_time,resource_time_0,resource_time_1\n7,8,5000,21400,214,82,75\n"
)
TABLE = "job,arrived,n,ran\n1,2024-03-01,5,60\n"
COLUMNS = "id=job,submit=arrived,gpus=n,duration=ran"


BAD_ROWS = [
    (GOOD, "2017-10-09 07:01:55,x,1,6,red", "duration", "'x' is not a number", ""),
    (GOOD, "2017-10-09 07:01:55,-5,1,6,red", "duration", "'-5' is negative", ""),
    (GOOD, "2017-10-09 07:01:55,nan,1,6,red", "duration", "'nan' is not finite", ""),
    (GOOD, "2017-10-09 07:01:55,1e999,1,6,red", "duration", "'1e999' is not finite", ""),
    (GOOD, "2017-10-09 07:01:55,1_0,1,6,red", "duration", "'1_0' is not a number", ""),
    (GOOD, "2017-10-09 07:01:55,5,1.5,6,red", "num_gpus", "'1.5' is not a whole number", ""),
    (GOOD, "2017-10-09 07:01:55,5,-1,6,red", "num_gpus", "'-1' is negative", ""),
    (GOOD, "2017-13-09 07:01:55,5,1,6,red", "timestamp", "'2017-13-09 07:01:55' is not a date", ""),
    (GOOD, "2017-10-09 07:01:55,5,1,6, ", "cluster", "' ' is empty", ""),
    (GOOD, "2017-10-09 07:01:55,5,1", "gpu_time", "'2017-10-09 07:01:55,5,1' has 3 of 5 fields", "short row"),
    (GOOD, "2017-10-09 07:01:55,66.0,1,66.0,red,9", "", "'9' is one field too many", "long row"),
    (GOOD, '2017-10-09 07:01:55,5,1,6,"re"d', "", "'' is not valid CSV", "not valid CSV"),
    (PACK, "1,a,1,0,5,1,1,1", "job_id", "'1' is a job id that line 2 has already", "duplicate job id"),
    (PACK, "2,a,1,0,5,101,1,1", "gpu_util", "'101' is above 100", ""),
    (PACK, "2,a,1,0,5,1,,1", "gmem_util", "'' is not a number", ""),
    (SECONDS, "2,u,a,1,2026-05-01,5", "submit_time", "'2026-05-01' is not a number; write all submit times", ""),
    (DATES, "2,u,a,1,60,5", "submit_time", "'60' is not a date; write all submit times as seconds, or", ""),
    (STATED, "2,ann,a,1,599,63,HAPPY", "state", "'HAPPY' is not a state of a Slurm job", ""),
    (STATED, "2,ann,a,1,599,1e12,", "", "'1e+12 s' is a run time above 10 years", "run time above 10 years"),
    (STATED, "2,ann,a,1000000,599,63,", "", "'1e+06 GPUs' for one job is above", "more than 100,000 GPUs"),
    (STATED, f"2,ann,a,1{'0' * 30},599,63,", "", "'1e+30 GPUs' for one job is", "more than 100,000 GPUs"),
    (LIMITS, "2,u,v,1,1,2020-04-01 00:00:00,5,-1", "wall_time", "'-1' is negative", ""),
    (PASSES, "1,1,8,1,1,60,60,90,Eaten", "new_status", "'Eaten' is none of Pass, Failed", ""),
    (SACCT, "x|1|00:09|FAILED|||", "JobID", "'x' is not a Slurm job id", ""),
    (SACCT, "2|Unknown|00:09|FAILED|gres/gpu=1||", "Submit", "'Unknown' is not a date", ""),
    (SACCT, "2|1700000000|9|FAILED|gres/gpu=1||", "Elapsed", "'9' is not an elapsed time", ""),
    (SACCT, "2|1700000000|00:09|DONE|gres/gpu=1||", "State", "'DONE' is not a job state; known are BOOT", ""),
    (SACCT, "2|1700000000|00:09|FAILED|gres/gpu=two||", "AllocTRES", "'gres/gpu=two' ", ""),
    (SACCT, "2|1700000000|00:09|FAILED|gpu||", "AllocTRES", "'gpu' is not a list", ""),
    (SACCT, "2|1700000000|00:09|FAILED|gres/gpu=1|4X|", "ReqMem", "'4X' is not a memory size", ""),
    (SACCT, "2|1700000000|00:09|FAILED|gres/gpu=1||soon", "Timelimit", "'soon' is not a time limit", ""),
    (SWF, "2 5 0 100 8", "average_cpu_time", "'2,5,0,100,8' has 5 of 18 fields", "short row"),
    (MURI, "8,8,5000,9,0,82,75", "iteration_time", "'0' is below 1e-06", ""),
    (MURI, "8,8,5000,9,214,0,0", "resource_time_0", "'0' is 0, as are the other resource times", ""),
    (MURI, "8,8,5000,9,214,82,-1", "resource_time_1", "'-1' is negative", ""),
    (MURI, "8,x,5000,9,214,82,75", "num_gpu", "'x' is not a number", ""),
    (TABLE, "2,x,5,60", "arrived", "'x' is not a date", ""),
    (TABLE, "2,2024-03-01,5,soon", "ran", "'soon' is not a number", ""),
    (TABLE, "2,2024-03-01,five,60", "n", "'five' is not a number", ""),
    (TABLE, ",2024-03-01,5,60", "job", "'' is empty", ""),
    (TABLE, "1,2024-03-01,5", "ran", "'1,2024-03-01,5' has 3 of 4 fields, this one is missing", "short row"),
]


@pytest.mark.parametrize(("sound", "row", "column", "says", "reason"), BAD_ROWS)
def test_bad_rows(tmp_path: Path, sound: str, row: str, column: str, says: str, reason: str) -> None:
    path = tmp_path / "bad.txt"
    path.write_text(f"{sound}{row}\n")
    columns = columns_from(COLUMNS) if sound == TABLE else None
    with pytest.raises(TraceError) as caught:
        read_trace(path, columns=columns)
    message, line = str(caught.value), sound.count("\n") + 1
    assert message.startswith(f"{path}, line {line}" + (f", column {column!r}" if column else "") + f": {says}")
    assert "correct the row, or leave bad rows out with --skip-bad" in message
    trace = read_trace(path, skip_bad=True, columns=columns)
    assert len(trace.jobs) == 1
    ((counted, times),) = trace.skipped
    assert times == 1
    assert counted == reason if reason else counted.startswith(f"{column}: ")


def test_jobs_of_two_lifetimes_are_refused_even_when_bad_rows_are_skipped(tmp_path: Path) -> None:
    path = tmp_path / "far.csv"
    path.write_text(STATED + "2,ann,a,1,1e18,63,\n")
    with pytest.raises(TraceError, match=r"line 3: '2' is .* years after line 2; 20 are the most; correct the subm"):
        read_trace(path, skip_bad=True)
    path.write_text(STATED + f"2,ann,a,100000,{20 * 365 * 86400},{10 * 365 * 86400},timeout\n")
    whole = read_trace(path)
    assert len(whole.jobs) == 2, "at the bounds"
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r"))
    assert read_trace(path).jobs == whole.jobs, "a carriage return alone ends a line"


def test_not_utf8_names_line_and_column(tmp_path: Path) -> None:
    path = tmp_path / "latin.csv"
    path.write_bytes(GOOD.encode() + b"2017-10-09 07:01:55,66.0,1,66.0,M\xfcnchen\n")
    with pytest.raises(TraceError, match=r"line 3, column 'cluster': .*udcfc.* is not UTF-8; .*iconv"):
        read_trace(path)
    assert read_trace(path, skip_bad=True).skipped == (("not UTF-8", 1),)


def test_skip_bad_counts_by_reason_but_stops_at_an_unclosed_quote(tmp_path: Path) -> None:
    path = tmp_path / "bad.csv"
    rows = ["x,5,1,5,red", "y,5,1,5,red", "2017-10-09 07:01:55,-1,1,5,red", "2017-10-09 07:01:55,1,0,5,red"]
    path.write_text(GOOD + "\n".join(rows) + "\n\n")
    counts = {"timestamp: is not a date": 2, "duration: is negative": 1, "asked for no GPU": 1}
    assert dict(read_trace(path, skip_bad=True).skipped) == counts
    path.write_text(GOOD + '2017-10-09 07:01:55,1,1,5,"red\n' + GOOD)
    with pytest.raises(TraceError, match=r"line 3: a quote .* never closed"):
        read_trace(path, skip_bad=True)


NAMES = "helios, lucid, muri, openb, pack, parallel, pbs, philly, pollux, sacct, swf, table"
BAD_FILES = {
    "job_id,vc,gpu_num,submit_time\n": "column 'duration': missing from the header (found: job_id, vc",
    "Job_ID,VC,GPU_num,Submit_time,Duration\n": "nearest is pack, whose columns are spelt job_id, vc, gpu_num",
    "timestamp,num_gpus,duration\n": "column 'cluster': missing from the header (found: timestamp, num_gpus",
    "job_id,gpu_num,cpu_num\n": "column 'vc': missing",
    "JobID|Submit|State|Elapsed\n": "column 'AllocTRES': missing from the header (found: JobID, Submit",
    "JobID|Submit|State|AllocTRES\n": "column 'Elapsed': missing",
    "timestamp,num_gpus,duration,cluster,duration\n": "column 'duration': named twice",
    "1|2|cl|part|qos|acc\n": "without its header line",
    "colour,taste\n1,2\n": f"known: {NAMES}",
    PHILLY: "has no job that can be replayed",
    PHILLY + "2017-10-09 07:01:55,66.0,0,66.0,red\n": "(1 asked for no GPU)",
    "  \n": "empty",
    '# lucid-trace 9 {"name": "x"}\njob_id\n': "is not '# lucid-trace 1 {...}'",
    "# lucid-trace 1 [1]\njob_id\n": "is not the expected JSON",
    '# lucid-trace 1 {"name": "x", "epoch_s": null, "skipped": []}\njob_id\n': "column 'vc': missing",
    "; UnixStartTime: yesterday\n": "line 1, header comment 'UnixStartTime': 'yesterday'",
    '{"jobs": [': "is not JSON that can be read",
    '{"tasks": []}': "not that of sacct --json",
    '{"jobs": [{"job_id": 1}]}': "not that of sacct --json",
    '[{"vc": "a", "attempts": []}]': "Philly's own",
    "job_id,vc,submit_time,duration\n1,2,3,4\n": "nearest is pack, which also needs gpu_num; ",
    "JobID   JobName  Partition    State\n1 2 3 4\n": "sacct prints what can be read with --parsable2; ",
    "a1,worker,1.0,Terminated,4.0,5.0,600.0,29.3,50.0,MISC\n1\n": "is as a table of Alibaba's PAI (cluster-trace",
    "a,b,c,d\n1,2,3,4\n": "'a,b,c,d'; say which column is which with --columns",
    "\x1f\x8bxx": "compressed",
    "\xff\xfej\x00": "UTF-16",
}


@pytest.mark.parametrize("text", BAD_FILES)
def test_bad_files(tmp_path: Path, text: str) -> None:
    path = tmp_path / "bad.txt"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(TraceError) as caught:
        read_trace(path)
    assert str(path) in str(caught.value)
    assert BAD_FILES[text] in str(caught.value)


def test_formats_and_files_that_there_are_not_are_named(tmp_path: Path) -> None:
    assert ", ".join(sorted(FORMATS)) == NAMES
    with pytest.raises(ConfigError, match=f"'csv' .known: {NAMES}"):
        read_trace(ASSETS / "pack.csv", "csv")
    with pytest.raises(TraceError, match="cannot be read"):
        read_trace(ASSETS / "none.csv")
    with pytest.raises(ConfigError, match="at least 1"):
        read_trace(ASSETS / "swf.txt", swf_procs_per_gpu=0)
    with pytest.raises(TraceError, match="cannot be written"):
        write_trace(read_trace(ASSETS / "pack.csv"), tmp_path / "none" / "out.csv")


ELAPSED = {"00:01:05": 65, "05:30": 330, "2-01:00:00": 176400, "1-12": 129600, "1-12:30": 131400, "00:00:01.500": 1}
MIB = {"48000Mn": 96000, "4Gc": 16384, "2147486448Mn": 11200, "1024K": 1, "1T": 1048576, "7.50G": 7680, "12": 12}


def test_small_words_of_accounting() -> None:
    assert {text: elapsed_s(text) for text in ELAPSED} == ELAPSED
    assert [elapsed_s(text) for text in ("7", "", "-1:00")] == [None] * 3
    assert {text: mem_mib(text, nodes=2, cpus=4) for text in (*MIB, "G")} == {**MIB, "G": None}
    assert tres("cpu=4,gres/gpu:a100=2") == {"cpu": "4", "gres/gpu:a100": "2"}
    assert (tres(""), tres("cpu")) == ({}, None)
