"""Sia against Pollux on workloads made from the description of Sia's (SOSP '23): ``python -m benchmarks.sia``.

Homogeneous setting of its Table 4: 16 nodes of 4 T4 GPUs, 160 jobs submitted in 8 hours. The workloads are synthetic:
jobs are drawn at the paper's rate, in shares rounded from a count of its published workloads. No job is taken from
them. Profiles of the
applications are those that Pollux's authors measured on such nodes; they are read from the folder of Pollux's
workloads below LUCID_SHARED.
"""

from __future__ import annotations

import csv
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks.figure import Absent, Figure, markdown
from lucid.simulator.layout import NodeShape
from lucid.simulator.metrics import run_metrics
from lucid.simulator.scenario import Scenario, simulate
from lucid.simulator.traces import read_trace

PUBLISHED = 1.9 / 2.0
"""Average JCT of Sia over that of Pollux, hours (Table 4; both are rounded, so between 0.90 and 1.00)."""
JOBS, HOURS, NODES, GPUS = 160, 8.0, 16, 4
SHARES = (
    ("cifar10", 128, 0.78),
    ("bert", 12, 0.08),
    ("deepspeech2", 20, 0.08),
    ("yolov3", 8, 0.04),
    ("imagenet", 200, 0.02),
)
"""Application, its initial batch size, and its share of the jobs: those of under 1, 1 to 10 (two applications),
10 to 100 and over 100 GPU-hours in Philly's busiest hours, rounded."""


def write_workload(folder: Path, profiles: Path, seed: int) -> Path:
    """One workload, with links to the profiles beside it."""
    rng = np.random.default_rng(seed)
    times = np.sort(rng.uniform(0, HOURS * 3600, JOBS))
    names = rng.choice(len(SHARES), size=JOBS, p=[share for _, _, share in SHARES])
    for application, _, _ in SHARES:
        if not (folder / application).exists():
            (folder / application).symlink_to(profiles / application)
    path = folder / f"sia-{seed}.csv"
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(("name", "time", "application", "num_replicas", "batch_size"))
        for number, (at_s, which) in enumerate(zip(times.tolist(), names.tolist(), strict=True)):
            application, batch, _ = SHARES[which]
            rows.writerow((f"{application}-{number}", round(at_s), application, 1, batch))
    return path


def measure(seeds: int) -> Iterator[Figure]:
    root = Path(os.environ.get("LUCID_SHARED", Path(__file__).parents[2] / "shared"))
    profiles = root / "data" / "pollux"
    if not profiles.is_dir():
        raise Absent(f"Pollux's profiles are not in {profiles}; set LUCID_SHARED")
    ratios: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(1, seeds + 1):
            trace = read_trace(write_workload(Path(folder), profiles, seed))
            scenario = Scenario(trace, {"cluster": NODES}, NodeShape(gpus=GPUS))
            found = {name: run_metrics(simulate(scenario, name)) for name in ("sia", "pollux")}
            jct = {name: m["avg_jct_s"] / 3600 for name, m in found.items()}
            ratios.append(jct["sia"] / jct["pollux"])
            cpu = ", ".join(f"{name} {m['cpu_s']:.0f} s" for name, m in found.items())
            note = f"makespan {found['sia']['makespan_s'] / found['pollux']['makespan_s']:.3f} of Pollux's; CPU {cpu}"
            yield Figure(
                f"Sia: average JCT, synthetic workload {seed}", jct["sia"], "h", 1, jct["pollux"], "Pollux", note=note
            )
    ratio = float(np.mean(ratios))
    yield Figure(
        f"Sia / Pollux, average JCT, mean of {seeds} workloads",
        ratio,
        "",
        seeds,
        PUBLISHED,
        "Table 4 of the paper",
        ratio_within=0.10,
    )


if __name__ == "__main__":
    try:
        print(markdown(list(measure(int(sys.argv[1]) if len(sys.argv) > 1 else 3))))
    except Absent as error:
        print(error)
