"""Reads logs in one CSV with a header and a job a row: those that clusters have published, and packs.

*Helios*: ``cluster_log.csv``, and its "full" variant with a measured workload per job. Dates carry no zone and are
read as the cluster's own clock. ``duration`` (seconds) is taken as it stands: ``end_time - start_time`` would be off
by an hour where daylight saving changes in between. The published logs have no time limits; a column ``wall_time``
(seconds, 0 for none) is one.

*Packs*: as the published Lucid simulator reads them, with a measured workload where the file has those columns.
Submit times are seconds, from any beginning, or dates, as the first job has them. Rows are in the order in which
equal submit times are served.

*Philly*: date of submission, seconds, GPUs, virtual cluster; rows in any order. It has no job ids: a job is named by
the number of its row, from 1.

*openb*, Alibaba's pods of 2023: a GPU, several, or thousandths of one; times in seconds. Slurm gives whole GPUs: a
pod that asked for a part of one is a job of one GPU. Pods that never ran are left out. The log ends before many pods
do: one that still ran counts as ended with it.

*Gen-Parallel-Workloads*: Helios, Philly and Blue Waters with the seconds since the row before in place of a date.
``wall_time`` is the time limit that the user asked for; 0 where the log has none. There are no virtual clusters: all
jobs are of one, ``cluster``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from lucid.accounting.log_rows import BadCell, Drop, ReadOptions, Row, Source
from lucid.core.job import JobProfile
from lucid.simulator.traces.record import Draft, Trace, collect_csv, no_date

_READINGS = ("gpu_util", "gmem_util", "gmem")
_LABEL_COLUMNS = ("model", "dataset", "batchsize", "amp")
_STATES = {
    "openb": {"Succeeded": "COMPLETED", "Failed": "FAILED", "Running": "CANCELLED"},
    "parallel": {"Pass": "COMPLETED", "Failed": "FAILED", "Killed": "CANCELLED"},
}

_Parse = Callable[[Row], Draft]
_Epoch = Callable[[float], float | None]


class CsvLog(NamedTuple):
    """A log in CSV. ``needed``: its columns; ``start`` gives what parses the rows of one file, and what says when its
    second 0 was. ``measured``: it may have all readings of a workload, or none."""

    about: str
    needed: tuple[str, ...]
    start: Callable[[], tuple[_Parse, _Epoch]]
    measured: bool = False

    def read(self, source: Source, header: list[str], header_line: int, options: ReadOptions) -> Trace:
        """Read such a log.

        Raises:
            TraceError: a missing column, or a bad row that is not to be skipped."""
        parse, epoch = self.start()
        return collect_csv(source, header, header_line, self._needed(header), self.about, parse, options, epoch)

    def _needed(self, header: Sequence[str]) -> tuple[str, ...]:
        return self.needed + (_READINGS if self.measured and any(one in header for one in _READINGS) else ())


def _dated(first_s: float) -> float:
    return first_s


def _helios(row: Row) -> Draft:
    waited_s = None
    if row.text("start_time").lower() not in {"", "none", "null", "nan"}:  # the log's words for one that never ran
        waited_s = max(row.date_s("start_time") - row.date_s("submit_time"), 0.0)
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
        profile=_profile_of(row),
        share_label=row.whole_or_none("share_label", most=2),
        waited_s=waited_s,
    )


def _pack() -> tuple[_Parse, _Epoch]:
    dated: list[bool] = []

    def draft(row: Row) -> Draft:
        if not dated:
            dated.append(not _is_number(row.text("submit_time")))
        try:
            return _packed(row, row.date_s("submit_time") if dated[0] else row.real("submit_time"))
        except BadCell as bad:
            if bad.column == "submit_time":
                bad.remedy = "write all submit times as seconds, or all as dates such as 2020-04-13 08:30:00"
            raise

    return draft, lambda first_s: first_s if dated[0] else None


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _packed(row: Row, submit_s: float) -> Draft:
    return Draft(
        id=row.name("job_id"),
        vc=row.name("vc"),
        gpus=row.whole("gpu_num"),
        submit_s=submit_s,
        duration_s=row.real("duration"),
        user=row.text("user"),
        amp=row.flag_or_none("amp"),
        state=row.text("state").upper(),
        profile=_profile_of(row),
        share_label=row.whole_or_none("share_label", most=2),
    )


def _profile_of(row: Row) -> JobProfile | None:
    """The row's GPU use (%, %, MiB) as a profile, or ``None`` where it has none. Its workload is the name in a table
    of measured pairs, ``model|dataset|batchsize|amp``."""
    if not any(row.text(column) for column in _READINGS):
        return None
    return JobProfile(
        gpu_util=row.real("gpu_util", most=100.0),
        mem_util=row.real("gmem_util", most=100.0),
        gpu_mem_mib=row.real("gmem"),
        amp=row.flag_or_none("amp"),
        workload="|".join(row.text(column) for column in _LABEL_COLUMNS) if row.text("model") else "",
    )


def _philly(row: Row) -> Draft:
    return Draft(
        id=str(row.number + 1),
        vc=row.name("cluster"),
        gpus=row.whole("num_gpus"),
        submit_s=row.date_s("timestamp"),
        duration_s=row.real("duration"),
        id_column="",
    )


def _openb(row: Row) -> Draft:
    if not row.text("scheduled_time") or not row.text("deletion_time"):
        raise Drop("never ran")
    created_s, began_s = row.real("creation_time"), row.real("scheduled_time")
    return Draft(
        id=row.name("name"),
        vc="cluster",
        gpus=row.whole("num_gpu"),
        submit_s=created_s,
        duration_s=max(row.real("deletion_time") - began_s, 0.0),
        name=row.text("qos"),
        cpus=-(-row.whole("cpu_milli") // 1000),
        mem_mib=row.whole("memory_mib"),
        state=_STATES["openb"].get(row.text("pod_phase"), ""),
        waited_s=max(began_s - created_s, 0.0),
        id_column="name",
    )


def _parallel() -> tuple[_Parse, _Epoch]:
    at_s = 0.0

    def parse(row: Row) -> Draft:
        nonlocal at_s
        at_s += row.real("interval")  # before all else: a row that is left out passes time, too
        state, states = row.name("new_status"), _STATES["parallel"]
        if state not in states:
            raise BadCell("new_status", state, f"is none of {', '.join(states)}")
        return Draft(
            id=row.name("u_id"),
            vc="cluster",
            gpus=row.whole("gpu_num"),
            submit_s=at_s,
            duration_s=row.real("run_time"),
            user=row.text("user"),
            time_limit_s=row.real("wall_time") or None,
            state=states[state],
            id_column="u_id",
        )

    return parse, no_date


_JOB = ("job_id", "vc", "gpu_num", "submit_time", "duration")
LOGS = {
    "pack": CsvLog("a CSV of jobs", _JOB, _pack, measured=True),
    "philly": CsvLog(
        "the Philly log as CSV", ("timestamp", "duration", "num_gpus", "cluster"), lambda: (_philly, _dated)
    ),
    "helios": CsvLog("a Helios cluster_log.csv", _JOB, lambda: (_helios, _dated), measured=True),
    "openb": CsvLog(
        "Alibaba's list of openb pods",
        (
            *("name", "cpu_milli", "memory_mib", "num_gpu"),
            *("pod_phase", "creation_time", "deletion_time", "scheduled_time"),
        ),
        lambda: (_openb, no_date),
    ),
    "parallel": CsvLog(
        "a log of Gen-Parallel-Workloads",
        ("u_id", "gpu_num", "node_num", "interval", "run_time", "wall_time", "new_status"),
        _parallel,
    ),
}
"""By the name of the format."""
