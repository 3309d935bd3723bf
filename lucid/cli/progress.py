"""Progress on stderr, for whatever takes longer than two seconds."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

__all__ = ["Report", "progress"]

_QUIET_S = 2.0


class Report(Protocol):
    """Called with what is done and what there is to do."""

    def __call__(self, done: int, total: int) -> None: ...  # noqa: D102


@contextmanager
def progress(words: str) -> Iterator[Report]:
    """A bar that appears once the work has taken two seconds, and is gone when it ends."""
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
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
