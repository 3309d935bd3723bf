"""``lucidctl compare --suite``: every policy on every trace at hand."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path

from lucid.cli.console import Table, say, stderr_console, stdout_console
from lucid.errors import ConfigError
from lucid.explain.reasons import duration
from lucid.simulator.suite import Cell, run_cells, suite_data, traces_at_hand, write_suite

__all__ = ["compare_suite"]


def compare_suite(
    data: Path | None, only: Sequence[str], policies: Sequence[str], workers: int | None, out: Path, as_json: bool
) -> None:
    """Replay what is not yet replayed, then write the page and show the figures.

    Raises:
        ConfigError: no such folder, or no such trace.
    """
    if data is not None and not data.is_dir():
        raise ConfigError(f"--data {data}: is not a folder; give the folder with the traces, or leave it out")
    entries = traces_at_hand(data)
    unknown = set(only) - {entry.name for entry in entries}
    if unknown:
        known = ", ".join(entry.name for entry in entries)
        raise ConfigError(f"--trace {', '.join(sorted(unknown))}: not at hand (at hand: {known})")
    entries = [entry for entry in entries if not only or entry.name in only]
    console, began_s = stderr_console(), time.monotonic()

    def report(cell: Cell | None, done: int, total: int) -> None:
        if cell is None:
            if done:
                console.print(f"{done} of {total} cells are done already in {out}", highlight=False)
            return
        what = cell.reason or f"average JCT {duration(cell.figures['avg_jct_s'])}"
        passed = duration(time.monotonic() - began_s)
        console.print(f"{done}/{total} {cell.trace} {cell.policy}: {what} (after {passed})", highlight=False)

    cells = run_cells(entries, data, policies, out, workers or os.cpu_count() or 1, report)
    write_suite(out / "suite.html", entries, cells)
    if as_json:
        say(json.dumps(suite_data(entries, cells), indent=1))
        return
    shown = stdout_console()
    for entry in entries:
        table = Table(title=f"{entry.name}: {entry.about}")
        for column in ("policy", "avg JCT", "published", "difference"):
            table.add_column(column, justify="left" if column == "policy" else "right")
        for cell in (c for c in cells if c.trace == entry.name and c.figures):
            published, ours = entry.published.get(cell.policy), cell.figures["avg_jct_s"]
            beside = ("-", "-") if published is None else (duration(published), f"{ours / published - 1:+.1%}")
            table.add_row(cell.policy, duration(ours), *beside)
        shown.print(table)
    shown.print(f"written: {out / 'suite.html'}", highlight=False)
    shown.print("the papers' claims, row by row: docs/papers.md; in a checkout: python -m benchmarks.papers")
