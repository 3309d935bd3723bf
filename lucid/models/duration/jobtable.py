"""``JobTable``: jobs as numpy columns, and readers of logs of finished jobs, known by their first line:

* output of ``sacct --parsable2``, with or without its header line (``lucid.accounting.sacct``);
* comma-separated with a header that has ``submit_time`` and ``duration`` (seconds, times from any origin);
* comma-separated with a header that has ``submit_time``, ``start_time``, ``end_time`` and ``run_time``
  (calendar times, run time in seconds).

A job's duration becomes known at its end. Where a log has neither end nor start, a job is taken to end at submission
+ duration, as if it had not queued; that lets a predictor see it somewhat early, the same for every predictor
compared."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from msgspec import Struct, field

from lucid.accounting.log_rows import BadCell, Drop, Row, Source, csv_rows, first_line, load, split_line
from lucid.accounting.sacct import SacctJob, SacctLog, as_lines, is_sacct
from lucid.accounting.values import NO_TIME, limit_s, mem_mib
from lucid.core.job import Job
from lucid.errors import ModelError, TraceError

FloatArray = npt.NDArray[np.float64]
TextArray = npt.NDArray[np.object_]

_TEXT: Final = ("job_id", "user", "account", "partition", "qos", "name")
# What is measured while a job is profiled: per cent, per cent, MiB.
PROFILE_COLUMNS: Final = ("gpu_util", "mem_util", "gpu_mem_mib")
_GPUS: Final = re.compile(r"(?:gres/)?gpu(?::[^:=,(]+)?[:=](\d+)", re.ASCII)
_NAN: Final = float("nan")


class JobTable(Struct, frozen=True):
    """Jobs as columns of shape (n,): text columns hold str or None, the others float64 with NaN for unknown.

    Units: `nodes`, `gpus`, `cpus` are totals of the request; `memory_mib` is the job's total MiB; `limit_s` the
    requested wall-clock limit; `submit_s`, `end_s` seconds from one origin; `duration_s` run time in s. `profile`
    holds the measurements of jobs, NaN where there is none: columns ``gpu_util`` and ``mem_util`` in per cent,
    ``gpu_mem_mib``; it is empty where the log has no such columns."""

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
    def from_columns(
        cls, profile: Mapping[str, Sequence[float]] | None = None, /, **columns: Sequence[Any]
    ) -> JobTable:
        """Build from any of the columns; absent text is None, absent numbers are NaN (`gpus`: 0).

        Raises:
            ModelError: an unknown column name, or columns of different length."""
        known = [name for name in cls.__struct_fields__ if name != "profile"]
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
                made[name] = _texts(columns.get(name, [None] * size))
            else:
                made[name] = np.array(columns.get(name, [0.0 if name == "gpus" else np.nan] * size), dtype=np.float64)
        extra = {name: np.array(values, dtype=np.float64) for name, values in profile.items()}
        return cls(**made, profile=extra)

    def __len__(self) -> int:
        return len(self.submit_s)

    def select(self, rows: npt.ArrayLike) -> JobTable:
        """The rows of an index array, mask or slice-like array, in its order."""
        index = np.asarray(rows)
        columns = {name: getattr(self, name)[index] for name in self.__struct_fields__ if name != "profile"}
        return JobTable(**columns, profile={name: column[index] for name, column in self.profile.items()})

    def by_submit(self) -> JobTable:
        """The same jobs ordered by submission; ties keep the log's order."""
        return self.select(np.argsort(self.submit_s, kind="stable"))


def read_jobs(path: Path) -> JobTable:
    """Read a log of finished jobs in any of the four layouts, ordered by submission.

    A job that never started has no duration (NaN) and keeps its row. Of sacct output, jobs that have not ended and
    steps of jobs are left out.

    Raises:
        TraceError: the file cannot be read, its layout is none of the known ones, or a value is not what
            its column holds; the message names file, line, column, value and remedy."""
    source = as_lines(load(path))
    line, first = first_line(source)
    if is_sacct(first):
        log = SacctLog(source, first, line, gpus=False)
        return _read(source, log.rows(), log.row, lambda _: _accounted(log.job()))
    header = split_line(first)
    for needed, columns in _CSV_LAYOUTS:
        if needed <= set(header):
            row = Row(header)
            profile: dict[str, _Cell] = {name: _real(name) for name in PROFILE_COLUMNS if name in header}
            parse = _cells({**columns, **profile})
            return _read(source, csv_rows(source, row, len(header), header, line), row, parse, list(profile))
    layouts = " or ".join(", ".join(sorted(needed)) for needed, _ in _CSV_LAYOUTS)
    raise TraceError(
        f"{path}, line {line}: not the first line of a log of jobs: {first[:100]!r}; give output of sacct "
        f"--parsable2, or a CSV file with columns {layouts}"
    )


_Cell = Callable[[Row], Any]


def _cells(columns: Mapping[str, _Cell]) -> Callable[[Row], Mapping[str, Any]]:
    return lambda row: {name: cell(row) for name, cell in columns.items()}


def _read(
    source: Source,
    rows: Iterator[BadCell | None],
    row: Row,
    parse: Callable[[Row], Mapping[str, Any]],
    profile: Sequence[str] = (),
) -> JobTable:
    made: list[Mapping[str, Any]] = []
    for shape in rows:
        try:
            if shape is not None:
                raise shape
            made.append(parse(row))
        except Drop:
            continue
        except BadCell as bad:
            raise source.fail(row.line, bad, "correct or delete the row") from None
    columns = {name: [job[name] for job in made] for name in (made[0] if made else ())}
    measured = {name: columns.pop(name, []) for name in profile}
    return JobTable.from_columns(measured, **columns).by_submit()


