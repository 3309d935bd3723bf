"""Options for a window of a trace and for the nodes that it is replayed on; the sections of a replay's help."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click

_Command = TypeVar("_Command", bound=Callable[..., Any])

_WINDOW = (
    click.option(
        "--from",
        "begin",
        metavar="DATE|DAY",
        help="Only jobs that arrive from then on: a date (2020-09-05T18:00), or a day counted from the first "
        "submission. Jobs that arrived before are left out, also those that would still run.",
    ),
    click.option(
        "--days", type=click.FloatRange(min=0, min_open=True), metavar="N", help="Only jobs of so many days."
    ),
)
_SCENE = (
    click.option(
        "--pool", is_flag=True, help="Take the walls down: all jobs in one VC, which has the nodes of all VCs."
    ),
    click.option(
        "--load",
        type=click.FloatRange(min=0, min_open=True),
        metavar="SHARE",
        help="Size the cluster so that the GPU-hours asked for, over those at hand from the first submission to the "
        "last, come to this (0.95). Submissions and run times stay as they are. In place of --vcs and --nodes.",
    ),
)


_SECTIONS: Mapping[str, tuple[str, ...]] = {
    "The trace": ("fmt", "begin", "days", "skip_bad", "workloads", "seed", "applications"),
    "The cluster": (
        "vcs", "nodes", "load", "pool", "gpus_per_node", "gpu_mem_mib", "cpus_per_node", "mem_mib_per_node",
        "profiling_nodes", "events",
    ),
    "What decides": ("policies", "config", "lending", "predictor", "estimate_specs", "profiles", "pairs"),
    "How it is replayed": ("as_live", "remember_pairs", "semantics", "workers", "ablations"),
}  # fmt: skip
"""The options of a replay by what they are about, in the order of the help; all others are about the answer."""


class Sectioned(click.Command):
    """A command that replays a trace; its help lists the options by what they are about."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options, one section after another."""
        options = [param for param in self.get_params(ctx) if isinstance(param, click.Option)]
        rows = {option.name or "": row for option in options if (row := option.get_help_record(ctx))}
        for title, names in _SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([rows.pop(name) for name in names if name in rows])
        with formatter.section("The answer"):
            formatter.write_dl(list(rows.values()))


def window_options(command: _Command) -> _Command:
    """Adds ``begin`` and ``days``: the arguments of ``days_of``."""
    return _added(command, _WINDOW)


def scene_options(command: _Command) -> _Command:
    """Adds ``pool`` and ``load`` of ``ReplayOptions``, and the window."""
    return _added(command, (*_SCENE, *_WINDOW))


def _added(command: _Command, options: tuple[Callable[[_Command], _Command], ...]) -> _Command:
    for option in reversed(options):
        command = option(command)
    return command
