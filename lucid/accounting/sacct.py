"""``SacctLog``: reads ended jobs from sacct output, as text or JSON, one job once.

Output of ``sacct --parsable2`` with its header line may have its columns in any order with any others between,
whatever delimits them; without it, one of the two orders of ``HEADERLESS``. ``sacct --json`` is turned into such
lines, one a job. One file may hold several answers."""

from __future__ import annotations

import contextlib
import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from lucid.accounting.answers import JOB_ID, TEXTS, Layout, delimiter_of, records
from lucid.accounting.log_rows import BadCell, Drop, Row, Source, fit_header
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
from lucid.text import mapping_of

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
    for name in (
        *HEADERLESS[0],
        *HEADERLESS[1],
        "AllocCPUS",
        "AllocNodes",
        "TimelimitRaw",
        "AllocGRES",
        "ReqGRES",
        *TEXTS,
    )
}
_REQUEUE_S = 3600.0
"""How long after its end (s) a job's new submission is a requeue. slurmctld keeps an ended job for minutes."""
_CUT = "where sacct cut it at the ends of the time asked for, ask anew without --truncate"


@dataclass(frozen=True, slots=True)
class SacctJob:
    """One job that ended. Times in Unix seconds, a date without a zone read as UTC.

    ``start_s`` and ``end_s`` are ``None`` where the log lacks them. ``run_s`` (s) is ``None`` where the job did not
    start; for one cancelled while it waited, Slurm may give a start and 0 s. ``gpus``, ``cpus`` and ``mem_mib`` (over
    the whole job) are those granted, else those asked for; ``asked_gpus`` and ``asked_cpus`` the reverse. ``limit_s``
    is ``None`` where the job had no time limit."""

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
    """Whether this is the first line of sacct output, its header or a job."""
    if delimiter_of(first):
        return True
    cells = first.split("|")
    return len(cells) > 4 and JOB_ID.fullmatch(cells[0].partition(".")[0]) is not None


@dataclass(slots=True)
class _Held:
    """A row, and the run that it is about: the runs of a cluster's job differ by their submission."""

    line: int
    job: SacctJob | None = None
    wrong: BadCell | Drop | None = None
    id: str = ""
    cluster: str = ""
    user: str = ""
    submit_s: float = math.nan


