"""Logs of waits: one row a job, with what was asked for, and when it was submitted, began and ended."""

from __future__ import annotations

import csv
import gzip
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lucid.errors import TraceError

__all__ = ["WaitTable", "moment_s", "read_waits"]

Floats = NDArray[np.float64]

_TEXT = ("account", "partition")
_COUNTS = ("req_cpus", "mem_mib", "nodes", "gpus", "time_limit_s")


@dataclass(frozen=True, slots=True)
class WaitTable:
    """``n`` jobs in order of submission. Times in seconds since 1970; ``start_s`` and ``end_s`` are infinite where
    they are not known. ``account``, ``partition``, ``user``: numbered names. ``asked``: shape (n, 5): CPUs, MiB of
    memory, nodes, GPUs, time limit in seconds; 0 where the log does not say. ``has_users``: does it name users?"""

    submit_s: Floats
    start_s: Floats
    end_s: Floats
    account: NDArray[np.int64]
    partition: NDArray[np.int64]
    user: NDArray[np.int64]
    asked: Floats
    has_users: bool = False

    def __len__(self) -> int:
        return len(self.submit_s)

    @property
    def wait_s(self) -> Floats:
        """From submission to start."""
        waited: Floats = self.start_s - self.submit_s
        return waited


def moment_s(text: str) -> float:
    """Seconds since 1970; a time without a zone is UTC.

    Raises:
        ValueError: it is no ISO time.
    """
    found = datetime.fromisoformat(text)
    return (found if found.tzinfo is not None else found.replace(tzinfo=UTC)).timestamp()


def read_waits(path: Path) -> WaitTable:
    """Read a CSV, packed with gzip or not, with at least the columns submit_time and start_time.

    Raises:
        TraceError: it cannot be read, or a row of it is damaged.
    """
    rows: list[tuple[Any, ...]] = []
    users = False
    try:
        for number, row in enumerate(_rows(path), start=2):
            users |= bool(row.get("user"))
            try:
                rows.append(_parsed(row))
            except (ValueError, TypeError, KeyError) as error:
                raise TraceError(
                    f"{path}, line {number}: {error}; a row needs submit_time and start_time, both ISO times"
                ) from None
    except (OSError, EOFError, UnicodeDecodeError, csv.Error) as error:
        raise TraceError(f"{path}: cannot be read: {error}; give a CSV of waits, packed with gzip or not") from None
    if not rows:
        raise TraceError(f"{path}: has no jobs; a log of waits has a header and one row a job")
    rows.sort(key=lambda row: row[0])
    columns = list(zip(*rows, strict=True))
    submit, start, end = (np.array(column, dtype=float) for column in columns[:3])
    account, partition, user = (_numbered(column) for column in columns[3:6])
    asked = np.array(columns[6:], dtype=float).T
    return WaitTable(submit, start, end, account, partition, user, asked, users)


def _rows(path: Path) -> Iterator[dict[str, str]]:
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", newline="", encoding="utf-8") as file:
        yield from csv.DictReader(file)


def _parsed(row: dict[str, str]) -> tuple[Any, ...]:
    submit_s, start_s = moment_s(row["submit_time"]), _known(row["start_time"])
    if start_s < submit_s:
        raise ValueError(f"start_time {row['start_time']} is before submit_time {row['submit_time']}")
    end_s = _known(row.get("end_time") or "")
    names = (row.get("account") or "", row.get("partition") or "", row.get("user") or "")
    return (submit_s, start_s, end_s, *names, *(float(row.get(name) or 0.0) for name in _COUNTS))


def _known(text: str) -> float:
    return moment_s(text) if text and text != "Unknown" else float("inf")


def _numbered(names: tuple[str, ...]) -> NDArray[np.int64]:
    numbers: dict[str, int] = {}
    return np.array([numbers.setdefault(name, len(numbers)) for name in names], dtype=np.int64)
