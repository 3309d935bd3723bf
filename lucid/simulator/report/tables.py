"""The tables of the page: the comparison of policies, and the figures behind each chart."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lucid.pages.picture import Plain
from lucid.pages.scales import time_unit
from lucid.pages.units import show_change, show_count, show_duration, show_share, unit_of
from lucid.simulator.gains import Gains
from lucid.simulator.report.series import Floats, TimeLines

__all__ = [
    "Cell",
    "Column",
    "Comparison",
    "compare",
    "completion_table",
    "gains_tables",
    "groups_table",
    "lending_table",
    "time_table",
]


@dataclass(frozen=True, slots=True)
class Cell:
    """What is shown, and the value itself."""

    text: str
    value: float | None
    best: bool = False


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the comparison. ``better``: is there a better direction to mark (less, in every case)?"""

    group: str
    title: str
    key: str
    show: Callable[[float | None], str] | None = None
    """``None``: a duration, in a unit common to the column."""
    better: bool = True
    part: str = ""
    """Of which part of the figures it is."""


_COLUMNS = (
    *(
        Column(group, title, f"{key}_{name}_s")
        for group, name in (("Job completion time (JCT)", "jct"), ("Queueing delay", "queue"))
        for key, title in (("avg", "average"), ("median", "median"), ("p90", "p90"), ("p999", "p99.9"))
    ),
    Column("Large jobs", "average JCT", "avg_jct_large_s"),
    Column("Cluster", "makespan", "makespan_s"),
    Column("Cluster", "GPU use", "gpu_use", show_share, better=False),
    Column("Cluster", "packed jobs", "packed_share", show_share, better=False),
    Column("Cluster", "preemptions", "preemptions", show_count),
)
_BOUND = (
    Column("Starvation bound", "jobs past it", "jobs_past_bound", show_count),
    Column("Starvation bound", "worst by", "worst_past_bound_s"),
)
"""Where one of the policies promised such a bound."""
_PARTS = (
    Column("24 h before windows", "GPU-hours unused", "unused_before_gpu_h", show_count, part="windows"),
    Column("24 h before windows", "GPU-hours of lost work", "lost_gpu_h", show_count, part="windows"),
)
"""Where the replay had windows."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """One row a policy. ``spans``: groups of columns with how many each has."""

    spans: list[tuple[str, int]]
    columns: list[Column]
    rows: list[list[Cell]]


def compare(policies: Sequence[str], metrics: Mapping[str, Mapping[str, Any]]) -> Comparison:
    """The table of all policies; the best of a column is marked unless all are alike."""
    bounded = any("starvation_bound_s" in metrics[policy] for policy in policies)
    known = {part for policy in policies for part in metrics[policy]}
    chosen = [*_COLUMNS, *(_BOUND if bounded else ()), *(column for column in _PARTS if column.part in known)]
    columns = [_cells(column, [_value(column, metrics[policy]) for policy in policies]) for column in chosen]
    groups = [column.group for column in chosen]
    return Comparison(
        [(group, groups.count(group)) for group in dict.fromkeys(groups)],
        chosen,
        [list(row) for row in zip(*columns, strict=True)],
    )


def _value(column: Column, metrics: Mapping[str, Any]) -> float | None:
    found: float | None = (metrics.get(column.part, {}) if column.part else metrics).get(column.key)
    return found


def _cells(column: Column, values: Sequence[float | None]) -> list[Cell]:
    known = [value for value in values if value is not None]
    best = min(known, default=None) if column.better and len(set(known)) > 1 else None
    if column.show is not None:
        return [Cell(column.show(value), value, value is not None and value == best) for value in values]
    unit = unit_of(max(known, default=0.0))
    return [Cell(show_duration(value, unit), value, value is not None and value == best) for value in values]


def completion_table(policies: Sequence[str], jcts: Sequence[Floats]) -> Plain:
    """Within what time which share of jobs is done."""
    rows = []
    for percent in (10, 25, 50, 75, 90, 95, 99, 99.9):
        times = [show_duration(float(np.percentile(jct, percent))) if len(jct) else "–" for jct in jcts]
        rows.append([f"{percent:g} %", *times])
    return Plain("Time within which a share of the jobs is done", ["jobs done", *policies], rows)


_PERIODS = 12


def time_table(
    caption: str,
    policies: Sequence[str],
    lines: TimeLines,
    values: Sequence[Floats],
    show: Callable[[float], str],
    last: Sequence[tuple[str, list[str]]] = (),
) -> Plain:
    """Means over about a dozen periods of equal length, then the rows given."""
    width = max(1, -(-len(lines.at_s) // _PERIODS))
    unit = time_unit(len(lines.at_s) * lines.bucket_s)
    per_bucket = lines.bucket_s / unit.seconds
    rows = []
    for start in range(0, len(lines.at_s), width):
        stop = min(start + width, len(lines.at_s))
        means = [show(float(v[start:stop].mean())) if len(v) > start else "over" for v in values]
        rows.append([f"{start * per_bucket:.1f} to {stop * per_bucket:.1f} {unit.name}", *means])
    return Plain(caption, ["mean over", *policies], [*rows, *([name, *cells] for name, cells in last)])


def groups_table(
    caption: str,
    first: str,
    names: Sequence[str],
    policies: Sequence[str],
    groups: Sequence[Mapping[str, Mapping[str, Any]]],
    most: int,
) -> Plain:
    """Average queueing delay of each group under each policy, with the number of jobs."""
    rows = []
    for name in names[:most]:
        found = [group.get(name, {}) for group in groups]
        jobs = max((figures.get("jobs", 0) for figures in found), default=0)
        delays = [show_duration(figures.get("avg_queue_s")) for figures in found]
        rows.append([name, show_count(jobs), *delays])
    left = len(names) - len(rows)
    return Plain(caption, [first, "jobs", *policies], rows, f"and {show_count(left)} more" if left > 0 else "")


def lending_table(policies: Sequence[str], by_vc: Sequence[Mapping[str, Mapping[str, Any]]]) -> Plain | None:
    """What the VCs of a pool lent and borrowed under each policy; ``None`` without a pool."""
    pooled = [
        (name, g) for name, g in zip(policies, by_vc, strict=True) if any("quota_gpus" in f for f in g.values())
    ]
    if not pooled:
        return None
    asked = any("promise" in found for _, groups in pooled for found in groups.values())
    columns = ["VC", "quota"]
    for name, _ in pooled:
        columns += [f"{name}: average JCT", "GPU-hours lent", "borrowed", "jobs past the bound"]
        columns += ["without lending", "jobs within quota: waited longer, p99.9", "at most"] if asked else []
    rows = []
    for vc, first in pooled[0][1].items():
        row = [vc, show_count(first["quota_gpus"])]
        for _, groups in pooled:
            found = groups[vc]
            past, cost = found.get("jobs_past_bound"), found.get("promise", {})
            row += [
                show_duration(found.get("avg_jct_s")),
                show_count(round(found["lent_gpu_h"])),
                show_count(round(found["borrowed_gpu_h"])),
                "-" if past is None else show_count(past),
            ]
            row += [show_duration(cost.get(key)) for key in ("walls_avg_jct_s", "p999_s", "worst_s")] if asked else []
        rows.append(row)
    return Plain("Lending between VCs", columns, rows, "A VC borrows what it holds beyond its quota.")


def gains_tables(found: Gains, most_rows: int) -> list[tuple[str, list[tuple[str, list[str], bool]], int]]:
    """By VC and by user, those that lose most first: a title, rows (name, cells, does it lose?), and how many rows
    more there are."""
    made = []
    for title, parties in (("VC", found.vcs), ("user", found.users)):
        rows = [
            (
                party.name or "(no name)",
                [
                    show_count(party.jobs),
                    show_duration(party.baseline_s),
                    show_duration(party.jct_s),
                    show_change(party.jct_s, party.baseline_s) or "the same",
                    show_count(party.later),
                ],
                show_change(party.jct_s, party.baseline_s).endswith("more"),
            )
            for party in parties[:most_rows]
        ]
        made.append((title, rows, max(len(parties) - most_rows, 0)))
    return made
