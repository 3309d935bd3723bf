"""Counts of submissions in consecutive bins of time: what throughput is learned and forecast from."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping
from dataclasses import field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from lucid.core.frozen import dataclass
from lucid.errors import ModelError
from lucid.models.duration.jobtable import JobTable
from lucid.models.upkeep.kind import TooFew

__all__ = ["BIN_S", "OTHERS", "Bins", "FloatArray", "bins_of_jobs", "day_of", "read_bins", "utc"]

FloatArray = npt.NDArray[np.float64]

BIN_S: Final = 600.0
"""Ten minutes, the bin of the published throughput data."""
OTHERS: Final = {"started": "start_gpu_job", "ended": "end_gpu_job", "every": "submit_job_all"}
"""Further counts, with their columns in a file of bins."""
_MOST_ENDED: Final = 0.95


@dataclass(frozen=True, slots=True)
class Bins:
    """Consecutive bins of equal width: their starts and what was counted in each, shape (n,) all.

    `jobs` and `gpus` are the GPU jobs and GPUs submitted (the targets); `others` are further counts known
    when a bin closes (GPU jobs started, GPU jobs ended, all jobs), by name: resubmissions follow endings.
    """

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
        """Jobs and GPUs submitted alone, which are all that lucidd itself counts."""
        return Bins(self.start, self.jobs, self.gpus)


def day_of(width: timedelta) -> int:
    """Bins of that width in a day."""
    return round(timedelta(days=1) / width)


def utc(time: datetime) -> datetime:
    """The same time with a zone; one without is taken as UTC."""
    return time if time.tzinfo is not None else time.replace(tzinfo=UTC)


def bins_of_jobs(jobs: JobTable, width_s: float = BIN_S) -> Bins:
    """Submissions of GPU jobs per bin, from a log of finished jobs; times are UTC.

    A log of finished jobs lacks the jobs that still run, so its newest bins hold too few. The bins stop early enough
    that 95 % of the jobs submitted in them had ended when the log was written, going by how long jobs took to end.

    Raises:
        TooFew: the jobs fill fewer than two bins.
    """
    jobs = jobs.take((jobs.gpus > 0) & np.isfinite(jobs.submit_s) & np.isfinite(jobs.end_s))
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
        ModelError: the file cannot be read, or a bin is malformed, negative or out of step.
    """
    start: list[datetime] = []
    counts: list[list[float]] = []
    try:
        with path.open(encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file)
            others = {name: column for name, column in OTHERS.items() if column in (reader.fieldnames or ())}
            wanted = ("submit_gpu_job", "submit_gpu_num", *others.values())
            for row in reader:
                where = f"{path}, line {reader.line_num}"
                start.append(_time(row, where))
                counts.append([_count(row, name, where) for name in wanted])
                if len(start) > 2 and start[-1] - start[-2] != start[1] - start[0]:
                    raise ModelError(f"{where}: bin {start[-1]} is not one step after {start[-2]}; fill the gap")
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ModelError(f"{path}: cannot be read ({error}); check the path and that it is CSV") from error
    if len(start) < 2 or start[1] <= start[0]:
        raise ModelError(f"{path}: needs at least two bins in ascending order; got {len(start)}")
    table = np.array(counts, dtype=np.float64)
    further = {name: table[:, number] for number, name in enumerate(others, start=2)}
    return Bins(tuple(start), table[:, 0], table[:, 1], further)


def _time(row: Mapping[str, str], where: str) -> datetime:
    try:
        return utc(datetime.fromisoformat(row["time"]))
    except (KeyError, TypeError, ValueError):
        raise ModelError(f"{where}: time is {row.get('time')!r}; give YYYY-MM-DD HH:MM:SS") from None


def _count(row: Mapping[str, str], name: str, where: str) -> float:
    try:
        count = float(row[name])
    except (KeyError, TypeError, ValueError):
        raise ModelError(f"{where}: {name} is {row.get(name)!r}, not a number") from None
    if not 0.0 <= count < math.inf:
        raise ModelError(f"{where}: {name} is {count!r}, not a finite number of at least 0")
    return count
