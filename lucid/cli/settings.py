"""``lucidctl settings``: what can be set, and what it means."""

from __future__ import annotations

import click

from lucid.cli.console import say
from lucid.config import settings_reference

__all__ = ["settings"]


@click.command()
def settings() -> None:
    """Print every setting with default, values and meaning, as Markdown (docs/settings.md)."""
    say(settings_reference().rstrip())
