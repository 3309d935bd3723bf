"""``python -m benchmarks``: every figure, or those of ``--only``."""

from __future__ import annotations

import json
import platform
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import click

from benchmarks import (
    capacity,
    cards,
    commands,
    contention,
    durations,
    elastic_stream,
    exposition,
    fair,
    first_jobs,
    forecaster,
    frontier,
    growth,
    live_scale,
    look,
    models,
    nodes,
    plan,
    public,
    quality,
    replay,
    report,
    restarts,
    sampler,
    starts,
    systems,
    timeaware,
    tuner,
    turns,
    web,
)
from benchmarks.figure import Absent, Figure, as_dict, markdown
from benchmarks.page import keep, machine

__all__ = ["main"]

Part = Callable[[int], Iterator[Figure]]

PARTS: dict[str, tuple[Part, str]] = {
    "plan": (plan.figures, "latency of one plan(), 1,000 to 50,000 pending, beside fifo's"),
    "starts": (starts.figures, "one forecast of 2,000 waiting jobs: CPU time, beside one plan of them"),
    "p1": (replay.p1, "replaying P1 under lucid: wall and CPU, beside fifo's"),
    "philly": (replay.philly, "replaying the whole Philly log: wall and peak memory, beside fifo's"),
    "kept": (replay.kept, "what keeping the plans of unchanged partitions saves on P1"),
    "growth": (growth.figures, "a synthetic month in one VC, once and three times: CPU"),
    "growth-p1": (growth.packs, "the same of P1; the policy backfill and the starvation bound on P1: CPU"),
    "million": (growth.million, "a million jobs on 9,600 nodes, once: CPU and peak memory"),
    "quality": (quality.honest, "schedules of P1 under every policy, everything charged"),
    "best": (quality.best, "schedules of P1 under lucid with everything it has, and a starvation bound"),
    "parity": (quality.parity, "parity mode beside the published simulator's figures, P0 and P1"),
    "frontier": (frontier.figures, "what each of lucid's settings is worth on P1"),
    "capacity": (
        capacity.figures,
        "how many times the work Lucid carries as well as plain Slurm once (an hour)",
    ),
    "load": (capacity.loaded, "1.15 times the work in a pool beside plain Slurm at 1 (two minutes)"),
    "cards": (cards.figures, "sharing on P1 by the card whose pairs are true, beside no sharing (minutes)"),
    "fair": (fair.figures, "who loses under lucid against plain Slurm, on an idle cluster, P0 and synthetic months"),
    "windows": (nodes.windows, "GPU-hours unused before maintenance windows, beside plain Slurm's, on months and P1"),
    "public": (public.figures, "published logs (LUCID_PUBLIC) in one pool, beside plain Slurm (an hour)"),
    "lies": (public.lies, "the same logs with estimates that are noise, inverted, constant and true (ten minutes)"),
    "timeaware": (
        timeaware.figures,
        "pairs in a calm VC and time-aware profiling on P1 and synthetic months and bursts",
    ),
    "forecaster": (forecaster.figures, "the throughput model beside seasonal means: errors of forecasts, schedules"),
    "restarts": (restarts.figures, "what it costs that nobody is started over who did not ask for it"),
    "contention": (contention.figures, "error of the contention model on measured pairs"),
    "sampler": (sampler.figures, "what the sampler costs a node: CPU, memory, disk"),
    "metrics": (exposition.figures, "one scrape of /metrics at 10,000 waiting jobs: series, CPU time"),
    "commands": (commands.figures, "CPU of the commands that people type all day, beside lucidctl --help"),
    "commands-large": (commands.large, "the same over a picture of 14,000 jobs"),
    "look": (look.figures, "a cycle of lucidd where one of 14,000 jobs has changed, beside one with nothing kept"),
    "report": (report.figures, "report.html of 10,000 jobs: size, CPU time to write it beside the replays"),
    "systems": (systems.figures, "Muri, Pollux, Optimus, elastic: times of decisions, and the elastic experiment"),
    "elastic": (
        elastic_stream.figures,
        "12 streams of make demo-elastic in the simulator: makespans beside fixed size and a bound",
    ),
    "tuner": (tuner.search, "200 trials of a synthetic 10,000-job month on two processes, beside bare replays"),
    "clusters": (tuner.clusters, "the tuner on 20 synthetic clusters: how many of its proposals lose afterwards"),
    "durations": (durations.figures, "estimates of durations beside the running median, on every log at hand"),
    "first": (
        first_jobs.figures,
        "estimates after a site's first 1, 5, 20 and 100 jobs, beside the running median",
    ),
    "light": (durations.light, "what lucidctl --help and status cost, beside an empty Python"),
    "web": (web.figures, "lucid-web at 10,000 waiting and 2,000 running jobs: ms of each page, memory"),
    "scale": (live_scale.figures, "lucidd on a real slurmctld: 1,000 nodes, 14,000 jobs (root; 25 minutes)"),
    "sbatch": (live_scale.latency, "sbatch with Lucid's plugins, beside plain Slurm (root)"),
    "turns": (
        turns.figures,
        "jobs that take turns: iterations beside Muri's formula and plain locks; cost of a turn",
    ),
    "models": (models.figures, "a synthetic month by policy and predictor; what training and predicting cost"),
}


