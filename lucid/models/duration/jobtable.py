"""A plain table of jobs as numpy columns, and readers for logs of finished jobs.

Three layouts are recognised by their first line, never by their file name:

* ``sacct`` lines of 26 fields parted by ``|`` (``sacct --parsable2 --noheader``, fields as `SACCT_FIELDS`);
* comma-separated with a header that has ``submit_time`` and ``duration`` (seconds, times from any origin);
* comma-separated with a header that has ``submit_time``, ``start_time``, ``end_time`` and ``run_time``
  (calendar times, run time in seconds).

What is known when: a job's duration becomes known at its end. Where a log has no end of its own, a job is
taken to end at submission + duration, as if it had not queued; that lets a predictor see it somewhat early,
the same for every predictor compared on that log.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from lucid.errors import ModelError, TraceError

__all__ = ["PROFILE_COLUMNS", "SACCT_FIELDS", "JobTable", "read_jobs"]

FloatArray = npt.NDArray[np.float64]
TextArray = npt.NDArray[np.object_]

SACCT_FIELDS: Final = (
    *("jobid", "jobidraw", "cluster", "partition", "qos", "account", "group", "gid", "user", "uid"),
    *("submit", "eligible", "start", "end", "elapsed", "exitcode", "state", "nnodes", "ncpus", "reqcpus"),
    *("reqmem", "reqtres", "alloctres", "timelimit", "nodelist", "jobname"),
)
_TEXT: Final = ("job_id", "user", "account", "partition", "qos", "name")
# What is measured while a job is profiled: per cent, per cent, MiB.
PROFILE_COLUMNS: Final = ("gpu_util", "mem_util", "gpu_mem_mib")
_NEVER: Final = frozenset({"", "None", "none", "Unknown", "N/A"})
_NO_LIMIT: Final = _NEVER | {"Partition_Limit", "UNLIMITED", "INFINITE", "NOT_SET"}
# Slurm stores --mem-per-cpu as the amount with bit 31 set (MEM_PER_CPU); old sacct versions print it raw.
_MEM_PER_CPU_FLAG: Final = 1 << 31
_MIB: Final = {"K": 1 / 1024, "M": 1.0, "G": 1024.0, "T": 1024.0**2, "P": 1024.0**3}
_MEMORY: Final = re.compile(r"(\d+(?:\.\d+)?)([KMGTP]?)B?([nc]?)", re.ASCII)
_DURATION: Final = re.compile(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+(?:\.\d+)?))?", re.ASCII)
_GPU_TRES: Final = re.compile(r"(?:gres/)?gpu(?::[^:=,(]+)?[:=](\d+)", re.ASCII)


@dataclass(frozen=True)
class JobTable:
    """Jobs as columns of shape (n,): text columns hold str or None, the others float64 with NaN for unknown.

    Units: `nodes`, `gpus`, `cpus` are totals of the request; `memory_mib` is the job's total MiB; `limit_s`
    the requested wall-clock limit; `submit_s`, `end_s` seconds from one origin; `duration_s` run time in s.
    `profile` holds what was measured of a job, NaN where nothing was: columns ``gpu_util`` and ``mem_util`` in per
    cent, ``gpu_mem_mib``. A log may bring columns of these names; without, there are none here either.
    """

    job_id: TextArray
    user: TextArray
    account: TextArray
    partition: TextArray
    qos: TextArray
    name: TextArray
    nodes: FloatArray
    gpus: FloatArray
    cpus: FloatArray
    memory_mib: FloatArray
    limit_s: FloatArray
    submit_s: FloatArray
    end_s: FloatArray
    duration_s: FloatArray
    profile: Mapping[str, FloatArray] = field(default_factory=dict)

    @classmethod
    def of(cls, profile: Mapping[str, Sequence[float]] | None = None, /, **columns: Sequence[Any]) -> JobTable:
        """Build from any of the columns; absent text is None, absent numbers are NaN (`gpus`: 0).

        Raises:
            ModelError: an unknown column name, or columns of different length.
        """
        known = [f.name for f in fields(cls) if f.name != "profile"]
        if unknown := sorted(set(columns) - set(known)):
            raise ModelError(f"columns {unknown} are not of a job table; known are {', '.join(known)}")
        profile = profile or {}
        lengths = {len(column) for column in (*columns.values(), *profile.values())}
        if len(lengths) > 1:
            raise ModelError(f"columns differ in length: {sorted(lengths)}; give one value per job in each")
        size = lengths.pop() if lengths else 0
        made: dict[str, Any] = {}
        for name in known:
            if name in _TEXT:
                made[name] = _text(columns.get(name, [None] * size))
            else:
                made[name] = np.array(columns.get(name, [0.0 if name == "gpus" else np.nan] * size), dtype=np.float64)
        extra = {name: np.array(values, dtype=np.float64) for name, values in profile.items()}
        return cls(**made, profile=extra)

    def __len__(self) -> int:
        return len(self.submit_s)

    def take(self, rows: npt.ArrayLike) -> JobTable:
        """The rows of an index array, mask or slice-like array, in its order."""
        index = np.asarray(rows)
        columns = {f.name: getattr(self, f.name)[index] for f in fields(self) if f.name != "profile"}
        return JobTable(**columns, profile={name: column[index] for name, column in self.profile.items()})

    def by_submit(self) -> JobTable:
        """The same jobs ordered by submission; ties keep the log's order."""
        return self.take(np.argsort(self.submit_s, kind="stable"))


