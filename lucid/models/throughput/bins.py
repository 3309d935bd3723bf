"""Submissions counted in consecutive bins of time, and the inputs of the throughput model made from them.

The inputs are hour and weekday, lags, rolling statistics, and the same time a day and weeks ago."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
from msgspec import Struct, field

from lucid.accounting.log_rows import number, table_rows
from lucid.errors import ModelError
from lucid.models.duration.jobtable import JobTable
from lucid.models.kind import TooFew

FloatArray = npt.NDArray[np.float64]

BIN_S: Final = 600.0
"""Width of a bin: ten minutes, as in the published throughput data."""
OTHERS: Final = {"started": "start_gpu_job", "ended": "end_gpu_job", "every": "submit_job_all"}
"""Further counts, with their columns in a file of bins."""
_MOST_ENDED: Final = 0.95


class Bins(Struct, frozen=True):
    """Consecutive bins of equal width: their starts and what was counted in each, shape (n,) all.

    `jobs` and `gpus` are the GPU jobs and GPUs submitted (the targets); `others` are further counts known
    when a bin closes (GPU jobs started, GPU jobs ended, all jobs), by name: resubmissions follow endings."""

    start: tuple[datetime, ...]
    jobs: FloatArray
    gpus: FloatArray
    others: Mapping[str, FloatArray] = field(default_factory=dict)

    def __post_init__(self) -> None:
        lengths = {len(self.start), len(self.jobs), len(self.gpus), *map(len, self.others.values())}
        if len(lengths) > 1 or len(self.start) < 2:
            raise ModelError(f"throughput bins: need at least two, all counts equally many; got {lengths}")

    @property
    def width(self) -> timedelta:
        """Length of one bin."""
        return self.start[1] - self.start[0]

    def upto(self, end: datetime) -> Bins:
        """The bins that start before `end`."""
        keep = sum(start < end for start in self.start)
        others = {name: counts[:keep] for name, counts in self.others.items()}
        return Bins(self.start[:keep], self.jobs[:keep], self.gpus[:keep], others)

    def submissions(self) -> Bins:
        """The bins with jobs and GPUs submitted alone, which are all that lucidd itself counts."""
        return Bins(self.start, self.jobs, self.gpus)


def day_of(width: timedelta) -> int:
    """Bins of that width in a day."""
    return round(timedelta(days=1) / width)


def utc(time: datetime) -> datetime:
    """The time with a zone; a time without one is UTC."""
    return time if time.tzinfo is not None else time.replace(tzinfo=UTC)


def bins_of_jobs(jobs: JobTable, width_s: float = BIN_S) -> Bins:
    """Submissions of GPU jobs per bin, from a log of finished jobs; times are UTC.

    A log of finished jobs lacks the jobs that still run, so its newest bins hold too few. The bins stop early enough
    that 95 % of the jobs submitted in them had ended when the log was written, going by how long jobs took to end.

    Raises:
        TooFew: the jobs fill fewer than two bins."""
    jobs = jobs.select((jobs.gpus > 0) & np.isfinite(jobs.submit_s) & np.isfinite(jobs.end_s))
    if not len(jobs):
        raise TooFew("throughput: no finished job of the log has GPUs; train when some have ended")
    until_s = float(jobs.end_s.max() - np.quantile(jobs.end_s - jobs.submit_s, _MOST_ENDED))
    first = math.floor(float(jobs.submit_s.min()) / width_s)
    size = math.floor(until_s / width_s) - first
    if size < 2:
        raise TooFew(f"throughput: the log fills {max(size, 0)} bins of {width_s:g} s, at least 2 are needed")
    number = np.floor(jobs.submit_s / width_s).astype(np.intp) - first
    inside = number < size
    number, gpus = number[inside], jobs.gpus[inside]
    start = tuple(datetime.fromtimestamp((first + at) * width_s, UTC) for at in range(size))
    counts = np.bincount(number, minlength=size).astype(np.float64)
    sums = np.bincount(number, weights=gpus, minlength=size).astype(np.float64)
    return Bins(start, counts, sums)


def read_bins(path: Path) -> Bins:
    """Bins from a CSV with the columns time (ISO; UTC where it names no zone), submit_gpu_job and submit_gpu_num.

    start_gpu_job, end_gpu_job and submit_job_all are used where the file has them; others are ignored.

    Raises:
        TraceError: the file cannot be read. ModelError: a bin is malformed, negative or out of step."""
    start: list[datetime] = []
    counts: list[list[float]] = []
    others: dict[str, str] = {}
    needed = ("time", "submit_gpu_job", "submit_gpu_num")
    for line, row in table_rows(path, needed, "give a CSV of submissions in bins of time"):
        where = f"{path}, line {line}"
        others = {name: column for name, column in OTHERS.items() if column in row}
        start.append(_time(row, where))
        counts.append([_count(row, name, where) for name in (*needed[1:], *others.values())])
        if len(start) > 2 and start[-1] - start[-2] != start[1] - start[0]:
            raise ModelError(f"{where}: bin {start[-1]} is not one step after {start[-2]}; fill the gap")
    if len(start) < 2 or start[1] <= start[0]:
        raise ModelError(f"{path}: needs at least two bins in ascending order; got {len(start)}")
    table = np.array(counts, dtype=np.float64)
    further = {name: table[:, number] for number, name in enumerate(others, start=2)}
    return Bins(tuple(start), table[:, 0], table[:, 1], further)


def _time(row: Mapping[str, str], where: str) -> datetime:
    try:
        return utc(datetime.fromisoformat(row["time"]))
    except ValueError:
        raise ModelError(f"{where}: time is {row['time']!r}; give YYYY-MM-DD HH:MM:SS") from None


def _count(row: Mapping[str, str], name: str, where: str) -> float:
    count = number(row[name])
    if not 0.0 <= count < math.inf:
        raise ModelError(f"{where}: {name} is {row[name]!r}, not a finite number of at least 0")
    return count


REACH_DAYS: Final = 21
"""Age of the oldest input: three weeks."""
_LAGS: Final = (0, 1, 2)
_MEANS: Final = (6, 18, 36, 144)  # bins; 144 bins of 10 minutes are a day
_MEDIANS: Final = (6, 18)
_SPREADS: Final = (6, 36)
_HALF_LIVES: Final = (2, 6)
_SOFT_REACH: Final = 8  # half-lives after which a weight (2^-8) no longer matters


def throughput_columns(bins: Bins, age: int) -> dict[str, FloatArray]:
    """Inputs of every row s (bin s the newest known, bin s + age predicted), each of shape (n,).

    Values that reach back before the first bin are nan (the model's "missing")."""
    coming = [start + age * bins.width for start in bins.start]
    columns = {
        "hour": np.array([time.hour + time.minute / 60 for time in coming], dtype=np.float64),
        "weekday": np.array([time.weekday() for time in coming], dtype=np.float64),
    }
    day = day_of(bins.width)
    for name, counts in (("jobs", bins.jobs), ("gpus", bins.gpus)):
        for lag in _LAGS:
            columns[f"{name}_lag{lag}"] = _shift(counts, lag)
        for span in _MEANS:
            columns[f"{name}_mean{span}"] = _rolling(counts, span, "mean")
        for span in _MEDIANS:
            columns[f"{name}_median{span}"] = _rolling(counts, span, "median")
        for span in _SPREADS:
            columns[f"{name}_std{span}"] = _rolling(counts, span, "std")
        for half_life in _HALF_LIVES:
            columns[f"{name}_soft{half_life}"] = _soft_sum(counts, half_life)
        # The hour around the same time of day: its newest bin lies two bins after that time.
        around = _rolling(counts, 5, "mean")
        for label, days in (("day", 1), ("week", 7)):
            columns[f"{name}_{label}_ago"] = _shift(around, days * day - 2 - age)
        typical = _rolling(counts, 5, "median")
        weeks = [_shift(typical, week * 7 * day - 2 - age) for week in (1, 2, 3)]
        columns[f"{name}_weeks"] = np.mean(weeks, axis=0)
    for name, counts in bins.others.items():
        columns[f"{name}_lag0"] = counts
        columns[f"{name}_soft2"] = _soft_sum(counts, 2)
    return columns


def newest_columns(bins: Bins, age: int) -> dict[str, FloatArray]:
    """The last row of `throughput_columns`, each of shape (1,), at a fraction of the work: most inputs need the
    newest bins alone. The bins must reach back three weeks and two hours."""
    recent = slice(-max(_MEANS), None)
    others = {name: counts[recent] for name, counts in bins.others.items()}
    tail = Bins(bins.start[recent], bins.jobs[recent], bins.gpus[recent], others)
    columns = {name: column[-1:] for name, column in throughput_columns(tail, age).items()}
    day = day_of(bins.width)
    for name, counts in (("jobs", bins.jobs), ("gpus", bins.gpus)):

        def around(days: int, counts: FloatArray = counts) -> FloatArray:
            newest = len(counts) - (days * day - 2 - age)
            return counts[newest - 5 : newest]

        columns[f"{name}_day_ago"] = around(1).mean(keepdims=True)
        columns[f"{name}_week_ago"] = around(7).mean(keepdims=True)
        columns[f"{name}_weeks"] = np.mean([[np.median(around(7 * week))] for week in (1, 2, 3)], axis=0)
    return columns


def _shift(values: FloatArray, lag: int) -> FloatArray:
    shifted = np.full(len(values), np.nan)
    if lag < len(values):
        shifted[lag:] = values[: len(values) - lag]
    return shifted


def _rolling(values: FloatArray, span: int, what: str) -> FloatArray:
    out = np.full(len(values), np.nan)
    if len(values) < span:
        return out
    windows = np.lib.stride_tricks.sliding_window_view(values, span)
    if what == "std":
        out[span - 1 :] = windows.std(axis=1, ddof=1)
    else:
        out[span - 1 :] = windows.mean(axis=1) if what == "mean" else np.median(windows, axis=1)
    return out


def _soft_sum(values: FloatArray, half_life: int) -> FloatArray:
    """Weighted mean of the last bins, weights halving every `half_life` bins."""
    weights = 0.5 ** (np.arange(_SOFT_REACH * half_life) / half_life)
    weights /= weights.sum()
    out = np.full(len(values), np.nan)
    if len(values) >= len(weights):
        out[len(weights) - 1 :] = np.convolve(values, weights, mode="valid")
    return out
