"""Logs with one job a row under named columns: packs, Helios, Philly, openb, Gen-Parallel-Workloads, Muri's traces.

Logs that know no virtual clusters have all jobs in one, ``cluster``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from lucid.accounting.log_rows import BadCell, Drop, ReadOptions, Row, Source
from lucid.core.job import JobProfile
from lucid.core.prediction import StageTimes
from lucid.orchestrator.policies.muri.interleave import RESOURCES, start_overhead_s
from lucid.simulator.traces.record import Draft, Trace, collect_csv

VC = "cluster"
"""The one VC of a log that knows no virtual clusters."""
_READINGS = ("gpu_util", "gmem_util", "gmem")


@dataclass(frozen=True, slots=True)
class ColumnLog:
    """A format: what such a file is, the columns that it needs, and what makes the function that reads a row.
    ``dated``: submit times are dates. ``measured``: it needs all columns about the workload, or none."""

    about: str
    needed: tuple[str, ...]
    begin: Callable[[], Callable[[Row], Draft]]
    dated: bool = False
    measured: bool = False

    def read(self, source: Source, header: list[str], header_line: int, options: ReadOptions) -> Trace:
        """Read such a file.

        Raises: TraceError: a missing column, or a bad row that is not to be skipped."""
        measured = self.measured and any(column in header for column in _READINGS)
        needed = self.needed + (_READINGS if measured else ())
        parse = self.begin()

        def epoch(first_s: float) -> float | None:
            return first_s if getattr(parse, "dated", self.dated) else None

        return collect_csv(source, header, header_line, needed, self.about, parse, options, epoch)


class _Pack:
    """Reads the rows of a pack. The first one says whether submit times are seconds, from any beginning, or dates.
    Rows are in the order in which equal submit times are served."""

    dated: bool | None = None

    def __call__(self, row: Row) -> Draft:
        if self.dated is None:
            self.dated = not _is_number(row.text("submit_time"))
        try:
            submit_s = row.date_s("submit_time") if self.dated else row.real("submit_time")
        except BadCell as bad:
            bad.remedy = "write all submit times as seconds, or all as dates such as 2020-04-13 08:30:00"
            raise
        return Draft(
            id=row.name("job_id"),
            vc=row.name("vc"),
            gpus=row.whole("gpu_num"),
            submit_s=submit_s,
            duration_s=row.real("duration"),
            user=row.text("user"),
            amp=row.flag_or_none("amp"),
            state=row.text("state").upper(),
            profile=_profile(row),
            share_label=row.whole_or_none("share_label", most=2),
        )


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _profile(row: Row) -> JobProfile | None:
    """The row's GPU use (%, %, MiB) as a profile, or ``None`` where it has none."""
    if not any(map(row.text, _READINGS)):
        return None
    label = "|".join(map(row.text, ("model", "dataset", "batchsize", "amp")))
    return JobProfile(
        gpu_util=row.real("gpu_util", most=100.0),
        mem_util=row.real("gmem_util", most=100.0),
        gpu_mem_mib=row.real("gmem"),
        amp=row.flag_or_none("amp"),
        workload=label if row.text("model") else "",  # its name in a table of measured pairs
    )


def _helios(row: Row) -> Draft:
    """Dates carry no zone and are read as the cluster's own clock. ``duration`` is taken as it stands: ``end_time -
    start_time`` would be off by an hour where daylight saving changes in between. The published logs have no time
    limits; a column ``wall_time`` (seconds, 0 for none) is one."""
    ran = row.text("start_time").lower() not in {"", "none", "null", "nan"}  # the log's words for one that never ran
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
        profile=_profile(row),
        share_label=row.whole_or_none("share_label", most=2),
        waited_s=max(row.date_s("start_time") - row.date_s("submit_time"), 0.0) if ran else None,
    )


def _philly(row: Row) -> Draft:
    """The log has no job ids: a job is named by the number of its row, from 1. Rows are in any order."""
    return Draft(
        id=str(row.number + 1),
        vc=row.name("cluster"),
        gpus=row.whole("num_gpus"),
        submit_s=row.date_s("timestamp"),
        duration_s=row.real("duration"),
        id_column="",
    )


_POD_STATES = {"Succeeded": "COMPLETED", "Failed": "FAILED", "Running": "CANCELLED"}