class SacctLog:
    """A file of sacct output: walk over ``rows()``, and ask ``job()`` after each. ``gpus``: the log must say how many
    GPUs jobs had.

    A file may hold several answers of sacct. What they say twice of a job counts once. Of a requeued job (``sacct
    --duplicates``) the last run counts, as sacct without that option prints it. A later job of the same number
    (another cluster's, or Slurm counts from the start again) is called ``501#2``.

    Raises: TraceError: a needed column is missing, or the file has no header and its number of fields is unknown."""

    def __init__(self, source: Source, first: str, line: int, *, gpus: bool = True) -> None:
        self._source, self._gpus = source, gpus
        self._skip = line if delimiter_of(first) else line - 1
        self._layout = self._layout_of(first, line)
        self.row = Row(self._layout.names)
        self._now = _Held(line, wrong=Drop(""))

    def _layout_of(self, first: str, line: int) -> Layout:
        delimiter = delimiter_of(first)
        if not delimiter:
            return _headerless(self._source, line, first)
        ends = first.endswith(delimiter)  # sacct --parsable ends every line with the delimiter
        cells = Layout([], delimiter, ends).split(first)
        names = [_KNOWN.get(cell.strip().lower(), cell.strip()) for cell in cells]
        needed = ["JobID", "Submit", "State", "ElapsedRaw" if "ElapsedRaw" in names else "Elapsed"]
        if self._gpus and not {"ReqTRES", "AllocGRES", "ReqGRES"} & set(names):
            needed.append("AllocTRES")  # one of these says how many GPUs
        fit_header(self._source, line, names, needed, ABOUT)
        return Layout(names, delimiter, ends)

    def rows(self) -> Iterator[BadCell | None]:
        """Fill ``row`` with one row after another; yields ``None``, or what is wrong with the row."""
        held = list(self._read())
        same: dict[str, list[_Held]] = {}
        for one in held:
            if not math.isnan(one.submit_s):
                same.setdefault(one.id, []).append(one)
        for runs in same.values():
            if len(runs) > 1:
                _settle(runs)
        for number, one in enumerate(held):
            self.row.line, self.row.number, self._now = one.line, number, one
            yield one.wrong if isinstance(one.wrong, BadCell) else None

    def job(self) -> SacctJob:
        """The job of the row.

        Raises:
            BadCell: a cell is not what its column holds.
            Drop: a step of a job, a job that has not ended, or one that another row tells of.
        """
        if self._now.job is None or self._now.wrong is not None:
            raise self._now.wrong or Drop("")
        return self._now.job

    def _read(self) -> Iterator[_Held]:
        now, row = self._layout, Row(self._layout.names)
        for line, layout, cells, bad in records(self._source, self._layout, self._skip, self._layout_of):
            if layout is not now:
                now, row = layout, Row(layout.names)
            row.cells = cells
            if bad is not None:
                yield _Held(line, wrong=bad)
                continue
            one = _Held(line, id=row.text("JobID"), cluster=row.text("Cluster"), user=row.text("User"))
            try:
                one.job = _job(row)
                one.submit_s = one.job.submit_s
            except BadCell as wrong:
                one.wrong = wrong
            except Drop as drop:
                one.wrong = drop
                with contextlib.suppress(BadCell):
                    one.submit_s = row.date_s("Submit") if drop.reason else math.nan
            yield one


def _settle(runs: list[_Held]) -> None:
    """Leave one row for each job of those with the same number."""
    if any(not one.cluster for one in runs):  # an answer without that column
        for one in runs:
            one.cluster = ""
    runs.sort(key=lambda one: (one.cluster, one.submit_s))
    kept: list[_Held] = []
    for one in runs:
        last = kept[-1] if kept else None
        if last is None or _another(last, one):
            kept.append(one)
        elif last.submit_s != one.submit_s or last.job is None:
            last.wrong, kept[-1] = Drop("run before a requeue" if last.job is not None else ""), one
        elif one.job is None or (last.job.state, last.job.run_s or 0.0) == (one.job.state, one.job.run_s or 0.0):
            one.wrong = Drop("")
        else:
            one.wrong = BadCell(
                "JobID", one.id, f"is told of otherwise in line {last.line}", _CUT, "duplicate job id"
            )
    for number, one in enumerate(kept):
        if number and one.job is not None:
            one.job = replace(one.job, id=f"{one.id}#{number + 1}")


def _another(last: _Held, one: _Held) -> bool:
    """Is this another job than the one before it? Slurm submits a requeued job anew as it ends, or soon after."""
    if last.cluster != one.cluster or "" != last.user != one.user != "":
        return True
    if last.submit_s == one.submit_s or last.job is None:
        return False
    end_s = last.submit_s + (last.job.run_s or 0.0) if last.job.end_s is None else last.job.end_s
    return not end_s - 1.0 <= one.submit_s <= end_s + _REQUEUE_S


def _job(row: Row) -> SacctJob:
    job_id = row.name("JobID")
    if "." in job_id:
        raise Drop("")  # a step of a job that has its own row
    if JOB_ID.fullmatch(job_id) is None:
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
    had_gpus = granted.gpus() or _gres(row.text("AllocGRES"))
    asked_gpus = asked.gpus() or _gres(row.text("ReqGRES")) * max(nodes, 1)  # of each node
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
        had_gpus or asked_gpus,
        cpus,
        asked_gpus or had_gpus,
        _whole(row, "ReqCPUS", "NCPUS", "AllocCPUS") or wanted.count("cpu"),
        _mem(row, had, nodes, cpus),
        _limit_s(row),
    )


