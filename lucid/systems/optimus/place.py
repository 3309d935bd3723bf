"""Where servers and workers go: on the fewest nodes, spread evenly (O14-O18)."""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["Placed", "PlacementRequest", "place"]

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class PlacementRequest:
    """Tasks of one job to place; demands as in :class:`~lucid.systems.optimus.allocate.OptimusJob`."""

    job_id: Hashable
    servers: int
    workers: int
    server: tuple[float, float, float, float]
    worker: tuple[float, float, float, float]


@dataclass(frozen=True, slots=True)
class Placed:
    """Nodes of a job's tasks, one index a task; shorter than asked for where the job was trimmed (O18)."""

    servers: tuple[int, ...]
    workers: tuple[int, ...]


def place(
    requests: Sequence[PlacementRequest], capacity: ArrayLike, *, as_published: bool = False
) -> dict[Hashable, Placed]:
    """Place jobs, few tasks first, each on the fewest nodes that hold an even spread of it (O14-O17).

    A job is fastest on as few nodes as possible with equal numbers of servers and of workers on each
    (O16). Nodes are tried from the least used cpu on: the first 1, 2, ... of them until a round-robin
    spread of all servers and all workers fits. If none does, servers and workers go alternately to the
    first node with room and the job is trimmed to what fits; it is dropped if either is missing (O18).

    Args:
        requests: the jobs; of equal size, the earlier first.
        capacity: (N, 4) cpu, memory, bandwidth and gpu of each node.
        as_published: keep three defects of the authors' code: GPUs are compared with the node's
            bandwidth; workers stay booked where only the servers' spread failed; after a job that fits
            nowhere no further job is placed.

    Returns:
        The placed jobs.
    """
    cluster = _Nodes(np.asarray(capacity, dtype=np.float64), as_published)
    out: dict[Hashable, Placed] = {}
    queue = [(0.0, node) for node in range(len(cluster.capacity))]
    heapq.heapify(queue)
    for request in sorted(requests, key=lambda r: r.servers + r.workers):
        if request.servers < 1 or request.workers < 1:
            continue
        tried: list[int] = []
        placed = None
        while queue and placed is None:
            tried.append(heapq.heappop(queue)[1])
            placed = cluster.spread(request, tried)
        if placed is None and tried:
            placed = cluster.fill(request)
            if as_published:
                tried = []
            else:
                # A job may be trimmed onto any node, so all of them are in the queue anew.
                tried = list(range(len(cluster.capacity)))
        for node in tried:
            heapq.heappush(queue, (float(cluster.used[node, 0]), node))
        if placed is not None:
            out[request.job_id] = placed
    return out


class _Nodes:
    def __init__(self, capacity: Floats, as_published: bool) -> None:
        self.capacity = capacity.copy()
        self.leaks = as_published
        if as_published:
            self.capacity[:, 3] = capacity[:, 2]
        self.used = np.zeros_like(capacity)

    def spread(self, request: PlacementRequest, nodes: list[int]) -> Placed | None:
        """All tasks round-robin on ``nodes``, or None."""
        index = np.array(nodes, dtype=np.intp)
        servers = _even(request.servers, len(index))[:, None] * np.asarray(request.server)
        workers = _even(request.workers, len(index))[:, None] * np.asarray(request.worker)
        room = self.capacity[index] - self.used[index]
        if not (servers <= room).all():
            if self.leaks and (workers <= room).all():
                self.used[index] += workers
            return None
        if not (servers + workers <= room).all():
            return None
        self.used[index] += servers + workers
        return Placed(
            tuple(nodes[i % len(nodes)] for i in range(request.servers)),
            tuple(nodes[i % len(nodes)] for i in range(request.workers)),
        )

    def fill(self, request: PlacementRequest) -> Placed | None:
        """Server and worker alternately on the first node with room, as many as fit (O18)."""
        before = self.used.copy()
        servers: list[int] = []
        workers: list[int] = []
        server_next = True
        for _ in range(request.servers + request.workers):
            demand = np.asarray(request.server if server_next else request.worker, dtype=np.float64)
            fits = (self.used + demand <= self.capacity).all(axis=1)
            if not fits.any():
                break
            node = int(fits.argmax())
            self.used[node] += demand
            (servers if server_next else workers).append(node)
            server_next = not server_next
            if len(servers) >= request.servers:
                server_next = False
            if len(workers) >= request.workers:
                server_next = True
        if servers and workers:
            return Placed(tuple(servers), tuple(workers))
        self.used = before
        return None


def _even(tasks: int, nodes: int) -> Ints:
    """(nodes,) tasks on each node when they are dealt out in turn."""
    return tasks // nodes + (np.arange(nodes) < tasks % nodes)
