"""``lucidctl settings``: what can be set, and what it means."""

from __future__ import annotations

import click

from lucid.cli.console import say
from lucid.config.reference import settings_example, settings_reference

__all__ = ["settings"]


@click.command()
@click.option("--example", is_flag=True, help="Print a lucid.toml instead, with every key behind a #.")
def settings(example: bool) -> None:
    """Print every setting with default, values and meaning, as Markdown (docs/settings.md)."""
    say((settings_example() if example else settings_reference()).rstrip())
