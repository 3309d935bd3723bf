"""``lucidctl simulate``: replay a trace under one or more policies."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from lucid.cli.console import stdout_console
from lucid.cli.progress import progress
from lucid.cli.render import duration
from lucid.config import Settings, load_settings
from lucid.errors import ConfigError
from lucid.orchestrator.policies import ESTIMATES, Estimates
from lucid.orchestrator.policy import find_policy, known_policies
from lucid.simulator.engine import Run
from lucid.simulator.estimates import read_estimates
from lucid.simulator.layout import NodeShape, read_vcs, sized_vcs
from lucid.simulator.metrics import run_metrics
from lucid.simulator.record import DecisionLog, write_decisions, write_jobs
from lucid.simulator.report import write_report
from lucid.simulator.scenario import Scenario, Semantics
from lucid.simulator.scenario import simulate as replay
from lucid.simulator.traces import Trace, read_trace
from lucid.simulator.traces.synth import with_workloads
from lucid.simulator.truth import ContentionTruth, read_pairs

__all__ = ["compare", "print_table", "simulate", "write_run"]


@click.command()
@click.argument("trace_file", metavar="TRACE", type=click.Path(path_type=Path))
@click.option("--policy", "policies", multiple=True, metavar="NAME", help="Policy to replay; repeat to compare.")
@click.option("--format", "fmt", metavar="NAME", help="Format of the trace, where its first lines do not tell.")
@click.option("--vcs", type=click.Path(path_type=Path), help="CSV of 'VC,nodes'; else VCs are sized to the trace.")
@click.option("--nodes", type=click.IntRange(min=1), help="Nodes in all, shared out by the VCs' GPU-hours.")
@click.option("--gpus-per-node", type=click.IntRange(1, 64), default=8, show_default=True)
@click.option("--gpu-mem-mib", type=click.IntRange(min=1), default=24576, show_default=True, help="Memory of a GPU.")
@click.option("--cpus-per-node", type=click.IntRange(min=0), default=0, help="0: not limited.")
@click.option("--mem-mib-per-node", type=click.IntRange(min=0), default=0, help="0: not limited.")
@click.option("--profiling-nodes", type=click.IntRange(min=1), help="Nodes lent to profiling. Default: 2 % of them.")
@click.option(
    "--estimates",
    "estimate_specs",
    multiple=True,
    metavar="[POLICY=]FILE",
    help="CSV of estimated durations (job_id, duration_s or priority), for one policy or for all that take any.",
)
@click.option(
    "--predictor",
    type=click.Choice(["history", "oracle"]),
    default="history",
    show_default=True,
    help="What estimates durations where no file does.",
)
@click.option("--pairs", type=click.Path(path_type=Path), help="CSV of measured pairs: the true interference.")
@click.option(
    "--workloads",
    type=click.Choice(["trace", "synthetic"]),
    default="trace",
    show_default=True,
    help="'synthetic' gives jobs without GPU readings a synthetic workload.",
)
@click.option("--seed", type=int, default=1, show_default=True, help="For --workloads synthetic.")
@click.option("--config", type=click.Path(path_type=Path), help="TOML settings of policies and overheads.")
@click.option(
    "--semantics",
    type=click.Choice([s.value for s in Semantics]),
    help="Default: 'honest', but 'muri' for a trace of Muri's. 'published' and 'published-mended' reproduce Lucid's "
    "published simulator and 'muri' Muri's, for parity only.",
)
@click.option(
    "--skip-bad",
    is_flag=True,
    help="Leave bad rows of the trace out and count them; let the history estimate jobs that --estimates lacks.",
)
@click.option("--out", type=click.Path(path_type=Path), help="Folder for report.html, per-job CSV, decisions.")
@click.option("--json", "as_json", is_flag=True, help="Figures as JSON on stdout instead of tables.")
def simulate(
    trace_file: Path,
    policies: tuple[str, ...],
    fmt: str | None,
    vcs: Path | None,
    nodes: int | None,
    gpus_per_node: int,
    gpu_mem_mib: int,
    cpus_per_node: int,
    mem_mib_per_node: int,
    profiling_nodes: int | None,
    estimate_specs: tuple[str, ...],
    predictor: str,
    pairs: Path | None,
    workloads: str,
    seed: int,
    config: Path | None,
    semantics: str | None,
    skip_bad: bool,
    out: Path | None,
    as_json: bool,
) -> None:
    """Replay TRACE under each --policy (fifo and lucid unless told) and compare what becomes of its jobs.

    sjf and srtf are defined on true durations and are given them; the others get --estimates or --predictor.
    """
    if vcs is not None and nodes is not None:
        raise ConfigError("--vcs and --nodes both say how many nodes there are; give one of them")
    chosen = policies or ("fifo", "lucid")
    for name in chosen:
        find_policy(name)
    if out is not None and out.exists() and not out.is_dir():
        raise ConfigError(f"--out {out}: is not a folder; give another name")
    settings = load_settings(config) if config else Settings()
    with progress(f"reading {trace_file.name}") as report:
        trace = read_trace(trace_file, fmt, skip_bad=skip_bad, progress=report)
    notes = [f"left out of the trace: {count} rows, {reason}" for reason, count in trace.skipped]
    if workloads == "synthetic":
        trace, count = with_workloads(trace, seed)
        notes.append(f"{count} jobs were given a SYNTHETIC workload (seed {seed})")
    elif not any(item.profile for item in trace.jobs):
        notes.append("the trace has no GPU readings, so nothing is packed; --workloads synthetic supplies some")
    given = _estimates(estimate_specs, trace, skip_bad)
    for estimates in given.values():
        lacking = sum(item.job.id not in estimates for item in trace.jobs)
        if lacking:
            notes.append(f"{lacking} jobs have no estimate; the history of the trace estimates them")
    scenario = Scenario(
        trace,
        read_vcs(vcs) if vcs else sized_vcs(trace, gpus_per_node, nodes),
        NodeShape(gpus_per_node, gpu_mem_mib, cpus_per_node, mem_mib_per_node),
        read_pairs(pairs) if pairs else ContentionTruth(),
        settings,
        profiling_nodes,
        given,
        "given estimates",
        predictor,
        _semantics(semantics, trace, notes),
    )
    if vcs is None and nodes is None:
        notes.append("no --vcs or --nodes: VCs were sized to run all jobs at once for 95 % of the time")
    if pairs is None:
        notes.append("no --pairs: interference is the contention model's, not measured")
    metrics, runs, logs = compare(scenario, chosen, keep_decisions=out is not None)
    if out is not None:
        write_run(out, scenario, runs, metrics, logs, notes)
    if as_json:
        click.echo(json.dumps(_summary(scenario, metrics, notes), indent=1))
        return
    console = stdout_console()
    print_table(console, metrics)
    for note in notes:
        console.print(f"note: {note}", highlight=False)
    if out is not None:
        console.print(f"written: {out / 'report.html'}, and a folder for each policy", highlight=False)


def _semantics(name: str | None, trace: Trace, notes: list[str]) -> Semantics:
    """What was asked for; else that of the trace's own simulator, where it has one."""
    if name is not None:
        return Semantics(name)
    if not any(item.stages is not None for item in trace.jobs):
        return Semantics.HONEST
    notes.append(
        "a trace of Muri's is replayed as by Muri's simulator (start costs at every event, moving is free); "
        "--semantics honest charges each start once"
    )
    return Semantics.MURI


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


