"""An application that nobody measured: its step times and gradients follow formulas, written as the real ones are."""

from __future__ import annotations

from functools import cache
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

from lucid.orchestrator.policies.rounds.goodput import GoodputModel, GradParams, PerfParams
from lucid.simulator.cluster.application import Application, read_application
from lucid.simulator.cluster.training import AppLearning

PERF = PerfParams(0.05, 0.001, 0.10, 0.005, 0.04, 0.002, 2.0)
INIT = 128
BATCHES = (128, 256, 512, 1024)
EPOCHS = 4
STEPS = 200.0
"""Progress in an epoch."""
MODEL = GoodputModel(PERF, GradParams(1.0, 4.0), INIT)


def step_s(nodes: int, gpus: int, local: int) -> float:
    return gpus * local / float(MODEL.throughput(nodes, gpus, local, 0))


def write_application(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    placed = ["placement,local_bsz,step_time,sync_time"]
    for nodes in (1, 2, 3):
        for layout in product((1, 2, 3, 4), repeat=nodes):
            if layout != min(layout[i:] + layout[:i] for i in range(nodes)):
                continue
            for local in (16, 32, 64, 128):
                whole = step_s(nodes, sum(layout), local)
                name = "".join(map(str, layout))
                placed.append(f"{name},{local},{whole},{whole - PERF.alpha_c - PERF.beta_c * local}")
    (folder / "placements.csv").write_text("\n".join(placed) + "\n")
    scaled = ["num_nodes,num_replicas,local_bsz,step_time,sync_time"]
    for nodes, gpus, local in product((4, 6), (8, 12, 16, 24), (16, 32, 64, 128)):
        if nodes <= gpus <= 4 * nodes:
            whole = step_s(nodes, gpus, local)
            scaled.append(f"{nodes},{gpus},{local},{whole},{whole - PERF.alpha_c - PERF.beta_c * local}")
    (folder / "scalability.csv").write_text("\n".join(scaled) + "\n")
    for batch in BATCHES:
        rows = ["progress,iteration,metric,grad_sqr,grad_var"]
        for epoch in range(1, EPOCHS + 1):
            # noise grows as training goes on, so that large batches pay more and more
            rows.append(f"{STEPS * epoch},{100 * epoch},{0.5 + 0.1 * epoch - batch / 1e5},1.0,{2.0 * epoch}")
        (folder / f"validation-{batch}.csv").write_text("\n".join(rows) + "\n")
    return folder


@cache
def an_application() -> Application:
    """The application, read back; once in a process, for it keeps what it has worked out."""
    with TemporaryDirectory() as folder:
        return read_application(write_application(Path(folder) / "made"))


def learning(app: Application, batch: int = 256) -> AppLearning:
    return AppLearning(app, batch)
