"""``Story``: one job, simulated or live: its decisions with their reasons, and what happened between."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

from lucid.core.decision import DecisionRow
from lucid.core.frozen import frozen_dataclass
from lucid.core.reason import reason_to_dict
from lucid.explain.formatting import when
from lucid.explain.reasons import decision_text, reason_text
from lucid.text import shown

WIDTH = 100
"""Columns of a story where no terminal says how many there are."""
UNBROKEN = 10_000
"""Columns of a live job's story: programs look for words in it."""
_NARROWEST = 60


@frozen_dataclass(frozen=True, slots=True)
class Story:
    """The story of one job.

    ``head``: who it is. ``rows``: the decisions. ``joined``: jobs that came to share its GPUs, with the time.
    ``events``: what else happened after it was submitted, with the time. ``outcome``: how it ended. ``estimate``:
    what was expected of it, line by line. ``profiling``: name of the profiling partition. Times in seconds."""

    head: str
    rows: Sequence[DecisionRow]
    joined: Sequence[tuple[str, float]] = ()
    events: Sequence[tuple[float, str]] = ()
    submit_s: float | None = None
    outcome: str = ""
    estimate: Sequence[str] = ()
    profiling: str = ""

    def history(self) -> list[tuple[float, list[str]]]:
        """Decisions and events, oldest first: the time, a headline, and the comparisons."""
        told = [
            (row.at_s, [decision_text(row, row.partition == self.profiling), *map(reason_text, row.reasons)])
            for row in self.rows
        ]
        told += [(at_s, [f"job {other} joins it on the same GPUs"]) for other, at_s in self.joined]
        told += [(at_s, [words]) for at_s, words in self.events]
        return sorted(told, key=lambda item: item[0])

    def text(self, width: int = WIDTH) -> str:
        """The story in lines of at most ``width`` columns; a longer one goes on under its own beginning."""
        lines = [shown(self.head)]
        if self.submit_s is not None:
            lines.append(f"{when(self.submit_s)}  submitted")
        for at_s, (headline, *reasons) in self.history():
            time = f"{when(at_s)}  "
            lines += _wrapped(time, headline, width)
            for reason in reasons:
                lines += _wrapped(" " * len(time) + "- ", reason, width)
        if self.outcome:
            lines += _wrapped("in all: ", self.outcome, width)
        return "\n".join([*lines, *self.estimate])


def row_to_dict(row: DecisionRow) -> dict[str, Any]:
    """A decision as JSON, with the values that it compared."""
    data: dict[str, Any] = {
        "at_s": row.at_s,
        "partition": row.partition,
        "verb": row.verb,
        "placement": row.placement,
        "beside": row.beside,
        "reasons": [reason_to_dict(reason) for reason in row.reasons],
    }
    return {**data, "mode": row.mode} if row.mode else data


def _wrapped(label: str, text: str, width: int) -> list[str]:
    line = label + shown(text)
    if len(line) <= width:
        return [line.rstrip()]
    return textwrap.wrap(
        shown(text),
        max(width, _NARROWEST),
        initial_indent=label,
        subsequent_indent=" " * len(label),
        break_long_words=False,
        break_on_hyphens=False,
    )
