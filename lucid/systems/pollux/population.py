"""Many allocations at once: the population of the genetic search, one entry a GPU (P27, P28).

An allocation matrix jobs x nodes is almost empty: a cluster of G GPUs has at most G entries. So an
individual is kept as the job that each GPU works for: an array (population, nodes, GPUs of a node) of job
indices, ``jobs`` standing for none, sorted within each node. A node can then not be oversubscribed, and a
generation costs as much as the cluster is large, however many jobs wait.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["Counts", "Layout"]

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]
Slots = NDArray[np.int32]
Flags = NDArray[np.bool_]


class Counts(NamedTuple):
    """What the fitness needs to know of a population; all (population, jobs).

    Attributes:
        replicas: GPUs of each job.
        across: 1 where they are on several nodes.
        changed: whether the job's row differs from the present allocation.
    """

    replicas: Ints
    across: Ints
    changed: Flags


@dataclass(frozen=True)
class Layout:
    """The fixed part of a search.

    Attributes:
        capacity: (N,) GPUs of each node that may be given out.
        base: (J, N) present allocation.
        max_replicas: (J,) most GPUs of each job.
        avoid_interference: at most one job that is on several nodes may use a node (P28).
        blocked: (N,) nodes on which a job outside the search is such a job already.
    """

    capacity: Ints
    base: Ints
    max_replicas: Ints
    avoid_interference: bool
    blocked: Flags

    @property
    def jobs(self) -> int:
        """Number of jobs, and the mark of an idle GPU."""
        return len(self.base)

    @property
    def width(self) -> int:
        """GPUs of the largest node."""
        return int(self.capacity.max(initial=1))

    def usable(self) -> Flags:
        """(N, width) which entries are GPUs; smaller nodes have fewer."""
        return np.arange(self.width)[None, :] < self.capacity[:, None]

    def slots_of(self, allocation: Ints) -> Slots:
        """(N, width) entries of an allocation (J, N); what exceeds a node is left out."""
        out = np.full((len(self.capacity), self.width), self.jobs, dtype=np.int32)
        filled = np.zeros(len(self.capacity), dtype=np.intp)
        for job, node in np.argwhere(allocation > 0).tolist():
            take = min(int(allocation[job, node]), int(self.capacity[node] - filled[node]))
            out[node, filled[node] : filled[node] + take] = job
            filled[node] += max(take, 0)
        return out

    def allocation_of(self, slots: Slots) -> Ints:
        """(J, N) allocation of one individual (N, width)."""
        out = np.zeros((self.jobs + 1, len(self.capacity)), dtype=np.intp)
        node = np.broadcast_to(np.arange(len(self.capacity))[:, None], slots.shape)
        np.add.at(out, (slots, node), 1)
        return out[:-1]

    def _keys(self, slots: Slots) -> Ints:
        """Entries numbered by individual and job, flat."""
        return slots.astype(np.intp) + (np.arange(len(slots)) * (self.jobs + 1))[:, None, None]

    def _tally(self, keys: Ints, individuals: int) -> Ints:
        counts = np.bincount(keys, minlength=individuals * (self.jobs + 1))
        return counts.reshape(individuals, self.jobs + 1)

    def count(self, slots: Slots) -> Counts:
        """GPUs, spread and change of every job; ``slots`` sorted within nodes."""
        keys = self._keys(slots)
        first = np.ones(slots.shape, dtype=bool)
        first[..., 1:] = slots[..., 1:] != slots[..., :-1]
        replicas = self._tally(keys.ravel(), len(slots))[:, :-1]
        nodes = self._tally(keys[first], len(slots))[:, :-1]
        # The i-th GPU of a job on a node is one that it has now if i is below what it has there now.
        place = np.arange(slots.shape[2])
        nth = place - np.maximum.accumulate(np.where(first, place, 0), axis=2)
        padded = np.concatenate([self.base, np.zeros((1, self.base.shape[1]), dtype=np.intp)])
        kept = nth < padded[slots, np.arange(slots.shape[1])[None, :, None]]
        overlap = self._tally(keys[kept], len(slots))[:, :-1]
        now = self.base.sum(axis=1)
        changed = (overlap != replicas) | (replicas != now)
        return Counts(replicas, (nodes > 1).astype(np.intp), changed)

    def repair(self, slots: Slots, rng: np.random.Generator) -> Slots:
        """Individuals that obey every rule: node size, one distributed job a node, most GPUs a job.

        Args:
            slots: (P, N, width) entries in any order within nodes; changed in place.
            rng: decides which of two distributed jobs keeps a node and which GPUs are dropped.

        Returns:
            The same array, sorted within nodes.
        """
        idle = self.jobs
        # Sorted, the entries beyond a small node's size are its last.
        slots.sort(axis=2)
        slots[:, ~self.usable()] = idle
        if self.avoid_interference:
            self._one_distributed_job(slots, rng)
        keys = self._keys(slots)
        replicas = self._tally(keys.ravel(), len(slots))
        most = np.append(self.max_replicas, np.iinfo(np.int32).max)
        over = replicas > most
        if over.any():
            mine = np.flatnonzero(over.ravel()[keys.ravel()])
            key = keys.ravel()[mine]
            order = np.lexsort((rng.random(len(mine)), key))
            ordered = key[order]
            start = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1]))
            rank = np.arange(len(ordered)) - np.repeat(start, np.diff(np.append(start, len(ordered))))
            drop = mine[order[rank >= most[ordered % (self.jobs + 1)]]]
            slots.reshape(-1)[drop] = idle
        slots.sort(axis=2)
        return slots

    def _one_distributed_job(self, slots: Slots, rng: np.random.Generator) -> None:
        idle = self.jobs
        keys = self._keys(slots)
        first = np.ones(slots.shape, dtype=bool)
        first[..., 1:] = slots[..., 1:] != slots[..., :-1]
        nodes = self._tally(keys[first], len(slots))
        nodes[:, idle] = 0
        spread = (nodes > 1).ravel()[keys]  # (P, N, width)
        if not spread.any():
            return
        # One random rank a job and individual, so that a job wins or loses all its nodes together.
        rank = rng.random((len(slots), idle + 1), dtype=np.float32).ravel()[keys]
        best = np.where(spread, rank, np.inf).min(axis=2, keepdims=True)
        slots[spread & ((rank > best) | self.blocked[None, :, None])] = idle
