"""Estimates after a site's first 1, 5, 20 and 100 finished jobs, beside the running median and the time limit.

Each log is begun at ten places, as if lucidd had been installed there. The next 100 jobs submitted after the last of
the first n ends are estimated from those n. The figure is the factor by which an estimate is off, exp of the mean
|log error| (10 s added on both sides). Jobs that did not run neither teach nor count. A log without time limits has
an hour in their place.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from msgspec.structs import replace

from benchmarks.durations import read_first
from benchmarks.figure import Absent, Figure
from benchmarks.packs import shared
from lucid.core.job import Ended, Job
from lucid.models.duration.estimate import running_median_log
from lucid.models.duration.features import to_log
from lucid.models.duration.history import DurationHistory
from lucid.models.duration.jobtable import FloatArray, JobTable
from lucid.models.history import PriorPredictor
from lucid.simulator.traces.presets import preset
from lucid.simulator.traces.synth import synthesise
from lucid.simulator.traces.window import finished_jobs

__all__ = ["CHOSEN_ON", "REPORTED", "figures"]

COUNTS = (1, 5, 20, 100)
CHOSEN_ON = ("sacct/eagle_sample.csv", "sacct/pozidriv.log", "month 1", "month 2", "month 3")
"""The weights of `PriorPredictor` were chosen on these logs, and reported once on the others."""
REPORTED = (
    *("sacct/ubhpc_week_first70.csv", "philly.csv", "waits/graham_first70.csv.gz", "month 4", "month 5", "month 6"),
)
_BEGINNINGS = 10
_TESTED = 100
_FEWEST = 20
_HOUR_S = 3600.0


def figures(runs: int) -> Iterator[Figure]:  # noqa: ARG001 - comes out the same every time
    """One figure of each log and count; the baseline is the running median's."""
    for name in (*CHOSEN_ON, *REPORTED):
        try:
            jobs = table_of(name)
        except Absent:
            continue
        for count in COUNTS:
            found = [_errors(*moment) for moment in moments(jobs, count)]
            if not found:
                continue
            own, median, limit = (math.exp(float(np.mean(part))) for part in zip(*found, strict=True))
            seen = "chosen on this log" if name in CHOSEN_ON else "not seen in the choice"
            yield Figure(
                f"{Path(name).name.partition('.')[0]} after {count} jobs: off by a factor", round(own, 2), "",
                baseline=round(median, 2), baseline_name="running median",
                note=f"time limit {limit:.2f}; {len(found)} beginnings; {seen}",
            )  # fmt: skip


def table_of(name: str) -> JobTable:
    """The jobs that ran of a log or a synthetic month, whoever stands for users as their users.

    Raises:
        Absent: the log is not at hand.
    """
    if name.startswith("month "):
        jobs = finished_jobs(synthesise(preset("month-small"), int(name.split()[1])))
    else:
        jobs = read_first(shared(name))
    for column in (jobs.user, jobs.account, jobs.partition):
        if any(who is not None for who in column):
            jobs = replace(jobs, user=column)
            break
    return jobs.select(np.isfinite(jobs.end_s) & (np.nan_to_num(jobs.duration_s) > 0))


def moments(jobs: JobTable, count: int) -> Iterator[tuple[JobTable, JobTable]]:
    """The first `count` jobs to end and the next jobs submitted, for each beginning."""
    for begin in np.linspace(0, len(jobs), _BEGINNINGS, endpoint=False).astype(int).tolist():
        rows = np.arange(begin, len(jobs))
        first = rows[np.argsort(jobs.end_s[rows], kind="stable")][:count]
        after = rows[jobs.submit_s[rows] > jobs.end_s[first[-1]]][:_TESTED]
        if len(first) == count and len(after) >= _FEWEST:
            yield jobs.select(first), jobs.select(after)


def jobs_of(table: JobTable) -> list[Job]:
    """As the predictor is given them."""
    columns = (table.partition, table.gpus, table.user, table.name, table.limit_s, table.submit_s)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    return [
        Job(str(row), vc or "", int(gpus), submit_s, row, user or "", name=name or "",
            time_limit_s=limit_s if limit_s > 0 else None)
        for row, (vc, gpus, user, name, limit_s, submit_s) in enumerate(rows)
    ]  # fmt: skip


def taught(first: JobTable) -> PriorPredictor:
    """A predictor that has seen these jobs end."""
    predictor = PriorPredictor(_HOUR_S)
    ends = zip(jobs_of(first), first.end_s.tolist(), first.duration_s.tolist(), strict=True)
    predictor.learn([Ended(job, end_s, ran_s) for job, end_s, ran_s in ends])
    return predictor


def error_of(predictor: PriorPredictor, after: JobTable) -> float:
    """Mean |log error| of the predictor."""
    said = [predictor.predict(job, None, 0.0).within(job.time_limit_s).duration_s for job in jobs_of(after)]
    return _mean_error(np.array(said), after)


def _errors(first: JobTable, after: JobTable) -> tuple[float, float, float]:
    """Mean |log error| of the predictor, of the running median, and of the time limit."""
    limit_s = np.where(after.limit_s > 0, after.limit_s, _HOUR_S)
    facts = DurationHistory.from_jobs(first).facts(after)
    median = np.exp(running_median_log(facts, float(to_log(_HOUR_S)))) - 10.0
    return (
        error_of(taught(first), after),
        _mean_error(np.fmin(median, after.limit_s), after),
        _mean_error(limit_s, after),
    )


def _mean_error(said_s: FloatArray, after: JobTable) -> float:
    return float(np.abs(to_log(said_s) - to_log(after.duration_s)).mean())
