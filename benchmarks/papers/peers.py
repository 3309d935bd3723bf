"""Optimus (EuroSys '18) and the elastic data-sharing platform: what their documents state, and their parts."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.figure import Absent
from benchmarks.packs import shared
from benchmarks.papers.elastic_replay import replay
from benchmarks.papers.elastic_sets import CASES
from benchmarks.papers.elastic_workload import MIXES, draw_set
from benchmarks.papers.replays import on_nodes, replayed
from benchmarks.papers.row import Row
from lucid.config.load import settings_from
from lucid.orchestrator.policies.rounds.marginal import OptimusJob, allocate
from lucid.orchestrator.policies.rounds.optimus_models import SpeedModel
from lucid.simulator.cluster.state import Semantics

__all__ = ["elastic", "elastic_parts", "optimus"]

_SETS: Final = 10
_COLUMNS: Final = ("JCT to FCFS, %", "JCT to EF, %", "makespan to FCFS, %", "makespan to EF, %")
_STATED: Final = dict(zip(_COLUMNS, (-40.0, -58.0, -30.0, -35.0), strict=True))


def optimus() -> Iterator[Row]:
    """On Pollux's workload 6 beside dominant resource fairness; then its greedy allocation beside the optimum."""
    scenario = on_nodes(shared("pollux/workload-6.csv"), 16, 4, Semantics.HONEST)
    true = settings_from({"policy": {"optimus": {"epochs_left": "true"}}}, "papers")
    for what, made, policy, published in (
        ("workload 6, with the authors' oracle", scenario, "optimus", {"avg JCT, h": 5301.875 / 3600}),
        ("workload 6, with the true epochs", replace(scenario, settings=true), "optimus", {}),
        ("workload 6, curves fitted to what was seen", scenario, "optimus-fitted", {}),
        ("workload 6, dominant resource fairness", scenario, "optimus-drf", {}),
    ):
        yield Row(what, replayed(made, policy), published, within=0.05)
    name = "time above the optimum, %, worst of all cases"
    published_pct, ours_pct, further_pct = _above_the_optimum()
    yield Row("allocation, stopping as published", {name: ours_pct}, {name: published_pct}, within=0.01)
    yield Row("allocation, going on while anything fits", {name: further_pct}, {name: published_pct}, at_most=True)


def _above_the_optimum() -> tuple[float, float, float]:
    root = Path(os.environ.get("LUCID_SHARED", Path(__file__).parents[3] / "shared"))
    path = root / "vectors" / "optimus_alloc.json"
    if not path.is_file():
        raise Absent(f"vectors/{path.name} is not in {root} (set LUCID_SHARED to the folder that has it)")
    worst = [0.0, 0.0, 0.0]
    for case in json.loads(path.read_text(encoding="utf-8"))["cases"]:
        best = case.get("sum_remaining_time_exhaustive")
        if not best:
            continue
        node = np.array([case[f"{what}_per_node"] for what in ("cpu", "mem", "bw", "gpu")], dtype=float)
        jobs, total = _jobs(case), node * case["nodes"]
        times = [case["sum_remaining_time_greedy_started_jobs"]]
        for found in (allocate(jobs, total), allocate(jobs, total, stop="exhausted")):
            started = [job for job in jobs if job.job_id in found.tasks]
            times.append(sum(job.epochs / float(job.speed(*found.tasks[job.job_id]) or 0) for job in started))
        worst = [max(was, 100 * (time / best - 1)) for was, time in zip(worst, times, strict=True)]
    return worst[0], worst[1], worst[2]


def _jobs(case: dict[str, Any]) -> list[OptimusJob]:
    out = []
    for job in case["jobs"]:
        model = SpeedModel(job["kind"], tuple(job["speed_params"]), job["tot_batch_size"])

        def speed(servers: int, workers: int, model: SpeedModel = model) -> float:
            return float(model.speed(servers, workers))

        server = (job["ps_cpu"], job["ps_mem"], job["ps_bw"], 0)
        worker = (job["worker_cpu"], job["worker_mem"], job["worker_bw"], job["worker_gpu"])
        out.append(OptimusJob(job["id"], server, worker, job["end_epoch"] - job["progress"], speed))
    return out


def elastic() -> Iterator[Row]:
    """JCT and makespan against giving each job one GPU (FCFS) and all GPUs (EF): means over ten sets a case."""
    rows = []
    for mix, mean_min in CASES:
        found = _margins(mix, mean_min)
        rows.append(found)
        yield Row(f"{mix}, a job every {mean_min:g} min", dict(zip(_COLUMNS, found, strict=True)))
    mean = np.mean(rows[: len(MIXES)], axis=0).tolist()
    yield Row("mean of the four mixes, every 15 min", dict(zip(_COLUMNS, mean, strict=True)), _STATED, at_most=True)


def elastic_parts() -> Iterator[Row]:
    """The platform with its restart charged to what it gains, at other prices, and beside EF read in other ways;
    means of the four mixes, a job every 15 minutes."""
    for what, options, ef in (
        ("as built", {}, {}),
        ("a restart counts in the objective", {"restart_s": 10.0}, {}),
        ("a restart takes 60 s", {"rescale_s": 60.0}, {}),
        ("a restart takes 60 s and counts", {"rescale_s": 60.0, "restart_s": 60.0}, {}),
        ("EF takes what is free", {}, {"ef_rule": "free"}),
        ("EF takes what ends a job first", {}, {"ef_rule": "earliest"}),
    ):
        rows = [_margins(mix, 15.0, options, ef) for mix in MIXES]
        yield Row(what, dict(zip(_COLUMNS, np.mean(rows, axis=0).tolist(), strict=True)))


def _margins(
    mix: str, mean_min: float, options: dict[str, Any] | None = None, ef: dict[str, Any] | None = None
) -> list[float]:
    """By how many per cent the platform's JCT, then its makespan, is above FCFS's and EF's (below: less)."""
    sets = [draw_set(mix, mean_min, seed) for seed in range(_SETS)]
    mine = [replay(requests, "elastic", **(options or {})) for requests in sets]
    jct, makespan = [], []
    for rule, said in (("fcfs", {}), ("ef", ef or {})):
        theirs = [replay(requests, rule, **said) for requests in sets]  # type: ignore[arg-type]
        jct.append(100 * (np.mean([o.jct_s for o in mine]) / np.mean([o.jct_s for o in theirs]) - 1))
        span = np.mean([o.makespan_s for o in mine]) / np.mean([o.makespan_s for o in theirs])
        makespan.append(100 * (span - 1))
    return [float(value) for value in (*jct, *makespan)]
