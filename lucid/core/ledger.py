"""Scratch book of one partition's resources while a plan is being made. Never outlives the plan."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from lucid.core.job import Job, Running
from lucid.core.placement import NodeGpus, Placement
from lucid.core.snapshot import Partition

__all__ = ["Ledger", "Ledgers", "gpus_by_node", "host_share"]


def host_share(total: int, gpus_here: int, gpus_all: int) -> int:
    """CPUs or MiB that a job needs on a node where it holds ``gpus_here`` of its ``gpus_all`` GPUs, rounded up."""
    if not total or not gpus_all:
        return total
    return -(-total * gpus_here // gpus_all)


def gpus_by_node(job: Job, per_node: int) -> tuple[tuple[int, int], ...]:
    """On how many nodes a job stands with how many GPUs each: (GPUs, nodes), the most GPUs first.

    A job that fits on one node is there whole; a larger one fills nodes of ``per_node`` GPUs and has the rest on one
    more. One that asks for several nodes has its GPUs spread over these as evenly as can be, as Slurm does.
    """
    gpus = job.gpus
    if job.min_nodes > 1 and per_node > 0:
        nodes = min(max(job.min_nodes, -(-gpus // per_node)), gpus)
        here, more = divmod(gpus, nodes)
        found = [(here + 1, more), (here, nodes - more)]
    elif gpus > per_node > 0:
        found = [(per_node, gpus // per_node), (gpus % per_node, 1)]
    else:
        found = [(gpus, 1)]
    return tuple((here, nodes) for here, nodes in found if here and nodes)


class Ledger:
    """Free GPUs, CPUs and host memory by node, and what each job holds.

    Nodes are known by their index in ``partition.nodes``; nodes that are not available have nothing free.
    Nodes with the same number of free GPUs are in one bucket, in index order, so that the tightest fit is
    found without looking at every node.
    """

    def __init__(self, partition: Partition) -> None:
        self.nodes = partition.nodes
        self.index = {node.name: i for i, node in enumerate(partition.nodes)}
        self.gpus_per_node = max((node.gpus for node in partition.nodes), default=0)
        self.free_mask = [(1 << node.gpus) - 1 if node.available else 0 for node in partition.nodes]
        self.host_limits = any(node.cpus or node.mem_mib for node in partition.nodes)
        self.free_cpus = [node.cpus_left for node in partition.nodes]
        self.free_mem_mib = [node.mem_left_mib for node in partition.nodes]
        self.pairs: set[Placement] = set()
        """Sets of GPUs that two jobs hold."""
        self._out: tuple[int, str] | None = None
        free_mask, index = self.free_mask, self.index
        for running in partition.running:
            placement = running.placement
            for name, mask in placement:
                i = index[name]
                left = free_mask[i] & ~mask
                if left == free_mask[i] and self.nodes[i].available:
                    self.pairs.add(placement)
                free_mask[i] = left
            if self.host_limits:
                self._host(running.job, placement, -1)
        self.free_count = [mask.bit_count() for mask in free_mask]
        self.free = sum(self.free_count)
        self.buckets: list[list[int]] = [[] for _ in range(self.gpus_per_node + 1)]
        for i, count in enumerate(self.free_count):
            self.buckets[count].append(i)

    def copy(self) -> Ledger:
        """The same book, to be written in by itself."""
        made = object.__new__(Ledger)
        made.nodes, made.index = self.nodes, self.index
        made.gpus_per_node, made.host_limits = self.gpus_per_node, self.host_limits
        made.free_mask, made.free_count, made.free = self.free_mask.copy(), self.free_count.copy(), self.free
        made.free_cpus, made.free_mem_mib = self.free_cpus.copy(), self.free_mem_mib.copy()
        made.pairs, made.buckets, made._out = self.pairs.copy(), [*map(list.copy, self.buckets)], self._out
        return made

    @property
    def largest(self) -> int:
        """Most free GPUs on any one node."""
        for count in range(self.gpus_per_node, 0, -1):
            if self.buckets[count]:
                return count
        return 0

    def out(self) -> tuple[int, str]:
        """GPUs of nodes that are not available, and why not, in words."""
        if self._out is None:  # asked for every job that waits
            away = [node for node in self.nodes if not node.available]
            self._out = sum(node.gpus for node in away), ", ".join(sorted({node.out for node in away if node.out}))
        return self._out

    def tightest(self, gpus: int, allowed: Callable[[int], bool] | None = None) -> int | None:
        """Index of the node with the fewest free GPUs that still has ``gpus``; lowest index among equals.
        ``allowed`` may rule nodes out. ``None`` where there is none."""
        for count in range(gpus, self.gpus_per_node + 1):
            bucket = self.buckets[count]
            if allowed is None:
                if bucket:
                    return bucket[0]
            else:
                for i in bucket:
                    if allowed(i):
                        return i
        return None

    def host_fits(self, i: int, job: Job, gpus_here: int) -> bool:
        """Has node ``i`` the CPUs and the host memory for that part of the job?"""
        node = self.nodes[i]
        return not (
            (node.cpus and host_share(job.cpus, gpus_here, job.gpus) > self.free_cpus[i])
            or (node.mem_mib and host_share(job.mem_mib, gpus_here, job.gpus) > self.free_mem_mib[i])
        )

    def lowest(self, i: int, gpus: int) -> NodeGpus:
        """The ``gpus`` lowest free GPUs of node ``i``."""
        free = self.free_mask[i]
        mask = 0
        for _ in range(gpus):
            bit = free & -free
            mask |= bit
            free ^= bit
        return NodeGpus(self.nodes[i].name, mask)

    def has_free(self, name: str, mask: int) -> bool:
        """Are these GPUs of that node free, or is the node not available?"""
        i = self.index[name]
        return self.free_mask[i] & mask == mask or not self.nodes[i].available

    def take(self, job: Job, placement: Placement) -> None:
        """Note that free GPUs, CPUs and memory are now the job's."""
        for name, mask in placement:
            i = self.index[name]
            self._set_free(i, self.free_mask[i] & ~mask)
        if self.host_limits:
            self._host(job, placement, -1)

    def join(self, job: Job, placement: Placement) -> None:
        """Note that the job now stands beside the holder of these GPUs."""
        self.pairs.add(placement)
        if self.host_limits:
            self._host(job, placement, -1)

    def give_back(self, runnings: Iterable[Running]) -> None:
        """Note that these jobs are gone; GPUs come free when the last job on them goes."""
        for running in runnings:
            placement = running.placement
            if self.host_limits:
                self._host(running.job, placement, 1)
            if placement in self.pairs:
                self.pairs.discard(placement)
                continue
            for name, mask in placement:
                i = self.index[name]
                if self.nodes[i].available:
                    self._set_free(i, self.free_mask[i] | mask)

    def _set_free(self, i: int, mask: int) -> None:
        before, after = self.free_count[i], mask.bit_count()
        self.free_mask[i] = mask
        if before != after:
            bucket = self.buckets[before]
            del bucket[bisect_left(bucket, i)]
            insort(self.buckets[after], i)
            self.free_count[i] = after
            self.free += after - before

    def _host(self, job: Job, placement: Placement, sign: int) -> None:
        if not (job.cpus or job.mem_mib):
            return
        for name, mask in placement:
            i = self.index[name]
            here = mask.bit_count()
            self.free_cpus[i] += sign * host_share(job.cpus, here, job.gpus)
            self.free_mem_mib[i] += sign * host_share(job.mem_mib, here, job.gpus)


