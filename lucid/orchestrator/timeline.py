"""When is there room? Free GPUs, CPUs and host memory of each node from now on.

Backfilling asks with time limits, the keeping of nodes for a job that has waited long with estimates.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lucid.core.job import Job, Running
from lucid.core.ledger import Ledger, gpus_by_node, host_share
from lucid.core.placement import Placement
from lucid.core.prediction import Prediction
from lucid.core.rounding import ROUNDING

__all__ = ["End", "Slot", "Timeline", "expected_ends"]

_MOST_STEPS = 128
"""Ends of running jobs are told apart up to so many instants; beyond that neighbours count as the later of them,
as Slurm's own backfill rounds times up (``bf_resolution``)."""

End = tuple[float, Job, Placement]
"""When a job is to give its GPUs back, in seconds, and which."""
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


def expected_ends(running: Iterable[Running], predictions: Mapping[str, Prediction], now_s: float) -> list[End]:
    """When running jobs are expected to end. A job that has outlived its estimate is expected to run for as long
    again as it has run (``Prediction.remaining_s``)."""
    ends: list[End] = []
    for entry in running:
        found, start_s = predictions[entry.job.id], entry.start_s
        # not now + what remains: that moves by a rounding error, and nodes that are equal would change places
        end_s = 2 * now_s - start_s if found.outlived(now_s - start_s) else start_s + found.duration_s
        ends.append((end_s, entry.job, entry.placement))
    return ends


@dataclass(frozen=True, slots=True)
class Slot:
    """When a job can start, and on which nodes: (index, GPUs there). ``step`` 0 is now."""

    step: int
    start_s: float
    parts: tuple[tuple[int, int], ...]


class Timeline:
    """Steps in time, each with what is free on every node from then until the next step.

    ``ends``: when each job that holds GPUs is to give them back, in seconds, later than ``now_s``. What is free now
    is read off the ledger. The rule of placement is that of ``consolidated``: the tightest node, or whole free nodes
    and the tightest one for the remainder, that stay free for the whole of the job's time.
    """

    def __init__(self, ledger: Ledger, now_s: float, ends: Iterable[End]) -> None:
        self._ledger = ledger
        held = list(ends)
        instants = sorted({end_s for end_s, _, _ in held})
        if len(instants) > _MOST_STEPS:
            stride = -(-len(instants) // _MOST_STEPS)
            instants = sorted({*instants[stride - 1 :: stride], instants[-1]})
        self._times = np.array([now_s, *instants])
        count = len(ledger.nodes)
        gained = np.zeros((len(self._times), count), dtype=np.int64)
        gained[0] = ledger.free_count
        self._host = ledger.host_limits
        cpus, mem = np.zeros_like(gained), np.zeros_like(gained)
        cpus[0] = [c if node.cpus else _NO_LIMIT for c, node in zip(ledger.free_cpus, ledger.nodes, strict=True)]
        mem[0] = [m if node.mem_mib else _NO_LIMIT for m, node in zip(ledger.free_mem_mib, ledger.nodes, strict=True)]
        last: dict[Placement, float] = {}
        for end_s, _, placement in held:
            last[placement] = max(last.get(placement, end_s), end_s)  # of a pair the later one frees the GPUs
        for placement, end_s in last.items():
            step = self._step_of(end_s)
            for name, mask in placement:
                i = ledger.index[name]
                if ledger.nodes[i].available:
                    gained[step, i] += mask.bit_count()
        if self._host:
            for end_s, job, placement in held:
                step = self._step_of(end_s)
                for name, mask in placement:
                    i, here = ledger.index[name], mask.bit_count()
                    cpus[step, i] += host_share(job.cpus, here, job.gpus)
                    mem[step, i] += host_share(job.mem_mib, here, job.gpus)
        self._free: Ints = gained.cumsum(axis=0)
        self._cpus: Ints = cpus.cumsum(axis=0)
        self._mem: Ints = mem.cumsum(axis=0)

    def _step_of(self, at_s: float) -> int:
        """The first step at or after a time."""
        return int(np.searchsorted(self._times, at_s - ROUNDING))

    def find(self, job: Job, limit_s: float, closed: Set[int] = frozenset(), earliest: bool = False) -> Slot | None:
        """The first time at which the job has its GPUs for ``limit_s`` seconds; ``None`` if that never comes.

        ``closed``: nodes, by index, that the job must keep off. With ``earliest`` it gets, of the nodes that have
        room by then, those that have it first.
        """
        per_node = self._ledger.gpus_per_node
        wanted = [
            (here, nodes, self._lasting(job, here, limit_s, closed)) for here, nodes in gpus_by_node(job, per_node)
        ]
        possible, needed = np.ones(len(self._times), dtype=bool), 0
        for _, nodes, lasting in wanted:  # a node with room for more GPUs would hold the fewer, too
            needed += nodes
            possible &= lasting.sum(axis=1) >= needed
        step = int(possible.argmax())
        if not possible[step]:
            return None
        parts: list[tuple[int, int]] = []
        for here, nodes, lasting in wanted:
            taken = {i for i, _ in parts}
            left = [int(i) for i in np.flatnonzero(lasting[step]) if int(i) not in taken]
            if earliest:
                since = _since(lasting[: step + 1])
                left.sort(key=lambda i: (since[i], i))
            elif here < per_node:
                left.sort(key=lambda i: (int(self._free[step, i]), i))
            parts += [(i, here) for i in left[:nodes]]
        return Slot(step, float(self._times[step]), tuple(parts))

    def _lasting(self, job: Job, gpus: int, limit_s: float, closed: Set[int]) -> Bools:
        """By step and node: are so many GPUs, with CPUs and memory, free from then on for long enough?"""
        enough = self._free >= gpus
        if closed:
            enough[:, list(closed)] = False
        if self._host:
            enough &= self._cpus >= host_share(job.cpus, gpus, job.gpus)
            enough &= self._mem >= host_share(job.mem_mib, gpus, job.gpus)
        steps = len(self._times)
        lacks = np.where(enough, steps, np.arange(steps)[:, None])
        next_lack = np.minimum.accumulate(lacks[::-1], axis=0)[::-1]
        until_s = np.append(self._times, np.inf)[next_lack]
        return enough & (until_s >= self._times[:, None] + limit_s - ROUNDING)

    def take(self, job: Job, slot: Slot, limit_s: float) -> None:
        """Keep the slot for the job, from its start for ``limit_s`` seconds."""
        end_s = slot.start_s + limit_s
        until = self._step_of(end_s)
        if until == len(self._times) or self._times[until] > end_s + ROUNDING:
            self._times = np.insert(self._times, until, end_s)
            self._free = np.insert(self._free, until, self._free[until - 1], axis=0)
            self._cpus = np.insert(self._cpus, until, self._cpus[until - 1], axis=0)
            self._mem = np.insert(self._mem, until, self._mem[until - 1], axis=0)
        for i, here in slot.parts:
            self._free[slot.step : until, i] -= here
            if self._host:
                self._cpus[slot.step : until, i] -= host_share(job.cpus, here, job.gpus)
                self._mem[slot.step : until, i] -= host_share(job.mem_mib, here, job.gpus)


def _since(lasting: Bools) -> list[int]:
    """By node: the step from which on there has been room, up to the last one."""
    last_lack = np.where(lasting, -1, np.arange(len(lasting))[:, None]).max(axis=0)
    return [int(step) + 1 for step in last_lack]


_NO_LIMIT = 1 << 40
"""CPUs or MiB of a node without a limit."""
