"""Options that many commands have."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

__all__ = ["DEFAULT_CONFIG", "config_option"]

DEFAULT_CONFIG = Path("/etc/lucid/lucid.toml")
F = TypeVar("F", bound=Callable[..., Any])


def config_option(function: F) -> F:
    """``--config``, as lucidd takes it."""
    return click.option(
        "--config",
        "config",
        type=click.Path(path_type=Path),
        default=lambda: Path(os.environ.get("LUCID_CONFIG", DEFAULT_CONFIG)),
        help="lucidd's configuration.  [default: LUCID_CONFIG, else /etc/lucid/lucid.toml]",
    )(function)
