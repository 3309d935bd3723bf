"""Runs boiled down to as many points as a chart can show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lucid.simulator.engine import Run, Series

__all__ = ["MOST_POINTS", "TimeLines", "completion_grid", "jct_of", "time_lines"]

MOST_POINTS = 420
"""Points of one line: about one a pixel and a half."""
_GRID_POINTS = 280

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class TimeLines:
    """State over time, by run. Each point is the mean over ``bucket_s``; a run that is over has fewer points."""

    step_s: float
    bucket_s: float
    at_s: list[float]
    pending: list[Floats]
    peak_pending: list[int]
    busy: list[Floats]
    shared: list[Floats]


def jct_of(run: Run) -> Floats:
    """Completion times of the jobs that ended, sorted."""
    return np.sort(np.array([o.jct_s for o in run.outcomes if o.end_s >= 0], dtype=np.float64))


def completion_grid(jcts: Sequence[Floats]) -> Floats:
    """Durations, evenly spaced by logarithm, from the shortest completion time (1 s at least) to the longest."""
    some = [jct for jct in jcts if len(jct)]
    if not some:
        return np.array([], dtype=np.float64)
    low = max(1.0, min(float(jct[0]) for jct in some))
    high = max(low, *(float(jct[-1]) for jct in some))
    if high < 1.01 * low:  # all alike: room on both sides, or there is nothing to see
        low, high = low / 2, high * 2
    grid = np.geomspace(low, high, _GRID_POINTS)
    grid[0], grid[-1] = low, high
    return grid


def time_lines(runs: Sequence[Run]) -> TimeLines:
    """Bring the series of all runs onto one grid of time."""
    step_s = max((run.series.step_s for run in runs), default=1.0)
    every = [run.series.at_step(step_s) for run in runs]  # a very long replay keeps fewer samples
    longest = max((len(series.busy_gpus) for series in every), default=0)
    width = max(1, -(-longest // MOST_POINTS))
    pending = [_pending(series) for series in every]
    return TimeLines(
        step_s=step_s,
        bucket_s=width * step_s,
        at_s=[(i * width + (width - 1) / 2) * step_s for i in range(-(-longest // width))],
        pending=[_means(values, width) for values in pending],
        peak_pending=[int(values.max(initial=0)) for values in pending],
        busy=[_means(np.asarray(series.busy_gpus, dtype=np.float64), width) for series in every],
        shared=[_means(np.asarray(series.shared_gpus, dtype=np.float64), width) for series in every],
    )


def _pending(series: Series) -> Floats:
    """Jobs waiting, all partitions together."""
    total = np.zeros(len(series.busy_gpus))
    for counts in series.pending_jobs.values():
        total += np.asarray(counts, dtype=np.float64)
    return total


def _means(values: Floats, width: int) -> Floats:
    if width == 1 or not len(values):
        return values
    starts = np.arange(0, len(values), width)
    counts = np.diff(np.append(starts, len(values)))
    return np.asarray(np.add.reduceat(values, starts) / counts, dtype=np.float64)
