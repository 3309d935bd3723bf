"""How far the contention model is from measured pairs, and what its costs come out as when fitted to them."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from scipy.optimize import curve_fit

from benchmarks.figure import Figure
from benchmarks.packs import shared
from lucid.binder.contention import BANDWIDTH_COST, SM_COST, contention_speeds
from lucid.core.job import JobProfile
from lucid.simulator.cluster.truth import workload_label

__all__ = ["figures"]

_KEYS = ("model", "dataset", "batchsize", "amp")


def figures(runs: int) -> Iterator[Figure]:  # noqa: ARG001 - deterministic
    """Root mean square error over both sides of every pair, against saying the mean for all; for the published pairs,
    and for those that were measured on one H100 (benchmarks/calibrate/measured)."""
    ours = Path(__file__).parent / "calibrate" / "measured" / "h100-mps"
    for where, profiles, pairs in (
        ("", shared("profiles.csv"), shared("pairs.csv")),
        (" of one H100", ours / "profiles.csv", ours / "pairs.csv"),
    ):
        truth, model, used = _table(profiles, pairs)
        by_pair = truth.reshape(-1, 2).mean(axis=1), model.reshape(-1, 2).mean(axis=1)
        for what, (true, guess) in (("the two jobs' average", by_pair), ("each job", (truth, model))):
            error = float(np.sqrt(np.mean((guess - true) ** 2)))
            name = f"error of the contention model over {len(truth) // 2:,} pairs{where}, {what}"
            yield Figure(name, error, "", 1, float(true.std()), "saying the mean")
        fitted, _ = curve_fit(_speed, used, truth)
        for name, value, shipped in zip(("SM", "BANDWIDTH"), fitted, (SM_COST, BANDWIDTH_COST), strict=True):
            yield Figure(f"{name}_COST, least squares{where}", float(value), "", 1, shipped, "as in the code")


def _table(profiles: Path, pairs: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Speeds as measured and as the model says, two a pair, and what the model multiplies its costs with (2 rows)."""
    alone: dict[str, JobProfile] = {}
    with profiles.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            util, mem_util, mem_mib = (float(row[key]) for key in ("gpu_util", "gmem_util", "gmem"))
            alone[workload_label(*(row[key] for key in _KEYS))] = JobProfile(util, mem_util, mem_mib)
    products: list[tuple[float, float]] = []
    said: list[float] = []
    measured: list[float] = []
    with pairs.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            a, b = (alone[workload_label(*(row[f"{key}{side}"] for key in _KEYS))] for side in (1, 2))
            said += contention_speeds(a, b)
            measured += [float(row["speed1"]), float(row["speed2"])]
            products += [(1e-4 * a.gpu_util * b.gpu_util, 1e-4 * a.mem_util * b.mem_util)] * 2
    return np.array(measured), np.array(said), np.array(products).T


def _speed(used: np.ndarray, sm: float, bandwidth: float) -> np.ndarray:
    return 1.0 / (1.0 + sm * used[0] + bandwidth * used[1])  # type: ignore[no-any-return]
