"""``make demo-elastic``: the same 20 small jobs on a real Slurm, at fixed size and resized by policies that do so.

The training is real (SGD in plain Python, gradients with their noise, a checkpoint at SIGTERM), Slurm and lucidd are
real. GPUs are emulated, and a step takes as long on several of them as the jobs' own sleep says
(``elastic_stream.Model``). So the table tells what resizing costs and brings in this scheduler, and nothing of any
GPU. Under ``pollux`` the jobs choose their batch. Beside each run stands the simulator's forecast.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parents[1]
sys.path[:1] = [str(REPO / "tests/e2e"), str(REPO / "slurm"), str(REPO)]

from box import Box  # noqa: E402
from elastic_box import Elastics, elastic_lucidd  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402

from benchmarks.elastic_stream import (  # noqa: E402
    ADAPTING,
    EVERY_S,
    JCT_TARGET,
    MEAN_S,
    NODE_GPUS,
    NODES,
    ROUND_S,
    TARGET,
    Curve,
    Small,
    apart,
    forecast,
    least_makespan_s,
    loss_noise,
    small_jobs,
)
from lucid.errors import LucidError  # noqa: E402
from testbed import cli as testbed  # noqa: E402
from testbed.lifetime import kept  # noqa: E402
from testbed.settings import TestbedError, layout_from  # noqa: E402

LAYOUT = {
    "LUCID_TESTBED_NAME": "demo-elastic",
    "LUCID_TESTBED_NODES": f"n[1-{NODES}]:gpus={NODE_GPUS},cpus=32,mem=64000,type=a100 "
    f"n{NODES + 1}:gpus={NODE_GPUS},cpus=16,mem=64000,type=a100",
    "LUCID_TESTBED_PARTITIONS": f"vc-a=n[1-{NODES}] prof=n{NODES + 1}",
}
LIMIT_S = 900.0
"""Jobs of one to four minutes: a cool-down of the default length would be as long as they are."""
FORECAST_TARGET = 0.1
STREAM = 2
"""The median of twelve by the forecast for ``elastic`` (``python -m benchmarks --only elastic``)."""
NO_ROUNDS = ("fifo", "elastic")
NOT_SERVED = {
    "muri-l": "resizes nobody; it lets jobs take turns on the same GPUs (docs/systems/muri.md)",
    "optimus": "needs to know what each job will take, which only a replay knows (oracle)",
}


@dataclass(frozen=True)
class Outcome:
    """Of one run of all jobs. ``restart_s``: from the order to stop until the next start was told, on average;
    ``lost``: steps that were done twice; ``gpu_s``: GPU-seconds by accounting, ``own_gpu_s``: by the jobs' clocks;
    ``worst_loss``: the largest last loss that a job reported, ``mean_loss`` their mean; 1 is the noise of the points.
    ``curves``: the losses that each job reported, by epochs.
    ``forecast_makespan_s``, ``forecast_jct_s``: by the simulator, with this run's seconds a restart."""

    policy: str
    makespan_s: float
    avg_jct_s: float
    restarts: int
    restart_s: float
    lost: int
    gpu_s: float
    own_gpu_s: float
    worst_loss: float
    mean_loss: float
    forecast_makespan_s: float
    forecast_jct_s: float
    curves: list[Curve]


def gpu_seconds(box: Box, numbers: list[str], expected: int) -> float:
    """By accounting, all runs of all jobs, once it has all of them."""
    until = time.monotonic() + 60
    while True:
        said = box.run(
            "env", "SLURM_TIME_FORMAT=%s", "sacct", "-a", "-D", "-X", "-n", "-P", "-S", "now-1hours",
            "-o", "JobIDRaw,Start,End,AllocTRES",
        ).stdout  # fmt: skip
        total, runs = 0.0, 0
        for line in said.splitlines():
            number, start, end, tres = line.split("|")
            held = [item.partition("=")[2] for item in tres.split(",") if item.startswith("gres/gpu=")]
            if number in numbers and start.isdigit() and end.isdigit() and held:
                total += int(held[0]) * (int(end) - int(start))
                runs += 1
        if runs == expected:
            return total
        if time.monotonic() > until:
            raise TestbedError("accounting does not tell of all runs; see the log of slurmdbd")
        time.sleep(1.0)


