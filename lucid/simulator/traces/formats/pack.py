"""Reads packs: traces with a measured workload per job, as the published Lucid simulator reads them.

Submit times are seconds from the first job, durations seconds; rows are in the order in which equal submit times are
served. The full Helios logs have the same columns about the workload."""

from __future__ import annotations

from lucid.accounting.log_rows import ReadOptions, Row, Source
from lucid.core.job import JobProfile
from lucid.simulator.traces.record import Draft, Trace, collect_csv, no_date

ABOUT = "a pack CSV with measured workloads"
NEEDED = ("job_id", "vc", "gpu_num", "submit_time", "duration", "gpu_util", "gmem_util", "gmem")
_LABEL_COLUMNS = ("model", "dataset", "batchsize", "amp")


def read(source: Source, header: list[str], header_line: int, options: ReadOptions) -> Trace:
    """Read a pack.

    Raises:
        TraceError: a missing column, or a bad row that is not to be skipped."""
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


def _workload_label(row: Row) -> str:
    """``model|dataset|batchsize|amp``, the name of the workload in a table of measured pairs."""
    return "|".join(row.text(column) for column in _LABEL_COLUMNS) if row.text("model") else ""


def profile_of(row: Row) -> JobProfile | None:
    """The row's GPU use (%, %, MiB) as a profile, or ``None`` where it has none."""
    if not (row.text("gpu_util") or row.text("gmem_util") or row.text("gmem")):
        return None
    return JobProfile(
        gpu_util=row.real("gpu_util", most=100.0),
        mem_util=row.real("gmem_util", most=100.0),
        gpu_mem_mib=row.real("gmem"),
        amp=row.flag_or_none("amp"),
        workload=_workload_label(row),
    )