def _accounted(job: SacctJob) -> dict[str, Any]:
    return {
        "job_id": job.id,
        "user": job.user,
        "account": job.account,
        "partition": job.partition,
        "qos": job.qos,
        "name": job.name,
        "nodes": job.nodes or _NAN,
        "gpus": job.asked_gpus,
        "cpus": job.asked_cpus or _NAN,
        "memory_mib": job.mem_mib or _NAN,
        "limit_s": _NAN if job.limit_s is None else job.limit_s,
        "submit_s": job.submit_s,
        "end_s": job.submit_s + (job.run_s or 0.0) if job.end_s is None else job.end_s,
        "duration_s": _NAN if job.run_s is None else job.run_s,
    }


def _texts(values: Sequence[Any]) -> TextArray:
    column = np.empty(len(values), dtype=object)
    column[:] = [None if value is None or value == "" else str(value) for value in values]
    return column


def _text(column: str) -> _Cell:
    return lambda row: row.text(column)


def _real(column: str) -> _Cell:
    return lambda row: _NAN if row.text(column).lower() in NO_TIME else row.real(column)


def _date(column: str) -> _Cell:
    return lambda row: _NAN if row.text(column).lower() in NO_TIME else row.date_s(column)


def _limit(row: Row) -> float:
    text = row.text("time_limit")
    found = limit_s(text)
    if found is None:
        raise BadCell("time_limit", text, "is not a time limit", "write [days-]hours:minutes:seconds")
    return _NAN if math.isinf(found) else found


def _memory(row: Row) -> float:
    """The memory of the whole job in MiB. A size without a letter is of each node, as in ``sbatch --mem``."""
    text = row.text("mem")
    found = mem_mib(text, row.whole_or_none("nodes") or 1, row.whole_or_none("tasks") or 1, of="n") if text else 0
    if found is None:
        raise BadCell("mem", text, "is not a memory size", "write 4000M, 4Gn or 2Gc")
    return found or _NAN


def _gpus(row: Row) -> float:
    each = sum(int(count) for count in _GPUS.findall(row.text("gres")))
    return float(each * (row.whole_or_none("nodes") or 1))


_COMMON: Final[Mapping[str, _Cell]] = {
    name: _text(name) for name in ("job_id", "user", "account", "partition", "qos", "name")
}
_SHORT_CSV: Final[Mapping[str, _Cell]] = {
    **_COMMON,
    "nodes": _real("nodes"),
    "gpus": _gpus,
    "cpus": _real("tasks"),
    "memory_mib": _memory,
    "limit_s": _limit,
    "submit_s": lambda row: row.real("submit_time"),
    "end_s": lambda row: row.real("submit_time") + _real("duration")(row),
    "duration_s": _real("duration"),
}
_LONG_CSV: Final[Mapping[str, _Cell]] = {
    **_COMMON,
    "nodes": _real("nodes_req"),
    "gpus": lambda row: row.real_or_none("gpus_req") or 0.0,
    "cpus": _real("processors_req"),
    "memory_mib": lambda row: row.real_or_none("mem_req") or _NAN,
    "limit_s": _real("wallclock_req"),
    "submit_s": _date("submit_time"),
    "end_s": _date("end_time"),
    "duration_s": _real("run_time"),
}
_WAITS_CSV: Final[Mapping[str, _Cell]] = {
    **_COMMON,
    "nodes": lambda row: row.real_or_none("nodes") or _NAN,
    "gpus": lambda row: row.real_or_none("gpus") or 0.0,
    "cpus": lambda row: row.real_or_none("req_cpus") or _NAN,
    "memory_mib": lambda row: row.real_or_none("mem_mib") or _NAN,
    "limit_s": lambda row: row.real_or_none("time_limit_s") or _NAN,
    "submit_s": _date("submit_time"),
    "end_s": _date("end_time"),
    "duration_s": _real("duration_s"),
}
_CSV_LAYOUTS: Final = (
    (frozenset({"submit_time", "duration"}), _SHORT_CSV),
    (frozenset({"submit_time", "start_time", "end_time", "run_time"}), _LONG_CSV),
    (frozenset({"submit_time", "start_time", "end_time", "duration_s"}), _WAITS_CSV),
)


def request_columns(jobs: Sequence[Job], epoch_s: float) -> dict[str, Any]:
    """What jobs ask for, as the columns that ``JobTable.from_columns`` takes; ``epoch_s`` is added to their times."""
    nan = float("nan")
    return {
        "job_id": [job.id for job in jobs],
        "user": [job.user for job in jobs],
        "account": [job.account for job in jobs],
        "partition": [job.vc for job in jobs],
        "name": [job.name for job in jobs],
        "gpus": [float(job.gpus) for job in jobs],
        "cpus": [float(job.cpus) if job.cpus else nan for job in jobs],
        "memory_mib": [float(job.mem_mib) if job.mem_mib else nan for job in jobs],
        "limit_s": [nan if job.time_limit_s is None else job.time_limit_s for job in jobs],
        "submit_s": [job.submit_s + epoch_s for job in jobs],
    }
