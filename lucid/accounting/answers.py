"""Splits sacct's output into records: header lines, column layouts, rows that hold delimiters or line breaks.

One file may hold several answers, each with its own header line and order of columns. A text (``JobName``,
``SubmitLine``) may hold the delimiter or a line break: it ends where the other columns hold what they should."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import lru_cache

from lucid.accounting.log_rows import DELIMITERS, BadCell, Source, shape, split_line
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
_HOLDS: dict[str, Callable[[str], object]] = {
    "JobID": re.compile(JOB_ID.pattern + r"(\.\S+)?").fullmatch,
    **dict.fromkeys(("Submit", "Eligible", "Start", "End"), _DATE),
    **dict.fromkeys(("ElapsedRaw", "NCPUS", "NNodes", "ReqCPUS", "AllocCPUS", "AllocNodes", "UID", "GID"), _COUNT),
    "Elapsed": re.compile("[0-9:.-]*").fullmatch,
    "State": lru_cache(1000)(lambda cell: is_state(state_of(cell))),
    "ReqMem": re.compile("[0-9.]*[KMGTP]?[nc?]?", re.IGNORECASE).fullmatch,
    **dict.fromkeys(("ReqTRES", "AllocTRES"), re.compile("(.*=.*|)").fullmatch),
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
    """The delimiter of a header line of sacct; an empty text if the line is not a header."""
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
        self.names, self.delimiter, self._ends = names, delimiter, ends
        self.remedy = (
            f"a text such as JobName may hold {delimiter!r} or a line break: ask for JobID first, for texts last"
        )
        self._free = [name in TEXTS for name in names]
        self._checks = [(i, _HOLDS[name]) for i, name in enumerate(names) if name in _HOLDS]
        first = self._free.index(True) if True in self._free else len(names)
        self._first = [(i, holds) for i, holds in self._checks if i < first] if "JobID" in names[:first] else []
        """Of the columns before all texts; none where the job's number is not among them."""

    def split(self, text: str) -> list[str]:
        """The cells of a row, however many."""
        cells = _cut(text.removesuffix(self.delimiter) if self._ends else text, self.delimiter)
        if self.delimiter != "|" and len(cells) != len(self.names):
            cells = _joined(cells, self.names)
        return cells

    def fit(self, text: str) -> list[str] | None:
        """The cells of a row, one for each column; ``None`` if it is no row, an empty list if it has two readings."""
        cells = self.split(text)
        if len(cells) == len(self.names) and all(holds(cells[i]) for i, holds in self._checks):
            broken = "\n" in text and any("\n" in cell and not self._free[i] for i, cell in enumerate(cells))
            return None if broken else cells
        extra = len(cells) - len(self.names)
        return self._spread(cells, extra) if 0 < extra <= _MOST_EXTRA and True in self._free else None

    def _spread(self, cells: list[str], extra: int) -> list[str] | None:
        """The cells with the surplus ones joined into texts, so that each other column has what it holds; an empty
        list if that can be done in two ways that differ in other columns."""
        holds = dict(self._checks)
        begins: list[set[int]] = [set() for _ in self.names] + [{len(cells)}]
        """Where a column may begin, with all columns after it in place."""
        for i in reversed(range(len(self.names))):
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
            found.append(self.delimiter.join(cells[min(here) : min(after)]))
            here = after
        return found

    def agree(self, one: list[str] | None, other: list[str] | None) -> bool:
        """Whether all cells are the same, texts aside."""
        if not (one and other):
            return False
        return all(free or a == b for free, a, b in zip(self._free, one, other, strict=True))

    def breaks(self, text: str) -> bool:
        """Whether this line continues a text of the row above: that shows only if JobID stands before all texts."""
        if not self._first or delimiter_of(text):
            return False
        cells = self.split(text)
        return len(cells) <= self._first[-1][0] or not all(holds(cells[i]) for i, holds in self._first)

    def goes_on(self, text: str) -> bool:
        """Whether this line continues the last text of a whole row. A line with a state is a row that was cut."""
        return self._free[-1] and self.breaks(text) and not any(is_state(state_of(cell)) for cell in self.split(text))


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


def records(
    source: Source, layout: Layout, skip_lines: int, header: Callable[[str, int], Layout]
) -> Iterator[tuple[int, Layout, list[str], BadCell | None]]:
    """For each row that is not a header: its first line, its layout, its cells, and the error in its shape, if any.
    ``header`` returns the layout of a header line, given its number."""
    lines = [text.rstrip("\r") for text in source.text.removesuffix("\n").split("\n")]  # the last one ends a row
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
        end, bad = at, None
        while cells and end < min(len(lines), line + _MOST_LINES) and layout.goes_on(lines[end]):
            text, end = f"{text}\n{lines[end]}", end + 1
        if end > at:
            at, cells = end, cells if layout.agree(cells, layout.fit(text)) else []
        if cells == []:
            bad = BadCell("", text, "can be read in two ways", layout.remedy, "unclear")
        elif cells is None or not source.sound:
            cells = cells or layout.split(lines[line])
            bad = shape(source, cells, len(layout.names), layout.names, layout.delimiter, layout.remedy)
        yield line + 1, layout, cells, bad
