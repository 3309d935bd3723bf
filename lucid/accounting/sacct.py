"""Sacct text and JSON.

Output of ``sacct --parsable2``: with its header line, columns stand in any order with any others between, whatever
delimits them; without it, in one of the two orders of ``HEADERLESS``.

``sacct --json`` as the lines of ``sacct --parsable2``: one job, one line.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from lucid.accounting.rows import DELIMITERS, BadCell, Drop, Row, Source, fit_header, split_line, split_rows
from lucid.accounting.values import (
    ENDED,
    NO_TIME,
    NOT_ENDED,
    elapsed_s,
    gres_count,
    limit_s,
    mem_mib,
    state_of,
    tres,
)
from lucid.errors import TraceError

ABOUT = "Slurm accounting, sacct --parsable2, with or without its header line"

HEADERLESS = (
    (
        *("JobID", "JobName", "User", "Account", "Partition", "Submit", "Start", "ElapsedRaw", "State"),
        *("NCPUS", "NNodes", "ReqMem", "AllocTRES", "Timelimit"),
    ),
    (
        *("JobID", "JobIDRaw", "Cluster", "Partition", "QOS", "Account", "Group", "GID", "User", "UID"),
        *("Submit", "Eligible", "Start", "End", "Elapsed", "ExitCode", "State", "NNodes", "NCPUS", "ReqCPUS"),
        *("ReqMem", "ReqTRES", "AllocTRES", "Timelimit", "NodeList", "JobName"),
    ),
)
"""Columns of files without a header line, told apart by their number: ``--format`` of docs/traces.md, and the 26
fields of public Slurm logs."""

_KNOWN = {
    name.lower(): name
    for name in (*HEADERLESS[0], *HEADERLESS[1], "AllocCPUS", "AllocNodes", "TimelimitRaw", "AdminComment")
}
_JOB_ID = re.compile(r"\d+(_(\d+|\[[^\]]*\]?))?(\+\d+)?")


@dataclass(frozen=True, slots=True)
class SacctJob:
    """One job that ended. Times in Unix seconds, a date without a zone read as UTC.

    ``start_s`` and ``end_s`` are ``None`` where the log does not tell. ``run_s`` (s) is ``None`` where the job did
    not start; of one cancelled while it waited, Slurm may give a start and 0 s. ``gpus``, ``cpus`` and ``mem_mib``
    (over the whole job) are those granted, else those asked for; ``asked_gpus`` and ``asked_cpus`` the reverse.
    ``limit_s`` is ``None`` where the job had no time limit."""

    id: str
    partition: str
    user: str
    account: str
    qos: str
    name: str
    state: str
    submit_s: float
    start_s: float | None
    end_s: float | None
    run_s: float | None
    nodes: int
    gpus: int
    cpus: int
    asked_gpus: int
    asked_cpus: int
    mem_mib: int
    limit_s: float | None


def is_sacct(first: str) -> bool:
    """Is this the first line of sacct output, its header or a job?"""
    if _delimiter(first):
        return True
    cells = first.split("|")
    return len(cells) > 4 and _JOB_ID.fullmatch(cells[0].partition(".")[0]) is not None


def _delimiter(first: str) -> str:
    """What stands between the columns of a header line of sacct; empty if it is none."""
    for one in DELIMITERS:
        names = {cell.strip().lower() for cell in _split(first, one)}
        if "jobid" in names and names & {"state", "submit"}:
            return one
    return ""


def _split(text: str, delimiter: str) -> list[str]:
    """sacct knows no quotes; programs that write its columns with other delimiters do."""
    return text.split("|") if delimiter == "|" else split_line(text, delimiter)


class SacctLog:
    """A file of sacct output: walk over ``rows()``, and ask ``job()`` after each. ``gpus``: the log must say how many
    GPUs jobs had.

    Raises:
        TraceError: a column that is needed is missing, or there is no header and the number of fields is unknown.
    """

    def __init__(self, source: Source, first: str, line: int, *, gpus: bool = True) -> None:
        self._delimiter = _delimiter(first) or "|"
        cells = [cell.strip() for cell in _split(first, self._delimiter)]
        headed = "jobid" in (cell.lower() for cell in cells)
        # sacct --parsable ends every line with the delimiter
        self._ends = cells[-1] == "" and (headed or len(cells) not in map(len, HEADERLESS))
        if self._ends:
            cells.pop()
        names = [_KNOWN.get(cell.lower(), cell) for cell in cells] if headed else _headerless(source, line, cells)
        needed = ["JobID", "Submit", "State", "ElapsedRaw" if "ElapsedRaw" in names else "Elapsed"]
        if gpus and "ReqTRES" not in names:
            needed.append("AllocTRES")  # one of the two says how many GPUs
        fit_header(source, line, names, needed, ABOUT)
        self.row = Row(names)
        self._source, self._names, self._skip = source, names, line if headed else line - 1

    def rows(self) -> Iterator[BadCell | None]:
        """Fill ``row`` with one line after another; yields ``None``, or what is wrong with the line's shape."""
        return split_rows(self._source, self.row, self._names, self._skip, self._split)

    def _split(self, text: str) -> list[str]:
        text = text.removesuffix(self._delimiter) if self._ends else text
        if self._delimiter != "|":
            cells = _split(text, self._delimiter)
            return cells if len(cells) == len(self._names) else _joined(cells, self._names)
        last = len(self._names) - 1 if self._names[-1] == "JobName" else -1  # a name may hold the delimiter
        return text.split("|", last)

    def job(self) -> SacctJob:
        """The job of the row.

        Raises:
            BadCell: a cell is not what its column holds.
            Drop: a step of a job, or a job that has not ended.
        """
        row = self.row
        job_id = row.name("JobID")
        if "." in job_id:
            raise Drop("")  # a step of a job that has its own row
        if _JOB_ID.fullmatch(job_id) is None:
            raise BadCell("JobID", job_id, "is not a Slurm job id")
        state = _state(row)
        submit_s, start_s = row.date_s("Submit"), _date_s(row, "Start")
        run_s: float | None = _elapsed_s(row)
        if row.has("Start") and start_s is None:
            run_s = None
        granted, asked = _Tres(row, "AllocTRES"), _Tres(row, "ReqTRES")
        had, wanted = granted or asked, asked or granted
        cpus = _whole(row, "NCPUS", "AllocCPUS", "ReqCPUS") or had.count("cpu")
        nodes = _whole(row, "NNodes", "AllocNodes") or had.count("node")
        return SacctJob(
            job_id,
            row.text("Partition"),
            row.text("User"),
            row.text("Account"),
            row.text("QOS"),
            row.text("JobName"),
            state,
            submit_s,
            start_s,
            _end_s(row, start_s, run_s),
            run_s,
            nodes,
            had.gpus() or wanted.gpus(),
            cpus,
            wanted.gpus() or had.gpus(),
            _whole(row, "ReqCPUS", "NCPUS", "AllocCPUS") or wanted.count("cpu"),
            _mem(row, had, nodes, cpus),
            _limit_s(row),
        )


