"""``Story``: one job, simulated or live: its decisions with their reasons, and what happened between."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from lucid.core.decision import DecisionRow
from lucid.core.reason import reason_to_dict
from lucid.explain.formatting import when
from lucid.explain.reasons import decision_text, reason_texts
from lucid.text import shown

WIDTH = 100
"""Columns of a story where no terminal says how many there are."""
UNBROKEN = 10_000
"""Columns of a live job's story: programs look for words in it."""
_NARROWEST = 60


class Story(Struct, frozen=True):
    """The story of one job.

    ``first``: what is so now, line by line. ``head``: who it is. ``rows``: the decisions. ``joined``: jobs that came
    to share its GPUs, with the time. ``events``: what else happened after it was submitted, with the time.
    ``outcome``: how it ended. ``estimate``: what was expected of it, line by line. ``profiling``: name of the
    profiling partition. Times in seconds."""

    head: str
    rows: Sequence[DecisionRow]
    joined: Sequence[tuple[str, float]] = ()
    events: Sequence[tuple[float, str]] = ()
    submit_s: float | None = None
    outcome: str = ""
    estimate: Sequence[str] = ()
    profiling: str = ""
    first: Sequence[str] = ()

    def history(self) -> list[tuple[float, list[str]]]:
        """Decisions and events, oldest first: the time, a headline, and the comparisons."""
        return [(at_s, [headline, *(words for words, _ in reasons)]) for at_s, headline, reasons in self._told()]

    def _told(self) -> list[tuple[float, str, list[tuple[str, bool]]]]:
        """As ``history``, each comparison with whether it let the job start."""
        told: list[tuple[float, str, list[tuple[str, bool]]]] = []
        for row in self.rows:
            let = [row.verb != "hold" or bool(reason) for reason in row.reasons]
            reasons = list(zip(reason_texts(row.reasons), let, strict=True))
            told.append((row.at_s, decision_text(row, row.partition == self.profiling), reasons))
        told += [(at_s, f"job {other} joins it on the same GPUs", []) for other, at_s in self.joined]
        told += [(at_s, words, []) for at_s, words in self.events]
        return sorted(told, key=lambda item: item[0])

    def text(self, width: int = WIDTH) -> str:
        """The story in lines of at most ``width`` columns; a longer one goes on under its own beginning."""
        return "\n".join(line for line, _ in self.lines(width))

    def lines(self, width: int, most: int | None = None) -> list[tuple[str, bool]]:
        """The story in lines, each with whether it is a comparison that let the job start: the others have a cross.

        ``most``: for how many lines there is room; the oldest of its events are left out."""
        head = [] if self.first and " " not in self.head.removeprefix("job ") else [self.head]
        begin = [(line, False) for words in (*self.first, *head) for line in _wrapped("", words, width)]
        told = [] if self.submit_s is None else [(f"{when(self.submit_s)}  submitted", False)]
        for at_s, headline, reasons in self._told():
            time = f"{when(at_s)}  "
            told += [(line, False) for line in _wrapped(time, headline, width)]
            for words, let in reasons:
                told += [(line, let) for line in _wrapped(" " * len(time) + "✗-"[let] + " ", words, width)]
        end = _wrapped("in all: ", self.outcome, width) if self.outcome else []
        for words in self.estimate:
            end += _wrapped(" " * (len(words) - len(words.lstrip())), words.strip(), width)
        over = 0 if most is None else len(begin) + len(told) + len(end) - most
        if over > 0:
            told[: over + 1] = [(f"({min(over + 1, len(told))} earlier lines: --long)", True)]
        return [*begin, *told, *((line, False) for line in end)]


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
