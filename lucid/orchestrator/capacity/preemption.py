"""Which running jobs a job preempts where no GPUs are free: those that give way and lose least.

Free GPUs come first, then places beside other jobs where the policy pairs them, then nodes that sleep: a boot costs
minutes, a preemption somebody's work. Plain Slurm wakes nodes before it preempts, too."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter

from msgspec import Struct
from msgspec.structs import replace

from lucid.core.decision import Start, earliest
from lucid.core.job import Job, Running
from lucid.core.ledger import Ledger, gpus_by_node, host_share
from lucid.core.placement import NodeGpus, Placement
from lucid.core.reason import Reason
from lucid.core.reasons.queue import Claims, Victim
from lucid.core.snapshot import Partition

_YIELDS = attrgetter("yields")
_Loss = tuple[float, float, int]
"""The loss of some jobs: GPU-seconds of those that are cancelled, of those that start over, and the number of jobs.
The first that differs decides; adding losses does not change their order."""
_NOTHING: _Loss = (0.0, 0.0, 0)
_LEAST_GPU_S = 1e-3
"""The least loss of a job that would be cancelled, however young it is."""


class Claim(Struct, frozen=True):
    """GPUs for a job, some of them held by jobs that give way to it."""

    placement: Placement
    victims: tuple[Running, ...]
    why: Claims

    def start(self, reasons: tuple[Reason, ...], within_quota: bool = False) -> Start:
        """The start of the job. ``reasons``: all of its reasons but the claim."""
        told = self.why.victims
        return Start(
            self.placement,
            (*reasons, self.why),
            preempts=tuple(victim.job for victim in told),
            lost_gpu_s=tuple(victim.lost_gpu_s for victim in told),
            within_quota=within_quota,
        )


class _Block(Struct, frozen=True):
    """GPUs of one node that come free together: those of one job, of a pair, or of all jobs that overlap there."""

    mask: int
    entries: tuple[Running, ...]


class _Offer(Struct, frozen=True):
    """The jobs that would go from one node for a part of a job, and the least that this loses."""

    loss: _Loss
    blocks: tuple[_Block, ...] = ()


class Yielding:
    """The running jobs of a partition that give way to its own, within one plan. ``bool``: whether there are any.

    A whole job is lost even where one of its GPUs is needed, and a GPU comes free only when all jobs on it give way.
    The choice that loses least is taken, whole jobs at a time, node by node."""

    def __init__(self, partition: Partition, ledger: Ledger, now_s: float) -> None:
        self._ledger = ledger
        self._now_s = now_s
        self._running = partition.running if any(map(_YIELDS, partition.running)) else ()
        self._doomed: set[str] = set()
        """Jobs that this plan preempts, and those that are about to go: they lose nothing more."""
        self._kept: set[str] = set()
        self._by_node: dict[int, list[_Block]] | None = None
        self._given: set[str] = set()
        """Jobs whose CPUs and memory are free in the ledger already."""
        self.changes_s = earliest(*(e.yields.from_s for e in self._running if e.yields and e.yields.from_s > now_s))
        """The time at which another job begins to give way, s."""
        self.by_qos = any(e.yields is not None and not e.yields.to_all for e in self._running)
        """Whether some jobs give way only to certain QOS."""

    def __bool__(self) -> bool:
        return bool(self._running)

    def _blocks(self) -> dict[int, list[_Block]]:
        """By node, the blocks of GPUs that may come free, whichever job asks."""
        if self._by_node is None:
            index, found = self._ledger.index, dict[int, list[tuple[int, Running]]]()
            up = self._ledger.nodes
            for entry in self._running:
                if entry.yields is not None:
                    found.update({index[part.node]: [] for part in entry.placement})
                    if entry.yields.going:
                        self._doomed.add(entry.job.id)
            for entry in self._running:
                for part in entry.placement:
                    i = index[part.node]
                    if i in found and part.mask & up[i].usable:
                        found[i].append((part.mask & up[i].usable, entry))
            self._by_node = {i: _overlapping(parts) for i, parts in sorted(found.items()) if up[i].available}
        return self._by_node

    def keep(self, job_id: str) -> None:
        """Keep other jobs from claiming the GPUs of this job: the plan has started another beside it, or decides
        something about it."""
        self._kept.add(job_id)

    def find(self, job: Job, allowed: Callable[[int], bool] | None = None) -> Claim | None:
        """GPUs for the job if others give way, those that lose least; ``None`` where that does not suffice.

        ``allowed`` rules nodes out by index. The nodes are as few as possible, as in ``consolidated``; CPUs and
        memory must fit, and the job's time limit must end before a node closes."""
        if not self._running or job.gpus <= 0:
            return None
        chosen: list[tuple[int, int, tuple[_Block, ...]]] = []
        lost, gone = _NOTHING, set[str]()
        next_s: float | None = None
        for here, nodes in gpus_by_node(job, self._ledger.gpus_per_node):
            taken = {i for i, _, _ in chosen}
            for _ in range(nodes):
                best, second = self._best(job, here, taken, gone, allowed)
                if best is None:
                    return None
                i, offer = best
                chosen.append((i, here, offer.blocks))
                taken.add(i)
                gone |= {entry.job.id for block in offer.blocks for entry in block.entries}
                lost = _plus(lost, offer.loss)
                next_s = None if second is None else sum(second.loss[:2])
        if not gone:  # free GPUs would do: then something else keeps the job
            return None
        placement = tuple(self._gpus(i, here, blocks) for i, here, blocks in chosen)
        entries = {entry.job.id: entry for _, _, blocks in chosen for block in blocks for entry in block.entries}
        told = tuple(self._victim(entry) for entry in entries.values())
        held = sum(
            (part.mask & block.mask).bit_count()
            for part, (_, _, blocks) in zip(placement, chosen, strict=True)
            for block in blocks
        )
        why = Claims(held, told, next_s if len(chosen) == 1 else None)
        return Claim(placement, tuple(entries.values()), why)

    def claim(self, job: Job, claim: Claim) -> None:
        """Note that the job gets these GPUs, and that the victims leave."""
        blocks = self._blocks()
        for part in claim.placement:
            i = self._ledger.index[part.node]
            rest = [replace(block, mask=block.mask & ~part.mask) for block in blocks.get(i, ())]
            blocks[i] = [block for block in rest if block.mask]
        for entry in claim.victims:
            self._doomed.add(entry.job.id)
            if entry.job.id not in self._given:
                self._given.add(entry.job.id)
                self._ledger.give_back_host(entry)
        self._ledger.claim(job, claim.placement)

    def _best(
        self, job: Job, here: int, taken: set[int], gone: set[str], allowed: Callable[[int], bool] | None
    ) -> tuple[tuple[int, _Offer] | None, _Offer | None]:
        """The node that loses least for so many GPUs, and the next best offer. Among equals it is the node with the
        fewest free GPUs, one that is awake first."""
        ledger, blocks = self._ledger, self._blocks()
        free = (i for i, count in enumerate(ledger.free_count) if count >= here)
        offers: list[tuple[_Loss, bool, int, int, _Offer]] = []
        for i in {*blocks, *free} - taken:
            if (allowed is not None and not allowed(i)) or not ledger.ends_before(i, job):
                continue
            offer = self._offer(job, i, here, blocks.get(i, ()), gone)
            if offer is not None:
                offers.append((offer.loss, i in ledger.asleep, ledger.free_count[i], i, offer))
        offers.sort(key=lambda item: item[:4])
        if not offers:
            return None, None
        return (offers[0][3], offers[0][4]), offers[1][4] if len(offers) > 1 else None

    def _offer(self, job: Job, i: int, here: int, blocks: Iterable[_Block], gone: set[str]) -> _Offer | None:
        """The blocks of node ``i`` that lose least and, with its free GPUs, give ``here`` GPUs."""
        open_to = [(self._loss(block, gone), block) for block in blocks if self._gives_way(block, job)]
        short = max(here - self._ledger.free_count[i], 0)
        best: list[tuple[_Loss, tuple[_Block, ...]] | None] = [(_NOTHING, ()), *[None] * short]
        for loss, block in open_to:
            more = block.mask.bit_count()
            for had in range(short, -1, -1):
                before = best[had]
                if before is None or had == short:
                    continue
                to, made = min(had + more, short), (_plus(before[0], loss), (*before[1], block))
                known = best[to]
                if known is None or made[0] < known[0]:
                    best[to] = made
        found = best[short]
        if found is None:
            return None
        lost, chosen = found
        for loss, block in sorted((item for item in open_to if item[1] not in chosen), key=lambda item: item[0]):
            if self._host_fits(job, i, here, chosen):
                break
            lost, chosen = _plus(lost, loss), (*chosen, block)
        # each gives one of its GPUs, also one that goes for its memory: Slurm is asked for those of all that go
        fits = len(chosen) <= here and self._host_fits(job, i, here, chosen)
        return _Offer(lost, chosen) if fits else None

    def _gives_way(self, block: _Block, job: Job) -> bool:
        return all(
            entry.yields is not None and entry.job.id not in self._kept and entry.yields.lets(job, self._now_s)
            for entry in block.entries
        )

    def _host_fits(self, job: Job, i: int, here: int, blocks: Sequence[_Block]) -> bool:
        ledger = self._ledger
        node = ledger.nodes[i]
        if not (node.cpus or node.mem_mib):
            return True
        cpus, mem_mib = ledger.free_cpus[i], ledger.free_mem_mib[i]
        for entry in (entry for block in blocks for entry in block.entries if entry.job.id not in self._given):
            own = sum(part.mask.bit_count() for part in entry.placement if part.node == node.name)
            cpus += host_share(entry.job.cpus, own, entry.job.gpus)
            mem_mib += host_share(entry.job.mem_mib, own, entry.job.gpus)
        return not (
            (node.cpus and host_share(job.cpus, here, job.gpus) > cpus)
            or (node.mem_mib and host_share(job.mem_mib, here, job.gpus) > mem_mib)
        )

    def _gpus(self, i: int, here: int, blocks: Sequence[_Block]) -> NodeGpus:
        """The GPUs to take on node ``i``: one of each block that goes, then free GPUs, then the lowest that come
        free."""
        first = sum(block.mask & -block.mask for block in blocks)
        own = self._ledger.lowest(i, min(self._ledger.free_count[i], here - first.bit_count()))
        mask = own.mask | first
        left = here - mask.bit_count()
        for block in blocks:
            rest = block.mask & ~mask
            while rest and left:
                mask, rest, left = mask | rest & -rest, rest & (rest - 1), left - 1
        return NodeGpus(own.node, mask)

    def _loss(self, block: _Block, gone: set[str]) -> _Loss:
        total = _NOTHING
        for entry in block.entries:
            if entry.job.id in gone or entry.job.id in self._doomed:
                continue
            lost = self._victim(entry)
            cancelled = max(lost.lost_gpu_s, _LEAST_GPU_S) if lost.ends else 0.0
            total = _plus(total, (cancelled, 0.0 if lost.ends else lost.lost_gpu_s, 1))
        return total

    def _victim(self, entry: Running) -> Victim:
        yields, job = entry.yields, entry.job
        assert yields is not None
        goes_on = yields.saves and not yields.ends
        lost = 0.0 if goes_on or job.id in self._doomed else max(entry.elapsed_s(self._now_s), 0.0) * entry.gpus
        return Victim(job.id, job.vc, entry.gpus, lost, goes_on, yields.ends)


def _plus(one: _Loss, other: _Loss) -> _Loss:
    return one[0] + other[0], one[1] + other[1], one[2] + other[2]


def _overlapping(parts: Sequence[tuple[int, Running]]) -> list[_Block]:
    """The GPUs of a node as blocks, each held by jobs that overlap."""
    blocks: list[_Block] = []
    for mask, entry in parts:
        apart = [block for block in blocks if not block.mask & mask]
        entries = [other for block in blocks if block.mask & mask for other in block.entries]
        for block in blocks:
            mask |= block.mask if block.mask & mask else 0
        blocks = [*apart, _Block(mask, (*entries, entry))]
    return blocks
