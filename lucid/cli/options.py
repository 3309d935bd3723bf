"""What many commands take: options, numbers of jobs, names of subcommands."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from lucid.errors import ConfigError, did_you_mean
from lucid.slurmlog.value_formats import JOB_NUMBER

__all__ = ["DEFAULT_CONFIG", "Group", "config_option", "job_number"]

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


def job_number(text: str) -> str:
    """A job as Slurm numbers it.

    Raises:
        ConfigError: it is no such number.
    """
    if not JOB_NUMBER.fullmatch(text):
        raise ConfigError(f"{text} is no job number; 49469, 49469_3 and 49469+1 are")
    return text


class Group(click.Group):
    """A group that knows which command a mistyped one may mean. click says so of options itself."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does it.

        Raises:
            UsageError: there is no such command.
        """
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError:
            if args[0].startswith("-"):
                raise
            ctx.fail(f"No such command {args[0]!r}{did_you_mean(args[0], self.list_commands(ctx))}")
