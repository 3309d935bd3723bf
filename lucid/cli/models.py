"""``lucidctl models``: the learned models, their evaluation and their library."""

from __future__ import annotations

import click

from lucid.cli.models_evaluate import evaluate

__all__ = ["models"]


@click.group()
def models() -> None:
    """Judge the learned models."""


models.add_command(evaluate)
