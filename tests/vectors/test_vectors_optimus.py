"""Optimus against the authors' code, its two unusable fits repaired; the elastic platform against exhaustive optima
and the placement rule executed by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from vector_files import files, load

from lucid.orchestrator.policies.rounds.expansion import best_fit, expand, reduce
from lucid.orchestrator.policies.rounds.marginal import OptimusJob, allocate
from lucid.orchestrator.policies.rounds.optimus_models import (
    SpeedEstimator,
    SpeedModel,
    converged_at,
    fit_loss,
    loss_sigma,
)

pytestmark = pytest.mark.vectors


@files("optimus_fit")
def test_loss_fits(vectors: Path) -> None:
    for number, case in enumerate(load(vectors)["loss_fit"]):
        model = fit_loss(case["epochs"], case["losses"])
        assert model is not None, number
        sigma = loss_sigma(len(case["epochs"]))
        assert sigma == pytest.approx(np.array(case["sigma"]))
        assert [model.a, model.b, model.c] == pytest.approx(case["fitted_abc"], rel=1e-4, abs=1e-4), number
        error = (((model.loss(case["epochs"]) - case["losses"]) / sigma) ** 2).sum()
        assert error <= case["weighted_sse"] * (1 + 1e-6) + 1e-12, number
        for epoch, loss in case["predicted_loss_at"].items():
            assert float(model.loss(float(epoch))) == pytest.approx(loss, rel=1e-4, abs=1e-4), number
        end = converged_at(model, len(case["epochs"]))
        assert (-1 if end is None else end) == case["est_epoch_full_window"], number


@files("optimus_fit")
def test_speed_fits(vectors: Path) -> None:
    for number, case in enumerate(load(vectors)["speed_fit"]):
        points = {(p, w): speed for p, w, speed in case["points"]}
        estimate = SpeedEstimator(case["kind"], case["tot_batch_size"], points)
        for (p, w), speed in points.items():
            assert estimate(p, w) == speed  # O8: measured as measured
        if estimate.model is None:
            assert all(predicted == -1 for _, _, predicted, _ in case["predictions"]), number
            continue
        error = sum((float(estimate.model.speed(p, w)) - speed) ** 2 for (p, w), speed in points.items())
        assert error <= case["fit_sse"] * (1 + 1e-6) + 1e-8, number
        if not _identifiable(case, list(points)):
            continue  # many parameters explain the points equally well
        for p, w, predicted, _ in case["predictions"]:
            assert estimate(p, w) == pytest.approx(predicted, rel=1e-4, abs=1e-4), (number, p, w)


def _identifiable(case: dict[str, Any], points: list[tuple[int, int]]) -> bool:
    batch = case["tot_batch_size"]
    rows = [[1, w / p, w, p] if case["kind"] == "async" else [batch / w, 1, w / p, w, p] for p, w in points]
    return bool(np.linalg.matrix_rank(np.array(rows)) == len(rows[0]))


def _jobs(case: dict[str, Any]) -> list[OptimusJob]:
    out = []
    for job in case["jobs"]:
        model = SpeedModel(job["kind"], tuple(job["speed_params"]), job["tot_batch_size"])
        server = (job["ps_cpu"], job["ps_mem"], job["ps_bw"], 0)
        worker = (job["worker_cpu"], job["worker_mem"], job["worker_bw"], job["worker_gpu"])
        left = job["end_epoch"] - job["progress"]
        out.append(OptimusJob(job["id"], server, worker, left, lambda p, w, m=model: float(m.speed(p, w))))
    return out


def _time(jobs: list[OptimusJob], tasks: dict[Any, tuple[int, int]]) -> float:
    return sum(j.epochs / (j.speed(*tasks[j.job_id]) or 0) for j in jobs if j.job_id in tasks)


@files("optimus_alloc")
def test_allocations_are_the_published_ones_or_better(vectors: Path) -> None:
    for number, case in enumerate(load(vectors)["cases"]):
        node = np.array([case[f"{what}_per_node"] for what in ("cpu", "mem", "bw", "gpu")], dtype=float)
        jobs, total = _jobs(case), node * case["nodes"]
        tasks = allocate(jobs, total).tasks
        published = {int(job): tuple(t) for job, t in case["greedy_alloc_ps_worker"].items() if any(t)}
        assert tasks == published, number
        further = allocate(jobs, total, stop="exhausted").tasks
        best = _time(jobs, further)
        assert best <= case["sum_remaining_time_greedy_started_jobs"] * (1 + 1e-9), number
        if case.get("sum_remaining_time_exhaustive"):
            assert best <= case["sum_remaining_time_exhaustive"] * 1.05, number


@files("elastic_dp")
def test_expansion_is_optimal(vectors: Path) -> None:
    for number, case in enumerate(load(vectors)["expansion"]):
        gained, total = expand(case["f"], case["s"], case["job"], case["K"])
        assert total == pytest.approx(case["max_total_gain"], rel=1e-9, abs=1e-9), number
        assert gained.sum() <= case["K"]
        f, s, left = np.array(case["f"]), np.array(case["s"]), np.array(case["job"])
        rows = np.arange(len(s))
        assert ((f[rows, s - 1] - f[rows, s + gained - 1]) * left).sum() == pytest.approx(total), number


@files("elastic_dp")
def test_reduction_is_optimal(vectors: Path) -> None:
    for number, case in enumerate(load(vectors)["reduction"]):
        reclaim = case["K_reclaimed"]
        lost, total = reduce(case["f"], case["s"], case["job"], reclaim)
        assert total == pytest.approx(case["min_total_loss"], rel=1e-9, abs=1e-9), number
        assert lost.sum() == reclaim
        assert (np.array(case["s"]) - lost >= 1).all()


@files("elastic_placement")
def test_placements_are_equal(vectors: Path) -> None:
    for number, case in enumerate(load(vectors)["cases"]):
        placed = best_fit(dict(case["nodes"]), [tuple(j) for j in case["jobs"]])
        ours = {str(job): [list(part) for part in parts] for job, parts in placed.items()}
        assert ours == case["placement"], number
