"""A row of a paper: what was published, what comes out here, and whether that holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

__all__ = ["HOURS", "Row", "as_dict", "from_dict", "table"]

HOURS: Final = ("avg JCT, h", "queueing, h", "p99 JCT, h", "p99.9 queueing, h", "makespan, h", "JCT > 8 GPUs, h")
"""Columns of a replay."""
_SAME: Final = 5e-7
"""Nearer than this is the same figure: published ones are rounded."""


@dataclass(frozen=True, slots=True)
class Row:
    """``ours`` and ``published``: figures by column, whose name says the unit. What is held to what was published is
    the columns that both have: ``within`` is how far, as a share, each may be off; ``at_least`` and ``at_most`` say
    that the published figure is a claim which ours should reach. Without any of them nothing is judged.
    ``decides``: only these columns are judged; all, unless given."""

    what: str
    ours: Mapping[str, float]
    published: Mapping[str, float] = field(default_factory=dict)
    within: float | None = None
    at_least: bool = False
    at_most: bool = False
    decides: tuple[str, ...] = ()
    note: str = ""

    @property
    def met(self) -> bool | None:
        """Does ours hold what was published? ``None`` where nothing is asked, or one of both is missing."""
        both = [name for name in self.ours if name in self.published and (not self.decides or name in self.decides)]
        if not both or (self.within is None and not self.at_least and not self.at_most):
            return None
        return all(self._holds(self.ours[name], self.published[name]) for name in both)

    def _holds(self, ours: float, published: float) -> bool:
        if self.within is not None:
            return abs(ours / published - 1) <= self.within + 1e-12
        return ours >= published if self.at_least else ours <= published


def table(rows: Sequence[Row]) -> str:
    """Markdown: a column for each that a row has, published and ours in one cell."""
    names = [name for name in HOURS if any(name in row.ours or name in row.published for row in rows)]
    names += [name for row in rows for name in (*row.published, *row.ours) if name not in HOURS]
    columns = list(dict.fromkeys(names))
    judged = any(row.met is not None for row in rows)
    noted = any(row.note for row in rows)
    head = ["", *columns, *(["met"] if judged else []), *(["note"] if noted else [])]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for row in rows:
        cells = [row.what, *(_cell(row.published.get(name), row.ours.get(name), "%" in name) for name in columns)]
        cells += [{None: "", True: "yes", False: "**no**"}[row.met]] if judged else []
        cells += [row.note] if noted else []
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def _cell(published: float | None, ours: float | None, points: bool) -> str:
    """``published / ours (difference)``; ``published / =`` where they are the same; ours alone where no figure was
    published, ``published / –`` where there is none of ours. ``points``: of shares the difference is in points."""
    if published is None:
        return "" if ours is None else f"{ours:.1f}" if points else _number(ours)
    if ours is None:
        return f"{_number(published)} / –"
    off = ours / published - 1 if published else ours
    if points:
        return f"{published:.1f} / {ours:.1f} ({ours - published:+.1f})"
    if abs(off) < _SAME or _number(ours) == _number(published):
        return f"{_number(published)} / ="
    return f"{_number(published)} / {_number(ours)} ({100 * off:+.1f} %)"


def _number(value: float) -> str:
    size = abs(value)
    if size >= 1000:
        return f"{value:,.0f}"
    return f"{value:.1f}" if size >= 100 else f"{value:.2f}" if size >= 10 else f"{value:.3f}"


def as_dict(row: Row) -> dict[str, Any]:
    """For JSON: what is as it is by default is left out."""
    found: dict[str, Any] = {"what": row.what, "ours": {k: round(v, 6) for k, v in row.ours.items()}}
    if row.published:
        found["published"] = {k: round(v, 6) for k, v in row.published.items()}
    for name in ("within", "at_least", "at_most", "decides", "note"):
        if value := getattr(row, name):
            found[name] = list(value) if name == "decides" else value
    return found


def from_dict(found: Mapping[str, Any]) -> Row:
    """What ``as_dict`` made."""
    return Row(**{**found, "decides": tuple(found.get("decides", ()))})