def read_jobs(path: Path) -> JobTable:
    """Read a log of finished jobs in any of the three layouts, ordered by submission.

    A job that never started has no duration (NaN); it keeps its row, so that row numbers are the log's.

    Raises:
        TraceError: the file cannot be read, its layout is none of the known ones, or a value is not what
            its column holds; the message names file, line, column, value and remedy.
    """
    try:
        with path.open(encoding="utf-8", newline="") as file:
            first = file.readline().rstrip("\r\n")
            file.seek(0)
            if first.count("|") == len(SACCT_FIELDS) - 1:
                lines = (line.rstrip("\r\n").split("|") for line in file)
                return _read(path, SACCT_FIELDS, lines, _SACCT, first_line=1)
            header = next(csv.reader([first]), [])
            for needed, columns in _CSV_LAYOUTS:
                if needed <= set(header):
                    rows = csv.reader(file)
                    next(rows)
                    return _read(path, header, rows, columns, first_line=2)
    except (OSError, UnicodeDecodeError) as error:
        raise TraceError(f"{path}: cannot be read ({error}); give a log of finished jobs") from error
    raise TraceError(
        f"{path}: line 1 is of no known layout; give {len(SACCT_FIELDS)} fields parted by '|' (sacct) or a "
        f"header with {' or '.join(str(sorted(needed)) for needed, _ in _CSV_LAYOUTS)}"
    )


_Row = Mapping[str, str]
_Column = tuple[str, Callable[[_Row], Any]]


def _read(
    path: Path,
    header: Sequence[str],
    rows: Iterable[list[str]],
    columns: Mapping[str, _Column],
    *,
    first_line: int,
) -> JobTable:
    columns = {**columns, **{name: _column(name, _number) for name in PROFILE_COLUMNS if name in header}}
    made: dict[str, list[Any]] = {name: [] for name in columns}
    for line, cells in enumerate(rows, start=first_line):
        if not cells or cells == [""]:
            continue
        if len(cells) != len(header):
            raise TraceError(f"{path}: line {line} has {len(cells)} fields, not {len(header)}; mend or drop the line")
        row = dict(zip(header, cells, strict=True))
        for name, (source, parse) in columns.items():
            try:
                made[name].append(parse(row))
            except ValueError as error:
                raise TraceError(
                    f"{path}: line {line}, column {source!r}: {row.get(source, '')!r} cannot be read "
                    f"({error}); mend or drop the line"
                ) from error
    measured = [name for name in PROFILE_COLUMNS if name in header]
    return JobTable.of({name: made.pop(name) for name in measured}, **made).by_submit()


def _text(values: Sequence[Any]) -> TextArray:
    column = np.empty(len(values), dtype=object)
    column[:] = [None if value is None or value == "" else str(value) for value in values]
    return column


def _column(source: str, parse: Callable[[str], Any]) -> _Column:
    return source, lambda row: parse(row.get(source, ""))


def _number(text: str) -> float:
    return float(text) if text not in _NEVER else float("nan")


