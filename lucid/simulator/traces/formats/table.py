"""Reads any table with a header line as a trace; its user says which column is which."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from lucid.accounting.log_rows import (
    DELIMITERS,
    BadCell,
    ReadOptions,
    Row,
    Source,
    first_line,
    split_line,
)
from lucid.accounting.values import elapsed_s, limit_s, mem_mib, state_of
from lucid.errors import ConfigError
from lucid.simulator.traces.record import Draft, Trace, collect_csv

ABOUT = "a table whose columns --columns names"
NEEDED = ("id", "submit", "gpus")
NAMES = {
    "id": "the job's number or name",
    "submit": "when it was submitted: a date, or seconds",
    "start": "when it started: a date, or seconds",
    "end": "when it ended: a date, or seconds",
    "duration": "how long it ran: seconds, or [days-]hours:minutes:seconds",
    "gpus": "GPUs, over the whole job",
    "vc": "partition or queue; without it all jobs are in one, cluster",
    "user": "who submitted it",
    "account": "for whom",
    "name": "the job's name",
    "cpus": "CPUs, over the whole job",
    "mem": "host memory, over the whole job: MiB, or with a unit, 16G",
    "limit": "time limit: [days-]hours:minutes:seconds, or minutes",
    "state": "COMPLETED, FAILED or another state of Slurm",
}
"""What a column can be called, and what it holds. Needed are ``NEEDED``, and ``duration`` or both ``start`` and
``end``."""
_DATED = 1e8
"""Seconds beyond this (1973) count from 1970, and give the trace a date."""


def columns_from(text: str) -> dict[str, str]:
    """The columns by name, from ``submit=arrived,gpus=ngpu``, or from a file with one such pair a line (``@FILE``;
    ``#`` begins a comment).

    Raises: ConfigError: an unknown name, a pair without ``=``, a name twice, a missing one, or the file cannot be
    read."""
    pairs, where = text.split(","), "--columns"
    if text.startswith("@"):
        where = text[1:]
        try:
            lines = Path(where).read_text(encoding="utf-8-sig").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"--columns {text}: cannot be read ({error})") from None
        pairs = [line.partition("#")[0] for line in lines]
    found: dict[str, str] = {}
    for pair in filter(None, map(str.strip, pairs)):
        name, equals, column = (part.strip() for part in pair.partition("="))
        if name not in NAMES or not equals or not column:
            known = "; ".join(f"{known}: {about}" for known, about in NAMES.items())
            raise ConfigError(f"{where}: {pair!r} is not NAME=COLUMN with one of these names: {known}")
        if name in found:
            raise ConfigError(f"{where}: {name} stands twice")
        found[name] = column
    lacking = [name for name in NEEDED if name not in found]
    if not lacking and "duration" not in found and not {"start", "end"} <= found.keys():
        lacking = ["duration (or start and end)"]
    if lacking:
        raise ConfigError(f"{where}: says nothing of {', '.join(lacking)}; write {lacking[0].split()[0]}=COLUMN")
    return found


def read(source: Source, header: list[str], header_line: int, options: ReadOptions) -> Trace:
    """Read such a table.

    Raises: ConfigError: the columns were not named. TraceError: a column that is not there, or a bad row that is not
    to be skipped."""
    if not options.columns:
        raise ConfigError("--format table: say with --columns which column is which, as in submit=arrived,gpus=ngpu")
    line = first_line(source)[1]
    delimiter = max(DELIMITERS, key=line.count)
    header, of = split_line(line, delimiter), options.columns
    return collect_csv(
        source,
        header,
        header_line,
        list(of.values()),
        ABOUT,
        lambda row: _draft(row, of),
        options,
        lambda first_s: first_s if first_s > _DATED else None,
        delimiter=delimiter,
    )


def _draft(row: Row, of: Mapping[str, str]) -> Draft:
    def text(name: str) -> str:
        return row.text(of[name]).strip() if name in of else ""

    submit_s = _moment_s(row, of["submit"])
    start_s = _moment_s(row, of["start"]) if text("start") else None
    return Draft(
        id=row.name(of["id"]),
        vc=text("vc") or "cluster",
        gpus=row.whole(of["gpus"]) if text("gpus") else 0,
        submit_s=submit_s,
        duration_s=_duration_s(row, of, start_s),
        user=text("user"),
        account=text("account"),
        name=text("name"),
        cpus=row.whole(of["cpus"]) if text("cpus") else 0,
        mem_mib=_mem_mib(row, of["mem"]) if text("mem") else 0,
        time_limit_s=_limit_s(row, of["limit"]) if text("limit") else None,
        state=state_of(text("state").upper()),
        id_column=of["id"],
        waited_s=None if start_s is None else max(start_s - submit_s, 0.0),
    )


def _moment_s(row: Row, column: str) -> float:
    try:
        return row.date_s(column)
    except BadCell as no_date:
        try:
            return row.real(column)
        except BadCell:
            raise no_date from None


def _duration_s(row: Row, of: Mapping[str, str], start_s: float | None) -> float:
    if "duration" not in of:
        if start_s is None:
            raise BadCell(of["start"], "", "is empty, so nothing says how long the job ran")
        run_s = _moment_s(row, of["end"]) - start_s
        if run_s < 0:
            raise BadCell(of["end"], row.text(of["end"]), f"is before {of['start']!r}")
        return run_s
    column = of["duration"]
    found = elapsed_s(row.text(column).strip())
    return row.real(column) if found is None else found


def _limit_s(row: Row, column: str) -> float | None:
    found = limit_s(row.text(column).strip())
    if found is None:
        raise BadCell(
            column, row.text(column), "is not a time limit", "write minutes or [days-]hours:minutes:seconds"
        )
    return found if found < float("inf") else None


def _mem_mib(row: Row, column: str) -> int:
    found = mem_mib(row.text(column).strip(), 1, 1)
    if found is None:
        raise BadCell(column, row.text(column), "is not a memory size", "write MiB, or with a unit, as 16G")
    return found
