"""Reads the Standard Workload Format 2.2 (Parallel Workloads Archive): 18 numbers a line, -1 unknown.

SWF has no GPUs. Processors are taken as GPUs, so many to one as the caller says, rounded up. The partition (else the
queue) is the VC. Second 0 is the first job; ``UnixStartTime`` in a header comment gives its date."""

from __future__ import annotations

import math
import re

from lucid.accounting.log_rows import Drop, ReadOptions, Row, Source, split_rows
from lucid.errors import TraceError
from lucid.simulator.traces.record import Draft, Trace, collect

COLUMNS = (
    "job_number",
    "submit_time",
    "wait_time",
    "run_time",
    "allocated_processors",
    "average_cpu_time",
    "used_memory",
    "requested_processors",
    "requested_time",
    "requested_memory",
    "status",
    "user_id",
    "group_id",
    "executable",
    "queue",
    "partition",
    "preceding_job",
    "think_time",
)
_STATES = {0: "FAILED", 1: "COMPLETED", 5: "CANCELLED", -1: ""}
_PARTIAL = (2, 3, 4)
_START = re.compile(r"^;\s*UnixStartTime:\s*(\S+)", re.MULTILINE | re.IGNORECASE)


def recognizes(first: str) -> bool:
    """Is this a first line of an SWF file: a ``;`` comment, or 18 numbers?"""
    return first.lstrip().startswith(";") or re.fullmatch(r"\s*-?\d\S*(\s+-?[\d.]+){17}\s*", first) is not None


def read(source: Source, header: list[str], header_line: int, options: ReadOptions) -> Trace:
    """Read an SWF file; ``header`` and ``header_line`` are not used, since the columns are fixed.

    Raises:
        TraceError: a bad row that is not to be skipped, or a bad start time."""
    del header, header_line
    start_s = _start_s(source)
    row = Row(COLUMNS)
    rows = split_rows(source, row, COLUMNS, 0, lambda text: None if text.lstrip().startswith(";") else text.split())
    per_gpu = options.swf_procs_per_gpu

    def epoch(first_s: float) -> float | None:
        return None if start_s is None else start_s + first_s

    return collect(source, rows, row, lambda row: _parse(row, per_gpu), options, epoch)


def _start_s(source: Source) -> float | None:
    found = _START.search(source.text)
    if found is None:
        return None
    try:
        start_s = float(found[1])
    except ValueError:
        start_s = math.nan
    if not math.isfinite(start_s):
        line = source.text.count("\n", 0, found.start()) + 1
        raise TraceError(
            f"{source.path}, line {line}, header comment 'UnixStartTime': {found[1]!r} is not a number; "
            "write seconds since 1970, or take the comment out"
        )
    return start_s if start_s > 0 else None  # archives write 0 or -1 where the date is not known


def _parse(row: Row, per_gpu: int) -> Draft:
    status = row.whole("status", least=-1, most=5)
    job_id = row.name("job_number")
    submit_s = row.real("submit_time")
    run_s = row.real("run_time", least=-1.0)
    processors = row.whole("allocated_processors", least=-1)
    asked = row.whole("requested_processors", least=-1)
    if status in _PARTIAL:
        raise Drop("partial run of a checkpointed job (its summary line counts)")
    if run_s < 0:
        raise Drop("run time not known")
    if run_s == 0 and status == 5:
        raise Drop("cancelled before it ran")
    if processors <= 0:
        processors = max(asked, 0)
    limit_s = row.real("requested_time", least=-1.0)
    mem_kib = row.real("requested_memory", least=-1.0)
    return Draft(
        id=job_id,
        vc=_named(row, "partition", "p") or _named(row, "queue", "q") or "default",
        gpus=-(-processors // per_gpu),
        submit_s=submit_s,
        duration_s=run_s,
        user=_named(row, "user_id", "u"),
        account=_named(row, "group_id", "g"),
        name=_named(row, "executable", "app"),
        cpus=processors,
        mem_mib=math.ceil(mem_kib * processors / 1024) if mem_kib > 0 else 0,
        time_limit_s=limit_s if limit_s > 0 else None,
        state=_STATES[status],
        id_column="job_number",
    )


def _named(row: Row, column: str, prefix: str) -> str:
    number = row.whole(column, least=-1)
    return f"{prefix}{number}" if number >= 0 else ""
