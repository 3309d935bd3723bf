"""How far the demonstration's replay is from what the same jobs did on the real Slurm."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean

from lucid.cli.console import Console, Table
from lucid.errors import TraceError
from lucid.simulator.engine import Run

__all__ = ["RealTimes", "Realism", "Row", "print_realism", "realism"]

_ROWS = (
    ("avg JCT, predicted", "predicted_avg_jct_s"),
    ("avg JCT, real", "real_avg_jct_s"),
    ("makespan, predicted", "predicted_makespan_s"),
    ("makespan, real", "real_makespan_s"),
    ("mean absolute error of a job's start", "start_mae_s"),
    ("mean absolute error of a job's JCT", "jct_mae_s"),
    ("predicted later than real, on average", "jct_bias_s"),
)
_SHOWN = 10


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


def print_realism(console: Console, compared: Sequence[Realism], names: Mapping[str, str] | None = None) -> None:
    """Figures of each comparison, and the jobs with the largest errors. ``names``: headings by policy."""
    shown = names or {}
    table = Table(title="prediction and reality, s")
    table.add_column("")
    for one in compared:
        table.add_column(shown.get(one.policy, one.policy), justify="right")
    figures = [one.figures for one in compared]
    for label, key in _ROWS:
        table.add_row(label, *[f"{f[key]:.1f}" for f in figures])
    table.add_row("  as a share of the real avg JCT", *[f"{f['jct_mae_share']:.0%}" for f in figures])
    console.print(table)
    for one in compared:
        worst = sorted(one.rows, key=lambda row: -abs(row.jct_error_s))[:_SHOWN]
        jobs = Table(title=f"{shown.get(one.policy, one.policy)}: the {len(worst)} jobs with the largest errors, s")
        headings = ("job", "submitted", "start, predicted", "real", "end, predicted", "real", "JCT error")
        for column in headings:
            jobs.add_column(column, justify="right")
        for row in worst:
            times = (row.predicted.start_s, row.real.start_s, row.predicted.end_s, row.real.end_s)
            jobs.add_row(row.job_id, f"{row.submit_s:.0f}", *[f"{t:.0f}" for t in times], f"{row.jct_error_s:+.0f}")
        console.print(jobs)
