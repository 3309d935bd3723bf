"""Charts of grouped bars, as geometry."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lucid.pages.scales import Scale, Tick, duration_ticks, placed
from lucid.pages.units import show_duration, show_many

__all__ = ["Bar", "BarChart", "BarGroup", "bar_chart"]

_WIDTH, _TOP, _BOTTOM = 600, 10, 42
_BAR_STEP, _GROUP_GAP, _BAR_LEFT, _BAR_RIGHT, _LONGEST_LABEL = 14, 12, 122, 66, 15


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


def _shortened(name: str) -> str:
    """Without its middle: long names of VCs tend to differ at either end."""
    half = _LONGEST_LABEL // 2
    return name if len(name) <= _LONGEST_LABEL else f"{name[:half]}…{name[-half + 1 :]}"


def _tip(whose: str, figures: dict[str, Any]) -> str:
    average, median, p90 = (show_duration(figures[f"{key}_queue_s"]) for key in ("avg", "median", "p90"))
    jobs = show_many(figures["jobs"], "job")
    return f"{whose}: {jobs}, waiting {average} on average, {median} in the median, {p90} at p90"


def bar_chart(
    title: str,
    names: Sequence[str],
    policies: Sequence[str],
    styles: Sequence[int],
    groups: Sequence[dict[str, dict[str, Any]]],
) -> BarChart | None:
    """Average queueing delay of each policy by group. ``groups``: figures by group name, one per policy.
    ``None`` if no group has jobs; one without says so."""
    if not any(found.get(name, {}).get("jobs") for found in groups for name in names):
        return None
    delays = [found[n].get("avg_queue_s") or 0.0 for found in groups for n in names if n in found]
    ticks = duration_ticks(max(delays, default=0.0) or 1.0)
    x = Scale(0.0, ticks[-1].at, _BAR_LEFT, _WIDTH - _BAR_RIGHT)
    y, drawn = float(_TOP), []
    for name in names:
        bars: list[Bar] = []
        for policy, style, found in zip(policies, styles, groups, strict=True):
            figures = found.get(name, {})
            delay = figures.get("avg_queue_s")
            if delay is None:
                continue
            shown, tip = show_duration(delay), _tip(f"{name}, {policy}", figures)
            bars.append(Bar(style, y + _BAR_STEP * len(bars), max(x(delay) - x.start, 1.0), shown, tip))
        height = _BAR_STEP * max(len(bars), 1)
        drawn.append(BarGroup(name, _shortened(name), y + height / 2, bars))
        y += height + _GROUP_GAP
    return BarChart(
        y + _BOTTOM - _GROUP_GAP + 4,
        title,
        f"Average queueing delay of {', '.join(policies)} as bars from zero, grouped by {', '.join(names)}.",
        "average queueing delay",
        placed(x, ticks),
        drawn,
        y - _GROUP_GAP + 4,
        _BAR_LEFT,
    )
