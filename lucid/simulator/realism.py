"""How far a simulated run is from what the same jobs did on a real cluster."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

from lucid.errors import TraceError
from lucid.simulator.engine import Run

__all__ = ["RealTimes", "Realism", "Row", "read_real", "realism", "write_real"]

_COLUMNS = ("job_id", "start_s", "end_s")


@dataclass(frozen=True, slots=True)
class RealTimes:
    """When a job first started and when it ended, in seconds of the trace."""

    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class Row:
    """One job, as predicted and as it was. Times in seconds of the trace."""

    job_id: str
    submit_s: float
    predicted: RealTimes
    real: RealTimes

    @property
    def start_error_s(self) -> float:
        """How much later than in truth it was said to start; below 0, earlier."""
        return self.predicted.start_s - self.real.start_s

    @property
    def jct_error_s(self) -> float:
        """How much longer than in truth its JCT was said to be: the submission is the same, so also its end."""
        return self.predicted.end_s - self.real.end_s


@dataclass(frozen=True, slots=True)
class Realism:
    """The comparison, rows in order of submission."""

    policy: str
    rows: tuple[Row, ...]

    @property
    def figures(self) -> dict[str, float]:
        """Mean absolute errors of start and of JCT (which is that of the end), their bias, and average JCT and
        makespan as predicted and in truth, in seconds; ``jct_mae_share`` as a share of the real average JCT."""
        rows = self.rows
        real_jct_s = mean(row.real.end_s - row.submit_s for row in rows)
        jct_mae_s = mean(abs(row.jct_error_s) for row in rows)
        return {
            "jobs": len(rows),
            "start_mae_s": mean(abs(row.start_error_s) for row in rows),
            "start_bias_s": mean(row.start_error_s for row in rows),
            "jct_mae_s": jct_mae_s,
            "jct_bias_s": mean(row.jct_error_s for row in rows),
            "jct_mae_share": jct_mae_s / real_jct_s if real_jct_s else 0.0,
            "predicted_avg_jct_s": mean(row.predicted.end_s - row.submit_s for row in rows),
            "real_avg_jct_s": real_jct_s,
            "predicted_makespan_s": _span(rows, lambda row: row.predicted),
            "real_makespan_s": _span(rows, lambda row: row.real),
        }


def _span(rows: tuple[Row, ...], times: Callable[[Row], RealTimes]) -> float:
    return max(times(row).end_s for row in rows) - min(row.submit_s for row in rows)


def realism(run: Run, real: Mapping[str, RealTimes]) -> Realism:
    """Set a replay beside the truth.

    Raises:
        TraceError: the two are not of the same jobs, or one that ran never runs in the replay.
    """
    if not run.outcomes:
        raise TraceError("the replay has no jobs, so there is nothing to compare")
    predicted = {o.job.id: o for o in run.outcomes}
    strange = sorted(set(predicted) ^ set(real))
    if strange:
        where = "truth but not in the trace" if strange[0] in real else "trace but not in the truth"
        raise TraceError(f"{len(strange)} jobs are not in both: job {strange[0]!r} is in the {where}")
    never = next((o.job.id for o in run.outcomes if o.end_s < 0), None)
    if never is not None:
        raise TraceError(
            f"job {never!r} ran on the cluster, but can never run in the replay; check that the replay has the same "
            "nodes"
        )
    rows = (Row(o.job.id, o.job.submit_s, RealTimes(o.start_s, o.end_s), real[o.job.id]) for o in run.outcomes)
    return Realism(run.policy, tuple(rows))


def write_real(path: Path, real: Mapping[str, RealTimes]) -> None:
    """A CSV that ``read_real`` reads.

    Raises:
        TraceError: it cannot be written.
    """
    try:
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(_COLUMNS)
            writer.writerows([job_id, f"{t.start_s:.3f}", f"{t.end_s:.3f}"] for job_id, t in real.items())
    except OSError as error:
        raise TraceError(f"{path}: cannot be written ({error.strerror})") from None


def read_real(path: Path) -> dict[str, RealTimes]:
    """Start and end of each job from a CSV with the columns job_id, start_s, end_s (seconds of the trace).

    Raises:
        TraceError: naming file, line, column and value.
    """
    found: dict[str, RealTimes] = {}
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            missing = [name for name in _COLUMNS if name not in (reader.fieldnames or ())]
            if missing:
                raise TraceError(
                    f"{path}: line 1: no column {', '.join(missing)} (found: "
                    f"{', '.join(reader.fieldnames or ()) or 'nothing'}); write job_id,start_s,end_s"
                )
            for row in reader:
                where = f"{path}: line {reader.line_num}"
                times = [_seconds(row[name], name, where) for name in _COLUMNS[1:]]
                if times[1] < times[0]:
                    raise TraceError(f"{where}: column end_s: {row['end_s']!r} is before its start")
                if not row["job_id"] or row["job_id"] in found:
                    raise TraceError(f"{where}: column job_id: {row['job_id']!r} is empty or is in the file twice")
                found[row["job_id"]] = RealTimes(times[0], times[1])
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise TraceError(f"{path}: cannot be read ({error}); give a CSV of job_id,start_s,end_s") from None
    return found


def _seconds(text: str | None, name: str, where: str) -> float:
    try:
        value = float(text or "")
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise TraceError(f"{where}: column {name}: {text!r} is not a number of seconds")
    return value
