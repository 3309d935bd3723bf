"""``lucidctl top``: cluster, running jobs and queue in the terminal, as they move."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

from lucid.cli.live.status import told_live
from lucid.errors import ConfigError

__all__ = ["tell_top"]


def tell_top(config: Path, every_s: float, user: str) -> None:
    """As ``lucidctl top`` is asked."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise ConfigError(
            "top needs a terminal; for programs there are lucidctl queue --json and lucidctl status --json"
        )
    told_live(config)  # what is wrong with them is said before the screen is taken
    if find_spec("textual") is None:
        raise ConfigError("lucidctl top needs the package textual: pip install 'lucid-scheduler[top]'")
    from lucid.cli.live.top_screen import TopApp

    TopApp(config, every_s, user).run()
