"""``sacct --parsable2`` output with its header line; columns in any order, any others besides.

A good call: ``sacct --allusers --allocations --parsable2 --starttime 2024-01-01 --format
JobID,JobName,User,Account,Partition,Submit,Start,ElapsedRaw,State,NCPUS,NNodes,ReqMem,AllocTRES,Timelimit``.
"""

from __future__ import annotations

import re

from lucid.errors import TraceError
from lucid.simulator.traces.collect import Draft, collect
from lucid.simulator.traces.record import Trace
from lucid.simulator.traces.rows import BadCell, Drop, ReadOptions, Row, Source, fit_header, split_rows
from lucid.simulator.traces.slurm_text import elapsed_s, mem_mib, tres

__all__ = ["ABOUT", "headless", "looks_like", "read"]

ABOUT = "Slurm accounting, sacct --parsable2 with a header line"
_ENDED = frozenset(
    [
        "BOOT_FAIL",
        "CANCELLED",
        "COMPLETED",
        "DEADLINE",
        "FAILED",
        "LAUNCH_FAILED",
        "NODE_FAIL",
        "OUT_OF_MEMORY",
        "PREEMPTED",
        "RECONFIG_FAIL",
        "REVOKED",
        "TIMEOUT",
    ]
)
_ALIVE = frozenset(
    [
        "COMPLETING",
        "CONFIGURING",
        "PENDING",
        "POWER_UP_NODE",
        "REQUEUED",
        "REQUEUE_FED",
        "REQUEUE_HOLD",
        "RESIZING",
        "RESV_DEL_HOLD",
        "RUNNING",
        "SIGNALING",
        "SPECIAL_EXIT",
        "STAGE_OUT",
        "STOPPED",
        "SUSPENDED",
        "UPDATE_DB",
    ]
)
_NO_TIME = frozenset({"", "unknown", "none", "n/a"})
_NO_LIMIT = frozenset({"", "unlimited", "partition_limit", "invalid", "none", "unknown", "n/a"})
_KNOWN = [
    "JobID",
    "JobName",
    "User",
    "Account",
    "Partition",
    "Submit",
    "Start",
    "Elapsed",
    "ElapsedRaw",
    "State",
    "NCPUS",
    "AllocCPUS",
    "ReqCPUS",
    "NNodes",
    "AllocNodes",
    "ReqMem",
    "ReqTRES",
    "AllocTRES",
    "Timelimit",
    "TimelimitRaw",
]
_SPELLING = {name.lower(): name for name in _KNOWN}
_JOB_ID = re.compile(r"\d+(_(\d+|\[[^\]]*\]?))?(\+\d+)?")
_HINT = "correct the row, or leave bad rows out with --skip-bad"


def looks_like(cells: list[str]) -> bool:
    """Is this the header of sacct output?"""
    low = [cell.lower() for cell in cells]
    return "jobid" in low and ("state" in low or "submit" in low)


def headless(first: str) -> bool:
    """Does this look like a line of sacct output in a file without the header line?"""
    return first.count("|") >= 4 and _JOB_ID.fullmatch(first.split("|", 1)[0]) is not None


def read(source: Source, header: list[str], header_line: int, options: ReadOptions) -> Trace:
    """Read sacct output.

    Raises:
        TraceError: a missing header or column, or a bad row that is not to be skipped.
    """
    if headless("|".join(header)):
        raise TraceError(
            f"{source.path}, line {header_line}: this looks like sacct output without its header line; "
            "run sacct without --noheader, or put the names of the columns first"
        )
    names = [_SPELLING.get(cell.strip().lower(), cell.strip()) for cell in header]
    trailing = names[-1] == ""  # sacct --parsable ends every line with the delimiter
    if trailing:
        names.pop()
    needed = ["JobID", "Submit", "State"]
    needed.append("Elapsed" if "ElapsedRaw" not in names else "ElapsedRaw")
    if not options.keep_cpu_jobs and "ReqTRES" not in names:
        needed.append("AllocTRES")  # one of the two says how many GPUs
    fit_header(source, header_line, names, needed, ABOUT)

    def split(text: str) -> list[str]:
        cells = text.split("|")
        return cells[:-1] if trailing and len(cells) > len(names) and cells[-1] == "" else cells

    row = Row(names)
    rows = split_rows(source, row, names, header_line, split)
    return collect(source, rows, row, _parse, options, lambda first_s: first_s)