def _joined(cells: list[str], names: list[str]) -> list[str]:
    """The cells of a line whose TRES (``cpu=4,mem=16G``) were cut by the delimiter (``sacct --delimiter=,``): a part
    of a TRES is ``name=count``, and each of them names a thing once."""
    joined: list[str] = []
    left = iter(cells)
    cell = next(left, None)
    for name in names:
        if cell is None:
            break
        parts, cell = [cell], next(left, None)
        things = {parts[0].partition("=")[0]}
        while "TRES" in name and cell is not None and "=" in cell and cell.partition("=")[0] not in things:
            things.add(cell.partition("=")[0])
            parts.append(cell)
            cell = next(left, None)
        joined.append(",".join(parts))
    rest = [] if cell is None else [cell, *left]
    return joined + rest


def _headerless(source: Source, line: int, cells: list[str]) -> list[str]:
    for names in HEADERLESS:
        if len(cells) == len(names) or (len(cells) > len(names) and len(names) == len(HEADERLESS[-1])):
            return list(names)
    counts = " or ".join(str(len(names)) for names in HEADERLESS)
    raise TraceError(
        f"{source.path}, line {line}, column {len(cells)}: sacct output without its header line has {counts} columns "
        f"(docs/traces.md lists them), and this line has {len(cells)}; run sacct without --noheader, or put the "
        "names of the columns first"
    )


def _state(row: Row) -> str:
    text = row.name("State")
    state = state_of(text)
    if state in NOT_ENDED:
        raise Drop("had not ended yet")
    if state not in ENDED:
        known = ", ".join(sorted(ENDED | NOT_ENDED))
        raise BadCell("State", text, "is not a job state", f"known are {known}")
    return state


def _date_s(row: Row, column: str) -> float | None:
    return None if row.text(column).lower() in NO_TIME else row.date_s(column)


def _elapsed_s(row: Row) -> float:
    if row.text("ElapsedRaw"):
        return row.real("ElapsedRaw")
    column = "Elapsed" if row.has("Elapsed") else "ElapsedRaw"
    run_s = elapsed_s(row.text(column))
    if run_s is None:
        remedy = "sacct writes [days-]hours:minutes:seconds"
        raise BadCell(column, row.text(column), "is not an elapsed time", remedy)
    return run_s


def _end_s(row: Row, start_s: float | None, run_s: float | None) -> float | None:
    if (end_s := _date_s(row, "End")) is not None:
        return end_s
    return start_s + run_s if start_s is not None and run_s is not None else None


def _limit_s(row: Row) -> float | None:
    text = row.text("Timelimit")
    found = limit_s(text)
    if found is None:
        remedy = "sacct writes [days-]hours:minutes:seconds or UNLIMITED"
        raise BadCell("Timelimit", text, "is not a time limit", remedy)
    if math.isinf(found) and row.text("TimelimitRaw"):
        found = limit_s(row.text("TimelimitRaw"))
        if found is None:
            raise BadCell("TimelimitRaw", row.text("TimelimitRaw"), "is not a number of minutes")
    return None if math.isinf(found) else found


