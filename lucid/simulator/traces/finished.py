"""Finished jobs to learn from, out of any log or trace that Lucid reads."""

from __future__ import annotations

from pathlib import Path

from lucid.errors import TraceError
from lucid.models.duration.jobtable import JobTable, read_jobs
from lucid.simulator.traces.read import read_trace, sniff
from lucid.simulator.traces.record import Trace

__all__ = ["finished_jobs", "read_finished"]

_NAN = float("nan")


def read_finished(path: Path) -> JobTable:
    """Read a log of finished jobs (`read_jobs`) or a trace of any format (`read_trace`), ordered by submission.

    Raises:
        TraceError: the file cannot be read, is of no known kind, or has a bad row.
    """
    try:
        kind = sniff(path)
    except TraceError:
        return read_jobs(path)  # a log that is no trace, or nothing known: its message says what is
    return read_jobs(path) if kind == "sacct" else finished_jobs(read_trace(path, kind, keep_cpu_jobs=True))


def finished_jobs(trace: Trace) -> JobTable:
    """The jobs of a trace as a table. Where the trace does not tell how long a job waited, it is taken to have begun
    at its submission. A trace without calendar dates counts from 1970."""
    epoch_s, jobs = trace.epoch_s or 0.0, [item.job for item in trace.jobs]
    begins = [item.job.submit_s + epoch_s + (item.waited_s or 0.0) for item in trace.jobs]
    # What a trace says of GPU use is of the whole job; at its submission nothing was measured, so it is left out.
    return JobTable.of(
        job_id=[job.id for job in jobs],
        user=[job.user for job in jobs],
        account=[job.account for job in jobs],
        partition=[job.vc for job in jobs],
        name=[job.name for job in jobs],
        gpus=[float(job.gpus) for job in jobs],
        cpus=[float(job.cpus) if job.cpus else _NAN for job in jobs],
        memory_mib=[float(job.mem_mib) if job.mem_mib else _NAN for job in jobs],
        limit_s=[_NAN if job.time_limit_s is None else job.time_limit_s for job in jobs],
        submit_s=[job.submit_s + epoch_s for job in jobs],
        end_s=[begin_s + item.duration_s for begin_s, item in zip(begins, trace.jobs, strict=True)],
        duration_s=[item.duration_s for item in trace.jobs],
    ).by_submit()
