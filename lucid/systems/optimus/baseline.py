"""What Optimus was compared with: dominant resource fairness, and Kubernetes' own placement (O19, O21)."""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["Claim", "fair_shares", "pick_node"]

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Claim:
    """A job under dominant resource fairness.

    Attributes:
        job_id: the job's name.
        demand: what one more unit of the job takes of each resource: a worker, or a worker with its server.
        most: most units that the job can use.
        least: units without which it does not run.
    """

    job_id: Hashable
    demand: tuple[float, ...]
    most: int
    least: int = 1


def fair_shares(claims: Sequence[Claim], capacity: ArrayLike) -> dict[Hashable, int]:
    """Units of each job: the one with the smallest dominant share is served next, until nothing fits (O21).

    The dominant share of a job is its largest share of any resource. A job whose next unit does not fit, or that has
    the most that it can use, gets no more; the others go on.

    Args:
        claims: the jobs; ties go to the earlier.
        capacity: the cluster's total of each resource.

    Returns:
        Units by job, 0 for those that wait.
    """
    total = np.asarray(capacity, dtype=np.float64)
    left = total.copy()
    units: dict[Hashable, int] = {claim.job_id: 0 for claim in claims}
    demands = [np.asarray(claim.demand, dtype=np.float64) for claim in claims]
    shares = [float((d[total > 0] / total[total > 0]).max(initial=0.0)) for d in demands]
    heap = [(0.0, at) for at, claim in enumerate(claims) if claim.most > 0]
    while heap:
        _, at = heapq.heappop(heap)
        claim = claims[at]
        more = 1 if units[claim.job_id] else claim.least
        if (more * demands[at] > left + 1e-9).any():
            continue
        left -= more * demands[at]
        units[claim.job_id] += more
        if units[claim.job_id] < claim.most:
            heapq.heappush(heap, (units[claim.job_id] * shares[at], at))
    return units


def pick_node(demand: ArrayLike, used: ArrayLike, capacity: ArrayLike) -> int | None:
    """The node on which Kubernetes puts a task by default (O19).

    Nodes without room are filtered out. The others are ranked by the share of each resource that would be left (least
    requested), and by how evenly the resources would be used (balanced).

    Args:
        demand: (R,) of the task.
        used: (N, R) taken on each node.
        capacity: (N, R) of each node.

    Returns:
        The best node, the first of equals; None if none has room.
    """
    after, total = np.asarray(used, dtype=np.float64) + np.asarray(demand), np.asarray(capacity, dtype=np.float64)
    fits = (after <= total + 1e-9).all(axis=1)
    if not fits.any():
        return None
    there = total.max(axis=0, initial=0.0) > 0
    part = np.divide(after, total, out=np.ones_like(after), where=total > 0)[:, there]
    score = (1 - part).mean(axis=1) + (1 - (part.max(axis=1) - part.min(axis=1)))
    return int(np.where(fits, score, -np.inf).argmax())
