"""Rows and typed cells for all readers of job logs and of tables beside a trace, with exact positions in errors."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from lucid.errors import TraceError

DELIMITERS = "|,;\t"
"""Characters that may stand between columns."""
_TRUE = frozenset({"1", "true", "1.0", "yes"})
_FALSE = frozenset({"0", "false", "0.0", "no"})


class BadCell(Exception):
    """A row cannot be used. ``remedy`` says how the cell should be written, where that is not plain. ``reason`` is
    the short form under which skipped rows are counted; by default the column and the problem."""

    def __init__(self, column: str, value: str, problem: str, remedy: str = "", reason: str = "") -> None:
        super().__init__(problem)
        self.column = column
        self.value = value
        self.problem = problem
        self.remedy = remedy
        self.reason = reason or f"{column}: {problem}"


class Drop(Exception):
    """A sound row that is no job to replay; left out and counted under ``reason`` (not counted if empty)."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """How to read a trace. ``progress(done, total)`` is called every few thousand lines, in lines of the file.

    ``swf_procs_per_gpu``: SWF knows processors only; so many of them are taken as one GPU (rounded up).
    ``keep_cpu_jobs``: keep jobs without GPUs (for learning durations; no simulation will take them).
    ``applications``: the folder with the profiles of Pollux's applications; unset, the trace's own.
    ``columns``: of a table of no known format, by name (``traces.table``)."""

    skip_bad: bool = False
    swf_procs_per_gpu: int = 1
    keep_cpu_jobs: bool = False
    progress: Callable[[int, int], None] | None = None
    applications: Path | None = None
    columns: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Source:
    """A file in memory. Bytes that are not UTF-8 stand in ``text`` as lone surrogates, so that an error can
    name their line instead of an offset; ``sound`` says that there are none."""

    path: Path
    text: str
    sound: bool

    @property
    def lines(self) -> int:
        """Number of lines, for progress."""
        return self.text.count("\n") + 1

    def fail(self, line: int, bad: BadCell, remedy: str) -> TraceError:
        """The error for one bad cell; ``remedy`` is what the caller offers for any bad row."""
        where = f"{self.path}, line {line}" + (f", column {bad.column!r}" if bad.column else "")
        remedy = f"{bad.remedy}; {remedy}" if bad.remedy else remedy
        return TraceError(f"{where}: {_shown(bad.value)} {bad.problem}; {remedy}")


def _shown(value: str) -> str:
    text = ascii(value) if any("\ud800" <= char <= "\udfff" for char in value) else repr(value)
    return text if len(text) <= 120 else text[:117] + "..."


def load(path: Path) -> Source:
    """Read a file whole; a UTF-8 byte order mark is dropped, and lines that end in a carriage return alone are taken
    as lines (as old Macintosh programs write them).

    Raises:
        TraceError: it cannot be read, or is empty."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise TraceError(f"{path}: cannot be read ({error.strerror}); give an existing file") from None
    if not data.strip():
        raise TraceError(f"{path}: the file is empty; it must have at least one job")
    if data.startswith((b"\x1f\x8b", b"BZh", b"PK\x03\x04")):
        raise TraceError(f"{path}: the file is compressed; unpack it first")
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise TraceError(f"{path}: the file is UTF-16; convert it first: iconv -f UTF-16 -t UTF-8")
    if b"\n" not in data:
        data = data.replace(b"\r", b"\n")
    try:
        return Source(path, data.decode("utf-8-sig"), True)
    except UnicodeDecodeError:
        return Source(path, data.decode("utf-8-sig", "surrogateescape"), False)


def first_line(source: Source) -> tuple[int, str]:
    """Number and text of the first line that is not empty."""
    start, line = 0, 1
    while True:
        end = source.text.find("\n", start)
        text = source.text[start : end if end >= 0 else None].rstrip("\r")
        if text.strip() or end < 0:
            return line, text
        start, line = end + 1, line + 1


