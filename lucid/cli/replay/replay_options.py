"""Options that name the trace, cluster and settings of a replay, read into a ``Scenario``; the sections of the
help."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

import click

from lucid.binder.contention import contention_speeds
from lucid.cli.console import progress
from lucid.cli.options import PATH
from lucid.config.load import Settings, library_folder, load_settings
from lucid.errors import ConfigError
from lucid.models.kinds import Served
from lucid.models.library import Library
from lucid.models.throughput.forecaster import THROUGHPUT
from lucid.orchestrator.registry import ESTIMATES, Estimates, known_policies
from lucid.simulator.cluster.nodes import read_events, with_limits
from lucid.simulator.cluster.state import Semantics
from lucid.simulator.cluster.truth import read_pairs
from lucid.simulator.layout import offered_load
from lucid.simulator.predictors import PackingModels, read_estimates, train_packing
from lucid.simulator.scenario import PREDICTORS, ReplayOptions, Scenario, Throughput
from lucid.simulator.traces.read import read_trace
from lucid.simulator.traces.record import Trace
from lucid.simulator.traces.synth import with_workloads
from lucid.simulator.traces.window import days_of, pooled

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


_OPTIONS = (
    click.option("--format", "fmt", metavar="NAME", help="Format of the trace. Default: found from its first line."),
    click.option(
        "--applications",
        type=PATH,
        help="Folder of the profiles that a Pollux workload needs, one folder an application. Default: the trace's.",
    ),
    click.option("--vcs", type=PATH, help="CSV of 'VC,nodes'. Default: sized to the trace."),
    click.option(
        "--nodes", type=click.IntRange(min=1), help="Total nodes, divided among the VCs by their GPU-hours."
    ),
    click.option("--gpus-per-node", type=click.IntRange(1, 64), default=8, show_default=True, help="GPUs of a node."),
    click.option(
        "--gpu-mem-mib", type=click.IntRange(min=1), default=24576, show_default=True, help="Memory of a GPU, MiB."
    ),
    click.option("--cpus-per-node", type=click.IntRange(min=0), default=0, help="CPUs of a node. 0: not limited."),
    click.option(
        "--mem-mib-per-node", type=click.IntRange(min=0), default=0, help="Memory of a node. 0: not limited."
    ),
    click.option(
        "--profiling-nodes", type=click.IntRange(min=1), help="Nodes for profiling. Default: 2 % of the nodes."
    ),
    click.option(
        "--estimates",
        "estimate_specs",
        multiple=True,
        metavar="[POLICY=]FILE",
        help="CSV of estimated durations (job_id, duration_s or priority). POLICY: only for this policy.",
    ),
    click.option(
        "--predictor",
        type=click.Choice(PREDICTORS),
        default="history",
        show_default=True,
        help="Estimates jobs that --estimates lacks. 'learned' trains models on the jobs that have ended so far.",
    ),
    click.option("--pairs", type=PATH, help="CSV of measured pairs: the interference in the replay."),
    click.option(
        "--profiles",
        type=PATH,
        help="CSV of workloads measured alone. Share scores and pair speeds are learned from it and --pairs. Needs "
        "--predictor learned, or --estimates.",
    ),
    click.option(
        "--workloads",
        type=click.Choice(["trace", "synthetic"]),
        default="trace",
        show_default=True,
        help="'synthetic' gives jobs without GPU readings a synthetic workload.",
    ),
    click.option("--seed", type=int, default=1, show_default=True, help="Seed for --workloads synthetic."),
    click.option("--config", type=PATH, help="TOML file with settings of policies and overheads."),
    click.option(
        "--semantics",
        type=click.Choice([s.value for s in Semantics if s is not Semantics.AS_LIVE]),
        help="'published' and 'published-mended' reproduce the published simulator of Lucid, and 'muri' Muri's. "
        "They are for parity only. Default: 'honest'; for a trace of Muri, simulate takes 'muri'.",
    ),
    click.option(
        "--as-live",
        is_flag=True,
        help="Replay as lucidd runs on Slurm: profiles of earlier jobs are used again, and a job can only join "
        "a job that started in slots.",
    ),
    click.option(
        "--remember-pairs/--no-remember-pairs",
        default=True,
        show_default=True,
        help="See how fast each pair runs and judge later pairs by it, as lucidd does. --as-live always does.",
    ),
    click.option(
        "--lending",
        type=click.Choice(["off", "quota", "borrow"]),
        help="Sets policy.lending.mode: 'off' gives each VC nodes of its own, 'quota' a quota of GPUs over common "
        "nodes, 'borrow' lets jobs have beyond these what other VCs do not want. Default, where nothing sets the "
        "mode: 'borrow' under policies that can (lucid), 'off' under all others.",
    ),
    click.option(
        "--events",
        type=PATH,
        help="CSV of when nodes are closed or down: event,nodes,from,until,every,name (docs/simulator.md).",
    ),
    click.option(
        "--skip-bad",
        is_flag=True,
        help="Leave out bad rows of the trace and count them. The history estimates jobs that --estimates lacks.",
    ),
)


def cluster_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options of a replay without the trace, for commands that name it in their own way. The command gets
    them as one value, ``asked``."""

    @wraps(command)
    def collected(**given: Any) -> Any:
        return command(asked=asked_of(given), **{key: given[key] for key in given if key not in _NAMES})

    return _added(collected, _OPTIONS)


