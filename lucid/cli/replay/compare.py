"""``lucidctl compare``: every policy that can run on a trace, side by side."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from lucid.cli.console import Console, Table, say, stderr_console, stdout_console
from lucid.cli.progress import many_bars
from lucid.cli.replay.replay_options import cluster_options, read_scenario
from lucid.cli.replay.simulate import check_any_ran, promise_note, promise_option, run_summary, write_run
from lucid.cli.replay.trace_options import scene_options
from lucid.errors import ConfigError
from lucid.explain.quantities import duration
from lucid.orchestrator.policy import find_policy
from lucid.simulator.compare import Comparison, compare_policies, default_policies
from lucid.simulator.gains import times_baseline
from lucid.simulator.report.summary import never_ran
from lucid.simulator.suite import Cell, run_cells, suite_data, traces_at_hand, write_suite

__all__ = ["compare"]


@click.command()
@click.argument("trace_file", metavar="[TRACE]", type=click.Path(path_type=Path), required=False)
@cluster_options
@scene_options
@click.option("--suite", is_flag=True, help="Every policy on every trace at hand, beside published figures.")
@click.option(
    "--data",
    type=click.Path(path_type=Path),
    envvar="LUCID_SHARED",
    help="With --suite: folder of the traces. Default: $LUCID_SHARED. Without one: traces that Lucid generates.",
)
@click.option(
    "--trace", "only", multiple=True, metavar="NAME", help="With --suite: only this trace; repeat for more."
)
@click.option("--policy", "policies", multiple=True, metavar="NAME", help="Only this one; repeat for more.")
@promise_option
@click.option("--ablations", is_flag=True, help="Also policies with a part of them taken out.")
@click.option("--workers", type=click.IntRange(min=1), help="Processes at a time. Default: one for each core.")
@click.option("--out", type=click.Path(path_type=Path), help="Folder for report.html, summary.json, per-job CSV.")
@click.option("--json", "as_json", is_flag=True, help="Figures as JSON on stdout instead of a table.")
def compare(
    trace_file: Path | None,
    suite: bool,
    data: Path | None,
    only: tuple[str, ...],
    policies: tuple[str, ...],
    promise: bool,
    ablations: bool,
    workers: int | None,
    out: Path | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Replay TRACE under every policy that can run on it, and compare the results.

    One column says what each policy assumes. A policy that cannot run on this trace is listed with the reason.
    All policies pay the same costs (--semantics honest), whichever simulator the trace comes from.

    With --suite there is no TRACE: every trace at hand is replayed on the cluster that it was published with, by the
    rules of the simulator that it was published with. --out (default: suite) holds suite.html, and each result as it
    comes: the same command goes on where it was stopped. What the papers claim stands row by row in docs/papers.md;
    in a checkout, python -m benchmarks.papers measures it.
    """
    for name in policies:
        find_policy(name)
    if out is not None and out.exists() and not out.is_dir():
        raise ConfigError(f"--out {out}: is not a folder; give another name")
    if suite:
        if trace_file is not None:
            raise ConfigError(f"--suite replays the traces at hand; leave {trace_file} out, or --suite")
        _compare_suite(data, only, policies or default_policies(ablations), workers, out or Path("suite"), as_json)
        return
    if trace_file is None:
        raise click.UsageError("Missing argument 'TRACE' (or --suite).")
    scenario, notes = read_scenario(trace_file, **options, muris_own=False)
    with many_bars() as report:
        found = compare_policies(scenario, policies or default_policies(ablations), workers, report, promise)
    if not found.runs:
        raise ConfigError("none of the policies can run on this trace: " + "; ".join(_reasons(found)))
    check_any_ran(scenario, found.runs.values())
    notes += promise_note(promise, found.runs.values())
    shown = [*notes, *never_ran(found.metrics)]
    notes += [f"not applicable: {line}" for line in _reasons(found)]
    notes += [f"{name} assumes {found.assumptions[name].text()}" for name in found.runs]
    if out is not None:
        write_run(out, scenario, list(found.runs.values()), found.metrics, {}, notes, _extra(found))
    if as_json:
        summary = {**run_summary(scenario, found.metrics, [*notes, *never_ran(found.metrics)]), **_extra(found)}
        say(json.dumps(summary, indent=1))
        return
    console = stdout_console()
    _print(console, found)
    for note in shown:  # the rest stands in the tables
        console.print(f"note: {note}", highlight=False)
    if out is not None:
        console.print(f"written: {out / 'report.html'}, and a folder for each policy", highlight=False)