@dataclass(slots=True)
class _Base:
    """The ledger of a partition as it was handed out last, and its running jobs by the ``id`` of their entries.
    (While an entry is kept no other has its ``id``.)"""

    partition: Partition
    ledger: Ledger
    entries: dict[int, Running]
    holders: Counter[Placement]
    """How many jobs hold each set of GPUs."""

    def apart(self) -> bool:
        """Do sets of GPUs have none in common? Only then does a set come free when its last job goes."""
        ledger = self.ledger
        up = {node.name: node.gpus for node in ledger.nodes if node.available}
        held = sum(mask.bit_count() for placement in self.holders for name, mask in placement if name in up)
        return held == sum(up.values()) - ledger.free


class Ledgers:
    """Makes the ledger of a partition from the one before it of the same name, by the jobs that came and went: few
    do between two plans, and hundreds run. The result is that of ``Ledger(partition)``."""

    def __init__(self) -> None:
        self._bases: dict[str, _Base] = {}

    def of(self, partition: Partition) -> Ledger:
        """A ledger of the partition, which the caller may write in."""
        base = self._bases.get(partition.name)
        if base is not None and base.partition.nodes is partition.nodes and self._follow(base, partition):
            return base.ledger.copy()
        base = self._anew(partition)
        if not base.apart():
            self._bases.pop(partition.name, None)
            return base.ledger
        self._bases[partition.name] = base
        return base.ledger.copy()

    def _anew(self, partition: Partition) -> _Base:
        entries = dict(zip(map(id, partition.running), partition.running, strict=True))
        return _Base(partition, Ledger(partition), entries, Counter(entry.placement for entry in partition.running))

    def _follow(self, base: _Base, partition: Partition) -> bool:
        """Bring the base up to date. Not possible where sets of GPUs overlap without being the same."""
        if base.partition is partition:
            return True
        entries = dict(zip(map(id, partition.running), partition.running, strict=True))
        before, base.partition, base.entries = base.entries, partition, entries
        ledger, holders = base.ledger, base.holders
        for gone in before.keys() - entries.keys():
            entry = before[gone]
            holders[entry.placement] -= 1
            if holders[entry.placement] > 1:
                return False  # of three, two are left, who are a pair still
            if not holders[entry.placement]:
                del holders[entry.placement]
            ledger.give_back((entry,))
        for came in entries.keys() - before.keys():
            entry = entries[came]
            placement = entry.placement
            holders[placement] += 1
            if holders[placement] > 1:
                if any(ledger.nodes[ledger.index[name]].available for name, _ in placement):
                    ledger.pairs.add(placement)
                if ledger.host_limits:
                    ledger._host(entry.job, placement, -1)
            elif all(ledger.has_free(name, mask) for name, mask in placement):
                ledger.take(entry.job, placement)
            else:
                return False
        return True