class _Tres:
    """A cell such as ``cpu=4,mem=16G,gres/gpu:a100=2``; false where it is empty or the log has no such column."""

    def __init__(self, row: Row, column: str) -> None:
        self.column, self._text = column, row.text(column)
        found = tres(self._text)
        if found is None:
            raise BadCell(column, self._text, "is not a list of name=count")
        self._counts = found

    def __bool__(self) -> bool:
        return bool(self._counts)

    def text(self, name: str) -> str:
        return self._counts.get(name, "")

    def count(self, name: str) -> int:
        return self._whole(name) if name in self._counts else 0

    def gpus(self) -> int:
        """GPUs; of a job in slots (shards) each counts as one, as its user asked for."""
        counts = {name: self._whole(name) for name in self._counts if re.match("gres/(gpu|shard)(:|$)", name)}
        return gres_count(counts, "gpu") or gres_count(counts, "shard")

    def _whole(self, name: str) -> int:
        text = self._counts[name]
        if not (text.isascii() and text.isdigit() and len(text) < 19):
            problem, reason = f"gives no whole number for {name}", f"{self.column}: gives no whole number"
            raise BadCell(self.column, self._text, problem, reason=reason)
        return int(text)


def _whole(row: Row, *columns: str) -> int:
    for column in columns:
        if row.text(column):
            return row.whole(column)
    return 0


def _mem(row: Row, of: _Tres, nodes: int, cpus: int) -> int:
    column, text = "ReqMem", row.text("ReqMem")
    if not text:
        column, text = of.column, of.text("mem")
    if not text or text.endswith("?"):  # very old Slurm: not known
        return 0
    size = mem_mib(text, nodes, cpus)
    if size is None:
        raise BadCell(column, text, "is not a memory size", "sacct writes 48000Mn, 4Gc or 16G")
    return size


_COLUMNS = (
    *("JobID", "User", "Account", "Partition", "QOS", "Submit", "Start", "End", "ElapsedRaw", "State", "NNodes"),
    *("ReqTRES", "AllocTRES", "TimelimitRaw", "JobName"),
)


def as_lines(source: Source) -> Source:
    """JSON with a line for each job; the line of job N (from 1) in its list is N + 1. Any other file as it is.

    Raises:
        TraceError: it is JSON, but not sacct's.
    """
    if not source.text.lstrip().startswith("{"):
        return source
    try:
        jobs = json.loads(source.text)["jobs"]
        lines = ["|".join(_COLUMNS), *map(_line, jobs)]
    except (ValueError, RecursionError) as error:  # no JSON, or JSON that no Python number or stack holds
        where = f", line {error.lineno}, column {error.colno}" if isinstance(error, json.JSONDecodeError) else ""
        raise TraceError(
            f"{source.path}{where}: is not JSON that can be read ({str(error)[:80]}); write it anew with sacct "
            "--json, or give the output of sacct --parsable2"
        ) from None
    except (KeyError, TypeError, AttributeError):
        raise TraceError(
            f"{source.path}: is JSON, but not that of sacct --json, which has a list of jobs, each with its state "
            "and its times; give the output of sacct --json, or of sacct --parsable2"
        ) from None
    return Source(source.path, "\n".join(lines), source.sound)


def _line(job: Mapping[str, Any]) -> str:
    time, array = job["time"], _map(job.get("array"))
    state = _map(job["state"]).get("current")
    task = _number(array.get("task_id"))
    number = job["job_id"] if task is None else f"{_number(array.get('job_id'))}_{task}"
    tres = _map(job.get("tres"))
    limit = _number(time.get("limit"))
    cells = (
        number,
        job.get("user") or _map(job.get("association")).get("user"),
        job.get("account"),
        job.get("partition"),
        job.get("qos"),
        _number(time["submission"]),
        _number(time["start"]) or "Unknown",
        _number(time["end"]) or "Unknown",
        _number(time["elapsed"]),
        state[0] if isinstance(state, list) and state else state,
        _number(job.get("allocation_nodes")),
        ",".join(_things(tres.get("requested"))),
        ",".join(_things(tres.get("allocated"))),
        "UNLIMITED" if limit is None else limit,
        job.get("name"),
    )
    return "|".join(" ".join(str("" if cell is None else cell).split("\n")) for cell in cells)


def _things(listed: Any) -> Iterator[str]:
    for one in listed or ():
        name = f"{one['type']}/{one['name']}" if one.get("name") else one["type"]
        # sacct prints memory with its unit; in JSON it is in MiB
        yield f"{name}={_number(one.get('count'))}{'M' if name == 'mem' else ''}"


def _map(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _number(value: Any) -> Any:
    """A number in either of Slurm's wrappers; ``None`` where it is not set or infinite."""
    if isinstance(value, Mapping):
        return value.get("number") if value.get("set", True) and not value.get("infinite") else None
    return value
