"""Reads logs of supercomputers and GPU clusters as Gen-Parallel-Workloads has them: Helios, Philly, Blue Waters.

A row has the seconds since the row before it in place of a date. ``wall_time`` is the time limit that the user asked
for; 0 where the log has none. There are no virtual clusters: all jobs are of one, ``cluster``."""

from __future__ import annotations

from lucid.accounting.log_rows import BadCell, ReadOptions, Row, Source
from lucid.simulator.traces.record import Draft, Trace, collect_csv, no_date

ABOUT = "a log of Gen-Parallel-Workloads"
NEEDED = ("u_id", "gpu_num", "node_num", "interval", "run_time", "wall_time", "new_status")
_STATES = {"Pass": "COMPLETED", "Failed": "FAILED", "Killed": "CANCELLED"}


def read(source: Source, header: list[str], header_line: int, options: ReadOptions) -> Trace:
    """Read such a log.

    Raises:
        TraceError: a missing column, or a bad row that is not to be skipped."""
    at_s = 0.0

    def parse(row: Row) -> Draft:
        nonlocal at_s
        at_s += row.real("interval")  # before all else: a row that is left out passes time, too
        return _parse(row, at_s)

    return collect_csv(source, header, header_line, NEEDED, ABOUT, parse, options, no_date)


def _parse(row: Row, at_s: float) -> Draft:
    state = row.name("new_status")
    if state not in _STATES:
        raise BadCell("new_status", state, f"is none of {', '.join(_STATES)}")
    return Draft(
        id=row.name("u_id"),
        vc="cluster",
        gpus=row.whole("gpu_num"),
        submit_s=at_s,
        duration_s=row.real("run_time"),
        user=row.text("user"),
        time_limit_s=row.real("wall_time") or None,
        state=_STATES[state],
        id_column="u_id",
    )
