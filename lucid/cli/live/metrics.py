"""``lucidctl metrics``: what /metrics tells, once."""

from __future__ import annotations

from pathlib import Path

import click

from lucid.atomic import write_atomic
from lucid.cli.console import say
from lucid.cli.live.status import live_settings
from lucid.cli.options import config_option
from lucid.errors import ConfigError, StoreError

__all__ = ["metrics"]


@click.command()
@config_option
@click.option(
    "--out", type=click.Path(path_type=Path), help="Replace this file, for node_exporter's textfile collector."
)
def metrics(config: Path, out: Path | None) -> None:
    """Print lucidd's metrics for Prometheus, from its store. Slurm is not asked."""
    settings = live_settings(config)
    try:
        from lucid.metrics.exposition import render
        from lucid.metrics.source import MetricsSource
    except ModuleNotFoundError as error:
        raise ConfigError(f"metrics need the extra 'web' ({error}): pip install 'lucid-scheduler[web]'") from None
    text = render(MetricsSource(settings))
    if out is None:
        say(text.decode(), nl=False)
        return
    try:
        write_atomic(out, text, mode=0o644)
    except OSError as error:
        raise StoreError(f"{out}: cannot be written ({error.strerror}); check the folder's owner") from None
