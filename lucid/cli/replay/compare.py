"""``lucidctl compare``: every policy that can run on a trace, side by side."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from lucid.cli.console import Table, answer, many_bars, table
from lucid.cli.options import PATH
from lucid.cli.replay.replay_options import Sectioned, cluster_options, read_scenario, scene_options
from lucid.cli.replay.simulate import check_any_ran, promise_note, promise_option, run_summary, write_run, written
from lucid.errors import ConfigError
from lucid.explain.formatting import duration
from lucid.orchestrator.registry import find_policy
from lucid.simulator.compare import Comparison, compare_policies, default_policies
from lucid.simulator.metrics import times_baseline
from lucid.simulator.report.summary import never_ran
from lucid.simulator.scenario import ReplayOptions


@click.command(cls=Sectioned)
@click.argument("trace_file", metavar="TRACE", type=PATH)
@cluster_options
@scene_options
@click.option("--policy", "policies", multiple=True, metavar="NAME", help="Only this one; repeat for more.")
@promise_option
@click.option("--ablations", is_flag=True, help="Also policies with a part of them taken out.")
@click.option("--workers", type=click.IntRange(min=1), help="Processes at a time. Default: one for each core.")
@click.option("--out", type=PATH, help="Folder for report.html, summary.json, per-job CSV.")
@click.option("--json", "as_json", is_flag=True, help="Figures as JSON on stdout instead of a table.")
def compare(
    trace_file: Path,
    policies: tuple[str, ...],
    promise: bool,
    ablations: bool,
    workers: int | None,
    out: Path | None,
    as_json: bool,
    asked: ReplayOptions,
) -> None:
    """Replay TRACE under every policy that can run on it.

    One column says what each policy assumes. A policy that cannot run on this trace is listed with the reason.
    All policies pay the same costs (--semantics honest), whichever simulator the trace comes from.

    What the papers claim stands row by row in docs/papers.md; in a checkout, python -m benchmarks.papers measures it.
    """
    for name in policies:
        find_policy(name)
    if out is not None and out.exists() and not out.is_dir():
        raise ConfigError(f"--out {out}: is not a folder; give another name")
    scenario, notes = read_scenario(trace_file, asked, muris_own=False)
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

    def data() -> dict[str, Any]:
        return {**run_summary(scenario, found.metrics, [*notes, *never_ran(found.metrics)]), **_extra(found)}

    words = (*_words(found), *(f"note: {note}" for note in shown), *written(out))  # the rest stands in the tables
    answer(data, as_json, words, wraps=True)


def _reasons(found: Comparison) -> list[str]:
    return [f"{name} {reason}" for name, reason in found.not_applicable.items()]


def _extra(found: Comparison) -> dict[str, Any]:
    return {
        "assumptions": {name: item.data() for name, item in found.assumptions.items()},
        "not_applicable": dict(found.not_applicable),
    }


_COLUMNS = ("avg JCT", "JCT > 8 GPUs", "p99.9 queueing", "avg queueing", "makespan", "GPU use")


def _words(found: Comparison) -> Iterator[str | Table]:
    beside = times_baseline(found.metrics)
    one = f" (in brackets: {beside['policy']} = 1)" if beside else ""
    rows = []
    for name in sorted(found.runs, key=lambda name: found.metrics[name].get("avg_jct_s", 0.0)):
        m, ratios = found.metrics[name], beside["by_policy"][name] if beside else {}
        cells = [_cell(m.get(f"{key}_s"), ratios.get(key)) for key in (*_BESIDE, "avg_queue", "makespan")]
        rows.append((name, *cells, f"{m['gpu_use']:.1%}", found.assumptions[name].text()))
    rows += [(name, "n/a", "", "", "", "", "", reason) for name, reason in found.not_applicable.items()]
    columns = ("policy", *(f">{name}" for name in _COLUMNS), "assumes")
    yield table(columns, rows, unwrapped=len(columns) - 1, title=f"Policies by average JCT{one}")
    if any(item.durations == "true" for name, item in found.assumptions.items() if name in found.runs):
        yield (
            "Nobody can have a policy that assumes TRUE durations: it shows how much there is to gain. The policy "
            "backfill is plain Slurm."
        )


_BESIDE = ("avg_jct", "avg_jct_large", "p999_queue")


def _cell(seconds: float | None, ratio: float | None) -> str:
    if seconds is None:
        return "-"
    return duration(seconds) if ratio is None else f"{duration(seconds)} ({ratio:.2f})"
