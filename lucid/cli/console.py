"""Where all of ``lucidctl``'s words go to the terminal, shown and not obeyed; and bars of progress.

Nothing else in lucid.cli writes to the terminal; ruff says so (TID251). Progress goes to stderr, for whatever takes
longer than two seconds."""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click
import rich.console
import rich.table
import rich.text
from rich.console import RenderableType

from lucid.errors import LucidError
from lucid.text import shown

if TYPE_CHECKING:
    from rich.progress import TaskID

_PIPE_COLUMNS = 120


def say(text: str, *, err: bool = False, nl: bool = True, dim: bool = False) -> None:
    """Print a line, or lines, on stdout or stderr. ``dim``: fainter, on a terminal."""
    told = shown(text, lines=True)
    click.echo(click.style(told, dim=True) if dim else told, err=err, nl=nl)


class Console(rich.console.Console):
    """rich's console, but no text is markup, and every text that it renders is shown."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"markup": False, "emoji": False, **options})

    def render_str(self, text: str, **options: Any) -> rich.text.Text:
        """The rendered text; all strings pass here: printed ones, cells, titles, captions."""
        return super().render_str(shown(text, lines=True), **{**options, "markup": False, "emoji": False})


class Table(rich.table.Table):
    """rich's table, with line ends in cells shown too: a name that holds one cannot pass for two rows."""

    def add_row(self, *cells: RenderableType | None, **options: Any) -> None:
        """Add a row; cells are names, numbers and single lines."""
        super().add_row(*(shown(cell) if isinstance(cell, str) else cell for cell in cells), **options)

    def add_column(self, header: RenderableType = "", *rest: Any, **options: Any) -> None:
        """Add a column, its header shown too."""
        super().add_column(shown(header) if isinstance(header, str) else header, *rest, **options)


def table(
    columns: Iterable[str], rows: Iterable[Sequence[RenderableType | None]], *, unwrapped: int = 0, **options: Any
) -> Table:
    """A table. Columns whose title begins with ``>`` are flush right; the first ``unwrapped`` ones keep to one
    line."""
    made = Table(**options)
    for number, title in enumerate(columns):
        right = title.startswith(">")
        made.add_column(title.removeprefix(">"), justify="right" if right else "left", no_wrap=number < unwrapped)
    for row in rows:
        made.add_row(*row)
    return made


def answer(
    data: Any,
    as_json: bool,
    words: Iterable[RenderableType | tuple[str, bool]],
    *,
    wraps: bool = False,
    indent: int | None = 1,
) -> None:
    """Print what a command found: ``data`` as JSON, else ``words``: tables and lines, or lines with whether each is
    fainter, made while they are printed. ``data`` may be a function that makes it. ``wraps``: lines are broken to the
    console's width. ``indent``: of the JSON; ``None``: one line."""
    if as_json:
        say(json.dumps(data() if callable(data) else data, indent=indent))
        return
    console = stdout_console()
    for one in words:
        if isinstance(one, tuple):
            say(one[0], dim=one[1])
        elif isinstance(one, str) and not wraps:
            say(one)
        else:
            console.print(one, highlight=False)


def styled(text: str, style: str = "") -> rich.text.Text:
    """A text with a colour."""
    return rich.text.Text(shown(text, lines=True), style=style)


def one_line(text: str) -> rich.text.Text:
    """A text for the last column of a table, cut where it does not fit."""
    return rich.text.Text(shown(text), no_wrap=True, overflow="ellipsis")


def stdout_console() -> Console:
    """A console on stdout as wide as its window. A pipe or file has no window: 120 columns there, unless the
    environment's COLUMNS says otherwise."""
    if sys.stdout.isatty() or "COLUMNS" in os.environ:
        return Console()
    return Console(width=_PIPE_COLUMNS)


class _Warnings(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        facts = "".join(f" {name}={value}" for name, value in getattr(record, "facts", {}).items())
        say(f"warning: {record.getMessage()}{facts}", err=True)


def warn_on_stderr() -> None:
    """Send Lucid's warnings to stderr with their facts, so that stdout holds only the answer."""
    logger = logging.getLogger("lucid")
    if not any(isinstance(handler, _Warnings) for handler in logger.handlers):
        logger.addHandler(_Warnings(logging.WARNING))


def run(command: click.Command, name: str) -> None:
    """Run a command of the shell; errors that Lucid raises on purpose end in one message and their own exit code."""
    warn_on_stderr()
    try:
        command(standalone_mode=True, prog_name=name)
    except LucidError as error:
        say(f"{name}: {error}", err=True)
        sys.exit(error.exit_code)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(141)


_QUIET_S = 2.0


@contextmanager
def many_bars() -> Iterator[Callable[[str, int, int], None]]:
    """A context with bars, one for each name, that appear once the work has taken two seconds, and are gone when it
    ends. What it gives takes a name, how much of its work is done, and how much there is."""
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    bars = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    tasks: dict[str, TaskID] = {}
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
def progress(words: str) -> Iterator[Callable[[int, int], None]]:
    """A context with a bar that appears once the work has taken two seconds, and is gone when it ends."""
    with many_bars() as report:
        yield lambda done, total: report(words, done, total)