def _headerless(source: Source, line: int, first: str) -> Layout:
    cells = first.split("|")
    ends = cells[-1] == "" and len(cells) not in map(len, HEADERLESS)
    for names in HEADERLESS:
        layout = Layout(list(names), "|", ends)
        if len(layout.split(first)) == len(names) or layout.fit(first):
            return layout
    counts, found = " or ".join(str(len(names)) for names in HEADERLESS), len(cells) - ends
    raise TraceError(
        f"{source.path}, line {line}, column {found}: sacct output without its header line has {counts} columns "
        f"(docs/traces.md lists them), and this line has {found}; run sacct without --noheader, or put the "
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
        """The number of GPUs; for a job in slots (shards) each counts as one, as its user asked for."""
        counts = {name: self._whole(name) for name in self._counts if re.match("gres/(gpu|shard)(:|$)", name)}
        return gres_count(counts, "gpu") or gres_count(counts, "shard")

    def _whole(self, name: str) -> int:
        text = self._counts[name]
        if not (text.isascii() and text.isdigit() and len(text) < 19):
            problem, reason = f"gives no whole number for {name}", f"{self.column}: gives no whole number"
            raise BadCell(self.column, self._text, problem, reason=reason)
        return int(text)


def _gres(text: str) -> int:
    """GPUs in ``gpu:v100:4,nic:1``, as Slurm before 21.08 names a job's granted resources."""
    parts = [part.partition("(")[0].split(":") for part in text.split(",")]
    return sum(int(part[-1]) if part[-1].isdecimal() else 1 for part in parts if part[0] == "gpu")


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
    *("Cluster", "ReqTRES", "AllocTRES", "TimelimitRaw", "JobName"),
)


def as_lines(source: Source) -> Source:
    """JSON as one line for each job, the line of job N (from 1) in its list being N + 1; any other file as it is.

    Raises: TraceError: it is JSON, but not sacct's."""
    if source.text.lstrip().startswith("["):
        philly = " (Philly's own: job_log of msr-fiddle/philly-traces)" if '"attempts"' in source.text else ""
        raise TraceError(
            f"{source.path}: is a JSON list{philly}, which is not read; write CSV with a line for each job and the "
            "header timestamp,duration,num_gpus,cluster: when it was submitted, for how many seconds it ran in all "
            "its attempts, its GPUs, and its virtual cluster"
        )
    if not source.text.lstrip().startswith("{"):
        return source
    try:
        lines = ["|".join(_COLUMNS)]
        for answer in _answers(source.text):
            lines += map(_line, answer["jobs"])
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


def _answers(text: str) -> Iterator[Any]:
    decoder, end = json.JSONDecoder(), 0
    while (at := end + len(text[end:]) - len(text[end:].lstrip())) < len(text):
        answer, end = decoder.raw_decode(text, at)
        yield answer


def _line(job: Mapping[str, Any]) -> str:
    time, array = job["time"], mapping_of(job.get("array"))
    state = mapping_of(job["state"]).get("current")
    task = _number(array.get("task_id"))
    number = job["job_id"] if task is None else f"{_number(array.get('job_id'))}_{task}"
    tres = mapping_of(job.get("tres"))
    limit = _number(time.get("limit"))
    cells = (
        number,
        job.get("user") or mapping_of(job.get("association")).get("user"),
        job.get("account"),
        job.get("partition"),
        job.get("qos"),
        _number(time["submission"]),
        _number(time["start"]) or "Unknown",
        _number(time["end"]) or "Unknown",
        _number(time["elapsed"]),
        state[0] if isinstance(state, list) and state else state,
        _number(job.get("allocation_nodes")),
        job.get("cluster"),
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


def _number(value: Any) -> Any:
    """The number in either of Slurm's wrappers; ``None`` where it is not set or infinite."""
    if isinstance(value, Mapping):
        return value.get("number") if value.get("set", True) and not value.get("infinite") else None
    return value