def _seconds(text: str) -> float:
    """Slurm's [days-]hours:minutes:seconds, minutes:seconds or minutes; NaN for none."""
    if text in _NO_LIMIT:
        return float("nan")
    match = _DURATION.fullmatch(text)
    if match is None:
        raise ValueError("want [days-]hh:mm:ss")
    days, first, second, third = match.groups()
    parts = [float(part) for part in (first, second, third) if part is not None]
    if days is not None:  # days-hours[:minutes[:seconds]]
        parts += [0.0] * (3 - len(parts))
    elif len(parts) < 3:  # minutes[:seconds]
        parts = [0.0, *parts, *([0.0] * (2 - len(parts)))]
    return float(days or 0) * 86400 + parts[0] * 3600 + parts[1] * 60 + parts[2]


def _calendar(text: str) -> float:
    """Seconds since 1970 of a wall-clock reading, taken as it stands (no zone is given, none is needed)."""
    if text in _NEVER:
        return float("nan")
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


def _memory_mib(text: str, *, nodes: float, cpus: float) -> float:
    if text in _NEVER or text == "0":
        return float("nan")
    match = _MEMORY.fullmatch(text)
    if match is None:
        raise ValueError("want an amount such as 4000M, 4Gn or 2Gc")
    amount, unit, per = float(match[1]), match[2] or "M", match[3]
    mib = amount * _MIB[unit]
    if unit == "M" and amount >= _MEM_PER_CPU_FLAG:
        mib, per = amount - _MEM_PER_CPU_FLAG, "c"
    return mib * (cpus if per == "c" else nodes)


def _gpus(text: str) -> float:
    return float(sum(int(count) for count in _GPU_TRES.findall(text)))


def _sacct_duration(row: _Row) -> float:
    return _seconds(row["elapsed"]) if row["start"] not in _NEVER else float("nan")


def _short_end(row: _Row) -> float:
    return float(row["submit_time"]) + _number(row["duration"])


_SACCT: Final[Mapping[str, _Column]] = {
    "job_id": _column("jobid", str),
    "user": _column("user", str),
    "account": _column("account", str),
    "partition": _column("partition", str),
    "qos": _column("qos", str),
    "name": _column("jobname", str),
    "nodes": _column("nnodes", _number),
    "gpus": _column("reqtres", _gpus),
    "cpus": _column("reqcpus", _number),
    "memory_mib": (
        "reqmem",
        lambda row: _memory_mib(row["reqmem"], nodes=float(row["nnodes"]), cpus=float(row["reqcpus"])),
    ),
    "limit_s": _column("timelimit", _seconds),
    "submit_s": _column("submit", _calendar),
    "end_s": _column("end", _calendar),
    "duration_s": ("elapsed", _sacct_duration),
}
_SHORT_CSV: Final[Mapping[str, _Column]] = {
    "job_id": _column("job_id", str),
    "user": _column("user", str),
    "account": _column("account", str),
    "partition": _column("partition", str),
    "qos": _column("qos", str),
    "name": _column("name", str),
    "nodes": _column("nodes", _number),
    "gpus": ("gres", lambda row: _gpus(row.get("gres", "")) * float(row.get("nodes") or 1)),
    "cpus": _column("tasks", _number),
    "memory_mib": (
        "mem",
        lambda row: _memory_mib(
            row.get("mem", ""), nodes=float(row.get("nodes") or 1), cpus=float(row.get("tasks") or 1)
        ),
    ),
    "limit_s": _column("time_limit", _seconds),
    "submit_s": _column("submit_time", float),
    "end_s": ("duration", _short_end),
    "duration_s": _column("duration", _number),
}
_LONG_CSV: Final[Mapping[str, _Column]] = {
    "job_id": _column("job_id", str),
    "user": _column("user", str),
    "account": _column("account", str),
    "partition": _column("partition", str),
    "qos": _column("qos", str),
    "name": _column("name", str),
    "nodes": _column("nodes_req", _number),
    "gpus": _column("gpus_req", lambda text: float(text or 0)),
    "cpus": _column("processors_req", _number),
    "memory_mib": _column("mem_req", lambda text: _number(text) or float("nan")),
    "limit_s": _column("wallclock_req", _number),
    "submit_s": _column("submit_time", _calendar),
    "end_s": _column("end_time", _calendar),
    "duration_s": _column("run_time", _number),
}
_CSV_LAYOUTS: Final = (
    (frozenset({"submit_time", "duration"}), _SHORT_CSV),
    (frozenset({"submit_time", "start_time", "end_time", "run_time"}), _LONG_CSV),
)
