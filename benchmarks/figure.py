"""What a benchmark yields: a figure, what it is held against, and how both are shown."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Absent", "Figure", "Timing", "as_dict", "markdown", "number", "spin", "timed"]


class Absent(Exception):
    """The data that a part needs is not here; the message says what and where it was looked for."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured value. ``baseline`` was taken in the same run unless its name says otherwise; ``runs`` is how many
    runs ``value`` is the median of (1 for what comes out the same every time). ``at_most`` and ``at_least`` bound
    the value, ``ratio_within`` the distance of the ratio from 1."""

    what: str
    value: float
    unit: str
    runs: int = 1
    baseline: float | None = None
    baseline_name: str = ""
    at_most: float | None = None
    at_least: float | None = None
    ratio_within: float | None = None
    note: str = ""
    detail: Mapping[str, Any] = field(default_factory=dict)

    @property
    def ratio(self) -> float | None:
        """Value over baseline."""
        return None if not self.baseline else self.value / self.baseline

    @property
    def met(self) -> bool | None:
        """Does it hold what was asked for? ``None`` where nothing was."""
        tests = []
        if self.at_most is not None:
            tests.append(self.value <= self.at_most)
        if self.at_least is not None:
            tests.append(self.value >= self.at_least)
        if self.ratio_within is not None and self.ratio is not None:
            tests.append(abs(self.ratio - 1) <= self.ratio_within)
        return all(tests) if tests else None

    @property
    def target(self) -> str:
        """The bound in words."""
        if self.at_most is not None:
            return f"<= {self.at_most:,g}"
        if self.at_least is not None:
            return f">= {self.at_least:,g}"
        if self.ratio_within is not None:
            return f"within {100 * self.ratio_within:.2g} %"
        return ""


def as_dict(figure: Figure) -> dict[str, Any]:
    """For ``--json``."""
    return {
        "what": figure.what,
        "value": figure.value,
        "unit": figure.unit,
        "runs": figure.runs,
        "target": figure.target or None,
        "met": figure.met,
        "baseline": figure.baseline,
        "baseline_name": figure.baseline_name or None,
        "ratio": figure.ratio,
        "note": figure.note or None,
        **({"detail": dict(figure.detail)} if figure.detail else {}),
    }


_HEADER = ("", "value", "target", "baseline", "ratio", "runs")


def markdown(figures: Iterable[Figure]) -> str:
    """A table that reads well in a terminal too."""
    rows = [_HEADER, *(_row(figure) for figure in figures)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(_HEADER))]
    lines = ["| " + " | ".join(_pad(row, widths)) + " |" for row in rows]
    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    lines.insert(1, "| " + " | ".join(rule) + " |")
    return "\n".join(lines)


def _row(figure: Figure) -> tuple[str, ...]:
    verdict = {None: "", True: " met", False: " MISSED"}[figure.met]
    return (
        figure.what + (f" ({figure.note})" if figure.note else ""),
        f"{number(figure.value)} {figure.unit}".strip(),
        figure.target + verdict,
        ""
        if figure.baseline is None
        else f"{number(figure.baseline)} {figure.unit}".strip() + f" ({figure.baseline_name})",
        "" if figure.ratio is None else f"{figure.ratio:.3f}",
        str(figure.runs),
    )


def _pad(row: Sequence[str], widths: Sequence[int]) -> list[str]:
    return [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]


def number(value: float) -> str:
    """As people read it."""
    size = abs(value)
    if size >= 1000 or value == 0:
        return f"{value:,.0f}"
    return f"{value:.3f}" if size >= 1 else f"{value:#.3g}"


@dataclass(frozen=True, slots=True)
class Timing:
    """Median wall and CPU seconds of a call, the machine's own pace in between (wall), and what the last call
    returned."""

    seconds: float
    cpu_s: float
    pace_s: float
    runs: int
    result: Any


_SPINS = 1_000_000


def spin() -> float:
    """Seconds that this machine needs for a fixed piece of plain Python: a baseline for what has no rival."""
    began = time.perf_counter()
    total = 0
    for i in range(_SPINS):
        total += i & 7
    return time.perf_counter() - began


def timed(call: Callable[[], Any], runs: int) -> Timing:
    """Median of ``runs`` calls, with the machine's pace taken before each."""
    took, cpu, pace, result = [], [], [], None
    for _ in range(runs):
        pace.append(spin())
        began, began_cpu = time.perf_counter(), time.process_time()
        result = call()
        took.append(time.perf_counter() - began)
        cpu.append(time.process_time() - began_cpu)
    return Timing(statistics.median(took), statistics.median(cpu), statistics.median(pace), runs, result)
