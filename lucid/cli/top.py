"""``lucidctl top``: cluster, running jobs and queue in the terminal, as they move."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

import click

from lucid.cli.live import config_option, live_settings
from lucid.errors import ConfigError

__all__ = ["top"]


@click.command()
@config_option
@click.option(
    "--every",
    "every_s",
    type=click.FloatRange(min=1.0, max=3600.0),
    default=5.0,
    show_default=True,
    help="Seconds between two looks at what lucidd has written.",
)
@click.option("--user", default="", help="Only the jobs of this user; the key u changes that.")
def top(config: Path, every_s: float, user: str) -> None:
    """Watch nodes, running jobs and the queue. Keys as in htop: F1 shows them.

    Nothing is changed, and Slurm is not asked: top reads what lucidd has written.
    """
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise ConfigError(
            "top needs a terminal; for programs there are lucidctl queue --json and lucidctl status --json"
        )
    live_settings(config)  # what is wrong with them is said before the screen is taken
    if find_spec("textual") is None:
        raise ConfigError("lucidctl top needs the package textual: pip install 'lucid-scheduler[top]'")
    from lucid.cli.top_app import TopApp

    TopApp(config, every_s, user).run()
