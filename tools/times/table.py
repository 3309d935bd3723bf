"""The table of times beside this file: read, and made anew from what the plugin wrote."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

TABLE = Path(__file__).with_name("table.csv")
_HEAD = ["kind", "name", "times", "cpu_s", "wall_s"]


@dataclass(frozen=True, slots=True)
class Row:
    """A test with all its parameters and fixtures, or a fixture without those that it asks for: how often it ran, and
    CPU seconds and seconds of the clock in all."""

    kind: str
    name: str
    times: int
    cpu_s: float
    wall_s: float


def test_of(node_id: str) -> str:
    """The test function's name in pytest's words, without parameters: one row, however many there are."""
    return node_id.partition("[")[0]


def gathered(folder: Path) -> list[Row]:
    """What the processes of one run wrote below ``folder``: tests first, each kind by name."""
    sums: dict[tuple[str, str], list[float]] = {}
    for path in sorted(folder.glob("*.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines():
            kind, name, cpu, wall = json.loads(line)
            row = sums.setdefault((kind, test_of(name)), [0, 0.0, 0.0])
            row[0] += 1
            row[1] += cpu
            row[2] += wall
    rows = [Row(kind, name, int(times), cpu, wall) for (kind, name), (times, cpu, wall) in sums.items()]
    return sorted(rows, key=lambda row: (row.kind != "test", row.name))


def write(rows: Iterable[Row], path: Path = TABLE) -> None:
    """As CSV, times to a hundredth of a second, so that few lines differ from one making to the next."""
    with path.open("w", encoding="utf-8", newline="") as file:
        out = csv.writer(file, lineterminator="\n")
        out.writerow(_HEAD)
        out.writerows([row.kind, row.name, row.times, f"{row.cpu_s:.2f}", f"{row.wall_s:.2f}"] for row in rows)


def read(path: Path = TABLE) -> Mapping[str, Row]:
    """The rows of tests, by name; empty if the table does not exist."""
    if not path.exists():
        return {}
    with path.open(encoding="utf-8", newline="") as file:
        rows = [
            Row(kind, name, int(times), float(cpu), float(wall))
            for kind, name, times, cpu, wall in list(csv.reader(file))[1:]
        ]
    return {row.name: row for row in rows if row.kind == "test"}
