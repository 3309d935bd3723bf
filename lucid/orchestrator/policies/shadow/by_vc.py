"""What plain Slurm order would have done without lending: for each VC of a pool a shadow on GPUs of its own."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import replace

from lucid.core.decision import earliest
from lucid.core.frozen import dataclass
from lucid.core.job import Pending, Running
from lucid.core.ledger import Ledger
from lucid.core.node import Node
from lucid.core.rounding import past
from lucid.core.snapshot import Partition, Snapshot
from lucid.orchestrator.capacity.node_reservations import KeptNodes
from lucid.orchestrator.capacity.placement import consolidated
from lucid.orchestrator.policies.backfill import BackfillPolicy
from lucid.orchestrator.policies.shadow.advance import Seen, advance
from lucid.orchestrator.policies.shadow.plain_order import Kept, Shadow

__all__ = ["PoolShadows", "joined", "split"]


class PoolShadows:
    """The shadows of the VCs of one pool. What it keeps from one plan to the next saves work, and changes nothing."""

    def __init__(self, plain: BackfillPolicy) -> None:
        self._plain = plain
        self._seen: dict[str, Seen] = {}
        self._last: dict[str, _Last] = {}

    def advance(
        self,
        before: Mapping[str, Shadow],
        partition: Partition,
        newcomers: Callable[[str], tuple[Pending | Running, ...]],
        snapshot: Snapshot,
        bound_s: float,
    ) -> dict[str, Shadow]:
        """The shadow of each VC at the time of the snapshot, by VC; arguments as of ``advance``.

        ``newcomers``: the jobs of a VC that are in the profiling partition.
        """
        found: dict[str, Shadow] = {}
        for vc, (pending, running) in _by_vc(partition).items():
            known, last, fresh = before.get(vc), self._last.get(vc), newcomers(vc)
            if known is not None and last is not None and last.holds(known, pending, running, fresh, snapshot):
                found[vc] = replace(known, at_s=snapshot.now_s)
                continue
            nodes = _nodes(vc, partition, snapshot.now_s)
            part = Partition(vc, nodes, tuple(pending), tuple(running))
            if known is None or known.nodes != tuple(node.name for node in nodes):
                known = _begun(part, snapshot.now_s, bound_s)
            shadow = found[vc] = advance(known, part, fresh, snapshot, self._plain, bound_s, self._seen)
            seen = self._seen[vc]
            self._last[vc] = _Last(shadow.running, pending, running, fresh, seen.until_s())
        return found


@dataclass(frozen=True, slots=True)
class _Last:
    """What the last shadow of a VC was made of, and until when nothing happens in it by itself, s."""

    shadow: Mapping[str, Running]
    pending: list[Pending]
    running: list[Running]
    newcomers: tuple[Pending | Running, ...]
    until_s: float

    def holds(
        self,
        known: Shadow,
        pending: list[Pending],
        running: list[Running],
        newcomers: tuple[Pending | Running, ...],
        snapshot: Snapshot,
    ) -> bool:
        """Would a shadow made anew from this one be the same, but for its time?"""
        return (
            known.running is self.shadow
            and not known.told_s
            and not past(snapshot.now_s, self.until_s)
            and pending == self.pending
            and running == self.running
            and newcomers == self.newcomers
        )


def _by_vc(partition: Partition) -> dict[str, tuple[list[Pending], list[Running]]]:
    found: dict[str, tuple[list[Pending], list[Running]]] = {vc: ([], []) for vc in partition.quotas}
    for waiting in partition.pending:
        found[waiting.job.vc][0].append(waiting)
    for entry in partition.running:
        if entry.job.vc in found:
            found[entry.job.vc][1].append(entry)
    return found


def _nodes(vc: str, partition: Partition, now_s: float) -> tuple[Node, ...]:
    """GPUs of the VC's own: as many as its quota, on nodes like the pool's, which close when all of them do;
    none where the pool has none."""
    if not partition.nodes:
        return ()
    like = max(partition.nodes, key=lambda node: node.gpus)
    whole, rest = divmod(partition.quotas[vc], max(like.gpus, 1))
    sizes = [*[like.gpus] * whole, *([rest] if rest else [])]
    common = tuple(w for w in like.windows if all(w in node.windows for node in partition.nodes))
    return tuple(
        Node(f"{vc}#{i}", size, like.gpu_mem_mib, like.cpus, like.mem_mib, windows=common).at(now_s)
        for i, size in enumerate(sizes)
    )


def _begun(part: Partition, now_s: float, bound_s: float) -> Shadow:
    """A new shadow: what runs now runs in it as well, as far as the VC's own GPUs suffice."""
    ledger, running = Ledger(replace(part, running=()), now_s), {}
    for entry in part.running:
        placement = consolidated(ledger, entry.job)
        if placement is not None:
            ledger.take(entry.job, placement)
            running[entry.job.id] = replace(entry, placement=placement, partner=None, group=())
    names, started = tuple(node.name for node in part.nodes), frozenset(entry.job.id for entry in part.running)
    return Shadow(now_s, names, Kept(bound_s), running=running, started=started)


def joined(shadows: Mapping[str, Shadow]) -> Shadow:
    """The shadows of a pool in one, as its plan looks at them: starts and the tally."""
    every = [*shadows.values()]
    kept = Kept(
        every[0].kept.bound_s,
        sum(shadow.kept.jobs for shadow in every),
        sum(shadow.kept.past for shadow in every),
        max(shadow.kept.worst_s for shadow in every),
    )
    starts_s: dict[str, float] = {}
    for shadow in every:
        starts_s.update(shadow.starts_s)
    next_end_s = earliest(*(shadow.next_end_s for shadow in every))
    return Shadow(max(shadow.at_s for shadow in every), (), kept, starts_s=starts_s, next_end_s=next_end_s)


def split(shadows: Mapping[str, Shadow], whole: Shadow, partition: Partition) -> dict[str, Shadow]:
    """The shadows by VC, each with what the pool's plan told its jobs."""
    vc_of = {entry.job.id: entry.job.vc for entry in partition.pending}
    told_s: dict[str, dict[str, float]] = defaultdict(dict)
    fences: dict[str, dict[str, KeptNodes]] = defaultdict(dict)
    for job_id, at_s in whole.told_s.items():
        told_s[vc_of[job_id]][job_id] = at_s
    for job_id, nodes in whole.fences.items():
        fences[vc_of[job_id]][job_id] = nodes
    return {vc: replace(shadow, told_s=told_s[vc], fences=fences[vc]) for vc, shadow in shadows.items()}