def compare(
    scenario: Scenario, policies: Sequence[str], keep_decisions: bool
) -> tuple[dict[str, dict[str, Any]], list[Run], dict[str, DecisionLog]]:
    """Replay under each policy, with progress; figures and runs by policy."""
    metrics: dict[str, dict[str, Any]] = {}
    runs: list[Run] = []
    logs: dict[str, DecisionLog] = {}
    for policy in dict.fromkeys(policies):
        log = DecisionLog() if keep_decisions else None
        with progress(f"simulating {policy}") as report:
            run = replay(scenario, policy, log, report)
        runs.append(run)
        metrics[policy] = run_metrics(run)
        if log is not None:
            logs[policy] = log
    return metrics, runs, logs


def _summary(scenario: Scenario, metrics: Mapping[str, Any], notes: Sequence[str]) -> dict[str, Any]:
    return {
        "trace": scenario.trace.name,
        "jobs": len(scenario.trace.jobs),
        "vcs": dict(scenario.vcs or {}),
        "gpus_per_node": scenario.shape.gpus,
        "semantics": scenario.semantics.value,
        "notes": list(notes),
        "results": dict(metrics),
    }


def write_run(
    out: Path,
    scenario: Scenario,
    runs: Sequence[Run],
    metrics: Mapping[str, dict[str, Any]],
    logs: Mapping[str, DecisionLog],
    notes: Sequence[str],
) -> None:
    """Write the run's folder: summary.json, report.html, and for each policy jobs.csv and decisions.jsonl.

    Raises:
        ConfigError: the folder cannot be written.
    """
    try:
        for run in runs:
            folder = out / run.policy
            folder.mkdir(parents=True, exist_ok=True)
            write_jobs(folder / "jobs.csv", run)
            if run.policy in logs:
                write_decisions(folder / "decisions.jsonl", logs[run.policy])
        stable = {name: {k: v for k, v in m.items() if k not in _MACHINE} for name, m in metrics.items()}
        summary = _summary(scenario, stable, notes)
        (out / "summary.json").write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
        write_report(out / "report.html", scenario.trace.name, runs, metrics, notes)
    except OSError as error:
        raise ConfigError(f"{out}: cannot be written ({error.strerror}); give --out another folder") from None


