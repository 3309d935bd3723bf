"""``lucidctl demo``: a synthetic month under five policies, from nothing to a report page."""

from __future__ import annotations

from pathlib import Path

import click

from lucid.cli.console import answer, progress, stdout_console
from lucid.cli.options import PATH
from lucid.cli.replay.simulate import compare, tables, write_run
from lucid.explain.replayed_story import run_story
from lucid.simulator.engine import Run
from lucid.simulator.metrics import gains_headline, gains_of_runs
from lucid.simulator.record import DecisionLog
from lucid.simulator.scenario import Scenario
from lucid.simulator.traces.formats.own import write_trace
from lucid.simulator.traces.presets import preset, vc_layout
from lucid.simulator.traces.synth import synthesise

_PRESET = "month-small"
_POLICIES = ("backfill", "fifo", "tiresias", "srtf", "lucid")


@click.command()
@click.option("--out", type=PATH, default=Path("out/demo"), show_default=True)
@click.option("--seed", type=int, default=1, show_default=True)
def demo(out: Path, seed: int) -> None:
    """Simulate a SYNTHETIC month of a small cluster.

    The command prints the comparison and one explanation, and writes the report."""
    console = stdout_console()
    with progress("making a synthetic month") as report:
        trace = synthesise(preset(_PRESET), seed, report)
    vcs = vc_layout(_PRESET)
    notes = [
        f"the trace is SYNTHETIC: preset {_PRESET}, seed {seed} (docs/traces.md says how it is made)",
        "backfill is plain Slurm: what you have without Lucid",
        "no cluster can have srtf: it knows the true durations, and preempts jobs that lose no work; lucid estimates "
        "from the past of the trace",
        "not an even comparison: under lucid the VCs lend each other idle GPUs, under all others each keeps to its "
        "own; lucidctl simulate --lending off or --pool gives the same nodes to all",
        "interference between jobs on the same GPUs is the contention model's, not measured",
    ]
    console.print(
        f"{len(trace.jobs):,} jobs of a synthetic month on {sum(vcs.values())} nodes of 8 GPUs in {len(vcs)} VCs",
        highlight=False,
    )
    scenario = Scenario(trace, vcs, lends=True)
    metrics, runs, logs = compare(scenario, _POLICIES, keep_decisions=True)
    told = [gains_headline(one) for one in gains_of_runs(runs, logs) if one.policy == "lucid"]
    answer(None, False, (*tables(metrics), *told), wraps=True)
    write_run(out, scenario, runs, metrics, logs, notes)
    write_trace(trace, out / "trace.csv")
    job_id = _worth_telling(runs[-1], logs["lucid"])
    console.rule("why did that job start then, and there?  (lucidctl explain)")
    story, _ = run_story(out / "lucid", job_id)
    console.print(story.text(console.width), highlight=False, markup=False, soft_wrap=True)
    console.rule()
    for note in notes:
        console.print(f"note: {note}", highlight=False)
    console.print(f"report: {out / 'report.html'}", highlight=False)
    console.print(f"another job: lucidctl explain --run {out} JOB   (ids in {out / 'lucid' / 'jobs.csv'})")


def _worth_telling(run: Run, log: DecisionLog) -> str:
    """The id of a job that was profiled, had to wait, and then started beside another."""
    told = [
        o
        for o in run.outcomes
        if o.packed
        and o.queue_s > 600
        and any(entry.verb == "start" and entry.beside for entry in log.decisions_of(o.job.id))
        and 4 <= len(log.decisions_of(o.job.id)) <= 7
    ]
    return (told or run.outcomes)[len(told) // 2].job.id