def play(box: Box, policy: str, wanted: list[Small], state: Path, say: Console) -> Outcome:
    shutil.rmtree(state, ignore_errors=True)
    lucidd = elastic_lucidd(box, state, policy, EVERY_S, round_s=0.0 if policy in NO_ROUNDS else ROUND_S)
    jobs = Elastics(box)
    lucidd.start()
    try:
        began, began_s, numbers = time.monotonic(), time.time(), []
        for one in wanted:
            time.sleep(max(one.at_s - (time.monotonic() - began), 0.0))
            numbers.append(
                jobs.submit_adaptive(
                    "-p",
                    "vc-a",
                    program=one.options,
                    how="adapts" if policy in ADAPTING else "fixed",
                    gpus=one.gpus,
                    epochs=one.epochs,
                    batch=f"{one.model.batch}:{8 * one.model.batch}",
                    start=1,
                )
            )
        found: dict[str, dict[str, Any]] = {}
        while True:
            found |= box.jobs()  # slurmctld forgets a job some minutes after its end
            states = {n: str(found[n]["job_state"][0]) for n in numbers}
            if all(s == "COMPLETED" for s in states.values()):
                break
            bad = [n for n, s in states.items() if s in ("FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")]
            if bad or time.monotonic() - began > LIMIT_S:
                raise TestbedError(f"{policy}: job {(bad or list(states))[0]} ended as {states[(bad or numbers)[0]]}")
            time.sleep(1.0)
        ends = {n: float(found[n]["end_time"]["number"]) for n in numbers}
        restarts = sum(int(found[n]["restart_cnt"]) for n in numbers)
        told = box.root / "run/lucid-reports"
        reports = [json.loads(next(told.glob(f"u*/{n}.json")).read_text()) for n in numbers]
        took = restarts_in(lucidd.log())
        restart_s = sum(took) / len(took) if took else 0.0
        losses = [report["losses"][-1][1] for report in reports]
        expected = forecast(wanted, policy, ROUND_S, restart_s)
        return Outcome(
            policy,
            max(ends.values()) - began_s,
            sum(ends[n] - began_s - one.at_s for n, one in zip(numbers, wanted, strict=True)) / len(numbers),
            restarts,
            restart_s,
            sum(jobs.lost(n) for n in numbers),
            gpu_seconds(box, numbers, restarts + len(numbers)),
            sum(jobs.gpu_s(n) for n in numbers),
            max(losses),
            sum(losses) / len(losses),
            expected.makespan_s,
            expected.jct_s,
            [[(epoch, loss) for epoch, loss in report["losses"]] for report in reports],
        )
    finally:
        lucidd.close()
        say.print(f"[dim]{policy}: lucidd's state and log are in {state}")


def restarts_in(log: str) -> list[float]:
    """Seconds from a resize to the start that followed, by lucidd's log."""
    told: dict[str, float] = {}
    took: list[float] = []
    for line in log.splitlines():
        said = json.loads(line)
        if said.get("what") == "resize" and said["event"] == "done":
            told[said["job"]] = said["at"]
        elif "goes on on" in said["event"]:
            took.append(said["at"] - told.pop(said["event"].split()[1].rstrip(":"), said["at"]))
    return took


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=20)
    parser.add_argument("--seed", type=int, default=STREAM, help="which stream of jobs")
    parser.add_argument("--mean-s", type=float, default=MEAN_S, help="between submissions, on average")
    parser.add_argument("--policy", action="append", help="beside fifo (default: elastic, pollux)")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--out", type=Path, default=Path("out/demo-elastic"))
    given = parser.parse_args()
    say = Console(stderr=given.json)
    layout = layout_from({**LAYOUT, **os.environ})
    if reason := testbed.unfit(layout):
        print(f"demo-elastic: {reason}", file=sys.stderr)
        return 2
    wanted = small_jobs(given.jobs, given.seed, given.mean_s)
    say.print(
        f"{len(wanted)} jobs, {sum(one.alone_s * one.gpus for one in wanted):.0f} GPU-s at the sizes asked for, the "
        f"last after {wanted[-1].at_s:.0f} s, on {NODES * NODE_GPUS} GPUs",
        highlight=False,
    )
    made: list[Outcome] = []
    try:
        with kept(layout):
            for policy in ("fifo", *(given.policy or ("elastic", "pollux"))):
                testbed.down(layout)
                testbed.up(layout, lambda text: say.print(text, highlight=False))
                made.append(play(Box(layout.root), policy, wanted, given.out.absolute() / policy, say))
                say.print(f"{policy}: makespan {made[-1].makespan_s:.0f} s", highlight=False)
    except (TestbedError, LucidError, AssertionError) as error:
        print(f"demo-elastic: {error}", file=sys.stderr)
        return 2
    tell(made, loss_noise(wanted), least_makespan_s(wanted), given.json, say)
    return 0


