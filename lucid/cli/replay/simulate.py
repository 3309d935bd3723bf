"""``lucidctl simulate``: replay a trace under one or more policies, and show figures and who gains or loses."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from lucid.cli.console import Console, Table, progress, say, stdout_console
from lucid.cli.replay.options import Sectioned, scene_options
from lucid.cli.replay.replay_options import read_scenario, scenario_options
from lucid.errors import ConfigError
from lucid.explain.formatting import duration, gpus
from lucid.explain.replayed_story import story_teller
from lucid.orchestrator.registry import find_policy
from lucid.simulator.engine import Run
from lucid.simulator.layout import offered_load
from lucid.simulator.metrics import (
    BASELINE,
    Gains,
    Party,
    gains_headline,
    gains_of_runs,
    gains_to_dict,
    loss_text,
    run_metrics,
    times_baseline,
)
from lucid.simulator.record import DecisionLog, write_decisions, write_jobs
from lucid.simulator.replay_options import ReplayOptions
from lucid.simulator.report.page import write_report
from lucid.simulator.report.summary import never_ran
from lucid.simulator.scenario import Scenario, with_promise
from lucid.simulator.scenario import simulate as replay
from lucid.simulator.start_forecast import Forecasts

_LISTED = 5


def print_gains(console: Console, found: Gains) -> None:
    """Print all VCs, the users that lose most and gain most, and the jobs that lose most with the reasons."""
    console.print(f"Who gains, who loses: {found.policy} against {found.baseline}", style="bold", highlight=False)
    console.print(_table("VC", found, found.vcs))
    users = found.users if len(found.users) <= 2 * _LISTED else (*found.users[:_LISTED], *found.users[-_LISTED:])
    if len(users) > 1:
        console.print(_table("user", found, users))
        if len(users) < len(found.users):
            between = len(found.users) - len(users)
            said = f"the {_LISTED} users that lose most and gain most; --json has the {between} between"
            console.print(said, highlight=False)
    for one in found.losing[:_LISTED]:
        told = f"job {one.job} ends {duration(one.lost_s)} later: {loss_text(one, duration)}"
        console.print(told, highlight=False, markup=False, soft_wrap=True)


def _table(title: str, found: Gains, parties: Sequence[Party]) -> Table:
    table = Table()
    table.add_column(title)
    for column in ("jobs", f"JCT, {found.baseline}", f"JCT, {found.policy}", "ratio", "jobs later"):
        table.add_column(column, justify="right")
    for party in parties:
        times = (duration(party.baseline_s), duration(party.jct_s))
        table.add_row(party.name or "(no name)", f"{party.jobs:,}", *times, f"{party.ratio:.3f}", f"{party.later:,}")
    return table


promise_option = click.option(
    "--promise",
    is_flag=True,
    help="Say what lending costs the VCs that lend: each policy that lends is replayed once more without lending "
    "(about two thirds more time).",
)


@click.command(cls=Sectioned)
@scenario_options
@scene_options
@promise_option
@click.option("--policy", "policies", multiple=True, metavar="NAME", help="Policy to replay; repeat to compare.")
@click.option("--out", type=click.Path(path_type=Path), help="Folder for report.html, per-job CSV, decisions.")
@click.option(
    "--forecasts",
    type=click.Choice(("off", "sampled", "all")),
    default="sampled",
    show_default=True,
    help="Forecast when waiting jobs start, and say how good that was: of a sample of the waits (about a quarter "
    "more time), of all (several times as much), or not.",
)
@click.option("--long", is_flag=True, help="All rows and tables: by size and VC, forecasts, who loses and why.")
@click.option("--json", "as_json", is_flag=True, help="Figures as JSON on stdout instead of tables.")
def simulate(
    policies: tuple[str, ...],
    out: Path | None,
    forecasts: Forecasts,
    promise: bool,
    long: bool,
    as_json: bool,
    asked: ReplayOptions,
    trace_file: Path,
) -> None:
    """Replay TRACE under each --policy, and compare the results.

    Without --policy: backfill and lucid. The policy backfill is plain Slurm: where it is replayed, figures stand
    beside its figures. The policies sjf and srtf always know the true durations, so nobody can have them. All others
    use --estimates or --predictor."""
    chosen = policies or (BASELINE, "lucid")
    for name in chosen:
        find_policy(name)
    if out is not None and out.exists() and not out.is_dir():
        raise ConfigError(f"--out {out}: is not a folder; give another name")
    scenario, notes = read_scenario(trace_file, asked)
    metrics, runs, logs = compare(
        scenario, chosen, keep_decisions=out is not None, forecasts=forecasts, promise=promise
    )
    check_any_ran(scenario, runs)
    notes += promise_note(promise, runs)
    if out is not None:
        write_run(out, scenario, runs, metrics, logs, notes)
    told = gains_of_runs(runs, logs)
    notes += never_ran(metrics)  # the page has a place of its own for them
    if as_json:
        say(json.dumps({**run_summary(scenario, metrics, notes), **_gains_summary(told)}, indent=1))
        return
    console = stdout_console()
    for one in told:
        console.print(gains_headline(one), highlight=False)
    print_table(console, metrics, long)
    for one in told if long else ():
        print_gains(console, one)
    for note in (*notes, *(() if long else ("by VC and size, medians, forecasts, who loses and why: --long",))):
        console.print(f"note: {note}", highlight=False)
    if out is not None:
        console.print(f"written: {out / 'report.html'}, and a folder for each policy", highlight=False)


def check_any_ran(scenario: Scenario, runs: Iterable[Run]) -> None:
    """Check that some job ended. Raises ``ConfigError`` where none did under any policy, so that there is nothing to
    show."""
    outcomes = [outcome for run in runs for outcome in run.outcomes]
    if any(outcome.end_s >= 0 for outcome in outcomes):
        return
    least = min((outcome.job for outcome in outcomes), key=lambda job: job.gpus)
    there = (scenario.vcs or {}).get(least.vc, 0) * scenario.shape.gpus
    raise ConfigError(
        f"none of the {len(scenario.trace.jobs)} jobs can ever run on these nodes: the smallest, {least.id}, asks "
        f"for {gpus(least.gpus)} of VC {least.vc}, which has {there}; give --vcs or --nodes more nodes"
    )


def promise_note(promise: bool, runs: Iterable[Run]) -> list[str]:
    """A note where the cost of lending was asked for, and no VC lends."""
    if not promise or any(run.promise for run in runs):
        return []
    return ["--promise: there is nothing to say, for no VC lends to another here"]


def compare(
    scenario: Scenario,
    policies: Sequence[str],
    keep_decisions: bool,
    forecasts: Forecasts = "off",
    promise: bool = False,
) -> tuple[dict[str, dict[str, Any]], list[Run], dict[str, DecisionLog]]:
    """The figures and runs by policy, replayed with progress. ``forecasts``: of starts. ``promise``: with the cost of
    lending, at the price of another replay."""
    metrics: dict[str, dict[str, Any]] = {}
    runs: list[Run] = []
    logs: dict[str, DecisionLog] = {}
    for policy in dict.fromkeys(policies):
        log = DecisionLog() if keep_decisions else None
        with progress(f"simulating {policy}") as report:
            run = replay(scenario, policy, log, report, forecasts=forecasts)
        if promise and run.lent:
            with progress(f"{policy} without lending") as report:
                run = with_promise(scenario, run, report)
        runs.append(run)
        metrics[policy] = run_metrics(run)
        if log is not None:
            logs[policy] = log
    return metrics, runs, logs


def run_summary(scenario: Scenario, metrics: Mapping[str, Any], notes: Sequence[str]) -> dict[str, Any]:
    """The content of ``--json`` and summary.json: trace, cluster, figures, and the figures beside the baseline's."""
    beside = times_baseline(metrics)
    return {
        "trace": scenario.trace.name,
        "jobs": len(scenario.trace.jobs),
        "vcs": dict(scenario.vcs or {}),
        "gpus_per_node": scenario.shape.gpus,
        "load": offered_load(scenario.trace, sum((scenario.vcs or {}).values()) * scenario.shape.gpus),
        "semantics": scenario.semantics.value,
        "notes": list(notes),
        "results": dict(metrics),
        **({"times_baseline": beside} if beside else {}),
    }


