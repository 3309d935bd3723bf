"""What is recorded of each guarded figure, why, and what a measurement says beside it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

__all__ = ["RECORD", "WORSE", "Entry", "Verdict", "read", "renewed", "verdict", "write"]

RECORD: Final = Path(__file__).with_name("record.json")
WORSE: Final = 1.3
"""So many times the record is red."""
_BETTER: Final = 0.7
_SAME: Final = 1.1
"""A figure this near to its record keeps it: so a record does not follow the noise, nor creep."""
_LEAST_REASON: Final = 10


class Verdict(StrEnum):
    """What a measured figure is beside its record."""

    OK = "ok"
    RED = "RED"
    STALE = "record is stale"
    NEW = "not recorded"


@dataclass(frozen=True, slots=True)
class Entry:
    """The record of one figure: a multiple of ``loop``, or a number where there is none; since when, and why."""

    ratio: float
    loop: str
    commit: str
    date: str
    why: str


def read(path: Path = RECORD) -> dict[str, Entry]:
    """The entries by name. There are none before the first record."""
    if not path.is_file():
        return {}
    return {name: Entry(**item) for name, item in json.loads(path.read_text(encoding="utf-8")).items()}


def write(entries: Mapping[str, Entry], path: Path = RECORD) -> None:
    """In a form whose diff is read."""
    told = {name: asdict(entry) for name, entry in entries.items()}
    path.write_text(json.dumps(told, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def verdict(name: str, ratio: float, loop: str, recorded: Mapping[str, Entry]) -> Verdict:
    """A record in another loop is none."""
    entry = recorded.get(name)
    if entry is None or entry.loop != loop:
        return Verdict.NEW
    if ratio >= WORSE * entry.ratio and ratio > entry.ratio:  # of what must not be there at all, one is too much
        return Verdict.RED
    return Verdict.STALE if ratio < _BETTER * entry.ratio else Verdict.OK


def renewed(
    found: Mapping[str, tuple[float, str]], recorded: Mapping[str, Entry], commit: str, date: str, why: str
) -> dict[str, Entry]:
    """The record with what differs from it. ``found``: ratio and loop by name; what was not found stays.

    Raises:
        ValueError: no reason is given that a reader learns something from.
    """
    if len(why.strip()) < _LEAST_REASON:
        raise ValueError('a record is changed for a reason, which is kept with it: make guard RECORD="why"')
    made = dict(recorded)
    for name, (ratio, loop) in found.items():
        entry = recorded.get(name)
        if entry is None or entry.loop != loop or not entry.ratio / _SAME <= ratio <= entry.ratio * _SAME:
            made[name] = Entry(float(f"{ratio:.4g}"), loop, commit, date, why.strip())
    return made
