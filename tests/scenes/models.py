"""Jobs, measurements and quick trainings for the tests of the learned models."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lucid.models.duration.fit import fit_durations
from lucid.models.duration.jobtable import JobTable
from lucid.models.duration.model import DurationModel
from lucid.models.packing.measured import Pairing, Usage

HOUR = 3600.0


@contextmanager
def light_training() -> Iterator[None]:
    """Meanwhile interpret boosts one bag for a few large rounds: a fifth of the work, and tables of the same form.

    Whatever else training does (folds, weights, records, choices) it does in whole.
    """
    glassbox: Any = pytest.importorskip("interpret.glassbox")
    whole = glassbox.ExplainableBoostingRegressor

    def light(**settings: Any) -> Any:
        return whole(**{**settings, "outer_bags": 1, "max_rounds": 30, "learning_rate": 0.1, "n_jobs": 1})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(glassbox, "ExplainableBoostingRegressor", light)
        yield


@pytest.fixture(scope="module", autouse=True)
def light() -> Iterator[None]:
    """For all of a module that imports it."""
    with light_training():
        yield


def cluster(rows: int = 900, seed: int = 3) -> JobTable:
    """Users with habits of their own; every other request of a user runs four times as long."""
    rng = np.random.default_rng(seed)
    user = rng.integers(0, 12, rows)
    cpus = rng.choice([4.0, 16.0], rows)
    typical = 200.0 * 1.6**user
    duration = np.round(typical * np.where(cpus > 4, 4.0, 1.0) * rng.lognormal(0.0, 0.4, rows))
    submit = np.sort(rng.uniform(0, 14 * 24 * HOUR, rows))
    wait = rng.exponential(600.0, rows)
    names = [f"train-{'big' if c > 4 else 'small'}-{i}" for i, c in enumerate(cpus)]
    return JobTable.from_columns(
        user=[f"user{number:02d}" for number in user], name=names, partition=["gpu"] * rows, gpus=np.ones(rows),
        cpus=cpus, nodes=np.ones(rows), limit_s=np.full(rows, 48 * HOUR), submit_s=submit, duration_s=duration,
        end_s=submit + wait + duration,
    )  # fmt: skip


@cache
def cluster_model(rows: int = 600) -> DurationModel:
    """What is learned, lightly, of the first jobs of ``cluster()``."""
    with light_training():
        return fit_durations(cluster().select(np.arange(rows)))


def job_log(path: Path, jobs: JobTable) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["job_id", "user", "submit_time", "duration", "tasks", "time_limit"])
        rows = zip(jobs.user, jobs.submit_s, jobs.duration_s, jobs.cpus, strict=True)
        writer.writerows([i, user, f"{s:.0f}", d, int(c), "2-00:00:00"] for i, (user, s, d, c) in enumerate(rows))
    return path


def measured(configs: int) -> tuple[list[Usage], list[Pairing]]:
    """Configurations of four workloads, the later the busier, and the speeds of all pairs of them."""
    usages = [
        Usage(8.0 * i, 4.0 * i, 2000.0, workload=f"w{i % 4}", config=f"c{i}", label=min(2, i // 3))
        for i in range(1, configs + 1)
    ]
    pairings = [
        Pairing(
            a, b, *(1 - a.gpu_util * b.gpu_util / 1e4 + np.random.default_rng([i, j]).normal(0, 0.01, 2)).tolist()
        )
        for i, a in enumerate(usages)
        for j, b in enumerate(usages[i:])
    ]
    return usages, pairings


def damaged(data: Any, where: tuple[str | int, ...], value: object) -> Any:
    """A copy of a model's JSON with another value in one place."""
    if not where:
        return value
    key, *rest = where
    copy = list(data) if isinstance(data, list | tuple) else dict(data)
    copy[key] = damaged(data[key] if rest else None, tuple(rest), value)
    return copy
