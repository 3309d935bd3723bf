"""Charts of all pages as inline SVG: bars, points, steps, heat, boxes, with scales and ticks of their axes.

Geometry is made here, in units of the SVG's own; ``charts.html.j2`` writes it, and the style sheet colours it by
class, for light and dark alike."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from lucid.html.page import DAY, HOUR, MINUTE, SECOND, Unit, unit_of
from lucid.text import chart_label

_LEAST_GAP = 40
"""Pixels between two labels of an axis."""


class Tick(NamedTuple):
    """A labelled place on an axis."""

    at: float
    label: str


@dataclass(frozen=True, slots=True)
class Scale:
    """Maps values from ``low`` to ``high`` onto pixels from ``start`` to ``stop``; values outside are clipped."""

    low: float
    high: float
    start: float
    stop: float
    log: bool = False

    def __call__(self, value: float) -> float:
        """The pixel of a value, to a tenth."""
        low, high, value = self.low, self.high, min(max(value, self.low), self.high)
        if self.log:
            low, high, value = math.log(low), math.log(high), math.log(value)
        share = (value - low) / (high - low) if high > low else 0.0
        return round(self.start + share * (self.stop - self.start), 1)


def placed(scale: Scale, ticks: Sequence[Tick]) -> list[Tick]:
    """The ticks on the pixels of the scale, without labels that would touch the one before."""
    kept: list[Tick] = []
    for tick in ticks:
        at = scale(tick.at)
        if not kept or at - kept[-1].at >= _LEAST_GAP:
            kept.append(Tick(at, tick.label))
    return kept


def _nice_step(span: float, most: int) -> float:
    """The least of 1, 2, 5 times a power of ten that cuts the span into at most so many parts."""
    raw = span / most
    power = 10.0 ** math.floor(math.log10(raw))
    return next(step * power for step in (1.0, 2.0, 5.0, 10.0) if step * power >= raw * (1 - 1e-9))


def value_ticks(low: float, high: float, whole: bool = False) -> list[float]:
    """Round values from at most ``low`` to at least ``high``; ``whole``: no fractions."""
    step = _nice_step(high - low, 5)
    if whole:
        step = max(step, 1.0)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(i * step, 12) for i in range(first, last + 1)]


def duration_ticks(high_s: float) -> list[Tick]:
    """Ticks for an axis of durations from 0, all in one unit; ``at`` in seconds."""
    unit = unit_of(high_s)
    values = value_ticks(0.0, high_s / unit.seconds)
    return [Tick(v * unit.seconds, f"{v:g} {unit.name}" if v else "0") for v in values]


_ROUND_DURATIONS = (
    *((n, SECOND) for n in (1, 10)),
    *((n, MINUTE) for n in (1, 10)),
    *((n, HOUR) for n in (1, 6)),
    *((n, DAY) for n in (1, 7, 30, 180, 720)),
)


def log_duration_ticks(low_s: float, high_s: float) -> list[Tick]:
    """Round durations between the two, for a logarithmic axis."""
    found = [Tick(n * unit.seconds, f"{n} {unit.name}") for n, unit in _ROUND_DURATIONS]
    return [tick for tick in found if low_s <= tick.at <= high_s]


def time_unit(span_s: float) -> Unit:
    """The unit in which an axis of trace time is labelled."""
    return next(unit for unit in (DAY, HOUR, MINUTE) if span_s >= 2 * unit.seconds or unit is MINUTE)


def time_ticks(span_s: float) -> list[Tick]:
    """Ticks for trace time from 0 in days (in weeks' steps where they are many), hours or minutes."""
    unit = time_unit(span_s)
    span = span_s / unit.seconds
    steps = (1, 2, 7, 14, 28, 56, 112) if unit is DAY else (0.5, 1, 2, 5, 10, 15, 30)
    step = next((step for step in steps if span / step <= 8), None) or _nice_step(span, 8)
    return [Tick(i * step * unit.seconds, f"{i * step:g}") for i in range(math.floor(span / step + 1e-9) + 1)]


WIDTH, HEIGHT = 600, 260
LEFT, RIGHT, TOP, BOTTOM = 64, 14, 12, 44
_ROW, _LONGEST = 20, 20


@dataclass(frozen=True, slots=True)
class Plain:
    """A table of the values behind a chart."""

    caption: str
    head: list[str]
    rows: list[list[str]]
    more: str = ""
    """A note on rows that were left out."""


@dataclass(frozen=True, slots=True)
class Mark:
    """One element of an SVG. ``kind``: its class. ``tip``: the text that the pointer shows over it."""

    tag: str
    kind: str
    places: dict[str, Any]
    tip: str = ""
    text: str = ""


@dataclass(slots=True)
class Chart:
    """One chart. ``keys``: what the colours mean, as (word, class). ``wide``: it scrolls rather than shrinks on a
    phone."""

    title: str
    description: str
    width: float = WIDTH
    height: float = HEIGHT
    keys: Sequence[tuple[str, str]] = ()
    marks: list[Mark] = field(default_factory=list)
    wide: bool = False

    def rect(self, kind: str, x: float, y: float, width: float, height: float, tip: str = "") -> None:
        """Draw a box; a side that is negative or nothing is a hairline."""
        places = {"x": _n(x), "y": _n(y), "width": _n(max(width, 0.8)), "height": _n(max(height, 0.8))}
        self.marks.append(Mark("rect", kind, places, tip))

    def line(self, kind: str, x1: float, y1: float, x2: float, y2: float) -> None:
        """Draw a straight line."""
        self.marks.append(Mark("line", kind, {"x1": _n(x1), "y1": _n(y1), "x2": _n(x2), "y2": _n(y2)}))

    def path(self, kind: str, points: Sequence[tuple[float, float]]) -> None:
        """Draw straight lines from point to point."""
        if points:
            drawn = "M" + "L".join(f"{_n(x)},{_n(y)}" for x, y in points)
            self.marks.append(Mark("path", kind, {"d": drawn}))

    def dot(self, kind: str, x: float, y: float, radius: float, tip: str = "") -> None:
        """Draw a point."""
        self.marks.append(Mark("circle", kind, {"cx": _n(x), "cy": _n(y), "r": _n(radius)}, tip))

    def write(self, kind: str, x: float, y: float, text: str, tip: str = "", **more: Any) -> None:
        """Write a text."""
        self.marks.append(Mark("text", kind, {"x": _n(x), "y": _n(y), **more}, tip, text))

    def axis_y(self, ticks: Sequence[Tick], left: float, right: float, label: str, top: float, bottom: float) -> None:
        """Draw lines across at the (placed) ticks, with the axis' label."""
        for tick in ticks:
            self.line("rule", left, tick.at, right, tick.at)
            self.write("y", left - 6, tick.at + 4, tick.label)
        if label:
            turn = f"translate(12 {_n((top + bottom) / 2)}) rotate(-90)"
            anchor = {"transform": turn, "text-anchor": "middle"}
            self.marks.append(Mark("text", "name", anchor, "", label))

    def axis_x(
        self, ticks: Sequence[Tick], bottom: float, label: str, middle: float, top: float | None = None
    ) -> None:
        """Draw marks below at the (placed) ticks, or lines up to ``top``, with the axis' label."""
        for tick in ticks:
            self.line("tick" if top is None else "rule", tick.at, bottom if top is None else top, tick.at, bottom + 4)
            self.write("x", tick.at, bottom + 17, tick.label)
        if label:
            self.write("x name", middle, bottom + 36, label)


def _n(value: float) -> float | int:
    """The coordinate to a tenth."""
    found = round(float(value), 1)
    return int(found) if found == int(found) else found


def shortened(name: str, most: int = _LONGEST) -> str:
    """The name without its middle: long names tend to differ at either end."""
    text, half = chart_label(name) or "(unnamed)", most // 2
    return text if len(text) <= most else f"{text[:half]}…{text[-half + 1 :]}"


def _span(values: Sequence[float], zero: bool) -> tuple[float, float]:
    low, high = min(values, default=0.0), max(values, default=0.0)
    if zero:
        low, high = min(low, 0.0), max(high, 0.0)
    if high <= low:
        low, high = low - 0.5, high + 0.5
    return low, high


def sideways(
    title: str,
    description: str,
    rows: Sequence[tuple[str, float, str]],
    label: str,
    keys: Sequence[tuple[str, str]] = (),
) -> Chart:
    """A chart with a bar a row, to either side of zero. ``rows``: name, value, words for the pointer."""
    left, top = 164, 8
    low, high = _span([value for _, value, _ in rows], zero=True)
    ticks = value_ticks(low, high)
    bottom = top + _ROW * max(len(rows), 1)
    chart = Chart(title, description, WIDTH, bottom + BOTTOM, keys)
    x = Scale(ticks[0], ticks[-1], left, WIDTH - 24)
    chart.axis_x([Tick(x(v), f"{v:g}") for v in ticks], bottom, label, (left + WIDTH) / 2, top)
    for i, (name, value, tip) in enumerate(rows):
        y = top + _ROW * i
        begin, end = sorted((x(0.0), x(value)))
        chart.write("y", left - 8, y + 14, shortened(name), tip)
        chart.rect("plus" if value > 0 else "minus", begin, y + 3, end - begin, _ROW - 6, tip)
    chart.line("zero", x(0.0), top, x(0.0), bottom)
    return chart


def columns(title: str, description: str, bars: Sequence[tuple[str, float, str]], label: str, under: str) -> Chart:
    """A chart with bars up or down from zero, names below where there is room. ``bars``: name, value, words."""
    chart = Chart(title, description)
    bottom = HEIGHT - BOTTOM
    ticks = value_ticks(*_span([value for _, value, _ in bars], zero=True))
    y = Scale(ticks[0], ticks[-1], bottom, TOP)
    chart.axis_y([Tick(y(v), f"{v:g}") for v in ticks], LEFT, WIDTH - RIGHT, label, TOP, bottom)
    step = (WIDTH - RIGHT - LEFT) / max(len(bars), 1)
    every = max(1, round(40 / step + 0.49))
    places = [LEFT + step * (i + 0.5) for i in range(len(bars))]
    named = [Tick(at, name) for i, (at, (name, _, _)) in enumerate(zip(places, bars, strict=True)) if i % every == 0]
    chart.axis_x(named, bottom, under, (LEFT + WIDTH) / 2)
    for at, (_, value, tip) in zip(places, bars, strict=True):
        high, low = sorted((y(0.0), y(value)))
        chart.rect("lost" if value > 0 else "won", at - 0.4 * step, high, 0.8 * step, low - high, tip)
    chart.line("zero", LEFT, y(0.0), WIDTH - RIGHT, y(0.0))
    return chart


def points(
    title: str,
    description: str,
    at: Sequence[tuple[float, float, str]],
    under: str,
    label: str,
    *,
    names: Sequence[str] = (),
    most: float | None = None,
    best: Sequence[tuple[float, float]] = (),
    now: float | None = None,
    height: float = HEIGHT,
    keys: Sequence[tuple[str, str]] = (),
) -> Chart:
    """A chart of points (x, y, words). ``names``: of x = 0, 1, …, where it is no number. ``most``: higher ones stand
    at the top edge. ``best``: a line through these. ``now``: a dashed line across."""
    chart = Chart(title, description, WIDTH, height, keys)
    bottom = height - BOTTOM
    ys = [min(y, most) if most is not None else y for _, y, _ in at]
    ticks = value_ticks(*_span([*ys, *([now] if now is not None else [])], zero=False))
    y = Scale(ticks[0], ticks[-1], bottom, TOP)
    chart.axis_y([Tick(y(v), f"{v:g}") for v in ticks], LEFT, WIDTH - RIGHT, label, TOP, bottom)
    if names:
        x = Scale(-0.5, len(names) - 0.5, LEFT, WIDTH - RIGHT)
        below = [Tick(x(i), shortened(name, 14)) for i, name in enumerate(names)]
    else:
        low, high = _span([x for x, _, _ in at], zero=False)
        shown = [v for v in value_ticks(low, high) if low - 1e-9 <= v <= high + 1e-9]
        margin = 0.03 * (high - low)
        x = Scale(low - margin, high + margin, LEFT, WIDTH - RIGHT)
        below = [Tick(x(v), f"{v:g}") for v in shown]
    chart.axis_x(below, bottom, under, (LEFT + WIDTH) / 2)
    if now is not None:
        chart.line("now", LEFT, y(now), WIDTH - RIGHT, y(now))
    for (px, _, tip), py in zip(at, ys, strict=True):
        chart.dot("point", x(px), y(py), 3, tip)
    chart.path("line best", [(x(px), y(py)) for px, py in best])
    return chart


def steps(
    title: str,
    description: str,
    bins: Sequence[tuple[float, str]],
    shares: Sequence[float],
    edges: Sequence[str],
    under: str,
    label: str,
    missing: float | None = None,
) -> Chart:
    """A chart with a step of the same width for each bin, and below it how much of the data fell there.

    ``bins``: value and words of each. ``shares``: of the data, 0 to 1. ``edges``: words for the edges between bins.
    ``missing``: the value where the feature is missing, as a dashed line."""
    chart = Chart(title, description, WIDTH, HEIGHT + 50)
    bottom, floor = HEIGHT - BOTTOM - 10, HEIGHT + 50 - BOTTOM
    values = [value for value, _ in bins]
    ticks = value_ticks(*_span([*values, *([missing] if missing is not None else [])], zero=True))
    y = Scale(ticks[0], ticks[-1], bottom, TOP)
    chart.axis_y([Tick(y(v), f"{v:g}") for v in ticks], LEFT, WIDTH - RIGHT, label, TOP, bottom)
    width = (WIDTH - RIGHT - LEFT) / max(len(bins), 1)
    every = max(1, round(52 / width + 0.49))
    marks = [Tick(LEFT + width * (i + 1), edge) for i, edge in enumerate(edges) if i % every == 0]
    chart.axis_x(marks, floor, under, (LEFT + WIDTH) / 2)
    chart.line("zero", LEFT, y(0.0), WIDTH - RIGHT, y(0.0))
    if missing is not None:
        chart.line("now", LEFT, y(missing), WIDTH - RIGHT, y(missing))
        chart.write("mark", LEFT + 4, y(missing) - 4, "missing")
    across = [(LEFT + width * (i + side), y(value)) for i, value in enumerate(values) for side in (0, 1)]
    chart.path("line best", across)
    tallest = max(shares, default=0.0) or 1.0
    for i, ((_, tip), share) in enumerate(zip(bins, shares, strict=True)):
        tall = 36 * share / tallest
        chart.rect("weight", LEFT + width * i, floor - tall, width - 0.5, tall)
        chart.rect("touch", LEFT + width * i, TOP, width, floor - TOP, tip)
    return chart
