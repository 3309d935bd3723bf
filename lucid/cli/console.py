"""Where all of ``lucidctl``'s words go: every text is shown, not obeyed (``lucid.escaping``). Nothing else in
lucid.cli writes to the terminal; ruff says so (TID251)."""

from __future__ import annotations

import logging
import os
import sys
from typing import Any

import click
import rich.console
import rich.table
import rich.text
from rich.console import RenderableType

from lucid.escaping import shown

__all__ = ["Console", "Table", "say", "stderr_console", "stdout_console", "styled", "warn_on_stderr"]

_PIPE_COLUMNS = 120


def say(text: str, *, err: bool = False, nl: bool = True) -> None:
    """A line, or lines, on stdout or stderr."""
    click.echo(shown(text, lines=True), err=err, nl=nl)


class Console(rich.console.Console):
    """rich's, but no text is markup, and every text that it renders is shown."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"markup": False, "emoji": False, **options})

    def render_str(self, text: str, **options: Any) -> rich.text.Text:
        """All strings come by here: printed ones, cells, titles, captions."""
        return super().render_str(shown(text, lines=True), **{**options, "markup": False, "emoji": False})


class Table(rich.table.Table):
    """rich's, with line ends in cells shown too: a name that holds one cannot pass for two rows."""

    def add_row(self, *cells: RenderableType | None, **options: Any) -> None:
        """Cells are names, numbers and single lines."""
        super().add_row(*(shown(cell) if isinstance(cell, str) else cell for cell in cells), **options)

    def add_column(self, header: RenderableType = "", *rest: Any, **options: Any) -> None:
        """Headers too."""
        super().add_column(shown(header) if isinstance(header, str) else header, *rest, **options)


def styled(text: str, style: str = "") -> rich.text.Text:
    """A text with a colour."""
    return rich.text.Text(shown(text, lines=True), style=style)


def stdout_console() -> Console:
    """A console on stdout as wide as its window. A pipe or file has no window: 120 columns there, unless the
    environment's COLUMNS says otherwise."""
    if sys.stdout.isatty() or "COLUMNS" in os.environ:
        return Console()
    return Console(width=_PIPE_COLUMNS)


def stderr_console() -> Console:
    """For bars of progress."""
    return Console(stderr=True)


class _Warnings(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        facts = "".join(f" {name}={value}" for name, value in getattr(record, "facts", {}).items())
        say(f"warning: {record.getMessage()}{facts}", err=True)


def warn_on_stderr() -> None:
    """Lucid's warnings go to stderr with their facts, so that stdout holds what was asked for and nothing else."""
    logger = logging.getLogger("lucid")
    if not any(isinstance(handler, _Warnings) for handler in logger.handlers):
        logger.addHandler(_Warnings(logging.WARNING))