def _parse(row: Row) -> Draft:
    job_id = row.name("JobID")
    if "." in job_id:
        raise Drop("")  # a step of a job that has its own row
    if _JOB_ID.fullmatch(job_id) is None:
        raise BadCell("JobID", job_id, "is not a Slurm job id", _HINT, "JobID: is not a Slurm job id")
    state = _state(row)
    submit_s = row.date_s("Submit")
    run_s = _run_s(row)
    if run_s == 0 and (state == "CANCELLED" or row.text("Start", "?").lower() in _NO_TIME):
        raise Drop("ended before it started")
    granted, asked = _tres(row, "AllocTRES"), _tres(row, "ReqTRES")
    cpus = _count(row, "NCPUS", "AllocCPUS", "ReqCPUS") or _tres_count(row, granted or asked, "cpu")
    nodes = _count(row, "NNodes", "AllocNodes") or _tres_count(row, granted or asked, "node")
    return Draft(
        id=job_id,
        vc=row.text("Partition") or "default",
        gpus=_gpus(row, granted or asked),
        submit_s=submit_s,
        duration_s=run_s,
        user=row.text("User"),
        account=row.text("Account"),
        name=row.text("JobName"),
        cpus=cpus,
        mem_mib=_mem(row, granted or asked, nodes, cpus),
        time_limit_s=_limit_s(row),
        state=state,
        waited_s=_waited_s(row, submit_s),
        id_column="JobID",
    )


def _state(row: Row) -> str:
    text = row.name("State")
    # "CANCELLED by 1000" names who did it; "CANCELLED+" is what a narrow column leaves of that
    state = text.split()[0].rstrip("+")
    if state in _ALIVE:
        raise Drop("had not ended yet")
    if state not in _ENDED:
        known = ", ".join(sorted(_ENDED | _ALIVE))
        raise BadCell("State", text, f"is not a job state (known: {known})", _HINT, "State: is not a job state")
    return state


def _run_s(row: Row) -> float:
    if row.text("ElapsedRaw"):
        return row.real("ElapsedRaw")
    column = "Elapsed" if row.has("Elapsed") else "ElapsedRaw"
    text = row.text(column)
    run_s = elapsed_s(text)
    if run_s is None:
        remedy = f"sacct writes [days-]hours:minutes:seconds; {_HINT}"
        raise BadCell(column, text, "is not an elapsed time", remedy, f"{column}: is not an elapsed time")
    return run_s


def _waited_s(row: Row, submit_s: float) -> float | None:
    if row.text("Start", "").lower() in _NO_TIME:
        return None
    return max(row.date_s("Start") - submit_s, 0.0)


def _limit_s(row: Row) -> float | None:
    text = row.text("Timelimit")
    if text.lower() not in _NO_LIMIT:
        limit_s = elapsed_s(text)
        if limit_s is None:
            remedy = f"sacct writes [days-]hours:minutes:seconds or UNLIMITED; {_HINT}"
            raise BadCell("Timelimit", text, "is not a time limit", remedy, "Timelimit: is not a time limit")
        return limit_s
    if row.text("TimelimitRaw").lower() not in _NO_LIMIT:
        return row.whole("TimelimitRaw") * 60.0
    return None


def _tres(row: Row, column: str) -> tuple[str, dict[str, str]] | None:
    text = row.text(column)
    if not text:
        return None
    found = tres(text)
    if found is None:
        raise BadCell(column, text, "is not a list of name=count", _HINT, f"{column}: is not a list")
    return column, found


def _gpus(row: Row, of: tuple[str, dict[str, str]] | None) -> int:
    if of is None:
        return 0
    column, counts = of
    if "gres/gpu" in counts:
        return _tres_count(row, of, "gres/gpu")  # typed entries repeat what the untyped one counts
    return sum(_tres_count(row, (column, counts), name) for name in counts if name.startswith("gres/gpu:"))


def _tres_count(row: Row, of: tuple[str, dict[str, str]] | None, name: str) -> int:
    if of is None or name not in of[1]:
        return 0
    column, counts = of
    if not (counts[name].isascii() and counts[name].isdigit() and len(counts[name]) < 19):
        problem = f"gives no whole number for {name}"
        raise BadCell(column, row.text(column), problem, _HINT, f"{column}: gives no whole number")
    return int(counts[name])


def _count(row: Row, *columns: str) -> int:
    for column in columns:
        if row.text(column):
            return row.whole(column)
    return 0


def _mem(row: Row, of: tuple[str, dict[str, str]] | None, nodes: int, cpus: int) -> int:
    column, text = "ReqMem", row.text("ReqMem")
    if not text and of is not None:
        column, text = of[0], of[1].get("mem", "")
    if not text or text.endswith("?"):  # very old Slurm: not known
        return 0
    size = mem_mib(text, nodes, cpus)
    if size is None:
        remedy = f"sacct writes 48000Mn, 4Gc or 16G; {_HINT}"
        raise BadCell(column, text, "is not a memory size", remedy, f"{column}: is not a memory size")
    return size
