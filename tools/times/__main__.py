"""``python tools/times FOLDER``: table.csv anew from what the plugin wrote into FOLDER; prints the longest."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path[:1] = [str(Path(__file__).resolve().parents[1])]

from times.table import TABLE, Row, gathered, write  # noqa: E402

_SHOWN = 20


def main(arguments: list[str]) -> int:
    """Exit codes: 0 written, 2 there was nothing to read."""
    if len(arguments) != 1 or not (rows := gathered(Path(arguments[0]))):
        print(f"{__doc__}\nnothing to read: run make test-times", file=sys.stderr)
        return 2
    write(rows)
    tests = [row for row in rows if row.kind == "test"]
    print(f"{TABLE}: {len(tests)} test functions, {sum(row.times for row in tests)} tests,", end=" ")
    print(f"{sum(row.cpu_s for row in tests):.0f} CPU s, {sum(row.wall_s for row in tests):.0f} s on the clock")
    for kind in ("test", "fixture"):
        print(f"\n  CPU s  clock s  times  {kind}, the {_SHOWN} longest")
        for row in _longest(rows, kind):
            print(f"{row.cpu_s:7.2f} {row.wall_s:8.2f} {row.times:6}  {row.name}")
    return 0


def _longest(rows: list[Row], kind: str) -> list[Row]:
    return sorted((row for row in rows if row.kind == kind), key=lambda row: -row.cpu_s)[:_SHOWN]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
