"""From values to places on a chart, and the ticks of its axes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from lucid.pages.units import DAY, HOUR, MINUTE, SECOND, Unit, unit_of

__all__ = [
    "Scale",
    "Tick",
    "duration_ticks",
    "even_ticks",
    "log_duration_ticks",
    "placed",
    "time_ticks",
    "time_unit",
]

_LEAST_GAP = 40
"""Pixels between two labels of an axis."""


class Tick(NamedTuple):
    """A labelled place on an axis."""

    at: float
    label: str


@dataclass(frozen=True, slots=True)
class Scale:
    """Maps values from ``low`` to ``high`` onto pixels from ``start`` to ``stop``; what lies outside is clipped."""

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
    """On the pixels of the scale, without labels that would touch the one before."""
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


def even_ticks(high: float, most: int = 5, whole: bool = False) -> list[float]:
    """Round values from 0 to the first that is at least ``high``."""
    if high <= 0:
        high = 1.0
    step = _nice_step(high, most)
    if whole:
        step = max(step, 1.0)
    return [step * i for i in range(math.ceil(high / step - 1e-9) + 1)]


def duration_ticks(high_s: float, most: int = 5) -> list[Tick]:
    """An axis of durations from 0, all in one unit; ``at`` in seconds."""
    unit = unit_of(high_s)
    return [
        Tick(v * unit.seconds, f"{v:g} {unit.name}" if v else "0") for v in even_ticks(high_s / unit.seconds, most)
    ]


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
    """In what an axis of trace time is labelled."""
    return next(unit for unit in (DAY, HOUR, MINUTE) if span_s >= 2 * unit.seconds or unit is MINUTE)


def time_ticks(span_s: float, most: int = 8) -> list[Tick]:
    """Trace time from 0 in days (in weeks' steps where they are many), hours or minutes."""
    unit = time_unit(span_s)
    span = span_s / unit.seconds
    steps = (1, 2, 7, 14, 28, 56, 112) if unit is DAY else (0.5, 1, 2, 5, 10, 15, 30)
    step = next((step for step in steps if span / step <= most), None) or _nice_step(span, most)
    return [Tick(i * step * unit.seconds, f"{i * step:g}") for i in range(math.floor(span / step + 1e-9) + 1)]
