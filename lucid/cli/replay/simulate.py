"""``lucidctl simulate``: replay a trace under one or more policies, and show figures and who gains or loses."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from rich.console import RenderableType

from lucid.cli.console import Table, answer, progress, styled, table
from lucid.cli.options import PATH
from lucid.cli.replay.replay_options import Sectioned, cluster_options, read_scenario, scene_options
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
from lucid.simulator.report.page import write_report
from lucid.simulator.report.summary import never_ran
from lucid.simulator.scenario import ReplayOptions, Scenario, with_promise
from lucid.simulator.scenario import simulate as replay
from lucid.simulator.start_forecast import Forecasts

_LISTED = 5


def gains_words(found: Gains) -> Iterator[RenderableType | tuple[str, bool]]:
    """All VCs, the users that lose most and gain most, and the jobs that lose most with the reasons."""
    yield styled(f"Who gains, who loses: {found.policy} against {found.baseline}", "bold")
    yield _parties("VC", found, found.vcs)
    users = found.users if len(found.users) <= 2 * _LISTED else (*found.users[:_LISTED], *found.users[-_LISTED:])
    if len(users) > 1:
        yield _parties("user", found, users)
        if len(users) < len(found.users):
            between = len(found.users) - len(users)
            yield f"the {_LISTED} users that lose most and gain most; --json has the {between} between"
    for one in found.losing[:_LISTED]:
        yield f"job {one.job} ends {duration(one.lost_s)} later: {loss_text(one, duration)}", False


def _parties(title: str, found: Gains, parties: Sequence[Party]) -> Table:
    rows = (
        (
            party.name or "(no name)",
            f"{party.jobs:,}",
            *map(duration, (party.baseline_s, party.jct_s)),
            *(f"{party.ratio:.3f}", f"{party.later:,}"),
        )
        for party in parties
    )
    return table((title, ">jobs", f">JCT, {found.baseline}", f">JCT, {found.policy}", ">ratio", ">jobs later"), rows)


promise_option = click.option(
    "--promise",
    is_flag=True,
    help="Say what lending costs the VCs that lend: each policy that lends is replayed once more without lending "
    "(about two thirds more time).",
)


@click.command(cls=Sectioned)
@click.argument("trace_file", metavar="TRACE", type=PATH)
@cluster_options
@scene_options
@promise_option
@click.option("--policy", "policies", multiple=True, metavar="NAME", help="Policy to replay; repeat to compare.")
@click.option("--out", type=PATH, help="Folder for report.html, per-job CSV, decisions.")
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
    more = () if long else ("by VC and size, medians, forecasts, who loses and why: --long",)
    words = (
        *map(gains_headline, told),
        *tables(metrics, long),
        *(words for one in told if long for words in gains_words(one)),
        *(f"note: {note}" for note in (*notes, *more)),
        *written(out),
    )
    data = {**run_summary(scenario, metrics, notes), **_gains_summary(told)}
    answer(data, as_json, words, wraps=True)


def written(out: Path | None) -> list[str]:
    """The line on what lies in the folder *out*, where one was named."""
    return [] if out is None else [f"written: {out / 'report.html'}, and a folder for each policy"]


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


def tables(metrics: Mapping[str, Mapping[str, Any]], long: bool = True) -> Iterator[Table]:
    """The comparison as a table; with ``long``, with all rows, average JCT by VC and by size, and what each VC
    lent."""
    yield table(("", *(f">{name}" for name in metrics)), _rows(metrics, long), title="Comparison of policies")
    if long:
        yield from _split_tables(metrics)
    if long or any("promise" in m for m in metrics.values()):
        yield from _lending_tables(metrics)


_TIMES = (
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
)


def _rows(metrics: Mapping[str, Mapping[str, Any]], long: bool) -> Iterator[list[str]]:
    """The rows of the comparison; with ``long`` also those for who develops policies."""
    found = metrics.values()

    def row(label: str, cell: Callable[[Mapping[str, Any]], str]) -> list[str]:
        return [label, *map(cell, found)]

    def given(part: str, rows: Sequence[tuple[str, str, str]]) -> Iterator[list[str]]:
        if any(m.get(part) for m in found):
            for label, key, form in rows:
                yield [label, *(form.format(m[part][key]) if _has(m.get(part), key) else "-" for m in found)]

    for label, key in _TIMES:
        if long or key in _SHORT:
            yield [label, *(_time(m.get(key)) for m in found)]
    beside = times_baseline(metrics)
    for label, key in _BESIDE_ROWS if beside else ():
        yield [f"{label}, {beside['policy']}'s = 1", *(_times(beside["by_policy"][name][key]) for name in metrics)]
    yield row("GPU use", lambda m: f"{m['gpu_use']:.1%}")
    yield row("jobs packed", lambda m: f"{m['packed_share']:.1%}")
    yield from given("windows", _WINDOW_ROWS)
    if not long:
        return
    yield row("preemptions", lambda m: f"{m['preemptions']:,}")
    if any(m["resizes"] for m in found):
        yield row("resizes", lambda m: f"{m['resizes']:,}")
    if any("starvation_bound_s" in m for m in found):
        yield row("past the starvation bound", _past_bound)
    yield row("ended in profiling", lambda m: f"{m['ended_in_profiling']:,}")
    yield row("jobs", lambda m: f"{m['jobs']:,}")
    yield from given("start_forecast", _FORECAST_ROWS)
    yield row("simulated in", lambda m: f"{m['wall_s']:.1f} s")


def _split_tables(metrics: Mapping[str, Mapping[str, Any]]) -> Iterator[Table]:
    for key, title in (("by_size", "GPUs of the job"), ("by_vc", "VC")):
        groups = [m[key] for m in metrics.values()]
        rows = (
            (
                group,
                f"{first['jobs']:,}",
                *(f"{_time(g[group].get('avg_jct_s'))} / {_time(g[group].get('avg_queue_s'))}" for g in groups),
            )
            for group, first in groups[0].items()
            if first["jobs"]
        )
        columns = (title, ">jobs", *(f">{name}" for name in metrics))
        yield table(columns, rows, title=f"avg JCT / avg queueing by {title}")


def _lending_tables(metrics: Mapping[str, Mapping[str, Any]]) -> Iterator[Table]:
    """What each VC of a pool lent and borrowed, under each policy that lends; and what that cost it."""
    lenders = {name: m["by_vc"] for name, m in metrics.items() if any("quota_gpus" in g for g in m["by_vc"].values())}
    if not lenders:
        return
    rows = (
        (
            vc,
            f"{first['quota_gpus']:,}",
            *(
                f"{g[vc]['lent_gpu_h']:,.0f} / {g[vc]['borrowed_gpu_h']:,.0f}, {g[vc].get('jobs_past_bound', '-')}"
                for g in lenders.values()
            ),
        )
        for vc, first in next(iter(lenders.values())).items()
    )
    title = "GPU-hours lent / borrowed, jobs past their bound, in each VC (virtual cluster)"
    yield table(("VC", ">quota", *(f">{name}" for name in lenders)), rows, title=title)
    for name, groups in lenders.items():
        if "promise" in metrics[name]:
            yield _promise_table(name, {**groups, "all": metrics[name]})


_PROMISE = ("VC", ">avg JCT", ">without", ">jobs within quota", ">of these waited longer, p99.9", ">at most")


def _promise_table(policy: str, groups: Mapping[str, Mapping[str, Any]]) -> Table:
    rows = (
        (
            vc,
            *(_time(found["avg_jct_s"]), _time(cost["walls_avg_jct_s"]), f"{cost['jobs']:,}"),
            *(_time(cost["p999_s"]), _time(cost["worst_s"])),
        )
        for vc, found in groups.items()
        if (cost := found.get("promise")) is not None
    )
    return table(_PROMISE, rows, title=f"{policy}: what lending costs, against the same without")


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


def _has(found: Mapping[str, Any] | None, key: str) -> bool:
    return found is not None and found[key] is not None


def _times(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.2f}"


def _time(seconds: float | None) -> str:
    return "-" if seconds is None else duration(seconds)
