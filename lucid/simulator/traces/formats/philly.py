"""Reads the Philly log in one CSV: date of submission, seconds, GPUs, virtual cluster; rows in any order.

It has no job ids: a job is named by the number of its row, from 1."""

from __future__ import annotations

from lucid.accounting.log_rows import ReadOptions, Row, Source
from lucid.simulator.traces.record import Draft, Trace, collect_csv

ABOUT = "the Philly log as CSV"
NEEDED = ("timestamp", "duration", "num_gpus", "cluster")


def read(source: Source, header: list[str], header_line: int, options: ReadOptions) -> Trace:
    """Read a Philly CSV.

    Raises:
        TraceError: a missing column, or a bad row that is not to be skipped."""
    return collect_csv(source, header, header_line, NEEDED, ABOUT, _parse, options, lambda first_s: first_s)


def _parse(row: Row) -> Draft:
    return Draft(
        id=str(row.number + 1),
        vc=row.name("cluster"),
        gpus=row.whole("num_gpus"),
        submit_s=row.date_s("timestamp"),
        duration_s=row.real("duration"),
        id_column="",
    )
