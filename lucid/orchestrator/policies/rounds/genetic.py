"""Pollux's genetic search for the best allocation of all jobs, and where it begins (P24, P27-P28)."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lucid.orchestrator.policies.rounds.population import Layout, Slots
from lucid.orchestrator.policies.rounds.speedup import SpeedupTable

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]
Utility = Callable[[Floats], Floats]


def _sizes(layout: Layout) -> Ints:
    """GPU counts to try: each count on one node, then whole nodes, to four times a fair share."""
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
    """(N, width) allocation from nothing: GPUs go one after the other to the job that they help most, then are
    packed."""
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
    """(N, width) the present allocation, with idle GPUs given to waiting jobs and to jobs on the same node.

    Args:
        utility: a job's part of the objective.
        penalty: (J,) factor on the speedup of a job that changes."""
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


@dataclass(frozen=True, slots=True)
class Objective:
    """FITNESS_p: the power mean of the jobs' scaled speedups (P24).

    Attributes:
        p: fairness: 1 is the mean, 0 the geometric mean, ever more negative looks at the worst job.
        offset: added to each speedup, so that a job without GPUs does not decide alone.
        scale: factor on the speedups; the published code takes nodes / GPUs."""

    p: float = -1.0
    offset: float = 1e-3
    scale: float = 1.0

    def utility(self, speedup: Floats) -> Floats:
        """A job's part of the sum, growing in its speedup."""
        x = speedup * self.scale
        if self.p == 0:
            return np.asarray(np.log(np.maximum(x, max(self.offset, 1e-300))))
        return np.asarray(np.sign(self.p) * (x + self.offset) ** self.p)

    def fitness(self, speedup: Floats) -> Floats:
        """(P,) fitness of speedups (P, J): ((1/J) sum x^p)^(1/p)."""
        mean = self.utility(speedup).mean(axis=1)
        if self.p == 0:
            return np.asarray(np.exp(mean))
        return np.asarray((np.sign(self.p) * mean) ** (1 / self.p))


@dataclass(frozen=True, slots=True)
class SearchOptions:
    """How long and how the search looks.

    Attributes:
        population: individuals (P27: 100).
        generations: at most so many (P27: 100).
        patience: stop after so many generations without a better allocation.
        reset: part of a child's jobs that return to their present GPUs.
        drop: part of a child's jobs that lose GPUs.
        seeds: begin also with a greedy allocation, and with the present one filled up; the published
            search begins with the present one alone."""

    population: int = 100
    generations: int = 100
    patience: int = 50
    reset: float = 0.1
    drop: float = 0.1
    seeds: bool = True


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The best allocation found.

    Attributes:
        allocation: (J, N) GPUs of each job on each node.
        speedups: (J,) its speedups, restart factor included.
        population: (P, N, width) the last population, best first, to begin the next search with.
        generations: generations that were run."""

    allocation: Ints
    fitness: float
    speedups: Floats
    population: Slots
    generations: int


def carry_over(population: Slots, old_jobs: int, index: ArrayLike, jobs: int) -> Slots:
    """The last population in terms of the jobs that there are now (P27: "previous population reused").

    Args:
        population: (P, N, width) of the last search.
        index: (old_jobs,) each old job's index now, -1 if it is gone."""
    new = np.append(np.asarray(index, dtype=np.int32), -1)
    mapped = new[np.minimum(population, old_jobs)]
    return np.where(mapped < 0, jobs, mapped).astype(np.int32)