class Row:
    """One row at a time, read through the header. Readers ask it for typed cells; it raises ``BadCell``."""

    __slots__ = ("_at", "cells", "line", "number")

    def __init__(self, columns: Sequence[str]) -> None:
        self._at = {name: i for i, name in enumerate(columns)}
        self.cells: list[str] = []
        self.line = 0
        """Line of the file, from 1."""
        self.number = 0
        """Number of the data row, from 0."""

    def has(self, column: str) -> bool:
        """Whether the header names this column."""
        return column in self._at

    def text(self, column: str, default: str = "") -> str:
        """The cell as it stands, or ``default`` where the file has no such column."""
        i = self._at.get(column)
        return default if i is None else self.cells[i]

    def name(self, column: str) -> str:
        """A cell that must not be empty."""
        value = self.cells[self._at[column]]
        if not value.strip():
            raise BadCell(column, value, "is empty")
        return value

    def real(self, column: str, least: float = 0.0, most: float = math.inf) -> float:
        """A finite number within bounds."""
        value = self.cells[self._at[column]]
        try:
            number = float(value)
        except ValueError:
            raise BadCell(column, value, "is not a number") from None
        if "_" in value:
            raise BadCell(column, value, "is not a number")
        if not math.isfinite(number):
            raise BadCell(column, value, "is not finite")
        if number < least:
            raise BadCell(column, value, "is negative" if least == 0.0 else f"is below {least:g}")
        if number > most:
            raise BadCell(column, value, f"is above {most:g}")
        return number

    def whole(self, column: str, least: int = 0, most: int | None = None) -> int:
        """A whole number within bounds; ``4.0`` counts as whole, since data frames write it so."""
        value = self.cells[self._at[column]]
        if value.isascii() and value.isdigit() and len(value) < 19:
            number = int(value)
        else:
            real = self.real(column, least=-math.inf)
            if real != int(real):
                raise BadCell(column, value, "is not a whole number")
            number = int(real)
        if number < least:
            raise BadCell(column, value, "is negative" if least == 0 else f"is below {least}")
        if most is not None and number > most:
            raise BadCell(column, value, f"is above {most}")
        return number

    def real_or_none(self, column: str) -> float | None:
        """The cell as ``real``; ``None`` where it is empty or the column is not there."""
        return self.real(column) if self.text(column) else None

    def whole_or_none(self, column: str, most: int | None = None) -> int | None:
        """The cell as ``whole``; ``None`` where it is empty or the column is not there."""
        return self.whole(column, most=most) if self.text(column) else None

    def flag_or_none(self, column: str) -> bool | None:
        """Yes, no, or ``None`` where the cell is empty or the column is not there."""
        value = self.text(column)
        if not value:
            return None
        low = value.lower()
        if low in _TRUE:
            return True
        if low in _FALSE:
            return False
        raise BadCell(column, value, "is neither 0/1 nor true/false", "write 0 or 1", f"{column}: is not a flag")

    def date_s(self, column: str) -> float:
        """Unix time of a date such as ``2017-10-09 07:01:55``. A date without a zone is read as UTC, so that
        hours of the day stay as the cluster's own clock showed them. Unix seconds are taken too."""
        value = self.cells[self._at[column]]
        try:
            moment = datetime.fromisoformat(value)
        except ValueError:
            moment = None
        if moment is None or (value.isdigit() and len(value) != 8):
            if value.isascii() and value.isdigit() and 9 <= len(value) <= 11:
                return float(value)
            raise BadCell(column, value, "is not a date", "write it as 2020-04-13 08:30:00")
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def fit_header(source: Source, line: int, found: Sequence[str], needed: Sequence[str], about: str) -> None:
    """Check that a header has what a format needs.

    Raises:
        TraceError: a column is missing or named twice; lists what was found."""
    for name in needed:
        if name not in found:
            listed = ", ".join(found)
            raise TraceError(
                f"{source.path}, line {line}, column {name!r}: missing from the header (found: {listed}); "
                f"{about} needs {', '.join(needed)}"
            )
    for i, name in enumerate(found):
        if name and name in found[:i]:
            raise TraceError(
                f"{source.path}, line {line}, column {name!r}: named twice in the header; rename or remove one"
            )


def split_line(text: str, delimiter: str = ",") -> list[str]:
    """The cells of one line of CSV, without the spaces around them; the line as one cell where it is no CSV."""
    try:
        cells = next(csv.reader([text], delimiter=delimiter), [])
    except csv.Error:
        return [text]
    return [cell.strip() for cell in cells]