_MACHINE = ("wall_s", "cpu_s")
"""Figures of the machine, not of the schedule: left out of files, which are the same on every machine."""


def print_table(console: Console, metrics: Mapping[str, Mapping[str, Any]]) -> None:
    """The comparison as tables: overall, then average JCT by VC and by size."""
    rows: list[tuple[str, str]] = [
        ("avg JCT", "avg_jct_s"),
        ("median JCT", "median_jct_s"),
        ("p90 JCT", "p90_jct_s"),
        ("p99.9 JCT", "p999_jct_s"),
        ("avg queueing", "avg_queue_s"),
        ("median queueing", "median_queue_s"),
        ("p90 queueing", "p90_queue_s"),
        ("p99.9 queueing", "p999_queue_s"),
        ("JCT of jobs > 8 GPUs", "avg_jct_large_s"),
        ("makespan", "makespan_s"),
    ]
    table = Table(title="Comparison of policies")
    table.add_column("")
    for name in metrics:
        table.add_column(name, justify="right")
    for label, key in rows:
        table.add_row(label, *[_time(m.get(key)) for m in metrics.values()])
    table.add_row("GPU use", *[f"{m['gpu_use']:.1%}" for m in metrics.values()])
    table.add_row("jobs packed", *[f"{m['packed_share']:.1%}" for m in metrics.values()])
    table.add_row("preemptions", *[f"{m['preemptions']:,}" for m in metrics.values()])
    table.add_row("ended in profiling", *[f"{m['ended_in_profiling']:,}" for m in metrics.values()])
    table.add_row("jobs", *[f"{m['jobs']:,}" for m in metrics.values()])
    table.add_row("simulated in", *[f"{m['wall_s']:.1f} s" for m in metrics.values()])
    console.print(table)
    for key, title in (("by_size", "GPUs of the job"), ("by_vc", "VC")):
        groups = next(iter(metrics.values()))[key]
        split = Table(title=f"avg JCT / avg queueing by {title}")
        split.add_column(title)
        split.add_column("jobs", justify="right")
        for name in metrics:
            split.add_column(name, justify="right")
        for group, first in groups.items():
            if first["jobs"]:
                cells = [
                    f"{_time(m[key][group].get('avg_jct_s'))} / {_time(m[key][group].get('avg_queue_s'))}"
                    for m in metrics.values()
                ]
                split.add_row(group, f"{first['jobs']:,}", *cells)
        console.print(split)


def _time(seconds: float | None) -> str:
    return "-" if seconds is None else duration(seconds)
