"""Reads Helios ``cluster_log.csv``, and its "full" variant with a measured workload per job.

Dates carry no zone and are read as the cluster's own clock. ``duration`` (seconds) is taken as it stands: ``end_time
- start_time`` would be off by an hour where daylight saving changes in between. The published logs have no time
limits; a column ``wall_time`` (seconds, 0 for none) is one."""

from __future__ import annotations

from lucid.accounting.log_rows import ReadOptions, Row, Source
from lucid.simulator.traces.formats.pack import NEEDED, needed, profile_of
from lucid.simulator.traces.record import Draft, Trace, collect_csv

ABOUT = "a Helios cluster_log.csv"
__all__ = ["ABOUT", "NEEDED", "read"]


def read(source: Source, header: list[str], header_line: int, options: ReadOptions) -> Trace:
    """Read a Helios log.

    Raises:
        TraceError: a missing column, or a bad row that is not to be skipped."""
    return collect_csv(source, header, header_line, needed(header), ABOUT, _parse, options, lambda first_s: first_s)


def _parse(row: Row) -> Draft:
    return Draft(
        id=row.name("job_id"),
        vc=row.name("vc"),
        gpus=row.whole("gpu_num"),
        submit_s=row.date_s("submit_time"),
        duration_s=row.real("duration"),
        user=row.text("user"),
        name=row.text("jobname"),
        cpus=row.whole_or_none("cpu_num") or 0,
        time_limit_s=row.real_or_none("wall_time") or None,
        amp=row.flag_or_none("amp"),
        state=row.text("state").upper(),
        profile=profile_of(row),
        share_label=row.whole_or_none("share_label", most=2),
        waited_s=_waited_s(row),
    )


def _waited_s(row: Row) -> float | None:
    if row.text("start_time").lower() in {"", "none", "null", "nan"}:  # the log's words for a job that never ran
        return None
    return max(row.date_s("start_time") - row.date_s("submit_time"), 0.0)
