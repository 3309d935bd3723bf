"""Optimus's marginal gains; and fair shares (DRF) and Kubernetes' placement beside it (O10-O21)."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Speed = Callable[[int, int], float | None]
Task = Literal["server", "worker"]
Stop = Literal["published", "exhausted"]

RESOURCES = ("cpu", "mem", "bw", "gpu")
"""Resources of a task, in the order of its demands."""


@dataclass(frozen=True, slots=True)
class OptimusJob:
    """A job with parameter servers and workers.

    Attributes:
        server: demand of one parameter server: cpu, memory, bandwidth, gpu.
        worker: demand of one worker, likewise.
        epochs: Q, epochs left; at most 0 counts as finished.
        speed: (servers, workers) -> epochs a unit of time, None while unknown."""

    job_id: Hashable
    server: tuple[float, float, float, float]
    worker: tuple[float, float, float, float]
    epochs: float
    speed: Speed


@dataclass(frozen=True, slots=True)
class Allocation:
    """Servers and workers of each started job; the others wait.

    Attributes:
        tasks: job -> (servers, workers).
        unknown: jobs that got their first pair but whose speed is not known yet."""

    tasks: dict[Hashable, tuple[int, int]]
    unknown: tuple[Hashable, ...]


def allocate(jobs: Sequence[OptimusJob], capacity: ArrayLike, stop: Stop = "published") -> Allocation:
    """Servers and workers for all jobs, from nothing (O10-O13).

    Every job gets one server and one worker while resources last, in the order given, which avoids
    starvation (O10). Then the best offer is served, again and again: a job offers its better task, a
    server on ties, at (Q/f(p,w) - Q/f(p+1,w)) / amount of the task's dominant resource, that of which it
    takes the largest share of the cluster (O11). Nothing is taken back within a round (O13).

    Args:
        jobs: unfinished jobs in the order of arrival; ties go to the earlier.
        capacity: (4,) the cluster's totals: cpu, memory, bandwidth, gpu.
        stop: "published" ends at the first best offer that is negative or does not fit (O12), so that
            idle cores stay idle once the GPUs are out; "exhausted" drops an offer that does not fit or
            does not gain, and goes on with the job's other task and with other jobs."""
    total = np.asarray(capacity, dtype=np.float64)
    used = np.zeros(len(RESOURCES))
    tasks: dict[Hashable, tuple[int, int]] = {}
    unknown: list[Hashable] = []
    heap: list[tuple[float, int, Task]] = []
    closed: set[tuple[int, Task]] = set()  # offers that can fit no more, for nothing is ever taken back

    def offer(index: int) -> None:
        gains = _gains(jobs[index], *tasks[jobs[index].job_id], total)
        if gains is None:
            unknown.append(jobs[index].job_id)
            return
        best: Task = "server" if gains["server"] >= gains["worker"] else "worker"
        if (index, best) in closed or (stop == "exhausted" and gains[best] <= 0):
            best = "worker" if best == "server" else "server"
            if stop == "published" or (index, best) in closed or gains[best] <= 0:
                return
        heapq.heappush(heap, (-gains[best], index, best))

    for index, job in enumerate(jobs):
        first = np.asarray(job.server, dtype=np.float64) + job.worker
        if (used + first <= total).all():
            used += first
            tasks[job.job_id] = (1, 1)
            if job.epochs > 0:
                offer(index)
    while heap:
        cost, index, task = heapq.heappop(heap)
        job = jobs[index]
        if stop == "published" and cost > 0:
            break
        demand = np.asarray(job.server if task == "server" else job.worker, dtype=np.float64)
        if (used + demand <= total).all():
            used += demand
            p, w = tasks[job.job_id]
            tasks[job.job_id] = (p + 1, w) if task == "server" else (p, w + 1)
        elif stop == "published":
            break
        else:
            closed.add((index, task))
        offer(index)
    return Allocation(tasks, tuple(dict.fromkeys(unknown)))


def _gains(job: OptimusJob, servers: int, workers: int, total: Floats) -> dict[Task, float] | None:
    """Time saved by one more server and one more worker, per unit of its dominant resource (O11)."""
    now = job.speed(servers, workers)
    more: dict[Task, float | None] = {
        "server": job.speed(servers + 1, workers),
        "worker": job.speed(servers, workers + 1),
    }
    if now is None or now <= 0:
        return None
    gains: dict[Task, float] = {}
    for task, speed in more.items():
        if speed is None or speed <= 0:
            return None
        saved = job.epochs / now - job.epochs / speed
        gains[task] = saved / _dominant(job.server if task == "server" else job.worker, total)
    return gains


def _dominant(demand: tuple[float, ...], total: Floats) -> float:
    shares = [d / t if t > 0 else 0.0 for d, t in zip(demand, total.tolist(), strict=True)]
    amount = demand[shares.index(max(shares))]
    return amount if amount > 0 else 1.0


@dataclass(frozen=True, slots=True)
class Claim:
    """A job under dominant resource fairness.

    Attributes:
        demand: what one more unit of the job takes of each resource: a worker, or a worker with its server.
        most: most units that the job can use.
        least: units without which it does not run."""

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
        Units by job, 0 for those that wait."""
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
        The best node, the first of equals; None if none has room."""
    after, total = np.asarray(used, dtype=np.float64) + np.asarray(demand), np.asarray(capacity, dtype=np.float64)
    fits = (after <= total + 1e-9).all(axis=1)
    if not fits.any():
        return None
    there = total.max(axis=0, initial=0.0) > 0
    part = np.divide(after, total, out=np.ones_like(after), where=total > 0)[:, there]
    score = (1 - part).mean(axis=1) + (1 - (part.max(axis=1) - part.min(axis=1)))
    return int(np.where(fits, score, -np.inf).argmax())
