"""A window of a trace (the jobs of some days), a trace without walls between VCs, its finished jobs."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from lucid.core.times import DAY_S
from lucid.errors import ConfigError, TraceError
from lucid.models.duration.jobtable import JobTable, read_jobs, request_columns
from lucid.simulator.traces.read import read_trace, sniff
from lucid.simulator.traces.record import Trace

POOL = "pool"
"""Name of the one VC of `pooled`."""
BEFORE, AFTER = "submitted before the window", "submitted after the window"


def days_of(trace: Trace, begin: str | None, days: float | None) -> Trace:
    """The jobs that arrive in a window, with the first of them at the time at which the first of the trace was.

    Jobs that arrived before are left out, those that would still have run among them, so the cluster is empty at the
    beginning and nothing was learned yet. Both kinds that are left out are counted in ``Trace.skipped``.

    Args:
        begin: a day of the trace, counted from its first submission (``7``, ``7.5``), or a date (``2020-09-05``,
            ``2020-09-05T18:00``, UTC where it names no zone); ``None`` for the first submission.
        days: length of the window; ``None`` to the end of the trace.

    Raises:
        ConfigError: ``begin`` is neither, or a date where the trace has none, or no job arrives in the window."""
    first_s, last_s = trace.jobs[0].job.submit_s, trace.jobs[-1].job.submit_s
    from_s = first_s if begin is None else _moment_s(begin, trace, first_s)
    until_s = math.inf if days is None else from_s + days * DAY_S
    kept = [item for item in trace.jobs if from_s <= item.job.submit_s < until_s]
    if not kept:
        span = f"from day 0 to day {(last_s - first_s) / DAY_S:.2f}"
        if trace.epoch_s is not None:
            first, last = (
                datetime.fromtimestamp(trace.epoch_s + at_s, UTC).strftime("%Y-%m-%dT%H:%M")
                for at_s in (first_s, last_s)
            )
            span += f" ({first} to {last})"
        raise ConfigError(f"--from, --days: no job of {trace.name} arrives in that window; its jobs arrive {span}")
    later_s = kept[0].job.submit_s - first_s
    jobs = tuple(
        replace(item, job=replace(item.job, submit_s=item.job.submit_s - later_s, rank=rank))
        for rank, item in enumerate(kept)
    )
    before = sum(item.job.submit_s < from_s for item in trace.jobs)
    counts = ((BEFORE, before), (AFTER, len(trace.jobs) - before - len(kept)))
    return replace(
        trace,
        jobs=jobs,
        epoch_s=None if trace.epoch_s is None else trace.epoch_s + later_s,
        skipped=(*trace.skipped, *((reason, count) for reason, count in counts if count)),
    )


def _moment_s(text: str, trace: Trace, first_s: float) -> float:
    """Seconds of the trace."""
    try:
        day = float(text)
    except ValueError:
        pass
    else:
        if day >= 0 and math.isfinite(day):
            return first_s + day * DAY_S
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(
            f"--from {text}: is neither a day of the trace (7: counted from its first submission) nor a date "
            "(2020-09-05, 2020-09-05T18:00)"
        ) from None
    if trace.epoch_s is None:
        raise ConfigError(
            f"--from {text}: is a date, and {trace.name} has none; give a day of the trace, 0 for the first"
        )
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() - trace.epoch_s


def pooled(trace: Trace) -> Trace:
    """The trace with all jobs in one VC, ``POOL``: without walls."""
    return replace(trace, jobs=tuple(replace(item, job=replace(item.job, vc=POOL)) for item in trace.jobs))


def read_finished(path: Path) -> JobTable:
    """Read a log of finished jobs (`read_jobs`) or a trace of any format (`read_trace`), ordered by submission.

    Raises:
        TraceError: the file cannot be read, is of no known kind, or has a bad row."""
    try:
        kind = sniff(path)
    except TraceError:
        return read_jobs(path)  # a log that is no trace, or nothing known: its message says what is
    return read_jobs(path) if kind == "sacct" else finished_jobs(read_trace(path, kind, keep_cpu_jobs=True))


def finished_jobs(trace: Trace) -> JobTable:
    """The jobs of a trace as a table. Where the trace does not have a job's wait, the job counts as begun at its
    submission. A trace without calendar dates counts from 1970."""
    epoch_s, jobs = trace.epoch_s or 0.0, [item.job for item in trace.jobs]
    begins = [item.job.submit_s + epoch_s + (item.waited_s or 0.0) for item in trace.jobs]
    # What a trace says of GPU use is of the whole job; at its submission nothing was measured, so it is left out.
    return JobTable.from_columns(
        **request_columns(jobs, epoch_s),
        end_s=[begin_s + item.duration_s for begin_s, item in zip(begins, trace.jobs, strict=True)],
        duration_s=[item.duration_s for item in trace.jobs],
    ).by_submit()
