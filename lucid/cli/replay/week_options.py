"""The options of what a site's ordinary week brings beside jobs: windows, nodes that sleep."""

from __future__ import annotations

from pathlib import Path

import click

__all__ = ["WEEK_OPTIONS"]

WEEK_OPTIONS = (
    click.option(
        "--events",
        type=click.Path(path_type=Path),
        help="CSV of when nodes are closed or down: event,nodes,from,until,every,name (docs/simulator-events.md).",
    ),
    click.option(
        "--power",
        "suspend_s",
        type=click.FloatRange(min=0),
        metavar="SECONDS",
        help="Nodes sleep after so long without a job (SuspendTime). The figures then have node-hours and energy.",
    ),
    click.option(
        "--boot-time",
        "boot_s",
        type=click.FloatRange(min=0),
        default=240.0,
        show_default=True,
        metavar="SECONDS",
        help="With --power: how long a node boots before jobs can run on it.",
    ),
    click.option(
        "--idle-watts",
        "idle_w",
        type=click.FloatRange(min=0),
        default=500.0,
        show_default=True,
        help="With --power: what a node that is awake draws without a job.",
    ),
    click.option(
        "--ready",
        is_flag=True,
        help="With --power: as many free nodes stay awake as forecast submissions ask for; all others sleep at once.",
    ),
)
"""Options of ``read_scenario``."""
