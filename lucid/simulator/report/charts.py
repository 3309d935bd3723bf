"""Charts as geometry: what the template draws as SVG, and what the script needs to read values off them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from lucid.pages.scales import Scale, Tick, even_ticks, log_duration_ticks, placed, time_ticks, time_unit
from lucid.pages.units import show_count
from lucid.simulator.report.series import Floats, TimeLines

__all__ = ["Line", "LineChart", "completion_chart", "occupancy_chart", "queue_chart"]

_WIDTH, _HEIGHT = 600, 320
_PANEL_HEIGHT = 190
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 14, 10, 42


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
    """A vertical line with a word."""
    width: int = _WIDTH
    left: int = _LEFT
    right: int = _WIDTH - _RIGHT
    top: int = _TOP

    @property
    def bottom(self) -> int:
        """Where the x axis lies."""
        return self.height - _BOTTOM


def _path(xs: Sequence[float], ys: Sequence[float]) -> str:
    """Straight lines from point to point; points in the middle of a level stretch are left out."""
    kept = [i for i in range(len(ys)) if i in (0, len(ys) - 1) or ys[i] != ys[i - 1] or ys[i] != ys[i + 1]]
    return "M" + "L".join(f"{xs[i]:g},{ys[i]:g}" for i in kept) if kept else ""


def _area(path: str, xs: Sequence[float], floor: float) -> str:
    return f"{path}L{xs[-1]:g},{floor:g}L{xs[0]:g},{floor:g}Z" if path else ""


def _rounded(values: Floats, digits: int) -> list[float]:
    return [round(float(value), digits) for value in values]


def completion_chart(
    grid: Floats, jcts: Sequence[Floats], policies: Sequence[str], styles: Sequence[int]
) -> LineChart | None:
    """Share of jobs completed within each time, logarithmic. ``None`` if no job ended."""
    if not len(grid):
        return None
    x = Scale(float(grid[0]), float(grid[-1]), _LEFT, _WIDTH - _RIGHT, log=True)
    y = Scale(0, 100, _HEIGHT - _BOTTOM, _TOP)
    xs = [x(float(value)) for value in grid]
    lines, series = [], []
    for policy, style, jct in zip(policies, styles, jcts, strict=True):
        shares = 100 * jct.searchsorted(grid, side="right") / max(len(jct), 1)
        values = _rounded(shares, 2)
        lines.append(Line(style, policy, _path(xs, [y(value) for value in values])))
        series.append({"p": style, "name": policy, "v": values})
    return LineChart(
        _HEIGHT,
        "Job completion times: share of jobs done within a time, by policy",
        f"Cumulative distribution of the completion times of {', '.join(policies)}; the time axis is logarithmic. "
        "The further left and up a line, the sooner jobs are done.",
        "job completion time (submission to end), logarithmic",
        placed(x, log_duration_ticks(x.low, x.high)),
        "jobs done",
        [Tick(y(value), f"{value} %") for value in (0, 25, 50, 75, 100)],
        lines,
        _readout(xs, [float(f"{value:.4g}") for value in grid], "within", y, "percent", series),
    )


def _readout(
    xs: list[float], values: list[float], kind: str, y: Scale, unit: str, series: list[dict[str, Any]]
) -> dict[str, Any]:
    return {
        "px": xs,
        "x": values,
        "kind": kind,
        "unit": unit,
        "y": [y.low, y.high, y.start, y.stop],
        "series": series,
    }


@dataclass(frozen=True, slots=True)
class _TimeAxis:
    """What all charts over trace time have in common."""

    lines: TimeLines
    last_arrival_s: float
    scale: Scale = field(init=False)
    pixels: list[float] = field(init=False)

    def __post_init__(self) -> None:
        end_s = self.lines.at_s[-1] + self.lines.bucket_s / 2
        scale = Scale(0.0, end_s, _LEFT, _WIDTH - _RIGHT)
        object.__setattr__(self, "scale", scale)
        object.__setattr__(self, "pixels", [scale(value) for value in self.lines.at_s])

    @property
    def label(self) -> str:
        return f"{time_unit(self.scale.high).plural} since the first arrival"

    @property
    def ticks(self) -> list[Tick]:
        return placed(self.scale, time_ticks(self.scale.high))

    @property
    def mark(self) -> Tick | None:
        if not 0 < self.last_arrival_s < self.scale.high:
            return None
        return Tick(self.scale(self.last_arrival_s), "last arrival")


def queue_chart(
    lines: TimeLines, last_arrival_s: float, policies: Sequence[str], styles: Sequence[int]
) -> LineChart | None:
    """Jobs waiting over time. ``None`` if there is no time to show."""
    if not lines.at_s:
        return None
    axis = _TimeAxis(lines, last_arrival_s)
    levels = even_ticks(max((float(v.max(initial=0.0)) for v in lines.pending), default=0.0), whole=True)
    y = Scale(0, levels[-1], _HEIGHT - _BOTTOM, _TOP)
    drawn, series = [], []
    for policy, style, pending in zip(policies, styles, lines.pending, strict=True):
        values = _rounded(pending, 1)
        drawn.append(Line(style, policy, _path(axis.pixels, [y(value) for value in values])))
        series.append({"p": style, "name": policy, "v": values})
    return LineChart(
        _HEIGHT,
        "Queue length over time, by policy",
        f"Number of jobs that wait under {', '.join(policies)}, from the first arrival to the last end; the lower, "
        "the better.",
        axis.label,
        axis.ticks,
        "jobs waiting",
        [Tick(y(level), show_count(level)) for level in levels],
        drawn,
        _readout(axis.pixels, lines.at_s, "at", y, "jobs", series) | {"fit": True},
        axis.mark,
    )


def occupancy_chart(
    lines: TimeLines, last_arrival_s: float, index: int, policy: str, style: int, total_gpus: int
) -> LineChart | None:
    """Share of GPUs that are busy, and of those that two jobs share, under one policy."""
    if not lines.at_s or not total_gpus:
        return None
    axis = _TimeAxis(lines, last_arrival_s)
    y = Scale(0, 100, _PANEL_HEIGHT - _BOTTOM, _TOP)
    drawn, series = [], []
    for kind, gpus in (("busy", lines.busy[index]), ("shared", lines.shared[index])):
        values = _rounded(100 * gpus / total_gpus, 1)
        path = _path(axis.pixels, [y(value) for value in values])
        drawn.append(Line(style, policy, path, _area(path, axis.pixels[: len(values)], y.start), kind))
        series.append({"p": style, "name": kind, "v": values})
    return LineChart(
        _PANEL_HEIGHT,
        f"GPU occupancy over time under {policy}",
        f"Percentage of the {total_gpus} GPUs that a job holds, and of those that two jobs share, under {policy}.",
        axis.label,
        axis.ticks,
        "GPUs",
        [Tick(y(value), f"{value} %") for value in (0, 50, 100)],
        drawn,
        _readout(axis.pixels, lines.at_s, "at", y, "percent", series),
        axis.mark,
    )
