"""Charts of the report, lines and grouped bars, as geometry for SVG; and runs reduced to as many points as fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from lucid.html.charts import (
    Scale,
    Tick,
    duration_ticks,
    log_duration_ticks,
    placed,
    shortened,
    time_ticks,
    time_unit,
    value_ticks,
)
from lucid.html.page import show_count, show_duration, show_many
from lucid.simulator.engine import Run, Series

MOST_POINTS = 420
"""Most points of one line: about one a pixel and a half."""
_GRID_POINTS = 280

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class TimeLines:
    """The state over time, by run. Each point is the mean over ``bucket_s``; a run that is over has fewer points."""

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
    """The series of all runs on one grid of time."""
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
    """Waiting jobs over time, all partitions together."""
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


_WIDTH, _HEIGHT = 600, 320
_PANEL_HEIGHT = 190
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 14, 10, 42
_BAR_STEP, _GROUP_GAP, _BAR_LEFT, _BAR_RIGHT, _LONGEST_LABEL = 14, 12, 122, 66, 15


@dataclass(frozen=True, slots=True)
class Line:
    """One line, or the edge of a filled area where ``area`` is set."""

    style: int
    name: str
    path: str
    area: str = ""
    kind: str = ""


@dataclass(frozen=True, slots=True)
class LineChart:
    """Lines over a common x axis. ``readout``: pixels, values and units for the script."""

    height: int
    title: str
    description: str
    x_label: str
    x_ticks: list[Tick]
    y_label: str
    y_ticks: list[Tick]
    lines: list[Line]
    readout: dict[str, Any]
    mark: Tick | None = None
    """A vertical line with a label."""
    width: int = _WIDTH
    left: int = _LEFT
    right: int = _WIDTH - _RIGHT
    top: int = _TOP

    @property
    def bottom(self) -> int:
        """The height of the x axis."""
        return self.height - _BOTTOM


def _path(xs: Sequence[float], ys: Sequence[float]) -> str:
    """The SVG path of straight lines from point to point; points in the middle of a level stretch are left out."""
    kept = [i for i in range(len(ys)) if i in (0, len(ys) - 1) or ys[i] != ys[i - 1] or ys[i] != ys[i + 1]]
    return "M" + "L".join(f"{xs[i]:g},{ys[i]:g}" for i in kept) if kept else ""


def _area(path: str, xs: Sequence[float], floor: float) -> str:
    return f"{path}L{xs[-1]:g},{floor:g}L{xs[0]:g},{floor:g}Z" if path else ""


def _rounded(values: Floats, digits: int) -> list[float]:
    return [round(float(value), digits) for value in values]


Keys = Sequence[tuple[str, int]]
"""The policies of a page, each with its style."""


def completion_chart(grid: Floats, jcts: Sequence[Floats], keys: Keys) -> LineChart | None:
    """Share of jobs completed within each time, logarithmic. ``None`` if no job ended."""
    if not len(grid):
        return None
    x = Scale(float(grid[0]), float(grid[-1]), _LEFT, _WIDTH - _RIGHT, log=True)
    y = Scale(0, 100, _HEIGHT - _BOTTOM, _TOP)
    xs = [x(float(value)) for value in grid]
    shares = [_rounded(100 * jct.searchsorted(grid, side="right") / max(len(jct), 1), 2) for jct in jcts]
    return LineChart(
        _HEIGHT,
        "Job completion times: share of jobs done within a time, by policy",
        f"Cumulative distribution of the completion times of {_named(keys)}; the time axis is logarithmic. "
        "The further left and up a line, the sooner jobs are done.",
        "job completion time (submission to end), logarithmic",
        placed(x, log_duration_ticks(x.low, x.high)),
        "jobs done",
        [Tick(y(value), f"{value} %") for value in (0, 25, 50, 75, 100)],
        _lines(xs, y, keys, shares),
        _readout(xs, [float(f"{value:.4g}") for value in grid], "within", y, "percent", keys, shares),
    )


def _named(keys: Keys) -> str:
    return ", ".join(policy for policy, _ in keys)


def _lines(xs: Sequence[float], y: Scale, keys: Keys, values: Sequence[Sequence[float]]) -> list[Line]:
    return [
        Line(style, policy, _path(xs, [y(value) for value in row]))
        for (policy, style), row in zip(keys, values, strict=True)
    ]


def _readout(
    xs: list[float], at: list[float], kind: str, y: Scale, unit: str, keys: Keys, values: Sequence[list[float]]
) -> dict[str, Any]:
    series = [{"p": style, "name": name, "v": row} for (name, style), row in zip(keys, values, strict=True)]
    return {"px": xs, "x": at, "kind": kind, "unit": unit, "y": [y.low, y.high, y.start, y.stop], "series": series}


def _time_axis(lines: TimeLines) -> tuple[Scale, list[float]]:
    """The scale of trace time, which all charts over it have in common, and the pixels of their points."""
    scale = Scale(0.0, lines.at_s[-1] + lines.bucket_s / 2, _LEFT, _WIDTH - _RIGHT)
    return scale, [scale(value) for value in lines.at_s]


def _arrived(scale: Scale, last_arrival_s: float) -> Tick | None:
    return Tick(scale(last_arrival_s), "last arrival") if 0 < last_arrival_s < scale.high else None


def queue_chart(lines: TimeLines, last_arrival_s: float, keys: Keys) -> LineChart | None:
    """Jobs waiting over time. ``None`` if there is no time to show."""
    if not lines.at_s:
        return None
    x, xs = _time_axis(lines)
    most = max((float(v.max(initial=0.0)) for v in lines.pending), default=0.0)
    levels = value_ticks(0.0, most or 1.0, whole=True)
    y = Scale(0, levels[-1], _HEIGHT - _BOTTOM, _TOP)
    waiting = [_rounded(pending, 1) for pending in lines.pending]
    return LineChart(
        _HEIGHT,
        "Queue length over time, by policy",
        f"Number of jobs that wait under {_named(keys)}, from the first arrival to the last end; the lower, the "
        "better.",
        f"{time_unit(x.high).plural} since the first arrival",
        placed(x, time_ticks(x.high)),
        "jobs waiting",
        [Tick(y(level), show_count(level)) for level in levels],
        _lines(xs, y, keys, waiting),
        _readout(xs, lines.at_s, "at", y, "jobs", keys, waiting) | {"fit": True},
        _arrived(x, last_arrival_s),
    )


def occupancy_chart(
    lines: TimeLines, last_arrival_s: float, index: int, policy: str, style: int, total_gpus: int
) -> LineChart | None:
    """Share of GPUs that are busy, and of those that two jobs share, under one policy."""
    if not lines.at_s or not total_gpus:
        return None
    x, xs = _time_axis(lines)
    y = Scale(0, 100, _PANEL_HEIGHT - _BOTTOM, _TOP)
    shares = [_rounded(100 * gpus[index] / total_gpus, 1) for gpus in (lines.busy, lines.shared)]
    drawn = [
        replace(line, area=_area(line.path, xs[: len(row)], y.start), kind=kind)
        for line, row, kind in zip(_lines(xs, y, [(policy, style)] * 2, shares), shares, _KINDS, strict=True)
    ]
    return LineChart(
        _PANEL_HEIGHT,
        f"GPU occupancy over time under {policy}",
        f"Percentage of the {total_gpus} GPUs that a job holds, and of those that two jobs share, under {policy}.",
        f"{time_unit(x.high).plural} since the first arrival",
        placed(x, time_ticks(x.high)),
        "GPUs",
        [Tick(y(value), f"{value} %") for value in (0, 50, 100)],
        drawn,
        _readout(xs, lines.at_s, "at", y, "percent", [(kind, style) for kind in _KINDS], shares),
        _arrived(x, last_arrival_s),
    )


_KINDS = ("busy", "shared")


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar with its value written at the end; ``tip``: what the pointer shows."""

    style: int
    y: float
    width: float
    value: str
    tip: str