def _gains_summary(told: Sequence[Gains]) -> dict[str, Any]:
    """Who gains and who loses, by policy, for the summary."""
    return {"gains": {one.policy: gains_to_dict(one) for one in told}} if told else {}


def write_run(
    out: Path,
    scenario: Scenario,
    runs: Sequence[Run],
    metrics: Mapping[str, dict[str, Any]],
    logs: Mapping[str, DecisionLog],
    notes: Sequence[str],
    extra: Mapping[str, Any] | None = None,
) -> None:
    """Write the run's folder: summary.json (with ``extra`` at its end), report.html, and for each policy jobs.csv
    and decisions.jsonl.

    Raises:
        ConfigError: the folder cannot be written."""
    try:
        for run in runs:
            folder = out / run.policy
            folder.mkdir(parents=True, exist_ok=True)
            write_jobs(folder / "jobs.csv", run)
            if run.policy in logs:
                write_decisions(folder / "decisions.jsonl", logs[run.policy])
        stable = {name: {k: v for k, v in m.items() if k not in _MACHINE} for name, m in metrics.items()}
        told = gains_of_runs(runs, logs)
        summary = {**run_summary(scenario, stable, notes), **_gains_summary(told), **(extra or {})}
        (out / "summary.json").write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
        write_report(out / "report.html", scenario.trace.name, runs, metrics, notes, told, logs, story_teller(logs))
    except OSError as error:
        raise ConfigError(f"{out}: cannot be written ({error.strerror}); give --out another folder") from None


