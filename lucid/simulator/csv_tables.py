"""Rows and numbers of the CSV tables beside a trace: measured pairs, estimates, an application's profiles."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Sequence
from pathlib import Path

from lucid.errors import TraceError


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
                yield reader.line_num, row
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise TraceError(f"{path}: cannot be read: {error}; {remedy}") from None


def number(text: str | None) -> float:
    """The number in a cell; NaN where it holds none."""
    try:
        return float(text or "")
    except ValueError:
        return math.nan
