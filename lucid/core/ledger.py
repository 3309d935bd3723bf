"""The free GPUs, CPUs and memory of one partition while a plan is made, and the ledgers from plan to plan.

A ledger is scratch space: it never outlives its plan."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from lucid.core.job import Job, Running
from lucid.core.node import Node
from lucid.core.placement import NodeGpus, Placement, placement_gpus
from lucid.core.reasons.queue import Closes, GpusOut, HeldBy, NodesOut, OtherNodes
from lucid.core.snapshot import Partition
from lucid.core.times import reached


def host_share(total: int, gpus_here: int, gpus_all: int) -> int:
    """CPUs or MiB that a job needs on a node where it holds ``gpus_here`` of its ``gpus_all`` GPUs, rounded up."""
    if not total or not gpus_all:
        return total
    return -(-total * gpus_here // gpus_all)


def gpus_by_node(job: Job, per_node: int) -> tuple[tuple[int, int], ...]:
    """How many GPUs a job holds on how many nodes: pairs (GPUs, nodes), the most GPUs first.

    A job that fits on one node is there whole; a larger one fills nodes of ``per_node`` GPUs and has the rest on one
    more. A job that asks for several nodes has its GPUs spread over them as evenly as possible, as Slurm does."""
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
    found without looking at every node. Where nodes close at times (``Node.windows``), ``now_s`` is needed: a job
    finds room only where its time limit ends before the node closes."""

    def __init__(self, partition: Partition, now_s: float | None = None) -> None:
        """Raises: ValueError: ``now_s`` is needed and not given."""
        self.partition = partition
        self.nodes = partition.nodes
        self.index = {node.name: i for i, node in enumerate(partition.nodes)}
        self.gpus_per_node = max((node.gpus for node in partition.nodes), default=0)
        self.usable = [node.usable if node.available else 0 for node in partition.nodes]
        """The GPUs that may get new starts, as a mask, by index of the node."""
        self.free_mask = self.usable.copy()
        self._never = {i: (1 << node.gpus) - 1 & ~node.usable for i, node in enumerate(self.nodes) if node.left_out}
        """The GPUs that are left out of new starts, and so never free, as a mask, by index of the node."""
        self.host_limits = any(node.cpus or node.mem_mib for node in partition.nodes)
        self.free_cpus = [node.cpus_left for node in partition.nodes]
        self.free_mem_mib = [node.mem_left_mib for node in partition.nodes]
        self._overlaps: list[tuple[int, int]] = []
        """Shared GPUs: for each further job on them, the index of an available node and the mask of its GPUs."""
        self._beyond: dict[tuple[int, int], int] = {}
        """The overlaps counted by node and GPU, as ``beyond`` returns them; filled once a job gives GPUs back."""
        self._out: tuple[NodesOut | None] | None = None
        self._held_by: tuple[HeldBy, ...] | None = None
        self.now_s = now_s
        self.closing = any(node.windows for node in partition.nodes)
        """Whether any node has a window, now or later."""
        self.asleep = frozenset(i for i, node in enumerate(partition.nodes) if node.available and node.boot_s)
        """Nodes that a job would have to wait for, since they sleep or boot: taken after all others."""
        self.not_woken = frozenset(i for i in self.asleep if partition.nodes[i].boots_since_s is None)
        """The nodes that sleep and do not boot yet: taken last, so that as few as possible are woken."""
        self.fitting = self.fitting_of(partition)
        self.switched = any(node.switches for node in partition.nodes)
        """Whether the network between the nodes is known."""
        self._closes_s = _closing(partition.nodes, now_s) if self.closing else []
        free_mask, index = self.free_mask, self.index
        held = [(index[name], mask) for running in partition.running for name, mask in running.placement]
        for i, mask in held:
            free = free_mask[i]
            if mask & ~free and self.nodes[i].available:
                self._overlaps.append((i, mask & ~free & ~self._never.get(i, 0)))
            free_mask[i] = free & ~mask
        if self.host_limits:
            for running in partition.running:
                self._host(running.job, running.placement, -1)
        self.free_count = [mask.bit_count() for mask in free_mask]
        self.free = sum(self.free_count)
        self.buckets: list[list[int]] = [[] for _ in range(self.gpus_per_node + 1)]
        for i, count in enumerate(self.free_count):
            self.buckets[count].append(i)

    def fitting_of(self, partition: Partition) -> Mapping[str, frozenset[int]]:
        """The nodes, by index, that meet each constraint."""
        index = self.index
        return {asked: frozenset(index[name] for name in names) for asked, names in partition.fitting.items()}

    def copy(self) -> Ledger:
        """A copy of the ledger that can be changed on its own."""
        made = object.__new__(Ledger)
        made.partition, made.nodes, made.index, made._held_by = self.partition, self.nodes, self.index, None
        made._never, made.usable = self._never, self.usable
        made.gpus_per_node, made.host_limits = self.gpus_per_node, self.host_limits
        made.free_mask, made.free_count, made.free = [*self.free_mask], [*self.free_count], self.free
        made.free_cpus, made.free_mem_mib = [*self.free_cpus], [*self.free_mem_mib]
        made._overlaps, made._beyond = [*self._overlaps], {**self._beyond}
        made.buckets, made._out = [*map(list.copy, self.buckets)], self._out
        made.fitting, made.switched = self.fitting, self.switched
        made.now_s, made.closing, made._closes_s = self.now_s, self.closing, self._closes_s
        made.asleep, made.not_woken = self.asleep, self.not_woken
        return made

    @property
    def largest(self) -> int:
        """Most free GPUs on any one node."""
        for count in range(self.gpus_per_node, 0, -1):
            if self.buckets[count]:
                return count
        return 0

    def out(self) -> NodesOut | None:
        """The GPUs of nodes that are not available, and why they are not; ``None`` if all nodes are available."""
        if self._out is None:  # worked out once: it is asked for every job that waits
            self._out = (_nodes_out(self.nodes),)
        return self._out[0]

    def gpus_out(self) -> GpusOut | None:
        """The GPUs that are left out of new starts on nodes that are available; ``None`` if there are none."""
        found = [out for i in self._never if self.nodes[i].available for out in self.nodes[i].left_out]
        if not found:
            return None
        first = min(found, key=lambda out: (out.since_s, out.name))
        return GpusOut(len(found), first.node, first.index, first.since_s, first.words, first.by)

    def closes(self, job: Job) -> Closes | None:
        """The comparison that keeps a job off nodes with free GPUs that close before its time limit ends. It is that
        of the node that closes last; ``None`` where there is no such node."""
        early = [i for i, free in enumerate(self.free_count) if free and not self.ends_before(i, job)]
        if not early:
            return None
        last = max(early, key=self._closes_s.__getitem__)
        assert self.now_s is not None
        window = min((w for w in self.nodes[last].windows if w.from_s > self.now_s), key=lambda w: w.ends_by_s)
        gpus = sum(self.free_count[i] for i in early)
        room_s = window.ends_by_s - self.now_s
        return Closes(gpus, job.time_limit_s, room_s, window.from_s, window.until_s, window.why)

    def held_by(self) -> tuple[HeldBy, ...]:
        """The GPUs that jobs of other partitions hold here, by partition; empty on profiling nodes."""
        if self._held_by is None:
            self._held_by = () if self.partition.profiling else _guests(self.partition)
        return self._held_by

    def ends_before(self, i: int, job: Job) -> bool:
        """Whether the job's time limit ends before node ``i`` closes, if it starts now."""
        if not self.closing or self._closes_s[i] == math.inf:
            return True
        assert self.now_s is not None
        return job.time_limit_s is not None and reached(self._closes_s[i], self.now_s + job.time_limit_s)

    @property
    def selective(self) -> bool:
        """Whether any node with enough free GPUs may still be no place for some job (``host_fits``)."""
        return self.host_limits or self.closing or bool(self.fitting)

    def picks(self, job: Job) -> bool:
        """Whether a node with enough free GPUs may still be no place for this job."""
        return self.closing or bool(job.constraint) or (self.host_limits and (job.cpus > 0 or job.mem_mib > 0))

    def meets(self, i: int, job: Job) -> bool:
        """Whether node ``i`` is one of those that the job's user asks for."""
        return not job.constraint or job.constraint not in self.fitting or i in self.fitting[job.constraint]

    def other_nodes(self, job: Job) -> OtherNodes | None:
        """The free GPUs that a job cannot use since its user asks for other nodes; ``None`` if there are none."""
        if job.constraint not in self.fitting:
            return None
        gpus = sum(free for i, free in enumerate(self.free_count) if free and not self.meets(i, job))
        return OtherNodes(gpus, job.constraint) if gpus else None

    def awake_first(self, indices: Iterable[int]) -> list[int]:
        """The nodes in order: those awake, those that boot, those that sleep."""
        return sorted(indices, key=lambda i: (i in self.asleep) + (i in self.not_woken))

    def tightest(self, gpus: int, allowed: Callable[[int], bool] | None = None) -> int | None:
        """Index of the node with the fewest free GPUs that still has ``gpus``, the lowest among equals; ``None``
        where there is none. ``allowed`` may rule nodes out."""
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
        """Whether node ``i`` is one that the job's user wants, stays open for long enough, and has the CPUs and
        memory for that part of the job."""
        node = self.nodes[i]
        return (
            self.meets(i, job)
            and self.ends_before(i, job)
            and not (
                (node.cpus and host_share(job.cpus, gpus_here, job.gpus) > self.free_cpus[i])
                or (node.mem_mib and host_share(job.mem_mib, gpus_here, job.gpus) > self.free_mem_mib[i])
            )
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

    def claim(self, job: Job, placement: Placement) -> None:
        """Note that the job holds these GPUs, alone or beside others, with CPUs and memory."""
        for name, mask in placement:
            i = self.index[name]
            free = self.free_mask[i]
            if mask & ~free and self.nodes[i].available:
                self._overlaps.append((i, mask & ~free & ~self._never.get(i, 0)))
            if mask & free:
                self._set_free(i, free & ~mask)
        if self.host_limits:
            self._host(job, placement, -1)

    def give_back(self, runnings: Iterable[Running]) -> None:
        """Note that these jobs are gone; a GPU comes free when the last job on it goes."""
        for running in runnings:
            if self.host_limits:
                self._host(running.job, running.placement, 1)
            for name, mask in running.placement:
                i = self.index[name]
                if self.nodes[i].available:
                    if i in self._never:
                        mask &= ~self._never[i]
                    if self._overlaps or self._beyond:
                        mask = self._unshare(i, mask)
                    self._set_free(i, self.free_mask[i] | mask)

    def give_back_host(self, running: Running) -> None:
        """Note that the job holds no CPUs and no memory any more; its GPUs are held by another job."""
        if self.host_limits:
            self._host(running.job, running.placement, 1)

    def beyond(self) -> dict[tuple[int, int], int]:
        """How many jobs beyond the first hold each GPU of available nodes, by node index and bit of the GPU."""
        beyond = self._beyond
        for i, overlap in self._overlaps:
            for bit in _bits(overlap):
                beyond[i, bit] = beyond.get((i, bit), 0) + 1
        self._overlaps.clear()
        return beyond

    def _unshare(self, i: int, mask: int) -> int:
        """Note that one job less holds these GPUs; returns those that nobody holds now."""
        beyond = self.beyond()
        if beyond:
            for bit in _bits(mask):
                others = beyond.pop((i, bit), 0)
                if others:
                    mask ^= bit
                if others > 1:
                    beyond[i, bit] = others - 1
        return mask

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


def _closing(nodes: Sequence[Node], now_s: float | None) -> list[float]:
    """By node, the time at which it next closes, less the time that it takes to boot before a job can start there."""
    if now_s is None:
        raise ValueError("nodes of this partition close at times: say what time it is")
    return [node.closes_s(now_s) - node.delay_s(now_s) for node in nodes]


def _nodes_out(nodes: Sequence[Node]) -> NodesOut | None:
    away = [node for node in nodes if not node.available]
    if not away:
        return None
    words = ", ".join(sorted({node.out for node in away if node.out}))
    opens_s = min(node.opens_s() for node in away)
    return NodesOut(sum(node.gpus for node in away), words, None if opens_s == math.inf else opens_s)


def _guests(partition: Partition) -> tuple[HeldBy, ...]:
    """The GPUs held by jobs of other partitions, by partition, those with the most GPUs first."""
    vcs, found = {*partition.vcs, partition.name}, dict[str, list[Running]]()
    if vcs.issuperset({entry.job.vc for entry in partition.running}):  # as in most plans
        return ()
    for entry in partition.running:
        if entry.job.vc not in vcs:
            found.setdefault(entry.job.vc, []).append(entry)
    made = []
    for vc, entries in found.items():
        gpus = sum(placement_gpus(entry.placement) for entry in entries)
        yields = [entry.yields for entry in entries if entry.yields is not None]
        first_s = min((one.from_s for one in yields), default=0.0)
        made.append(HeldBy(vc, gpus, len(entries), len(yields), first_s))
    return tuple(sorted(made, key=lambda item: (-item.gpus, item.vc)))


def _bits(mask: int) -> Iterator[int]:
    while mask:
        bit = mask & -mask
        yield bit
        mask ^= bit


class Ledgers:
    """Makes the ledger of a partition from the previous one of the same name by the jobs that came and went: few do
    between two plans, and hundreds run. The result equals ``Ledger(partition)``."""

    def __init__(self) -> None:
        self._bases: dict[str, Ledger] = {}
        """By name, the ledger of a partition as it was handed out last."""

    def ledger_of(self, partition: Partition, now_s: float) -> Ledger:
        """A ledger of the partition, which the caller may change."""
        base = self._bases.get(partition.name)
        if base is None or base.nodes is not partition.nodes:
            base = Ledger(partition, now_s)
            if base.closing:
                return base
            self._bases[partition.name] = base
        elif base.partition is not partition:
            changes = partition.since(base.partition)
            base.give_back([entry for entry in changes.went if type(entry) is Running])
            for entry in changes.came:
                if type(entry) is Running:
                    base.claim(entry.job, entry.placement)
            if base.fitting or partition.fitting:
                base.fitting = base.fitting_of(partition)
            base.partition = partition
        base.now_s = now_s
        return base.copy()
