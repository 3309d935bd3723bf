"""Progress on stderr, for whatever takes longer than two seconds."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from lucid.cli.console import stderr_console

__all__ = ["ManyReport", "Report", "many_bars", "progress"]

_QUIET_S = 2.0


class Report(Protocol):
    """Called with what is done and what there is to do."""

    def __call__(self, done: int, total: int) -> None: ...  # noqa: D102


class ManyReport(Protocol):
    """Called with what is being done, how much of it is done, and what there is to do."""

    def __call__(self, name: str, done: int, total: int) -> None: ...  # noqa: D102


def _bars() -> Progress:
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(),
        console=stderr_console(),
        transient=True,
    )


@contextmanager
def many_bars() -> Iterator[ManyReport]:
    """Bars, one for each name, that appear once the work has taken two seconds, and are gone when it ends."""
    bars, tasks = _bars(), {}
    began_s = time.monotonic()
    shown = False

    def report(name: str, done: int, total: int) -> None:
        nonlocal shown
        if name not in tasks:
            tasks[name] = bars.add_task(name, total=None)
        bars.update(tasks[name], completed=done, total=total)
        if not shown and time.monotonic() - began_s >= _QUIET_S:
            bars.start()
            shown = True

    try:
        yield report
    finally:
        if shown:
            bars.stop()


@contextmanager
def progress(words: str) -> Iterator[Report]:
    """A bar that appears once the work has taken two seconds, and is gone when it ends."""
    bar = _bars()
    task = bar.add_task(words, total=None)
    began_s = time.monotonic()
    shown = False

    def report(done: int, total: int) -> None:
        nonlocal shown
        if not shown and time.monotonic() - began_s >= _QUIET_S:
            bar.start()
            shown = True
        if shown:
            bar.update(task, completed=done, total=total)

    try:
        yield report
    finally:
        if shown:
            bar.stop()
