"""Where tables go."""

from __future__ import annotations

import os
import sys

from rich.console import Console

__all__ = ["stdout_console"]

_PIPE_COLUMNS = 120


def stdout_console() -> Console:
    """A console on stdout as wide as its window. A pipe or file has no window: 120 columns there, unless the
    environment's COLUMNS says otherwise."""
    if sys.stdout.isatty() or "COLUMNS" in os.environ:
        return Console()
    return Console(width=_PIPE_COLUMNS)
