"""Options for a window of a trace and for the number of nodes that it is replayed on, and what they come to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click

from lucid.errors import ConfigError
from lucid.simulator.layout import read_vcs, sized_to_load, sized_vcs
from lucid.simulator.traces.record import Trace
from lucid.simulator.traces.window import POOL

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
    """Adds ``pool`` and ``load`` of ``read_scenario``, and the window."""
    return _added(command, (*_SCENE, *_WINDOW))


def _added(command: _Command, options: tuple[Callable[[_Command], _Command], ...]) -> _Command:
    for option in reversed(options):
        command = option(command)
    return command


@dataclass(frozen=True, slots=True)
class Sizing:
    """The options that give the number of nodes: ``vcs``, ``nodes`` or ``load``, else the trace. ``pool``: in one VC.

    Raises: ConfigError: two of them give it."""

    vcs: Path | None
    nodes: int | None
    load: float | None
    pool: bool
    gpus_per_node: int
    profiling_nodes: int | None

    def __post_init__(self) -> None:
        given = {"--vcs": self.vcs, "--nodes": self.nodes, "--load": self.load}
        said = [name for name, value in given.items() if value is not None]
        if len(said) > 1:
            raise ConfigError(f"{' and '.join(said)} each say how many nodes there are; give one of them")

    def nodes_of(self, trace: Trace, walled: Trace | None = None) -> dict[str, int]:
        """Nodes by VC for a trace; ``walled``: the trace with its VCs, where ``trace`` was pooled.

        Raises: ConfigError: the nodes cannot hold the largest jobs, or `sized_to_load`. TraceError: the file of VCs
        cannot be read."""
        if self.vcs is not None:
            found = read_vcs(self.vcs)
        elif self.load is not None:
            found = sized_to_load(trace, self.gpus_per_node, self.load, self.profiling_nodes)
        else:
            # sized to the trace, a pool has the nodes of its VCs: only the walls go
            found = sized_vcs(trace if self.nodes or walled is None else walled, self.gpus_per_node, self.nodes)
        return {POOL: sum(found.values())} if self.pool else found

    def notes(self, load: float | None) -> list[str]:
        """How the nodes were chosen, where nobody gave them; ``load``: the load that they came to."""
        found = ["--pool: all jobs are in one VC, which has the nodes of all VCs"] if self.pool else []
        if self.load is not None:
            found.append(f"the nodes were chosen for a load of {self.load:g}; on whole nodes it is {load or 0.0:.3f}")
        elif self.vcs is None and self.nodes is None:
            found.append("no --vcs or --nodes: VCs were sized to run all jobs at once for 95 % of the time")
        return found