@dataclass(frozen=True, slots=True)
class BarGroup:
    """The bars of one VC or size. ``label`` is shortened to what fits, ``name`` is whole."""

    name: str
    label: str
    y: float
    bars: list[Bar]


@dataclass(frozen=True, slots=True)
class BarChart:
    """Horizontal bars in groups."""

    height: float
    title: str
    description: str
    x_label: str
    x_ticks: list[Tick]
    groups: list[BarGroup]
    bottom: float
    left: int
    width: int = _WIDTH
    bar_height: int = 12


def _tip(whose: str, figures: dict[str, Any]) -> str:
    average, median, p90 = (show_duration(figures[f"{key}_queue_s"]) for key in ("avg", "median", "p90"))
    jobs = show_many(figures["jobs"], "job")
    return f"{whose}: {jobs}, waiting {average} on average, {median} in the median, {p90} at p90"


def bar_chart(
    title: str,
    names: Sequence[str],
    keys: Keys,
    groups: Sequence[dict[str, dict[str, Any]]],
) -> BarChart | None:
    """A chart of the average queueing delay of each policy by group; ``None`` if no group has jobs. ``groups``:
    figures by group name, one per policy."""
    if not any(found.get(name, {}).get("jobs") for found in groups for name in names):
        return None
    delays = [found[n].get("avg_queue_s") or 0.0 for found in groups for n in names if n in found]
    ticks = duration_ticks(max(delays, default=0.0) or 1.0)
    x = Scale(0.0, ticks[-1].at, _BAR_LEFT, _WIDTH - _BAR_RIGHT)
    y, drawn = float(_TOP), []
    for name in names:
        bars: list[Bar] = []
        for (policy, style), found in zip(keys, groups, strict=True):
            figures = found.get(name, {})
            delay = figures.get("avg_queue_s")
            if delay is None:
                continue
            shown, tip = show_duration(delay), _tip(f"{name}, {policy}", figures)
            bars.append(Bar(style, y + _BAR_STEP * len(bars), max(x(delay) - x.start, 1.0), shown, tip))
        height = _BAR_STEP * max(len(bars), 1)
        drawn.append(BarGroup(name, shortened(name, _LONGEST_LABEL), y + height / 2, bars))
        y += height + _GROUP_GAP
    return BarChart(
        y + _BOTTOM - _GROUP_GAP + 4,
        title,
        f"Average queueing delay of {_named(keys)} as bars from zero, grouped by {', '.join(names)}.",
        "average queueing delay",
        placed(x, ticks),
        drawn,
        y - _GROUP_GAP + 4,
        _BAR_LEFT,
    )
