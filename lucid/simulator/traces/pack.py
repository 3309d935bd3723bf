"""Packs: traces with a measured workload per job, as the published Lucid simulator reads them.

Submit times are seconds from the first job, durations seconds; rows are in the order in which equal
submit times are served.
"""

from __future__ import annotations

from lucid.simulator.traces.collect import Draft, collect_csv, no_date
from lucid.simulator.traces.record import Trace
from lucid.simulator.traces.workload import profile_of
from lucid.slurmlog.rows import ReadOptions, Row, Source

__all__ = ["ABOUT", "NEEDED", "read"]

ABOUT = "a pack CSV with measured workloads"
NEEDED = ("job_id", "vc", "gpu_num", "submit_time", "duration", "gpu_util", "gmem_util", "gmem")


def read(source: Source, header: list[str], header_line: int, options: ReadOptions) -> Trace:
    """Read a pack.

    Raises:
        TraceError: a missing column, or a bad row that is not to be skipped.
    """
    return collect_csv(source, header, header_line, NEEDED, ABOUT, _parse, options, no_date)


def _parse(row: Row) -> Draft:
    return Draft(
        id=row.name("job_id"),
        vc=row.name("vc"),
        gpus=row.whole("gpu_num"),
        submit_s=row.real("submit_time"),
        duration_s=row.real("duration"),
        user=row.text("user"),
        amp=row.flag_or_none("amp"),
        state=row.text("state").upper(),
        profile=profile_of(row),
        share_label=row.whole_or_none("share_label", most=2),
    )
