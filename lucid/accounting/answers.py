"""Splits sacct's output into records: header lines, column layouts, rows that hold delimiters or line breaks.

One file may hold several answers, each with its own header line and order of columns. A text (``JobName``,
``SubmitLine``) may hold the delimiter or a line break: it ends where the other columns hold what they should."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache

from lucid.accounting.rows import DELIMITERS, BadCell, Source, bad_encoding, split_line
from lucid.accounting.values import is_state, limit_s, state_of

JOB_ID = re.compile(r"\d+(_(\d+|\[[^\]]*\]?))?(\+\d+)?")
"""A job, a task of an array, tasks that wait (``7_[3-9%2]``), or a part of a heterogeneous job."""
TEXTS = frozenset(
    (
        *("AdminComment", "Comment", "Constraints", "Container", "Extra", "JobName", "Licenses"),
        *("StdErr", "StdIn", "StdOut", "SubmitLine", "SystemComment", "WorkDir"),
    )
)
"""Columns whose cells may hold the delimiter or a line break."""
_DATE = re.compile(r"(\d{4}-?\d\d-?\d\d.*|\d{9,11}|unknown|none|n/a|)", re.IGNORECASE).fullmatch
_COUNT = re.compile("[0-9.]*").fullmatch
_TRES = re.compile("(.*=.*|)").fullmatch
_HOLDS: dict[str, Callable[[str], object]] = {
    "JobID": re.compile(JOB_ID.pattern + r"(\.\S+)?").fullmatch,
    **dict.fromkeys(("Submit", "Eligible", "Start", "End"), _DATE),
    **dict.fromkeys(("ElapsedRaw", "NCPUS", "NNodes", "ReqCPUS", "AllocCPUS", "AllocNodes", "UID", "GID"), _COUNT),
    "Elapsed": re.compile("[0-9:.-]*").fullmatch,
    "State": lru_cache(1000)(lambda cell: is_state(state_of(cell))),
    "ReqMem": re.compile("[0-9.]*[KMGTP]?[nc?]?", re.IGNORECASE).fullmatch,
    **dict.fromkeys(("ReqTRES", "AllocTRES"), _TRES),
    "Timelimit": lru_cache(1000)(lambda cell: limit_s(cell) is not None),
    **dict.fromkeys(
        ("Partition", "Cluster", "QOS", "Account", "Group", "JobIDRaw"), re.compile(r"[^\s=|]*").fullmatch
    ),
    "ExitCode": re.compile("([0-9]+:[0-9]+|)").fullmatch,
}
_one_line = re.compile(".*").fullmatch
_MOST_EXTRA = 1000
"""Most delimiters in the texts of one row."""
_MOST_LINES = 100
"""Most lines of one row."""


def delimiter_of(first: str) -> str:
    """The delimiter between the columns of a header line of sacct; empty if it is no header line."""
    for one in DELIMITERS:
        names = {cell.strip().lower() for cell in _cut(first, one)}
        if "jobid" in names and names & {"state", "submit"}:
            return one
    return ""


def _cut(text: str, delimiter: str) -> list[str]:
    """The cells of a line. sacct knows no quotes; programs that write its columns with other delimiters do."""
    return text.split("|") if delimiter == "|" else split_line(text.replace("\n", " "), delimiter)


class Layout:
    """The columns of one answer. ``ends``: every line ends with the delimiter, as ``sacct --parsable`` writes it."""

    def __init__(self, names: list[str], delimiter: str, ends: bool) -> None:
        self.names, self._delimiter, self._ends = names, delimiter, ends
        self.remedy = (
            f"a text such as JobName may hold {delimiter!r} or a line break: ask for JobID first, for texts last"
        )
        self._free = [name in TEXTS for name in names]
        self._checks = [(i, _HOLDS[name]) for i, name in enumerate(names) if name in _HOLDS]
        self._first_free = self._free.index(True) if True in self._free else len(names)
        self._job_first = names.index("JobID") < self._first_free if "JobID" in names else False

    def split(self, text: str) -> list[str]:
        """The cells of a row, however many."""
        cells = _cut(text.removesuffix(self._delimiter) if self._ends else text, self._delimiter)
        if self._delimiter != "|" and len(cells) != len(self.names):
            cells = _joined(cells, self.names)
        return cells

    def fit(self, text: str) -> list[str] | None:
        """The cells of a row, one a column; ``None`` where it is no row, an empty list if it can be read in two
        ways."""
        cells = self.split(text)
        if len(cells) == len(self.names) and all(holds(cells[i]) for i, holds in self._checks):
            broken = "\n" in text and any(
                "\n" in cell for cell, free in zip(cells, self._free, strict=True) if not free
            )
            return None if broken else cells
        extra = len(cells) - len(self.names)
        return self._spread(cells, extra) if 0 < extra <= _MOST_EXTRA and True in self._free else None

    def _spread(self, cells: list[str], extra: int) -> list[str] | None:
        """The cells with the surplus ones joined into texts, so that each other column has what it holds; an empty
        list if that can be done in two ways that differ in other columns."""
        holds = dict(self._checks)
        last = len(self.names)
        begins: list[set[int]] = [set() for _ in self.names] + [{len(cells)}]
        """Where a column may begin, with all columns after it in place."""
        for i in reversed(range(last)):
            after = begins[i + 1]
            if self._free[i]:
                begins[i] = set(range(i, max(after, default=0)))
            else:
                begins[i] = {at - 1 for at in after if holds.get(i, _one_line)(cells[at - 1])}
            begins[i] &= set(range(i, i + extra + 1))
        if 0 not in begins[0]:
            return None
        found, here = [], {0}
        for i, free in enumerate(self._free):
            if free:
                after = {to for to in begins[i + 1] if to > min(here)}
            elif len({cells[at] for at in here}) > 1:
                return []
            else:
                after = {at + 1 for at in here} & begins[i + 1]
            found.append(self._delimiter.join(cells[min(here) : min(after)]))
            here = after
        return found

    def agree(self, one: list[str] | None, other: list[str] | None) -> bool:
        """Whether all cells but texts are the same."""
        return bool(one and other) and all(
            free or a == b for free, a, b in zip(self._free, one or [], other or [], strict=True)
        )

    def breaks(self, text: str) -> bool:
        """Whether this line continues a text of the row above it. Only where the job's number stands before all texts
        can a line show that it begins no row."""
        if not self._job_first or delimiter_of(text):
            return False
        cells = self.split(text)
        first = [(i, holds) for i, holds in self._checks if i < self._first_free]
        return len(cells) <= first[-1][0] or not all(holds(cells[i]) for i, holds in first)

    def goes_on(self, text: str) -> bool:
        """Whether this line, after a whole row, continues the row's last text. A line with a state is a row that was
        cut."""
        return self._free[-1] and self.breaks(text) and not any(is_state(state_of(cell)) for cell in self.split(text))

    def odd(self, cells: list[str]) -> BadCell | None:
        """The error where a row has the wrong number of cells."""
        columns, between = len(self.names), self._delimiter
        if len(cells) < columns:
            problem = f"has {len(cells)} of {columns} fields, this one is missing"
            return BadCell(self.names[len(cells)], between.join(cells), problem, self.remedy, "short row")
        if len(cells) > columns:
            problem = f"is one field too many: the row has {len(cells)}, the header {columns}"
            return BadCell("", cells[columns], problem, self.remedy, "long row")
        return None


def _joined(cells: list[str], names: list[str]) -> list[str]:
    """The cells of a line whose TRES (``cpu=4,mem=16G``) were cut by the delimiter (``sacct --delimiter=,``): a part
    of a TRES is ``name=count``, and each of them names a thing once."""
    joined: list[str] = []
    left = iter(cells)
    cell = next(left, None)
    for name in names:
        if cell is None:
            break
        parts, cell = [cell], next(left, None)
        things = {parts[0].partition("=")[0]}
        while "TRES" in name and cell is not None and "=" in cell and cell.partition("=")[0] not in things:
            things.add(cell.partition("=")[0])
            parts.append(cell)
            cell = next(left, None)
        joined.append(",".join(parts))
    rest = [] if cell is None else [cell, *left]
    return joined + rest


@dataclass(frozen=True, slots=True)
class Record:
    """A row, the line on which it begins, and what is wrong with its shape."""

    line: int
    layout: Layout
    cells: list[str]
    bad: BadCell | None


def records(
    source: Source, layout: Layout, skip_lines: int, header: Callable[[str, int], Layout]
) -> Iterator[Record]:
    """All rows but header lines. ``header`` makes the layout of a header line, given its number."""
    lines = [text.rstrip("\r") for text in source.text.split("\n")]
    at = skip_lines
    while at < len(lines):
        line, text = at, lines[at]
        at += 1
        if not text.strip():
            continue
        cells = layout.fit(text)
        if cells is None and delimiter_of(text):
            layout = header(text, line + 1)
            continue
        end = at
        while cells is None and end < min(len(lines), line + _MOST_LINES) and layout.breaks(lines[end]):
            text, end = f"{text}\n{lines[end]}", end + 1
            cells = layout.fit(text)
            at = at if cells is None else end
        end = at
        while cells and end < len(lines) and layout.goes_on(lines[end]):
            text, end = f"{text}\n{lines[end]}", end + 1
        if end > at:
            at = end
            cells = cells if layout.agree(cells, layout.fit(text)) else []
        if cells == []:
            yield Record(
                line + 1, layout, cells, BadCell("", text, "can be read in two ways", layout.remedy, "unclear")
            )
            continue
        cells = cells or layout.split(lines[line])
        bad = layout.odd(cells) or (None if source.sound else bad_encoding(cells, layout.names))
        yield Record(line + 1, layout, cells, bad)