def _reasons(found: Comparison) -> list[str]:
    return [f"{name} {reason}" for name, reason in found.not_applicable.items()]


def _extra(found: Comparison) -> dict[str, Any]:
    return {
        "assumptions": {name: item.data() for name, item in found.assumptions.items()},
        "not_applicable": dict(found.not_applicable),
    }


def _print(console: Console, found: Comparison) -> None:
    beside = times_baseline(found.metrics)
    one = f" (in brackets: {beside['policy']} = 1)" if beside else ""
    table = Table(title=f"Policies by average JCT{one}")
    table.add_column("policy", no_wrap=True)
    for column in ("avg JCT", "JCT > 8 GPUs", "p99.9 queueing", "avg queueing", "makespan", "GPU use"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("assumes")
    for name in sorted(found.runs, key=lambda name: found.metrics[name].get("avg_jct_s", 0.0)):
        m, ratios = found.metrics[name], beside["by_policy"][name] if beside else {}
        cells = [_cell(m.get(f"{key}_s"), ratios.get(key)) for key in (*_BESIDE, "avg_queue", "makespan")]
        table.add_row(name, *cells, f"{m['gpu_use']:.1%}", found.assumptions[name].text())
    for name, reason in found.not_applicable.items():
        table.add_row(name, "n/a", "", "", "", "", "", reason)
    console.print(table)
    if any(item.durations == "true" for name, item in found.assumptions.items() if name in found.runs):
        console.print(
            "Nobody can have a policy that assumes TRUE durations: it shows how much there is to gain. The policy "
            "backfill is plain Slurm.",
            highlight=False,
        )


_BESIDE = ("avg_jct", "avg_jct_large", "p999_queue")


def _cell(seconds: float | None, ratio: float | None) -> str:
    if seconds is None:
        return "-"
    return duration(seconds) if ratio is None else f"{duration(seconds)} ({ratio:.2f})"


def _compare_suite(
    data: Path | None, only: Sequence[str], policies: Sequence[str], workers: int | None, out: Path, as_json: bool
) -> None:
    """Replay what is not yet replayed, then write the page and show the figures.

    Raises:
        ConfigError: no such folder, or no such trace.
    """
    if data is not None and not data.is_dir():
        raise ConfigError(f"--data {data}: is not a folder; give the folder with the traces, or leave it out")
    entries = traces_at_hand(data)
    unknown = set(only) - {entry.name for entry in entries}
    if unknown:
        known = ", ".join(entry.name for entry in entries)
        raise ConfigError(f"--trace {', '.join(sorted(unknown))}: not at hand (at hand: {known})")
    entries = [entry for entry in entries if not only or entry.name in only]
    console, began_s = stderr_console(), time.monotonic()

    def report(cell: Cell | None, done: int, total: int) -> None:
        if cell is None:
            if done:
                console.print(f"{done} of {total} cells are done already in {out}", highlight=False)
            return
        what = cell.reason or f"average JCT {duration(cell.figures['avg_jct_s'])}"
        passed = duration(time.monotonic() - began_s)
        console.print(f"{done}/{total} {cell.trace} {cell.policy}: {what} (after {passed})", highlight=False)

    cells = run_cells(entries, data, policies, out, workers or os.cpu_count() or 1, report)
    write_suite(out / "suite.html", entries, cells)
    if as_json:
        say(json.dumps(suite_data(entries, cells), indent=1))
        return
    shown = stdout_console()
    for entry in entries:
        table = Table(title=f"{entry.name}: {entry.about}")
        for column in ("policy", "avg JCT", "published", "difference"):
            table.add_column(column, justify="left" if column == "policy" else "right")
        for cell in (c for c in cells if c.trace == entry.name and c.figures):
            published, ours = entry.published.get(cell.policy), cell.figures["avg_jct_s"]
            beside = ("-", "-") if published is None else (duration(published), f"{ours / published - 1:+.1%}")
            table.add_row(cell.policy, duration(ours), *beside)
        shown.print(table)
    shown.print(f"written: {out / 'suite.html'}", highlight=False)
    shown.print("the papers' claims, row by row: docs/papers.md; in a checkout: python -m benchmarks.papers")