def search(
    speedups: SpeedupTable,
    capacity: ArrayLike,
    base: ArrayLike,
    restart: ArrayLike,
    rng: np.random.Generator,
    *,
    objective: Objective | None = None,
    options: SearchOptions | None = None,
    previous: Slots | None = None,
    avoid_interference: bool = True,
    blocked: ArrayLike | None = None,
    most_nodes: ArrayLike | None = None,
) -> SearchResult:
    """Allocations for all jobs, by genetic search (P27, P28).

    One replica takes one GPU. Jobs that must stay as they are do not take part: leave them out of the
    arguments, their GPUs out of ``capacity``, and mark in ``blocked`` the nodes of those on several.

    Args:
        speedups: the jobs' speedups; also knows the most GPUs of each.
        capacity: (N,) GPUs that each node can give.
        base: (J, N) present allocation.
        restart: (J,) factor on a job's speedup if its row changes (P26).
        previous: the last population, carried over to the present jobs; nodes must be the same.
        avoid_interference: at most one job on several nodes uses a node (P28).
        blocked: (N,) nodes that no job on several nodes may use.
        most_nodes: (J,) most nodes of each job; any number where it is not said.

    Returns:
        The best allocation found; never worse than ``base``, if that obeys the rules.

    Raises:
        ValueError: shapes do not agree."""
    goal = objective if objective is not None else Objective()
    effort = options if options is not None else SearchOptions()
    room = np.asarray(capacity, dtype=np.intp)
    present = np.asarray(base, dtype=np.intp)
    penalty = np.asarray(restart, dtype=np.float64)
    jobs = len(speedups.jobs)
    if present.shape != (jobs, len(room)) or penalty.shape != (jobs,):
        raise ValueError(f"{jobs} jobs on {len(room)} nodes: base has shape {present.shape}, restart {penalty.shape}")
    shut = np.zeros(len(room), dtype=bool) if blocked is None else np.asarray(blocked, dtype=bool)
    bound = None if most_nodes is None else np.asarray(most_nodes, dtype=np.intp)
    layout = Layout(room, present, speedups.most, avoid_interference, shut, bound)
    if jobs == 0 or not room.any():
        return SearchResult(present * 0, 0.0, np.zeros(jobs), layout.slots_of(present * 0)[None], 0)
    search_ = _Search(layout, speedups, penalty, goal, effort, rng)
    return search_.run(previous)


