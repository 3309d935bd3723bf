"""``Timeline``: the free GPUs, CPUs and host memory of each node from now on, and when a job finds room.

Backfilling uses it with time limits; reservations use it with estimates."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from itertools import islice
from operator import itemgetter

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from lucid.core.job import Job, Running
from lucid.core.ledger import Ledger, gpus_by_node, host_share
from lucid.core.placement import Placement
from lucid.core.prediction import Prediction
from lucid.core.times import ROUNDING

_MOST_STEPS = 128
"""Most instants at which running jobs end; beyond that neighbours count as the later of them, as Slurm's own backfill
rounds times up (``bf_resolution``)."""

GOES_S = 1.0
"""How long Slurm takes to stop a job, as measured."""
End = tuple[float, Job, Placement]
"""When a job is to give its GPUs back, in seconds, the job, and the GPUs."""
_Ints = NDArray[np.int64]


def expected_ends(running: Iterable[Running], predictions: Mapping[str, Prediction], now_s: float) -> list[End]:
    """When running jobs are expected to end. A job that has outlived its estimate is expected to run for as long
    again as it has run (``Prediction.remaining_s``); one that gives way to jobs of the partition goes as soon as it
    may be preempted."""
    ends: list[End] = []
    for entry in running:
        job, start_s = entry.job, entry.start_s
        if entry.yields is not None and entry.yields.to_all:
            ends.append((max(entry.yields.from_s, now_s + GOES_S), job, entry.placement))
            continue
        duration_s = predictions[job.id].duration_s
        outlived = now_s - start_s >= duration_s - ROUNDING  # ``Prediction.outlived``; thousands are asked in a plan
        # not now + what remains: that moves by a rounding error, and nodes that are equal would change places
        ends.append((2 * now_s - start_s if outlived else start_s + duration_s, job, entry.placement))
    return ends


class Slot(Struct, frozen=True):
    """When a job can start, and on which nodes: (index, GPUs there). Step 0 is now."""

    step: int
    start_s: float
    parts: tuple[tuple[int, int], ...]


class Timeline:
    """Steps in time, each with what is free on every node from then until the next step.

    ``ends``: when each job that holds GPUs is to give them back, in seconds, later than ``now_s``. What is free now
    comes from the ledger. Jobs are placed as by ``consolidated``: on the tightest node, or on whole free nodes and
    the tightest one for the remainder, that stay free for the whole of the job's time.

    Sets of nodes are integers, bit *i* being node *i*: one machine instruction handles 64 nodes. Each step has one
    set for each number of GPUs: the nodes with at least so many free."""

    def __init__(self, ledger: Ledger, now_s: float, ends: Iterable[End]) -> None:
        self._ledger = ledger
        held = sorted(ends, key=_END_S)
        instants = list(dict.fromkeys(map(_END_S, held)))
        if len(instants) > _MOST_STEPS:
            stride = -(-len(instants) // _MOST_STEPS)
            instants = sorted({*instants[stride - 1 :: stride], instants[-1]})
        if ledger.closing:
            edges = {edge for node in ledger.nodes for w in node.windows for edge in (w.ends_by_s, w.end_s)}
            instants = sorted({*instants, *(edge for edge in edges if now_s < edge < math.inf)})
        self._times = [now_s, *instants]
        self._free = self._gained(held)
        if ledger.closing:
            self._close(held)
        self._host = _HostRoom(self, ledger, held, len(self._times)) if ledger.host_limits else None

    def _gained(self, held: Sequence[End]) -> list[list[int]]:
        """By step, and by number of GPUs from 0, the nodes that have at least so many free. ``held``: the first end
        first."""
        ledger, per_node = self._ledger, self._ledger.gpus_per_node
        index, usable, counts = ledger.index, ledger.usable, list(ledger.free_count)
        gains: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
        freed = [0] * len(counts)
        times, step = self._times, len(self._times) - 1
        for end_s, _, placement in reversed(held):
            while step and times[step - 1] >= end_s - ROUNDING:  # as step_of, but ends come in order
                step -= 1
            for name, mask in placement:
                i = index[name]
                if not freed[i] & mask:  # of a pair the later one frees the GPUs
                    freed[i] |= mask
                    gains[step].append((i, (mask & usable[i]).bit_count()))
        row = [0] * (per_node + 1)
        for count in range(per_node, -1, -1):
            row[count] = _set_of(ledger.buckets[count], len(counts)) | (row[count + 1] if count < per_node else 0)
        rows: list[list[int]] = []
        for step in range(len(self._times)):
            row = row.copy()
            for i, more in gains.get(step, ()):
                bit, before = 1 << i, counts[i]
                counts[i] = before + more
                for count in range(before + 1, before + more + 1):
                    row[count] |= bit
            rows.append(row)
        return rows

    def _close(self, held: Sequence[End]) -> None:
        """Take nodes out while they are closed. A node that only a window keeps out now comes in once it opens and is
        empty. ``held``: the first end first."""
        empty_s = {part.node: end_s for end_s, _, placement in held for part in placement}
        for i, node in enumerate(self._ledger.nodes):
            bit = 1 << i
            if node.shut is not None:
                for row in self._free[self.step_of(max(node.opens_s(), empty_s.get(node.name, 0.0))) :]:
                    for count in range(1, node.usable.bit_count() + 1):
                        row[count] |= bit
            for window in node.windows:
                for row in self._free[self.step_of(window.ends_by_s) : self.step_of(window.end_s)]:
                    for count in range(1, len(row)):
                        row[count] &= ~bit

    def step_of(self, at_s: float) -> int:
        """The first step at or after a time."""
        return bisect_left(self._times, at_s - ROUNDING)

    def ever(self, job: Job) -> bool:
        """Whether there is room for the job once all others are gone."""
        wanted, last = gpus_by_node(job, self._ledger.gpus_per_node), self._free[-1:]
        return _enough_nodes(wanted, [self._enough(job, here, -1, last)[0] for here, _ in wanted])

    def room_s(self, job: Job) -> float:
        """Until when there is room for the job from now on without moving it: a time, s, infinite if for ever. The
        job can start now if ``now_s`` and its time limit do not go beyond that (by more than a rounding error)."""
        groups, needed = [], 0
        for here, nodes in gpus_by_node(job, self._ledger.gpus_per_node):
            needed += nodes
            groups.append((self._enough(job, here, -1, self._free), needed))
        first = len(self._times)
        for levels, least in groups:
            room = -1
            for step in range(first):
                room &= levels[step]
                if room.bit_count() < least:
                    first = step
                    break
        return self._times[first] if first < len(self._times) else math.inf

    def find(
        self,
        job: Job,
        limit_s: float,
        closed: Set[int] = frozenset(),
        earliest: bool = False,
        from_s: float = -math.inf,
    ) -> Slot | None:
        """The first time at which the job has its GPUs for ``limit_s`` seconds; ``None`` if that never comes.

        ``closed``: nodes, by index, that the job must keep off. With ``earliest`` the job gets those of the nodes
        with room that have it first. ``from_s``: no time before this one will do, as the caller knows."""
        allowed = ~_set_of(closed, len(self._ledger.nodes)) if closed else -1
        wanted = gpus_by_node(job, self._ledger.gpus_per_node)
        levels = [self._enough(job, here, allowed, self._free) for here, _ in wanted]
        first = 0 if earliest else bisect_left(self._times, from_s)
        found = zip(*(self._lasting(level, limit_s, first) for level in levels), strict=True)
        seen: list[tuple[int, ...]] = []
        for step, rooms in enumerate(found, start=first):
            if earliest:
                seen.append(rooms)
            if _enough_nodes(wanted, rooms):
                return Slot(step, self._times[step], self._parts(wanted, rooms, step, seen))
        return None

    def _parts(
        self,
        wanted: Sequence[tuple[int, int]],
        rooms: Sequence[int],
        step: int,
        seen: Sequence[Sequence[int]],
    ) -> tuple[tuple[int, int], ...]:
        """The nodes that a job gets of those with room. ``seen``: the rooms of all steps so far; where given, nodes
        that have had room for longest come first."""
        parts: list[tuple[int, int]] = []
        taken = 0
        for at, (here, nodes) in enumerate(wanted):
            left = rooms[at] & ~taken
            order = _longest_first(left, [row[at] for row in seen]) if seen else self._tightest(left, here, step)
            for i in islice(order, nodes):
                parts.append((i, here))
                taken |= 1 << i
        return tuple(parts)

    def _enough(self, job: Job, gpus: int, allowed: int, rows: Sequence[Sequence[int]]) -> list[int]:
        """By step, the nodes where so many GPUs, with CPUs and memory, are free until the next step."""
        fitting = self._ledger.fitting.get(job.constraint)
        if fitting is not None:
            allowed &= _set_of(fitting, len(self._ledger.nodes))
        levels = [row[gpus] & allowed for row in rows] if allowed != -1 else [row[gpus] for row in rows]
        if self._host is None:
            return levels
        return [a & b for a, b in zip(levels, self._host.enough(job, gpus, len(rows)), strict=True)]

    def _lasting(self, levels: Sequence[int], limit_s: float, first: int) -> Iterator[int]:
        """For each step from ``first`` on, the nodes that are in the sets of all steps that begin less than
        ``limit_s`` after it, that is, in all sets of a window.

        The window moves forward, so each set enters and leaves once: the intersection of the sets up to ``turn`` is
        kept for each beginning, that of the sets after it as one."""
        times, count = self._times, len(levels)
        common: list[int] = []
        after, turn, reach = -1, first, first
        for step in range(first, count):
            until = bisect_left(times, times[step] + limit_s - ROUNDING, max(reach, step + 1))
            if step == turn:
                sets = -1
                for k in range(until - 1, step - 1, -1):
                    sets &= levels[k]
                    common.append(sets)
                after, turn = -1, until
            else:
                for k in range(reach, until):
                    after &= levels[k]
            reach = until
            yield common.pop() & after

    def _tightest(self, nodes: int, gpus: int, step: int) -> Iterator[int]:
        """The nodes of a set with at least so many free GPUs: those with the fewest first, then by index."""
        row, most = self._free[step], self._ledger.gpus_per_node
        for count in range(gpus, most + 1):
            yield from _members(nodes & row[count] & ~(row[count + 1] if count < most else 0))

    def book(self, job: Job, slot: Slot, limit_s: float) -> None:
        """Keep the slot for the job, from its start for ``limit_s`` seconds."""
        end_s = slot.start_s + limit_s
        until = self.step_of(end_s)
        if until == len(self._times) or self._times[until] > end_s + ROUNDING:
            self._times.insert(until, end_s)
            self._free.insert(until, self._free[until - 1].copy())
            if self._host is not None:
                self._host.split(until)
        for i, here in slot.parts:
            bit = 1 << i
            for row in self._free[slot.step : until]:
                count = len(row) - 1
                while not row[count] & bit:
                    count -= 1
                for at in range(count, count - here, -1):
                    row[at] ^= bit
            if self._host is not None:
                self._host.book(job, i, here, slot.step, until)


class _HostRoom:
    """Free CPUs and MiB by step and node, where nodes have limits of them."""

    def __init__(self, timeline: Timeline, ledger: Ledger, held: Iterable[End], steps: int) -> None:
        cpus = np.zeros((steps, len(ledger.nodes)), dtype=np.int64)
        mem = np.zeros_like(cpus)
        cpus[0] = [c if node.cpus else _NO_LIMIT for c, node in zip(ledger.free_cpus, ledger.nodes, strict=True)]
        mem[0] = [m if node.mem_mib else _NO_LIMIT for m, node in zip(ledger.free_mem_mib, ledger.nodes, strict=True)]
        for end_s, job, placement in held:
            step = timeline.step_of(end_s)
            for name, mask in placement:
                i, here = ledger.index[name], mask.bit_count()
                cpus[step, i] += host_share(job.cpus, here, job.gpus)
                mem[step, i] += host_share(job.mem_mib, here, job.gpus)
        self._cpus: _Ints = cpus.cumsum(axis=0)
        self._mem: _Ints = mem.cumsum(axis=0)

    def enough(self, job: Job, gpus: int, last: int) -> list[int]:
        """By step, of the ``last`` ones, the nodes with CPUs and memory for that part of the job."""
        enough = self._cpus[-last:] >= host_share(job.cpus, gpus, job.gpus)
        enough &= self._mem[-last:] >= host_share(job.mem_mib, gpus, job.gpus)
        return [int.from_bytes(row, "little") for row in np.packbits(enough, axis=1, bitorder="little")]

    def split(self, step: int) -> None:
        """Begin a step at this place, with what is free in the one before."""
        self._cpus = np.insert(self._cpus, step, self._cpus[step - 1], axis=0)
        self._mem = np.insert(self._mem, step, self._mem[step - 1], axis=0)

    def book(self, job: Job, i: int, gpus: int, step: int, until: int) -> None:
        """Give that part of the job its share on node ``i``."""
        self._cpus[step:until, i] -= host_share(job.cpus, gpus, job.gpus)
        self._mem[step:until, i] -= host_share(job.mem_mib, gpus, job.gpus)


def _enough_nodes(wanted: Iterable[tuple[int, int]], rooms: Iterable[int]) -> bool:
    """Whether there are as many nodes with so many GPUs as a job wants. ``rooms``: the nodes with room for each part,
    the largest first; a node with room for more GPUs also holds fewer."""
    needed = 0
    for (_, nodes), room in zip(wanted, rooms, strict=True):
        needed += nodes
        if room.bit_count() < needed:
            return False
    return True


def _set_of(indices: Iterable[int], count: int) -> int:
    """The set of these nodes, out of ``count``."""
    bits = bytearray(count // 8 + 1)
    for i in indices:
        bits[i >> 3] |= 1 << (i & 7)
    return int.from_bytes(bits, "little")


def _members(nodes: int) -> Iterator[int]:
    """Indices of the nodes of a set, ascending."""
    while nodes:
        bit = nodes & -nodes
        yield bit.bit_length() - 1
        nodes ^= bit


def _longest_first(nodes: int, rooms: Sequence[int]) -> Iterator[int]:
    """The nodes of the last of some sets: those that have been in all sets for longest first, then by index."""
    since: list[int] = []
    for room in reversed(rooms):
        nodes &= room
        if not nodes:
            break
        since.append(nodes)
    before = 0
    for members in reversed(since):
        yield from _members(members & ~before)
        before = members


_END_S = itemgetter(0)
_NO_LIMIT = 1 << 40
"""CPUs or MiB of a node that has no limit of them."""
