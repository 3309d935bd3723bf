"""What plain Slurm order would have done without lending: for each VC of a pool a shadow on GPUs of its own."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from lucid.core.decision import earliest
from lucid.core.job import Pending, Running
from lucid.core.ledger import Ledger
from lucid.core.node import Node
from lucid.core.snapshot import Partition, Snapshot
from lucid.orchestrator.fences import KeptNodes
from lucid.orchestrator.placement import consolidated
from lucid.orchestrator.policies.backfill import BackfillPolicy
from lucid.orchestrator.policies.plain import Kept, Seen, Shadow, advance

__all__ = ["advance_pool", "joined", "split", "vc_parts"]


def vc_parts(partition: Partition) -> dict[str, Partition]:
    """Each VC of a pool with its jobs, on nodes of its own: as many GPUs as its quota, on nodes like the pool's."""
    pending: dict[str, list[Pending]] = defaultdict(list)
    running: dict[str, list[Running]] = defaultdict(list)
    for waiting in partition.pending:
        pending[waiting.job.vc].append(waiting)
    for entry in partition.running:
        running[entry.job.vc].append(entry)
    largest = max(partition.nodes, key=lambda node: node.gpus)
    return {
        vc: Partition(vc, _nodes(vc, quota, largest), tuple(pending[vc]), tuple(running[vc]))
        for vc, quota in partition.quotas.items()
    }


def _nodes(vc: str, gpus: int, like: Node) -> tuple[Node, ...]:
    whole, rest = divmod(gpus, max(like.gpus, 1))
    sizes = [*[like.gpus] * whole, *([rest] if rest else [])]
    return tuple(Node(f"{vc}#{i}", size, like.gpu_mem_mib, like.cpus, like.mem_mib) for i, size in enumerate(sizes))


def advance_pool(
    before: Mapping[str, Shadow],
    partition: Partition,
    newcomers: Callable[[str], Iterable[Pending | Running]],
    snapshot: Snapshot,
    plain: BackfillPolicy,
    bound_s: float,
    kept: dict[str, Seen],
) -> dict[str, Shadow]:
    """The shadow of each VC at the time of the snapshot, by VC; arguments as of ``advance``.

    ``newcomers``: the jobs of a VC that are in the profiling partition.
    """
    found: dict[str, Shadow] = {}
    for vc, part in vc_parts(partition).items():
        known = before.get(vc)
        if known is None or known.nodes != tuple(node.name for node in part.nodes):
            known = _begun(part, snapshot.now_s, bound_s)
        found[vc] = advance(known, part, newcomers(vc), snapshot, plain, bound_s, kept)
    return found


def _begun(part: Partition, now_s: float, bound_s: float) -> Shadow:
    """A new shadow: what runs now runs in it as well, as far as the VC's own GPUs suffice."""
    ledger, running = Ledger(replace(part, running=())), {}
    for entry in part.running:
        placement = consolidated(ledger, entry.job)
        if placement is not None:
            ledger.take(entry.job, placement)
            running[entry.job.id] = replace(entry, placement=placement, partner=None, group=())
    names, started = tuple(node.name for node in part.nodes), frozenset(entry.job.id for entry in part.running)
    return Shadow(now_s, names, Kept(bound_s), running=running, started=started)


def joined(shadows: Mapping[str, Shadow]) -> Shadow:
    """The shadows of a pool in one, as its plan looks at them: starts, kept nodes, the tally."""
    every = [*shadows.values()]
    kept = Kept(
        every[0].kept.bound_s,
        sum(shadow.kept.jobs for shadow in every),
        sum(shadow.kept.past for shadow in every),
        max(shadow.kept.worst_s for shadow in every),
    )
    fences: dict[str, KeptNodes] = {}
    starts_s: dict[str, float] = {}
    for shadow in every:
        fences.update(shadow.fences)
        starts_s.update(shadow.starts_s)
    next_end_s = earliest(*(shadow.next_end_s for shadow in every))
    return Shadow(every[0].at_s, (), kept, starts_s=starts_s, fences=fences, next_end_s=next_end_s)


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
