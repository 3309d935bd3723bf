"""The five principles as one allocation rule, and the two baselines that never rescale (E1-E5, E14, E15)."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lucid.systems.elastic.dp import expand, reduce

__all__ = [
    "EfRule",
    "ElasticJob",
    "Resize",
    "ef_gpus",
    "rescale",
]

Floats = NDArray[np.float64]

EfRule = Literal["all", "free", "earliest"]


@dataclass(frozen=True, slots=True)
class ElasticJob:
    """A running job as the platform sees it.

    Attributes:
        job_id: the job's name.
        gpus: GPUs that it has, at least one.
        epochs: epochs left, fractions included; the user asks for epochs, never for GPUs (E21).
        epoch_s: (P,) seconds of one epoch on 1..P GPUs.
    """

    job_id: Hashable
    gpus: int
    epochs: float
    epoch_s: Floats


@dataclass(frozen=True, slots=True)
class Resize:
    """What one scheduling event changes.

    Attributes:
        admit: how many waiting requests start now, with one GPU each, first come first served.
        gpus: job -> its new GPUs, only jobs that change. They and the admitted ones are placed anew; no
            other job moves.
    """

    admit: int
    gpus: dict[Hashable, int]


def rescale(running: Sequence[ElasticJob], waiting: int, total_gpus: int, restart_s: ArrayLike = 0.0) -> Resize:
    """Admit, shrink or grow after an arrival or a completion (E1-E5).

    Waiting requests come before expansion (principle 3): idle GPUs go to them first, one each. If some
    still wait, running jobs shrink by K' = min(K, P - m) GPUs, one for each further request
    (principle 5); the rest wait. If none waits, idle GPUs expand running jobs; to expand the newly
    admitted ones too, call again with them among the running.

    Args:
        running: jobs that have GPUs.
        waiting: requests that wait.
        total_gpus: P.
        restart_s: as in :func:`~lucid.systems.elastic.dp.expand`.

    Returns:
        The requests to admit and the jobs to resize.

    Raises:
        ValueError: the running jobs hold more GPUs than there are.
    """
    gpus = np.array([job.gpus for job in running], dtype=np.intp)
    idle = total_gpus - int(gpus.sum())
    if idle < 0:
        raise ValueError(f"running jobs hold {int(gpus.sum())} GPUs of {total_gpus}")
    admit = min(waiting, idle)
    still = waiting - admit
    if still:
        reclaim = min(still, int((gpus - 1).sum()))
        if not reclaim:
            return Resize(admit, {})
        lost, _ = reduce(*_columns(running), reclaim)
        return Resize(admit + reclaim, _changed(running, gpus - lost))
    idle -= admit
    if not idle or not running:
        return Resize(admit, {})
    gained, _ = expand(*_columns(running), idle, restart_s)
    return Resize(admit, _changed(running, gpus + gained))


def _columns(running: Sequence[ElasticJob]) -> tuple[Floats, list[int], list[float]]:
    return (
        np.stack([job.epoch_s for job in running]),
        [job.gpus for job in running],
        [job.epochs for job in running],
    )


def _changed(running: Sequence[ElasticJob], gpus: NDArray[np.intp]) -> dict[Hashable, int]:
    return {job.job_id: new for job, new in zip(running, gpus.tolist(), strict=True) if new != job.gpus}


def ef_gpus(epoch_s: Sequence[float] | Floats, free_gpus: int, total_gpus: int, rule: EfRule = "all") -> int:
    """EF: GPUs with which the first waiting request starts; 0 means that it waits (E15).

    "each request gets the most GPUs", and jobs run "basically serial": the default gives the whole
    cluster and waits until all of it is free.

    Args:
        epoch_s: (P,) seconds of one epoch on 1..P GPUs.
        free_gpus: GPUs free now.
        total_gpus: GPUs of the cluster.
        rule: "all" as above; "free" takes whatever is free; "earliest" takes the count at which an
            epoch is fastest and waits for it.

    Returns:
        GPUs to start with, 0 to wait. Requests behind the first wait too.
    """
    most = min(total_gpus, len(epoch_s))
    if rule == "free":
        return min(free_gpus, most)
    want = most if rule == "all" else 1 + int(np.argmin(np.asarray(epoch_s)[:most]))
    return want if free_gpus >= want else 0