_MACHINE = ("wall_s", "cpu_s")
"""Figures of the machine, not of the schedule: left out of files, which are the same on every machine."""


_SHORT = ("avg_jct_s", "avg_queue_s", "p999_queue_s", "avg_jct_large_s")
"""Figures that the table has without ``--long``."""


def print_table(console: Console, metrics: Mapping[str, Mapping[str, Any]], long: bool = True) -> None:
    """Print the comparison as a table; with ``long``, with all rows, average JCT by VC and by size, and what each VC
    lent."""
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
    for label, key in (row for row in rows if long or row[1] in _SHORT):
        table.add_row(label, *[_time(m.get(key)) for m in metrics.values()])
    beside = times_baseline(metrics)
    for label, key in _BESIDE_ROWS if beside else ():
        cells = [_times(beside["by_policy"][name][key]) for name in metrics]
        table.add_row(f"{label}, {beside['policy']}'s = 1", *cells)
    table.add_row("GPU use", *[f"{m['gpu_use']:.1%}" for m in metrics.values()])
    table.add_row("jobs packed", *[f"{m['packed_share']:.1%}" for m in metrics.values()])
    if any("windows" in m for m in metrics.values()):
        for label, key, form in _WINDOW_ROWS:
            table.add_row(label, *[_figure(m.get("windows"), key, form) for m in metrics.values()])
    if long:
        _long_rows(table, metrics)
    console.print(table)
    if long:
        _split_tables(console, metrics)
    if long or any("promise" in m for m in metrics.values()):
        _lending_table(console, metrics)


def _long_rows(table: Table, metrics: Mapping[str, Mapping[str, Any]]) -> None:
    """Add the rows for those who develop policies."""
    table.add_row("preemptions", *[f"{m['preemptions']:,}" for m in metrics.values()])
    if any(m["resizes"] for m in metrics.values()):
        table.add_row("resizes", *[f"{m['resizes']:,}" for m in metrics.values()])
    if any("starvation_bound_s" in m for m in metrics.values()):
        table.add_row("past the starvation bound", *[_past_bound(m) for m in metrics.values()])
    table.add_row("ended in profiling", *[f"{m['ended_in_profiling']:,}" for m in metrics.values()])
    table.add_row("jobs", *[f"{m['jobs']:,}" for m in metrics.values()])
    if any(m.get("start_forecast") for m in metrics.values()):
        for label, key, form in _FORECAST_ROWS:
            table.add_row(label, *[_figure(m.get("start_forecast"), key, form) for m in metrics.values()])
    table.add_row("simulated in", *[f"{m['wall_s']:.1f} s" for m in metrics.values()])


