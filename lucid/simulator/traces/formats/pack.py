"""Reads packs: one job a row, with a measured workload where the file has those columns, as the published Lucid
simulator reads them.

Submit times are seconds, from any beginning, or dates; durations are seconds. Rows are in the order in which equal
submit times are served. The full Helios logs have the same columns about the workload."""

from __future__ import annotations

from collections.abc import Sequence

from lucid.accounting.log_rows import BadCell, ReadOptions, Row, Source
from lucid.core.job import JobProfile
from lucid.simulator.traces.record import Draft, Trace, collect_csv

ABOUT = "a CSV of jobs"
NEEDED = ("job_id", "vc", "gpu_num", "submit_time", "duration")
_READINGS = ("gpu_util", "gmem_util", "gmem")
_LABEL_COLUMNS = ("model", "dataset", "batchsize", "amp")


def read(source: Source, header: list[str], header_line: int, options: ReadOptions) -> Trace:
    """Read a pack. Its first job says whether submit times are seconds or dates.

    Raises:
        TraceError: a missing column, or a bad row that is not to be skipped."""
    dated: list[bool] = []

    def draft(row: Row) -> Draft:
        if not dated:
            dated.append(not _is_number(row.text("submit_time")))
        try:
            return _parse(row, row.date_s("submit_time") if dated[0] else row.real("submit_time"))
        except BadCell as bad:
            if bad.column == "submit_time":
                bad.remedy = "write all submit times as seconds, or all as dates such as 2020-04-13 08:30:00"
            raise

    def epoch(first_s: float) -> float | None:
        return first_s if dated[0] else None

    return collect_csv(source, header, header_line, needed(header), ABOUT, draft, options, epoch)


def needed(header: Sequence[str]) -> tuple[str, ...]:
    """The columns that a file with this header has to have: all readings, or none."""
    return NEEDED + (_READINGS if any(column in header for column in _READINGS) else ())


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _parse(row: Row, submit_s: float) -> Draft:
    return Draft(
        id=row.name("job_id"),
        vc=row.name("vc"),
        gpus=row.whole("gpu_num"),
        submit_s=submit_s,
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
