"""Reads accounting logs of PBS: a line ``date;E;job;key=value …`` for each job that ended.

Lines of other kinds are passed over. PBS Professional and OpenPBS write ``ngpus``, Torque ``gpus``."""

from __future__ import annotations

import re
from collections.abc import Mapping

from lucid.accounting.log_rows import BadCell, Drop, ReadOptions, Row, Source, split_rows
from lucid.accounting.values import elapsed_s
from lucid.simulator.traces.record import Draft, Trace, collect

_COLUMNS = ("date", "kind", "job", "keys")
_FIRST = re.compile(r"\d\d/\d\d/\d{4} \d\d:\d\d:\d\d;[A-Za-z];[^;]*;")
_KEYS = re.compile(r"""([\w.]+)=("[^"]*"|'[^']*'|\S*)""")
_COUNTS = re.compile(r"(?:^|[:+])(?:n?gpus|mics)=(\d{1,6})")


def recognizes(first: str) -> bool:
    """Is this a line of such a log?"""
    return _FIRST.match(first) is not None


def read(source: Source, header: list[str], header_line: int, options: ReadOptions) -> Trace:
    """Read the jobs that ended; ``header`` and ``header_line`` are not used, since there is none.

    Raises:
        TraceError: a bad row that is not to be skipped."""
    del header, header_line
    row = Row(_COLUMNS)
    rows = split_rows(source, row, _COLUMNS, 0, _cells)
    return collect(source, rows, row, _draft, options, lambda first_s: first_s)


def _cells(text: str) -> list[str] | None:
    cells = text.split(";", len(_COLUMNS) - 1)
    return cells if len(cells) < len(_COLUMNS) or cells[1] == "E" else None


def _draft(row: Row) -> Draft:
    keys = {name: value.strip("\"'") for name, value in _KEYS.findall(row.text("keys"))}
    start_s, end_s, asked_s = (_seconds(keys, name) for name in ("start", "end", "qtime"))
    if start_s <= 0:
        raise Drop("ended before it started")
    if end_s < start_s:
        raise BadCell("keys", f"end={keys['end']}", f"is before start={keys['start']}")
    limit = keys.get("Resource_List.walltime", "")
    return Draft(
        id=row.name("job"),
        vc=keys.get("queue") or "default",
        gpus=_gpus(keys),
        submit_s=asked_s,
        duration_s=end_s - start_s,
        user=keys.get("user", ""),
        account=keys.get("account") or keys.get("project", ""),
        name=keys.get("jobname", ""),
        cpus=_whole(keys.get("Resource_List.ncpus", "")) or 0,
        time_limit_s=elapsed_s(limit),
        state=_state(keys),
        id_column="job",
        waited_s=max(start_s - asked_s, 0.0),
    )


def _seconds(keys: Mapping[str, str], name: str) -> float:
    text = keys.get(name, "")
    found = _whole(text)
    if found is None:
        raise BadCell("keys", f"{name}={text}", "is not a time in Unix seconds")
    return float(found)


def _whole(text: str) -> int | None:
    """A number of at most eleven ASCII digits; ``None`` for anything else."""
    return int(text) if re.fullmatch("[0-9]{1,11}", text) else None


def _gpus(keys: Mapping[str, str]) -> int:
    """The GPUs of a job: ``ngpus`` counts them all; ``select=2:ngpus=4+1:ngpus=2`` and ``nodes=2:ppn=8:gpus=4`` count
    by node."""
    total = _whole(keys.get("Resource_List.ngpus", ""))
    if total is not None:
        return total
    gpus = 0
    for part in (keys.get("Resource_List.select") or keys.get("Resource_List.nodes", "")).split("+"):
        found = _COUNTS.search(part)
        if found:
            nodes = _whole(part.partition(":")[0])
            gpus += int(found[1]) * (1 if nodes is None else nodes)
    return gpus


def _state(keys: Mapping[str, str]) -> str:
    """The state by the exit status: PBS adds 256 to the number of a signal that ended the job."""
    status = keys.get("Exit_status", "")
    if not re.fullmatch(r"-?\d{1,6}", status):
        return ""
    return "COMPLETED" if status == "0" else "CANCELLED" if status in {"271", "265"} else "FAILED"
