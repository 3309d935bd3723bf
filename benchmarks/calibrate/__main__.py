"""Measure a suite of jobs alone and in pairs, and write the tables that models train on.

``pip install torch; python -m benchmarks.calibrate --quick --out calibration``, on a machine with a GPU.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from benchmarks.calibrate.measure import Calibration, Rates
from benchmarks.calibrate.mps import sharing_environment
from benchmarks.calibrate.suite import suite
from benchmarks.calibrate.tables import Circumstances, synthetic_share, synthetic_tables, tables, write_tables
from lucid.cli.console import say
from lucid.core.gpu import GpuCard
from lucid.errors import ConfigError, LucidError, MetricsError
from lucid.node.nvml import NvmlMetrics

__all__ = ["calibrate"]


@click.command()
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Folder for results and tables.")
@click.option("--quick", is_flag=True, help="6 workloads, 21 pairs: about 20 minutes. Default: 32 and 528.")
@click.option("--synthetic", is_flag=True, help="No measuring: the table of the contention model, named synthetic.")
@click.option("--sharing", type=click.Choice(["mps", "time-slicing"]), default="mps", show_default=True)
@click.option("--gpu", default=None, help="UUID or index of the GPU; default: the first.")
@click.option(
    "--device",
    type=click.Choice(["cuda", "cpu", "none"]),
    default="cuda",
    show_default=True,
    help="Where the jobs run; cpu and none only try the mechanism.",
)
@click.option("--settle", type=click.FloatRange(min=0), default=None, help="Seconds left out of each measurement.")
@click.option("--measure", type=click.FloatRange(min=0.5), default=None, help="Seconds of each measurement.")
@click.option("--only", default=None, help="Only workloads whose key contains this (model/data/batch/amp).")
@click.option("--json", "as_json", is_flag=True, help="What was done as JSON.")
def calibrate(
    out: Path,
    quick: bool,
    synthetic: bool,
    sharing: str,
    gpu: str | None,
    device: str,
    settle: float | None,
    measure: float | None,
    only: str | None,
    as_json: bool,
) -> None:
    """Measure how known kinds of jobs slow each other down on one GPU of this machine.

    Each result is written at once (OUT/results.jsonl). The same command again continues where it stopped. At the
    end it writes OUT/profiles.csv and OUT/pairs.csv.
    """
    if synthetic:
        profiles, pairs = write_tables(synthetic_tables(), out)
        tree = write_tables({"share.json": synthetic_share(profiles, pairs)}, out)
        done: dict[str, Any] = {"source": "synthetic", "files": [profiles, pairs, *tree]}
    else:
        workloads = [w for w in suite(quick) if only is None or only in w.key]
        if not workloads:
            raise ConfigError(f"--only {only!r} leaves no workload; keys look like {suite(quick)[0].key}")
        rates = Rates(
            settle if settle is not None else 5.0 if quick else 10.0,
            measure if measure is not None else 25.0 if quick else 30.0,
        )
        metrics = NvmlMetrics()
        card = _card(metrics, gpu)
        with sharing_environment(sharing, card.uuid) as environment:
            run = Calibration(out, workloads, metrics, card.uuid, rates, device=device, environment=environment)
            _announce(run, card, sharing, rates, as_json)
            run.run(lambda text: say(f"failed: {text}", err=True))
        metrics.close()
        source = "measured" if device == "cuda" else f"mechanism only, jobs on {device}"
        about = Circumstances(source, sharing, card.name, metrics.driver, time.strftime("%Y-%m-%d"))
        alone, together = run.alone(), run.together()
        if not alone:
            raise MetricsError(f"nothing could be measured: {next(iter(run.failed.values()), 'no task')}")
        done = {
            "source": source,
            "files": write_tables(tables(alone, together, about), out),
            "alone": len(alone),
            "pairs": len(together),
            "failed": run.failed,
        }
    _tell(done, as_json)


def _card(metrics: NvmlMetrics, gpu: str | None) -> GpuCard:
    try:
        cards = metrics.cards()
    except MetricsError as error:
        raise MetricsError(f"{error} Without a GPU only --synthetic is possible.") from None
    for card in cards:
        if gpu is None or gpu in (card.uuid, str(card.index)):
            return card
    raise ConfigError(f"--gpu {gpu}: not here; known: {', '.join(f'{c.index} {c.uuid}' for c in cards) or 'none'}")


def _announce(run: Calibration, card: GpuCard, sharing: str, rates: Rates, as_json: bool) -> None:
    if as_json:
        return
    tasks, left = len(run.tasks), len(run.open)
    minutes = left * (rates.settle_s + rates.measure_s + 8.0) / 60  # some 8 s to start and to end the jobs
    say(f"{card.name}, {sharing}: {left} of {tasks} measurements to do, about {minutes:.0f} min", err=True)


def _tell(done: Mapping[str, Any], as_json: bool) -> None:
    if as_json:
        say(json.dumps({**done, "files": [str(path) for path in done["files"]]}, indent=1))
        return
    for path in done["files"]:
        say(f"{path} ({done['source']})")
    if "alone" in done:
        say(f"{done['alone']} workloads alone, {done['pairs']} pairs, {len(done['failed'])} failed")


if __name__ == "__main__":
    try:
        calibrate()
    except LucidError as error:
        say(str(error), err=True)
        sys.exit(error.exit_code)