def _openb(row: Row) -> Draft:
    """Slurm gives whole GPUs: a pod that asked for a part of one is a job of one GPU. Pods that never ran are left
    out. The log ends before many pods do: one that still ran counts as ended with it."""
    if not row.text("scheduled_time") or not row.text("deletion_time"):
        raise Drop("never ran")
    created_s, began_s = row.real("creation_time"), row.real("scheduled_time")
    return Draft(
        id=row.name("name"),
        vc=VC,
        gpus=row.whole("num_gpu"),
        submit_s=created_s,
        duration_s=max(row.real("deletion_time") - began_s, 0.0),
        name=row.text("qos"),
        cpus=-(-row.whole("cpu_milli") // 1000),
        mem_mib=row.whole("memory_mib"),
        state=_POD_STATES.get(row.text("pod_phase"), ""),
        waited_s=max(began_s - created_s, 0.0),
        id_column="name",
    )


_STATES = {"Pass": "COMPLETED", "Failed": "FAILED", "Killed": "CANCELLED"}


class _Parallel:
    """Reads the rows of such a log: each has the seconds since the row before it in place of a date. ``wall_time`` is
    the time limit that the user asked for; 0 where the log has none."""

    at_s = 0.0

    def __call__(self, row: Row) -> Draft:
        self.at_s += row.real("interval")  # before all else: a row that is left out passes time, too
        state = row.name("new_status")
        if state not in _STATES:
            raise BadCell("new_status", state, f"is none of {', '.join(_STATES)}")
        return Draft(
            id=row.name("u_id"),
            vc=VC,
            gpus=row.whole("gpu_num"),
            submit_s=self.at_s,
            duration_s=row.real("run_time"),
            user=row.text("user"),
            time_limit_s=row.real("wall_time") or None,
            state=_STATES[state],
            id_column="u_id",
        )


def _muri(row: Row) -> Draft:
    """Times are milliseconds, those of a model on a number of GPUs, measured alone; seconds to start come from the
    authors' table. A job's work is ``iterations`` x ``iteration_time``; the column ``duration`` is what the
    iterations were made from, rounded differently, and is used only where they are missing."""
    gpus, model = row.whole("num_gpu"), row.text("model_name")
    iteration_s = row.real("iteration_time", least=1e-6) / 1000
    iterations = row.real_or_none("iterations")
    batch = row.text("batch_size")
    return Draft(
        id=row.name("job_id"),
        vc=VC,
        gpus=gpus,
        submit_s=row.real("submit_time") / 1000,
        duration_s=row.real("duration") / 1000 if iterations is None else iterations * iteration_s,
        name=f"{model}-{batch}" if batch else model,
        stages=StageTimes(_times(row), iteration_s, start_overhead_s(model, gpus)),
    )


def _times(row: Row) -> tuple[float, ...]:
    """Seconds on each resource: two to four of them, for the columns that the file has."""
    columns = [f"resource_time_{i}" for i in range(len(RESOURCES))]
    times = tuple(row.real(column) / 1000 for column in columns if row.has(column))
    if not any(times):
        raise BadCell(columns[0], row.text(columns[0]), "is 0, as are the other resource times")
    return times


_PACK = ("job_id", "vc", "gpu_num", "submit_time", "duration")
COLUMN_LOGS = {
    "pack": ColumnLog("a CSV of jobs", _PACK, _Pack, measured=True),
    "philly": ColumnLog(
        "the Philly log as CSV", ("timestamp", "duration", "num_gpus", "cluster"), lambda: _philly, dated=True
    ),
    "helios": ColumnLog("a Helios cluster_log.csv", _PACK, lambda: _helios, dated=True, measured=True),
    "openb": ColumnLog(
        "Alibaba's list of openb pods",
        (
            *("name", "cpu_milli", "memory_mib", "num_gpu"),
            *("pod_phase", "creation_time", "deletion_time", "scheduled_time"),
        ),
        lambda: _openb,
    ),
    "parallel": ColumnLog(
        "a log of Gen-Parallel-Workloads",
        ("u_id", "gpu_num", "node_num", "interval", "run_time", "wall_time", "new_status"),
        _Parallel,
    ),
    "muri": ColumnLog(
        "a trace of Muri's simulator",
        ("job_id", "num_gpu", "submit_time", "duration", "iteration_time", "resource_time_0", "resource_time_1"),
        lambda: _muri,
    ),
}
"""The formats by name. Gen-Parallel-Workloads has logs of Helios, Philly and Blue Waters; openb is of 2023."""