_NAMES = frozenset(one.name for one in fields(ReplayOptions))


def asked_of(given: Mapping[str, Any]) -> ReplayOptions:
    """What is asked of a replay, among the values of a command's options.

    Raises: ConfigError: two of them contradict each other."""
    return ReplayOptions(**{name: value for name, value in given.items() if name in _NAMES})


def read_scenario(
    trace_file: Path | Trace, asked: ReplayOptions, muris_own: bool = True
) -> tuple[Scenario, list[str]]:
    """The scenario that the options ask for, and notes on what was assumed.

    ``trace_file``: a trace to read, or one that was read already. ``muris_own``: without ``semantics``, replay a
    trace of Muri's as Muri's simulator does.

    Raises: ConfigError: options that contradict each other. TraceError: a file that cannot be read."""
    settings = load_settings(asked.config) if asked.config else Settings()
    if asked.lending is not None:
        settings = settings.changed({"policy.lending.mode": asked.lending})
    trace = trace_file if isinstance(trace_file, Trace) else _read(trace_file, asked)
    if asked.begin is not None or asked.days is not None:
        trace = days_of(trace, asked.begin, asked.days)
    notes = [f"left out of the trace: {count} rows, {reason}" for reason, count in trace.skipped]
    if asked.workloads == "synthetic":
        trace, count = with_workloads(trace, asked.seed)
        notes.append(f"{count} jobs were given a SYNTHETIC workload (seed {asked.seed})")
    elif not any(item.profile for item in trace.jobs):
        notes.append("the trace has no GPU readings, so nothing is packed; --workloads synthetic supplies some")
    if trace.evaluated_with:
        held = [f"{key} = {value}" for key, value in trace.evaluated_with.items()]
        notes.append(f"as in the trace's published evaluation, unless --config says otherwise: {', '.join(held)}")
    walled = trace
    if asked.pool:
        trace = pooled(walled)
    given = _estimates(asked.estimate_specs, trace, asked.skip_bad)
    for estimates in given.values():
        lacking = sum(item.job.id not in estimates for item in trace.jobs)
        if lacking:
            notes.append(f"{lacking} jobs have no estimate; the history of the trace estimates them")
    layout = asked.nodes_of(trace, walled if asked.pool else None)
    scenario = Scenario(
        trace,
        layout,
        asked.shape,
        read_pairs(asked.pairs) if asked.pairs else contention_speeds,
        settings,
        asked.profiling_nodes,
        given,
        "given estimates",
        asked.predictor,
        _packing(bool(given) or asked.predictor == "learned", asked),
        _semantics(asked, trace, notes, muris_own),
        asked.remember_pairs,
        _throughput(settings, asked.config, notes) if asked.as_live else None,
    )
    if asked.events is not None:
        scenario = _with_events(scenario, asked.events, notes)
    scenario, lends = with_lending_by_default(scenario)
    if lends:
        notes.append(
            "not an even comparison: under policies that can borrow (lucid) VCs lend each other idle GPUs, under all "
            "others each keeps to its own; --lending off or --pool gives the same nodes to all"
        )
    notes += asked.sizing_notes(offered_load(trace, sum(layout.values()) * asked.gpus_per_node))
    if scenario.not_profiled:
        notes.append(f"{scenario.not_profiled} (--profiling-nodes N sets N aside all the same)")
    if asked.pairs is None:
        notes.append("no --pairs: interference is the contention model's, not measured")
    return scenario, notes


