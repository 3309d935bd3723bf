"""Allocations to begin the search with: greedy by gain per GPU, from nothing or from the present one."""

from __future__ import annotations

import heapq
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from lucid.systems.pollux.population import Layout, Slots
from lucid.systems.pollux.speedup import SpeedupTable

__all__ = ["greedy_allocation", "keep_and_fill"]

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]
Utility = Callable[[Floats], Floats]


def _sizes(layout: Layout) -> Ints:
    """GPU counts worth trying: each count on one node, then whole nodes, to four times a fair share."""
    width = layout.width
    fair = int(layout.capacity.sum()) / max(1, layout.jobs)
    nodes = min(len(layout.capacity), max(2, int(np.ceil(4 * fair / width))))
    return np.array([*range(width + 1), *(width * n for n in range(2, nodes + 1))], dtype=np.intp)


def _utilities(layout: Layout, speedups: SpeedupTable, utility: Utility, sizes: Ints) -> Floats:
    """(J, sizes) utility of each job on each count; NaN beyond its most GPUs."""
    allowed = sizes[None, :] <= layout.max_replicas[:, None]
    job = np.broadcast_to(np.arange(layout.jobs)[:, None], allowed.shape)
    across = np.broadcast_to((sizes > layout.width).astype(np.intp)[None, :], allowed.shape)
    size = np.broadcast_to(sizes[None, :], allowed.shape)
    out = np.full(allowed.shape, np.nan)
    out[allowed] = utility(speedups(job[allowed], across[allowed], size[allowed]))
    return out


def _next_step(row: Floats, sizes: Ints, at: int, room: int) -> tuple[float, int] | None:
    """Best gain per GPU from size index ``at`` with at most ``room`` further GPUs, and the index."""
    extra = sizes[at + 1 :] - sizes[at]
    gain = (row[at + 1 :] - row[at]) / extra
    gain = np.where(np.isnan(gain) | (extra > room), -np.inf, gain)
    if not len(gain):
        return None
    best = int(gain.argmax())
    return (float(gain[best]), at + 1 + best) if gain[best] > 0 else None


def greedy_allocation(layout: Layout, speedups: SpeedupTable, utility: Utility) -> Slots:
    """(N, width) GPUs one after the other to whom they help most, then packed; forgets the present."""
    sizes = _sizes(layout)
    value = _utilities(layout, speedups, utility, sizes)
    at = [0] * layout.jobs
    free = int(layout.capacity.sum())
    heap: list[tuple[float, int, int]] = []
    for job in range(layout.jobs):
        if step := _next_step(value[job], sizes, 0, free):
            heap.append((-step[0], job, step[1]))
    heapq.heapify(heap)
    while heap and free:
        _, job, to = heapq.heappop(heap)
        need = int(sizes[to] - sizes[at[job]])
        if need <= free:
            free -= need
            at[job] = to
        if step := _next_step(value[job], sizes, at[job], free):
            heapq.heappush(heap, (-step[0], job, step[1]))
    return _pack(layout, sizes[at])


def _pack(layout: Layout, wanted: Ints) -> Slots:
    """(N, width) jobs on nodes, largest first, on the tightest node that fits, else on the emptiest."""
    out = np.full((len(layout.capacity), layout.width), layout.jobs, dtype=np.int32)
    free = layout.capacity.copy()
    for job in np.argsort(-wanted, kind="stable").tolist():
        need = int(wanted[job])
        while need > 0:
            fits = free >= need
            node = int(np.where(fits, free, np.iinfo(np.intp).max).argmin() if fits.any() else free.argmax())
            take = min(need, int(free[node]))
            if take == 0:
                break
            used = int(layout.capacity[node] - free[node])
            out[node, used : used + take] = job
            free[node] -= take
            need -= take
    return out


def keep_and_fill(layout: Layout, speedups: SpeedupTable, utility: Utility, penalty: Floats) -> Slots:
    """(N, width) the present allocation; idle GPUs go to waiting jobs and to jobs on the same node.

    Args:
        layout: the problem.
        speedups: the jobs' speedups.
        utility: a job's part of the objective.
        penalty: (J,) factor on the speedup of a job that changes.
    """
    out = layout.slots_of(layout.base)
    width, idle = layout.width, layout.jobs
    sizes = np.arange(width + 1)
    value = _utilities(layout, speedups, lambda s: s, sizes)
    spread = (layout.base > 0).sum(axis=1)
    have = layout.base.sum(axis=1)
    used = (out != idle).sum(axis=1)
    heap: list[tuple[float, int, int, int]] = []  # -gain per GPU, job, node or -1, further GPUs

    def offer(job: int, node: int, now: float) -> None:
        room = width if node < 0 else int(layout.capacity[node] - used[node])
        counts = np.arange(have[job] + 1, min(have[job] + room, width, int(layout.max_replicas[job])) + 1)
        if not len(counts):
            return
        gain = (utility(value[job, counts] * penalty[job]) - utility(np.array([now]))) / (counts - have[job])
        best = int(gain.argmax())
        if gain[best] > 0:
            heapq.heappush(heap, (-float(gain[best]), job, node, int(counts[best] - have[job])))

    for job in range(layout.jobs):
        if have[job] == 0:
            offer(job, -1, 0.0)
        elif spread[job] == 1 and have[job] <= width:
            offer(job, int(layout.base[job].argmax()), float(value[job, have[job]]))
    while heap:
        _, job, node, number = heapq.heappop(heap)
        room = layout.capacity - used
        if node < 0:
            fits = room >= number
            if not fits.any():
                if number > 1 and room.any():
                    number = int(room.max())
                    fits = room >= number
                else:
                    continue
            node = int(np.where(fits, room, width + 1).argmin())
        elif room[node] < number:
            continue
        out[node, used[node] : used[node] + number] = job
        used[node] += number
        have[job] += number
    return out