class _Search:
    def __init__(
        self,
        layout: Layout,
        speedups: SpeedupTable,
        penalty: Floats,
        goal: Objective,
        effort: SearchOptions,
        rng: np.random.Generator,
    ) -> None:
        self.layout, self.speedups, self.penalty = layout, speedups, penalty
        self.goal, self.effort, self.rng = goal, effort, rng
        self.base_slots = layout.slots_of(layout.base)
        self.size = max(4, effort.population - effort.population % 2)
        self.hash = rng.integers(1, 2**62, size=self.base_slots.shape, dtype=np.int64)

    def worth(self, slots: Slots) -> Floats:
        """(P, J) speedups, restart factor included."""
        counts = self.layout.count(slots)
        value = self.speedups(np.arange(self.layout.jobs)[None, :], counts.across, counts.replicas)
        return np.where(counts.changed, value * self.penalty, value)

    def run(self, previous: Slots | None) -> SearchResult:
        population, fitness = self._best(self._begin(previous))
        stale = generation = 0
        while generation < self.effort.generations and stale < self.effort.patience:
            generation += 1
            before = fitness[0]
            children = self._children(population)
            population, fitness = self._best(np.concatenate([population, children]), (len(population), fitness))
            stale = 0 if fitness[0] > before * (1 + 1e-12) else stale + 1
        return SearchResult(
            self.layout.allocation_of(population[0]),
            float(fitness[0]),
            self.worth(population[:1])[0],
            population,
            generation,
        )

    def _begin(self, previous: Slots | None) -> Slots:
        first = [self.base_slots[None]]
        if self.effort.seeds:
            first.append(greedy_allocation(self.layout, self.speedups, self.goal.utility)[None])
            first.append(keep_and_fill(self.layout, self.speedups, self.goal.utility, self.penalty)[None])
        if previous is not None and previous.shape[1:] == self.base_slots.shape:
            first.append(previous)
        known = self.layout.repair(np.concatenate(first), self.rng)
        missing = max(0, 2 * self.size - len(known))
        copies = known[self.rng.integers(len(known), size=missing)]
        return np.concatenate([known, self._mutate(copies)])

    def _best(self, slots: Slots, known: tuple[int, Floats] | None = None) -> tuple[Slots, Floats]:
        """The best different individuals, best first, and their fitness."""
        start, fitness = known if known is not None else (0, np.zeros(0))
        fitness = np.concatenate([fitness, self.goal.fitness(self.worth(slots[start:]))])
        digest = slots.reshape(len(slots), -1).astype(np.int64) @ self.hash.ravel()
        _, different = np.unique(digest, return_index=True)
        different.sort()
        order = different[np.argsort(-fitness[different], kind="stable")][: self.size]
        return slots[order], fitness[order]

    def _children(self, population: Slots) -> Slots:
        """As many children as parents: parents by tournament, crossover at one point of the jobs, mutation."""
        # The population is sorted, so the smaller index wins.
        parents = self.rng.integers(len(population), size=(self.size, 2)).min(axis=1)
        a, b = population[parents[::2]], population[parents[1::2]]
        point = self.rng.integers(self.layout.jobs + 1, size=len(a))[:, None, None]
        return self._mutate(np.concatenate([self._cross(a, b, point, 1), self._cross(b, a, point, -1)]))

    def _cross(self, low: Slots, high: Slots, point: Ints, sign: int) -> Slots:
        """Jobs below the point from one parent, the others from the other.

        Where a node is then too small, early jobs go first in one child (``sign`` 1), late jobs in the
        other."""
        idle = self.layout.jobs
        both = np.concatenate([np.where(low < point, low, idle), np.where(high >= point, high, idle)], axis=2)
        if sign < 0:
            both = np.where(both == idle, idle, idle - 1 - both)
        both.sort(axis=2)
        kept = both[..., : self.layout.width]
        return kept if sign > 0 else np.where(kept == idle, idle, idle - 1 - kept).astype(np.int32)

    def _mutate(self, slots: Slots) -> Slots:
        """Some jobs return to their present GPUs, some lose GPUs, some gain; then repair."""
        idle, width = self.layout.jobs, self.layout.width
        count, nodes = slots.shape[:2]
        rng = self.rng

        lot = np.ones((count, idle + 1), dtype=np.float32)
        lot[:, :idle] = rng.random((count, idle), dtype=np.float32)
        # Most children change little, some a lot: early on the latter lead, later the former.
        strength = rng.random((count, 1), dtype=np.float32) ** 2
        reset = lot < self.effort.reset * strength
        losing = lot > 1 - self.effort.drop * strength
        losing[:, idle] = False
        keys = self.layout.keys(slots)
        gone = reset.ravel().take(keys)
        gone |= losing.ravel().take(keys) & (rng.random(slots.shape, dtype=np.float32) < 0.5)
        back = reset.take(self.base_slots, axis=1)

        # On about one node in two, one job gets 1..width GPUs: any job, or one that is there already.
        # The new entries go before the old ones on half of these nodes, else they take idle GPUs only.
        any_job = rng.integers(idle, size=(count, nodes), dtype=np.int32)
        lots = rng.integers(width, size=(count, nodes))
        there = slots.take(lots + np.arange(count * nodes).reshape(count, nodes) * width)
        gains = np.where((rng.random((count, nodes)) < 0.5) & (there < idle), there, any_job)
        chance = rng.random((count, nodes))
        rate = self._rate(nodes) * strength
        active = chance < rate
        number = np.where(active, rng.integers(1, width + 1, size=(count, nodes)), 0)
        pushy = chance < 0.5 * rate

        # Nodes on which nothing changes stay as they are: they are the most.
        changed = active.ravel() | _any(gone) | _any(back)
        at = np.flatnonzero(changed)
        kept, mine = slots.reshape(-1, width)[at], self.base_slots[at % nodes]
        first = pushy.ravel()[at][:, None]
        new = np.where(np.arange(width) < number.ravel()[at][:, None], gains.ravel()[at][:, None], idle)
        parts = (
            np.where(first, new, idle),
            np.where(back.reshape(-1, width)[at], mine, idle),
            np.where(gone.reshape(-1, width)[at], idle, kept),
            np.where(first, idle, new),
        )
        child = slots.copy()
        child.reshape(-1, width)[at] = _squeeze(np.concatenate(parts, axis=1), idle, width)
        return self.layout.repair(child, rng)

    def _rate(self, nodes: int) -> float:
        # Enough to move on, few enough that a child of a good parent is not ruined on a large cluster.
        return min(0.5, 8.0 / nodes)


def _any(flags: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """(P * N,) nodes with any flag of (P, N, width). Column by column, as the last axis is short."""
    rows = flags.reshape(-1, flags.shape[2])
    out = rows[:, 0].copy()
    for i in range(1, rows.shape[1]):
        out |= rows[:, i]
    return out


def _squeeze(rows: Slots, idle: int, width: int) -> Slots:
    """(n, width) the first entries of each row that are not idle."""
    real = np.flatnonzero(rows != idle)
    row = real // rows.shape[1]
    ends = np.bincount(row, minlength=len(rows)).cumsum()
    rank = np.arange(len(real)) - np.append(0, ends)[row]
    fits = rank < width
    out = np.full((len(rows), width), idle, dtype=np.int32)
    out.ravel()[row[fits] * width + rank[fits]] = rows.ravel()[real[fits]]
    return out
