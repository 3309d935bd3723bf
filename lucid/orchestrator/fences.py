"""Nodes kept for jobs, and who may start on them all the same."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from math import inf

from lucid.core.job import Job, Running
from lucid.core.ledger import Ledger, gpus_by_node, host_share
from lucid.core.placement import Placement
from lucid.core.prediction import Prediction
from lucid.core.reason import Reserved

__all__ = ["Fence", "Fences", "KeptNodes", "soonest"]


_LEAST_S = 1.0
"""Nobody looks for other nodes sooner."""


@dataclass(frozen=True, slots=True)
class Fence:
    """Nodes, by index and by name, and the comparison that others must pass to start there: to be expected to take at
    most ``room.room_s``."""

    room: Reserved
    nodes: frozenset[int]
    names: frozenset[str]


@dataclass(frozen=True, slots=True)
class KeptNodes:
    """Nodes chosen for a job, by name, and when they were then expected to have room for it."""

    names: tuple[str, ...]
    until_s: float


class Fences:
    """All nodes that are kept in one plan. The longer a job is expected to take, the more of them are closed
    to it: its ``level`` is the number of fences, from the tightest, that it must keep off."""

    def __init__(self, fences: Sequence[Fence] = ()) -> None:
        self.fences = sorted(fences, key=lambda fence: fence.room.room_s)
        self.rooms_s = [fence.room.room_s for fence in self.fences]
        nodes: set[int] = set()
        names: set[str] = set()
        self.nodes: list[frozenset[int]] = [frozenset()]
        self.names: list[frozenset[str]] = [frozenset()]
        for fence in self.fences:
            nodes |= fence.nodes
            names |= fence.names
            self.nodes.append(frozenset(nodes))
            self.names.append(frozenset(names))

    def level(self, duration_s: float) -> int:
        """The level of a job of this estimate."""
        return bisect_left(self.rooms_s, duration_s)

    def why(self, level: int) -> Reserved:
        """The tightest of the comparisons that a job of this level, above 0, fails."""
        assert level
        return self.fences[0].room


def soonest(
    job: Job,
    running: Sequence[Running],
    ledger: Ledger,
    predictions: Mapping[str, Prediction],
    now_s: float,
    closed: Set[int],
) -> KeptNodes | None:
    """The nodes on which the job is expected to find room first, none of them ``closed``; ``None`` where there
    are too few. A part of a node suffices where the job, or what is left of it beyond whole nodes, needs no more."""
    ends: list[list[tuple[float, int, int, int]]] = [[] for _ in ledger.nodes]
    last: dict[Placement, float] = {}
    for entry in running:
        left_s = predictions[entry.job.id].remaining_s(entry.elapsed_s(now_s))
        last[entry.placement] = max(left_s, last.get(entry.placement, 0.0))
        if ledger.host_limits:
            for name, mask in entry.placement:
                here = mask.bit_count()
                host = (
                    host_share(entry.job.cpus, here, entry.job.gpus),
                    host_share(entry.job.mem_mib, here, entry.job.gpus),
                )
                ends[ledger.index[name]].append((left_s, 0, *host))
    for placement, left_s in last.items():
        for name, mask in placement:
            ends[ledger.index[name]].append((left_s, mask.bit_count(), 0, 0))
    usable = [i for i, node in enumerate(ledger.nodes) if node.available and i not in closed]

    def ready_s(i: int, gpus: int) -> float:
        node = ledger.nodes[i]
        cpus = host_share(job.cpus, gpus, job.gpus) if node.cpus else 0
        mem = host_share(job.mem_mib, gpus, job.gpus) if node.mem_mib else 0
        free, free_cpus, free_mem = ledger.free_count[i], ledger.free_cpus[i], ledger.free_mem_mib[i]
        at_s = 0.0
        for left_s, more, more_cpus, more_mem in [(0.0, 0, 0, 0), *sorted(ends[i])]:
            free, free_cpus, free_mem, at_s = free + more, free_cpus + more_cpus, free_mem + more_mem, left_s
            if free >= gpus and (not cpus or free_cpus >= cpus) and (not mem or free_mem >= mem):
                return at_s
        return inf

    chosen: list[int] = []
    until_s = now_s
    for gpus, count in gpus_by_node(job, ledger.gpus_per_node):
        able = [(ready_s(i, gpus), i) for i in usable if ledger.nodes[i].gpus >= gpus and i not in chosen]
        able.sort()
        if len(able) < count:
            return None
        chosen += [i for _, i in able[:count]]
        until_s = max(until_s, now_s + able[count - 1][0])
    if until_s == inf:  # behind what this very plan starts: its end is known to the next one
        until_s = now_s
    return KeptNodes(tuple(ledger.nodes[i].name for i in chosen), max(until_s, now_s + _LEAST_S))
