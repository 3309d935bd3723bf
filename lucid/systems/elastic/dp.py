"""Expansion and reduction: which jobs gain or lose how many GPUs (E6-E10).

Both are grouped knapsacks over (job, number of GPUs) with at most one choice a job. The recurrence runs
over jobs; for one job all totals k and all choices j are taken at once.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["expand", "reduce"]

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]


def _check(epoch_s: ArrayLike, gpus: ArrayLike, epochs: ArrayLike) -> tuple[Floats, Ints, Floats]:
    f = np.asarray(epoch_s, dtype=np.float64)
    s = np.asarray(gpus, dtype=np.intp)
    left = np.asarray(epochs, dtype=np.float64)
    if s.ndim != 1 or left.shape != s.shape or f.ndim != 2 or len(f) != len(s):
        raise ValueError(f"shapes {f.shape}, {s.shape}, {left.shape}; need (m, P), (m,), (m,)")
    if len(s) and (s.min() < 1 or s.max() > f.shape[1]):
        raise ValueError(f"a job has {s.min()}..{s.max()} GPUs; epoch times are given for 1..{f.shape[1]}")
    return f, s, left


def _best(table: Sequence[Floats], size: int) -> tuple[Floats, list[Ints]]:
    """Max-plus fold: best total value for each number of GPUs 0..size given, and each job's choice.

    ``table[i][j]`` is the value of j GPUs for job i; -inf forbids. Ties take the smaller j.
    """
    total = np.full(size + 1, -np.inf)
    total[0] = 0.0
    choices: list[Ints] = []
    rest = np.arange(size + 1)[:, None] - np.arange(size + 1)[None, :]  # k - j
    for value in table:
        width = min(len(value), size + 1)
        left = rest[:, :width]
        options = np.where(left >= 0, total[np.maximum(left, 0)] + value[None, :width], -np.inf)
        choice = options.argmax(axis=1)
        total = options[np.arange(size + 1), choice]
        choices.append(choice)
    return total, choices


def _trace(choices: list[Ints], k: int) -> Ints:
    out = np.zeros(len(choices), dtype=np.intp)
    for i in range(len(choices) - 1, -1, -1):
        out[i] = choices[i][k]
        k -= int(out[i])
    return out


def expand(
    epoch_s: ArrayLike, gpus: ArrayLike, epochs: ArrayLike, idle: int, restart_s: ArrayLike = 0.0
) -> tuple[Ints, float]:
    """Share out idle GPUs so that the remaining times fall by the most (E6, E9: eq. 3, Algorithm 1).

    Args:
        epoch_s: (m, P) time of one epoch of job i on g GPUs at [i, g-1]; P bounds a job's GPUs.
        gpus: (m,) GPUs that each job has, 1..P.
        epochs: (m,) epochs that each job has left.
        idle: GPUs to share out; not all need be used (more can be slower).
        restart_s: what a rescaled job loses, in the unit of ``epoch_s``; of all jobs, or (m,) of each. The
            paper leaves it out of the objective (0); with it, a job is not restarted for less than the restart costs.

    Returns:
        (m,) GPUs that each job gains, and the total time saved. Of several optima, one that uses the
        fewest GPUs.

    Raises:
        ValueError: shapes differ or a job's GPUs lie outside 1..P.
    """
    f, s, left = _check(epoch_s, gpus, epochs)
    if idle <= 0 or not len(s):
        return np.zeros(len(s), dtype=np.intp), 0.0
    table = []
    costs = np.broadcast_to(np.asarray(restart_s, dtype=np.float64), s.shape)
    for times, have, remaining, cost in zip(f, s.tolist(), left.tolist(), costs.tolist(), strict=True):
        then = times[have - 1 : have + idle]
        able = np.isfinite(then)  # infinite where it may not run: with no epoch left, too, that is no gain of 0
        gain = np.where(able, (times[have - 1] - np.where(able, then, 0.0)) * remaining, -np.inf)
        gain[1:] -= cost
        table.append(gain)
    total, choices = _best(table, idle)
    k = int(total.argmax())
    return _trace(choices, k), float(total[k])


def reduce(epoch_s: ArrayLike, gpus: ArrayLike, epochs: ArrayLike, reclaim: int) -> tuple[Ints, float]:
    """Take exactly ``reclaim`` GPUs so that the remaining times rise by the least (E7, E10: eq. 6).

    Every job keeps at least one GPU (principle 4).

    Args:
        epoch_s: as in :func:`expand`.
        gpus: as in :func:`expand`.
        epochs: as in :func:`expand`.
        reclaim: GPUs to take back.

    Returns:
        (m,) GPUs that each job loses, and the total time lost; negative where fewer GPUs are faster.

    Raises:
        ValueError: shapes differ, or the jobs have fewer than ``reclaim`` GPUs beyond one each.
    """
    f, s, left = _check(epoch_s, gpus, epochs)
    spare = int((s - 1).sum())
    if not 0 <= reclaim <= spare:
        raise ValueError(f"{reclaim} GPUs to reclaim from {len(s)} jobs that can spare {spare}")
    table = []
    for times, have, remaining in zip(f, s.tolist(), left.tolist(), strict=True):
        table.append(-(times[:have][::-1] - times[have - 1]) * remaining)
    total, choices = _best(table, reclaim)
    return _trace(choices, reclaim), 0.0 - float(total[reclaim])
