"""The table of ``lucidctl simulate --against``: the replay beside what really happened."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from lucid.cli.console import Console, Table
from lucid.errors import ConfigError
from lucid.simulator.realism import Realism, RealTimes, read_real

__all__ = ["print_realism", "read_against"]

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


def read_against(specs: Sequence[str], policies: Sequence[str]) -> dict[str, Mapping[str, RealTimes]]:
    """What ``--against [POLICY=]FILE`` names, by policy; without a policy it is the truth of the only one replayed.

    Raises:
        ConfigError: a policy that is not replayed, or none said where there are several.
        TraceError: a file that cannot be read.
    """
    found: dict[str, Mapping[str, RealTimes]] = {}
    for spec in specs:
        policy, separator, name = spec.partition("=")
        if not separator:
            if len(policies) != 1:
                raise ConfigError(f"--against {spec}: of which policy? Write --against {policies[0]}={spec}")
            policy, name = policies[0], spec
        if policy not in policies:
            raise ConfigError(f"--against {spec}: {policy!r} is not replayed (--policy: {', '.join(policies)})")
        found[policy] = read_real(Path(name))
    return found


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