def tell(made: list[Outcome], noise: float, least_s: float, as_json: bool, say: Console) -> None:
    """``noise``: how far the losses of one job are apart whose points come in another order; ``least_s``: as
    ``least_makespan_s``."""
    fixed = made[0]
    rows = [
        {
            **{name: value for name, value in asdict(one).items() if name != "curves"},
            "loss_apart": statistics.mean(map(apart, fixed.curves, one.curves)),
            "loss_noise": noise,
            "makespan_ratio": one.makespan_s / fixed.makespan_s,
            "jct_ratio": one.avg_jct_s / fixed.avg_jct_s,
            "forecast_makespan_error": one.forecast_makespan_s / one.makespan_s - 1,
            "forecast_jct_error": one.forecast_jct_s / one.avg_jct_s - 1,
        }
        for one in made
    ]
    if as_json:
        targets = {"target_makespan_ratio": TARGET, "target_jct_ratio": JCT_TARGET}
        told = {"runs": rows, "not_served": NOT_SERVED, **targets, "least_makespan_s": least_s}
        print(json.dumps(told, indent=1))
        return
    say.print(_table(rows))
    for policy, why in NOT_SERVED.items():
        say.print(f"{policy}: not run here: {why}", highlight=False)
    say.print(
        f"no schedule of these jobs at their initial batch sizes ends before {least_s:.0f} s "
        f"({least_s / fixed.makespan_s:.2f} of fixed size)",
        highlight=False,
    )
    for row in rows[1:]:
        for what, met in (
            (f"makespan at most {TARGET} of fixed size", row["makespan_ratio"] <= TARGET),
            (f"average JCT at most {JCT_TARGET} of fixed size", row["jct_ratio"] <= JCT_TARGET),
            (f"JCT forecast within {FORECAST_TARGET:.0%}", abs(row["forecast_jct_error"]) <= FORECAST_TARGET),
            ("no step done twice", row["lost"] == 0),
        ):
            say.print(f"{row['policy']}: {what}: {'met' if met else 'MISSED'}", highlight=False)


def _table(rows: list[dict[str, Any]]) -> Table:
    """A column for each run, so that it fits a terminal of 80 columns."""
    figures: dict[str, Callable[[dict[str, Any]], str]] = {
        "makespan, s": lambda row: f"{row['makespan_s']:.0f} ({row['makespan_ratio']:.3f})",
        "average JCT, s": lambda row: f"{row['avg_jct_s']:.0f} ({row['jct_ratio']:.3f})",
        "restarts": lambda row: str(row["restarts"]),
        "seconds a restart": lambda row: f"{row['restart_s']:.1f}",
        "steps done twice": lambda row: str(row["lost"]),
        "GPU-s by accounting": lambda row: f"{row['gpu_s']:.0f}",
        "GPU-s by the jobs": lambda row: f"{row['own_gpu_s']:.0f}",
        "losses apart (noise)": lambda row: f"{row['loss_apart']:.3f} ({row['loss_noise']:.3f})",
        "last loss, mean": lambda row: f"{row['mean_loss']:.3f}",
        "last loss, worst": lambda row: f"{row['worst_loss']:.3f}",
        "forecast makespan, s": lambda row: (
            f"{row['forecast_makespan_s']:.0f} ({row['forecast_makespan_error']:+.0%})"
        ),
        "forecast JCT, s": lambda row: f"{row['forecast_jct_s']:.0f} ({row['forecast_jct_error']:+.0%})",
    }
    caption = (
        "in brackets: ratio to fixed size; for losses, the difference that another order of the points makes; "
        "for forecasts, the error"
    )
    table = Table("", *(row["policy"] for row in rows), caption=caption)
    for name, told in figures.items():
        table.add_row(name, *map(told, rows))
    return table


if __name__ == "__main__":
    sys.exit(main())