def with_lending_by_default(scenario: Scenario) -> tuple[Scenario, bool]:
    """The scenario in which VCs lend under policies that can borrow, and whether they do. They do where a replay
    charges everything and there are several, unless the settings say otherwise. They do not in a replay of what
    lucidd does, which needs a partition of Slurm's for it."""
    several = scenario.vcs is not None and len(scenario.vcs) > 1
    lends = (
        several and scenario.semantics is Semantics.HONEST and "policy.lending.mode" not in scenario.settings.given
    )
    return replace(scenario, lends=lends), lends


def _with_events(scenario: Scenario, path: Path, notes: list[str]) -> Scenario:
    outages = read_events(path, scenario.trace, scenario.layout())
    backfill = scenario.settings.policy.backfill
    trace, made_up = with_limits(scenario.trace, backfill) if outages.windows else (scenario.trace, 0)
    if made_up:
        notes.append(
            f"{made_up} jobs of the trace have no time limit; theirs is MADE UP, {backfill.limit_factor:g} times "
            f"their run time and at least {backfill.least_limit_s:g} s: without one a job could "
            "start before no window"
        )
    return replace(scenario, trace=trace, outages=outages)


def _read(path: Path, asked: ReplayOptions) -> Trace:
    with progress(f"reading {path.name}") as report:
        return read_trace(path, asked.fmt, skip_bad=asked.skip_bad, progress=report, applications=asked.applications)


def _throughput(settings: Settings, config: Path | None, notes: list[str]) -> Throughput | None:
    """The throughput version in service, where the configuration file sets ``models.library``."""
    folder = None if config is None else library_folder(settings, config.parent)
    if folder is None:
        return None
    served = Served(Library(folder), [THROUGHPUT])
    model = served.model(THROUGHPUT)
    if model is None:
        return None
    notes.append(f"submissions are forecast by throughput {served.version(THROUGHPUT)} of {folder}")
    return Throughput(model, served.version(THROUGHPUT))


def _packing(used: bool, asked: ReplayOptions) -> PackingModels | None:
    if asked.profiles is None:
        return None
    if not used or asked.pairs is None:
        raise ConfigError(
            "--profiles trains the share tree and the pair model: give --predictor learned (or --estimates) and "
            "--pairs too"
        )
    with progress("training the packing models") as report:
        report(0, 1)
        return train_packing(asked.profiles, asked.pairs)


def _semantics(asked: ReplayOptions, trace: Trace, notes: list[str], muris_own: bool) -> Semantics:
    """The semantics asked for; else those of the trace's own simulator, where it has one."""
    found = Semantics(asked.semantics or Semantics.HONEST)
    if asked.semantics is None and muris_own and any(item.stages is not None for item in trace.jobs):
        notes.append(
            "a trace of Muri's is replayed as by Muri's simulator (start costs at every event, moving is free); "
            "--semantics honest charges each start once"
        )
        found = Semantics.MURI
    if asked.as_live and found is not Semantics.HONEST:
        raise ConfigError(f"--as-live is for --semantics honest; {found.value} reproduces a simulator")
    return Semantics.AS_LIVE if asked.as_live else found


def _estimates(specs: Sequence[str], trace: Trace, partial: bool) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    for spec in specs:
        policy, separator, name = spec.partition("=")
        if not separator or policy not in known_policies():
            policy, name = "", spec
        elif ESTIMATES.get(policy) in (Estimates.NONE, Estimates.TRUE):
            raise ConfigError(f"--estimates {spec}: policy {policy!r} takes no estimates")
        found[policy] = read_estimates(Path(name), trace, partial=partial)
    return found
