"""``lucidctl``: the command line."""

from __future__ import annotations

import sys

import click

from lucid.cli.bench import bench
from lucid.cli.demo import demo
from lucid.cli.explain import explain
from lucid.cli.models import models
from lucid.cli.simulate import simulate
from lucid.cli.trace import trace
from lucid.errors import LucidError

__all__ = ["lucidctl", "main"]


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="lucid-scheduler", prog_name="lucidctl")
def lucidctl() -> None:
    """Lucid: schedule deep-learning jobs on GPU clusters, and see why."""


for command in (simulate, explain, trace, models, bench, demo):
    lucidctl.add_command(command)


def main() -> None:
    """Run; errors that Lucid raises on purpose end in one message and their own exit code."""
    try:
        lucidctl(standalone_mode=True)
    except LucidError as error:
        click.echo(f"lucidctl: {error}", err=True)
        sys.exit(error.exit_code)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(141)


if __name__ == "__main__":
    main()
