"""The population of Pollux's genetic search: many allocations at once, one entry a GPU (P27, P28).

An allocation matrix jobs x nodes is almost empty: a cluster of G GPUs has at most G entries. So an individual is the
job that each GPU works for: an array (population, nodes, GPUs of a node) of job indices, ``jobs`` standing for none,
sorted within each node. A node can then not be oversubscribed, and a generation costs as much as the cluster is
large, however many jobs wait."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]
Slots = NDArray[np.int32]
Flags = NDArray[np.bool_]


class Counts(NamedTuple):
    """What the fitness needs to know of a population; all (population, jobs).

    Attributes:
        across: 1 where they are on several nodes.
        changed: whether the job's row differs from the present allocation."""

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
        max_nodes: (J,) most nodes of each job; ``None``: nobody has such a bound."""

    capacity: Ints
    base: Ints
    max_replicas: Ints
    avoid_interference: bool
    blocked: Flags
    max_nodes: Ints | None = None

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

    @cached_property
    def _cells(self) -> tuple[Ints, Ints, Ints]:
        """The present allocation: GPUs by node and job, flat; where each node begins in it; GPUs of each job."""
        by_node = np.concatenate([self.base.T, np.zeros((self.base.shape[1], 1), dtype=np.intp)], axis=1)
        return by_node.ravel(), (np.arange(len(by_node)) * (self.jobs + 1))[:, None], self.base.sum(axis=1)

    def keys(self, slots: Slots) -> Ints:
        """Entries numbered by individual and job."""
        return slots + (np.arange(len(slots)) * (self.jobs + 1))[:, None, None]

    def _tally(self, keys: Ints, individuals: int) -> Ints:
        counts = np.bincount(keys, minlength=individuals * (self.jobs + 1))
        return counts.reshape(individuals, self.jobs + 1)

    def count(self, slots: Slots) -> Counts:
        """GPUs, spread and change of every job; ``slots`` sorted within nodes."""
        by_node, begin, now = self._cells
        keys = self.keys(slots)
        first = _first(slots)
        replicas = self._tally(keys.ravel(), len(slots))[:, :-1]
        nodes = self._tally(keys[first], len(slots))[:, :-1]
        # The i-th GPU of a job on a node is one that it has now if i is below what it has there now.
        # Column by column: a node's few GPUs are too short an axis for numpy to go along.
        nth = np.zeros(slots.shape, dtype=np.intp)
        for i in range(1, slots.shape[2]):
            np.multiply(nth[..., i - 1] + 1, ~first[..., i], out=nth[..., i])
        kept = nth < by_node.take(slots + begin)
        overlap = self._tally(keys[kept], len(slots))[:, :-1]
        changed = (overlap != replicas) | (replicas != now)
        return Counts(replicas, (nodes > 1).astype(np.intp), changed)

    def repair(self, slots: Slots, rng: np.random.Generator) -> Slots:
        """Individuals that obey every rule: node size, one distributed job a node, most GPUs and nodes a job.

        Args:
            slots: (P, N, width) entries in any order within nodes; changed in place.
            rng: decides which of two distributed jobs keeps a node and which GPUs are dropped.

        Returns:
            The same array, sorted within nodes."""
        idle = self.jobs
        # Sorted, the entries beyond a small node's size are its last.
        slots.sort(axis=2)
        usable = self.usable()
        if not usable.all():
            slots[:, ~usable] = idle
        if self.max_nodes is not None:
            self._on_few_nodes(slots, self.max_nodes, rng)
        keys = self.keys(slots)
        cut = self._one_distributed_job(slots, keys, rng) if self.avoid_interference else slots[:0, 0, 0]
        if len(cut):
            slots.ravel()[cut] = idle
            keys.ravel()[cut] = cut // slots[0].size * (idle + 1) + idle
        replicas = self._tally(keys.ravel(), len(slots))
        most = np.append(self.max_replicas, np.iinfo(np.int32).max)
        over = replicas > most
        if over.any():
            mine = np.flatnonzero(over.ravel().take(keys.ravel()))
            key = keys.ravel()[mine]
            order = np.lexsort((rng.random(len(mine)), key))
            ordered = key[order]
            start = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1]))
            rank = np.arange(len(ordered)) - np.repeat(start, np.diff(np.append(start, len(ordered))))
            drop = mine[order[rank >= most[ordered % (self.jobs + 1)]]]
            slots.reshape(-1)[drop] = idle
            cut = np.concatenate([cut, drop])
        if len(cut):  # only the nodes that lost an entry are out of order
            nodes = slots.reshape(-1, slots.shape[2])
            touched = np.unique(cut // slots.shape[2])
            nodes[touched] = np.sort(nodes[touched], axis=1)
        return slots

    def _on_few_nodes(self, slots: Slots, most: Ints, rng: np.random.Generator) -> None:
        """Take jobs off the nodes beyond their most: off those on which they have the fewest GPUs."""
        bound = np.append(most < len(self.capacity), False)
        mine = np.flatnonzero(bound.take(slots.ravel()))
        if not len(mine):
            return
        places = slots.size // slots.shape[2]  # nodes of all individuals
        found = self.keys(slots).ravel()[mine] * places + mine // slots.shape[2]
        groups, inverse, counts = np.unique(found, return_inverse=True, return_counts=True)
        key = groups // places  # individual and job
        order = np.lexsort((rng.random(len(groups)), -counts, key))
        start = np.flatnonzero(np.append(True, key[order][1:] != key[order][:-1]))
        rank = np.empty(len(groups), dtype=np.intp)
        rank[order] = np.arange(len(groups)) - np.repeat(start, np.diff(np.append(start, len(groups))))
        gone = rank >= most[key % (self.jobs + 1)]
        slots.reshape(-1)[mine[gone[inverse]]] = self.jobs
        slots.sort(axis=2)

    def _one_distributed_job(self, slots: Slots, keys: Ints, rng: np.random.Generator) -> Ints:
        """Entries, numbered flat, to remove so that no node has two distributed jobs."""
        idle = self.jobs
        nodes = self._tally(keys[_first(slots)], len(slots))
        nodes[:, idle] = 0
        spread = (nodes > 1).ravel().take(keys)  # (P, N, width)
        if not spread.any():
            return np.zeros(0, dtype=np.intp)
        # One random rank a job and individual, so that a job wins or loses all its nodes together.
        rank = rng.random((len(slots), idle + 1), dtype=np.float32).ravel().take(keys)
        rank[~spread] = np.inf
        best = rank[..., 0]
        for i in range(1, rank.shape[2]):
            best = np.minimum(best, rank[..., i])
        loses = rank > best[..., None]
        loses |= self.blocked[None, :, None]
        return np.flatnonzero(spread & loses)


def _first(slots: Slots) -> Flags:
    """Entries that are the first of their job on their node; ``slots`` sorted within nodes."""
    first = np.ones(slots.shape, dtype=bool)
    np.not_equal(slots[..., 1:], slots[..., :-1], out=first[..., 1:])
    return first