ON_REQUEST = ("million", "scale", "sbatch", "public", "lies", "capacity", "load", "cards")
"""Parts that take too long to be measured unless they are asked for."""


TABLES: dict[str, Callable[[Iterable[Figure]], str]] = {
    "public": public.tables,
    "lies": public.lies_table,
}
"""Parts with a table of their own."""


def _listed() -> str:
    return "\n\n".join(["Parts:", *(f"\b\n{name:10s}{text}" for name, (_, text) in PARTS.items())])


@click.command(epilog=_listed())
@click.option(
    "--only",
    multiple=True,
    type=click.Choice(list(PARTS)),
    help="A part; repeat for more. Default: all but million, scale, sbatch, public, capacity, load, cards.",
)
@click.option("--runs", type=click.IntRange(min=1), default=3, show_default=True, help="Runs of what is timed.")
@click.option("--json", "as_json", is_flag=True, help="Figures as JSON on stdout instead of tables.")
@click.option("--out", type=click.Path(path_type=Path), help="Picture of how plan() grows (.png or .svg).")
@click.option("--keep", "kept", is_flag=True, help="Keep the figures, and write the tables of docs/figures.md anew.")
def main(only: tuple[str, ...], runs: int, as_json: bool, out: Path | None, kept: bool) -> None:
    """Measure speed and quality. Each time is the median of several runs, each ratio is to a baseline of the same
    run; what is deterministic runs once. Parts whose data is not here are skipped, and say so."""
    if out is not None and out.suffix not in (".png", ".svg"):
        raise click.BadParameter(f"{out}: the name must end in .png or .svg", param_hint="--out")
    if out is not None and only and "plan" not in only:
        raise click.BadParameter(f"{out} shows how plan() grows; add --only plan", param_hint="--out")
    found: dict[str, list[Figure]] = {}
    skipped: dict[str, str] = {}
    for name in only or [name for name in PARTS if name not in ON_REQUEST]:
        part, text = PARTS[name]
        print(f"{name}: measuring", end="\r", file=sys.stderr, flush=True)
        began = time.perf_counter()
        try:
            found[name] = list(part(runs))
        except Absent as error:
            skipped[name] = str(error)
        print(" " * 40, end="\r", file=sys.stderr, flush=True)
        if not as_json:
            body = f"skipped: {skipped[name]}" if name in skipped else TABLES.get(name, markdown)(found[name])
            print(f"### {name}: {text}\n\n{body}\n\n({time.perf_counter() - began:.0f} s)\n", flush=True)
    if as_json:
        results = [{"part": name, **as_dict(figure)} for name, figures in found.items() for figure in figures]
        where = {"machine": machine(), "system": platform.platform()}
        print(json.dumps({"machine": where, "runs": runs, "results": results, "skipped": skipped}, indent=1))
    if kept:
        keep(found)
    if out is not None:
        plan.draw(found["plan"], out)
        print(f"written: {out}", file=sys.stderr)


if __name__ == "__main__":
    main()