def _split_tables(console: Console, metrics: Mapping[str, Mapping[str, Any]]) -> None:
    """Print average JCT by size and by VC."""
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


def _lending_table(console: Console, metrics: Mapping[str, Mapping[str, Any]]) -> None:
    """Print what each VC of a pool lent and borrowed, under each policy that lends."""
    lenders = {name: m["by_vc"] for name, m in metrics.items() if any("quota_gpus" in g for g in m["by_vc"].values())}
    if not lenders:
        return
    table = Table(title="GPU-hours lent / borrowed, jobs past their bound, in each VC (virtual cluster)")
    table.add_column("VC")
    table.add_column("quota", justify="right")
    for name in lenders:
        table.add_column(name, justify="right")
    for vc, first in next(iter(lenders.values())).items():
        cells = [
            f"{g[vc]['lent_gpu_h']:,.0f} / {g[vc]['borrowed_gpu_h']:,.0f}, {g[vc].get('jobs_past_bound', '-')}"
            for g in lenders.values()
        ]
        table.add_row(vc, f"{first['quota_gpus']:,}", *cells)
    console.print(table)
    for name, groups in lenders.items():
        if "promise" in metrics[name]:
            _promise_table(console, name, {**groups, "all": metrics[name]})


def _promise_table(console: Console, policy: str, groups: Mapping[str, Mapping[str, Any]]) -> None:
    """Print the cost of lending to each VC, and to all."""
    table = Table(title=f"{policy}: what lending costs, against the same without")
    table.add_column("VC")
    for column in ("avg JCT", "without", "jobs within quota", "of these waited longer, p99.9", "at most"):
        table.add_column(column, justify="right")
    for vc, found in groups.items():
        cost = found.get("promise")
        if cost is not None:
            times = (_time(found["avg_jct_s"]), _time(cost["walls_avg_jct_s"]))
            table.add_row(vc, *times, f"{cost['jobs']:,}", _time(cost["p999_s"]), _time(cost["worst_s"]))
    console.print(table)


def _past_bound(found: Mapping[str, Any]) -> str:
    if "starvation_bound_s" not in found:
        return "-"
    past = found["jobs_past_bound"]
    return f"{past:,} (worst by {_time(found['worst_past_bound_s'])})" if past else "0"


_BESIDE_ROWS = (("avg JCT", "avg_jct"), ("jobs > 8 GPUs", "avg_jct_large"), ("p99.9 queueing", "p999_queue"))

_FORECAST_ROWS = (
    ("waits of over a minute that were forecast", "waited", "{:,}"),
    ("starts inside the 80 % range", "coverage_80", "{:.1%}"),
    ("width of that range / wait", "width_ratio", "{:.2f}"),
    ("waits with a likely start", "told", "{:.1%}"),
    ("of these inside", "told_coverage_80", "{:.1%}"),
    ("width of these / wait", "told_width_ratio", "{:.2f}"),
    ("starts forecast to 10 minutes", "within_10min", "{:.1%}"),
)


_WINDOW_ROWS = (
    ("GPU-hours unused in 24 h before windows", "unused_before_gpu_h", "{:,.0f}"),
    ("of GPU-hours there", "there_before_gpu_h", "{:,.0f}"),
    ("runs cut by windows", "runs_cut", "{:,}"),
    ("GPU-hours of lost work of these", "lost_gpu_h", "{:,.0f}"),
    ("runs lost with their nodes", "runs_failed", "{:,}"),
)


def _figure(found: Mapping[str, Any] | None, key: str, form: str) -> str:
    value = None if found is None else found[key]
    return "-" if value is None else form.format(value)


def _times(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.2f}"


def _time(seconds: float | None) -> str:
    return "-" if seconds is None else duration(seconds)