def csv_rows(
    source: Source, row: Row, columns: int, names: Sequence[str], skip_lines: int, delimiter: str = ","
) -> Iterator[BadCell | None]:
    """Fill ``row`` with one CSV record after another; yields ``None``, or what is wrong with the record's shape.

    Args:
        row: filled in place.
        columns: how many cells a record must have.
        names: header names, to name the first missing cell.
        skip_lines: lines before the first record.
        delimiter: what stands between two cells.

    Raises:
        TraceError: a quote is never closed; nothing after it can be trusted, not even with --skip-bad."""
    stream = io.StringIO(source.text, newline="")
    for _ in range(skip_lines):
        stream.readline()
    reader = csv.reader(stream, strict=True, delimiter=delimiter)
    number = -1
    while True:
        row.line = skip_lines + reader.line_num + 1
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            if "unexpected end of data" in str(error):
                raise TraceError(
                    f'{source.path}, line {row.line}: a quote (") opened in this row is never closed; close it'
                ) from None
            number += 1
            row.number = number
            yield BadCell("", "", f"is not valid CSV ({error})", reason="not valid CSV")
            continue
        if not cells:
            continue  # an empty line, often at the end of the file
        number += 1
        row.cells = cells
        row.number = number
        yield None if len(cells) == columns and source.sound else shape(source, cells, columns, names)


def split_rows(
    source: Source, row: Row, names: Sequence[str], skip_lines: int, split: Callable[[str], list[str] | None]
) -> Iterator[BadCell | None]:
    """Fill ``row`` as ``csv_rows`` does, for files without quotes: one line, one record.

    ``split`` returns the cells of a line, or ``None`` if the line is not a record (a comment)."""
    for index, text in enumerate(source.text.split("\n")):
        if index < skip_lines or not text.strip():
            continue
        cells = split(text.rstrip("\r"))
        if cells is None:
            continue
        row.line = index + 1
        row.cells = cells
        yield None if len(cells) == len(names) and source.sound else shape(source, cells, len(names), names)
        row.number += 1


def shape(
    source: Source, cells: list[str], columns: int, names: Sequence[str], between: str = ",", remedy: str = ""
) -> BadCell | None:
    """What is wrong with the number of a row's cells, or with their bytes."""
    if len(cells) < columns:
        problem = f"has {len(cells)} of {columns} fields, this one is missing"
        return BadCell(names[len(cells)], between.join(cells), problem, remedy, "short row")
    if len(cells) > columns:
        problem = f"is one field too many: the row has {len(cells)}, the header {columns}"
        return BadCell("", cells[columns], problem, remedy, "long row")
    return None if source.sound else bad_encoding(cells, names)


def bad_encoding(cells: Sequence[str], names: Sequence[str]) -> BadCell | None:
    """The error where a cell holds bytes that are not UTF-8."""
    for name, cell in zip(names, cells, strict=True):
        if any("\udc80" <= char <= "\udcff" for char in cell):
            remedy = "convert the file, for example: iconv -f LATIN1 -t UTF-8"
            return BadCell(name, cell, "is not UTF-8", remedy, "not UTF-8")
    return None


def table_rows(path: Path, columns: Sequence[str], remedy: str) -> Iterator[tuple[int, dict[str, str]]]:
    """The rows of a CSV that has at least these columns (``a or b``: one of the two), each with its line.

    Raises: TraceError: it cannot be read, or lacks a column; the message ends in ``remedy``."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            names = reader.fieldnames or ()
            missing = [name for name in columns if not {*name.split(" or ")} & {*names}]
            if missing:
                found = ", ".join(names) or "nothing"
                raise TraceError(f"{path}: line 1: no column {', '.join(missing)} (found: {found}); {remedy}")
            for row in reader:
                if None in row.values():
                    raise TraceError(f"{path}, line {reader.line_num}: fewer fields than the header names")
                yield reader.line_num, row
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise TraceError(f"{path}: cannot be read: {error}; {remedy}") from None


def number(text: str | None) -> float:
    """The number in a cell; NaN where it holds none."""
    try:
        return float(text or "")
    except ValueError:
        return math.nan
