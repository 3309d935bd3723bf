"""The jobs that Lucid's own policy serves before its queue, and the nodes that it keeps for them."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field, replace

from lucid.core.decision import Hold, earliest
from lucid.core.job import Job, Pending
from lucid.core.reason import LargeShare, Reason, Reserved
from lucid.core.snapshot import Partition
from lucid.orchestrator.fences import KeptNodes, keep
from lucid.orchestrator.order import QueuedJob
from lucid.orchestrator.policies.lucid_starts import Starts
from lucid.orchestrator.policies.plain import Shadow
from lucid.orchestrator.promise import Turn, turns
from lucid.orchestrator.reservation import LOOK_AGAIN_S, large_share, next_holder

__all__ = ["ServedLarge", "ServedTurns", "serve_large", "serve_turns"]


@dataclass(frozen=True, slots=True)
class ServedTurns:
    """The jobs whose turn has come by the starvation bound, the nodes kept for the ones that did not start, and the
    time at which this may change without an event, s."""

    ids: Set[str] = frozenset()
    fences: Mapping[str, KeptNodes] = field(default_factory=dict)
    changes_s: float | None = None


@dataclass(frozen=True, slots=True)
class ServedLarge:
    """The large jobs that were served before the queue, by id, and those that gave way to smaller ones, with the
    comparison; and when time alone may change this, s."""

    holders: Set[str] = frozenset()
    gave_way: tuple[tuple[str, LargeShare], ...] = ()
    changes_s: float | None = None


def serve_turns(starts: Starts, shadow: Shadow) -> ServedTurns:
    """Start the jobs whose turn has come by the starvation bound, earlier bounds first, or keep nodes for them."""
    index, fairness = starts.ledger.index, starts.settings.fairness
    found, changes_s = turns(starts.partition, shadow.starts_s, shadow.next_end_s, starts.now_s, fairness)
    before = shadow.fences
    closed = {
        index[name] for turn in found if (kept := before.get(turn.entry.job.id)) is not None for name in kept.names
    }
    fences: dict[str, KeptNodes] = {}
    for turn in found:
        job = turn.entry.job
        if _start_in_turn(starts, turn):
            continue
        nodes = _nodes_for(starts, job, before.get(job.id), closed)
        why: tuple[Reason, ...] = (turn.why,)
        if nodes is not None:
            fences[job.id] = nodes
            changes_s = earliest(changes_s, starts.now_s + LOOK_AGAIN_S)
            why = (*why, _close(starts, job, nodes))
        starts.decisions[job.id] = Hold((*why, *_no_room(starts, turn.entry, 0.0)))
    return ServedTurns({turn.entry.job.id for turn in found}, fences, changes_s)


def _start_in_turn(starts: Starts, turn: Turn) -> bool:
    """Start the job outside the nodes kept for those before it, if there is room, alone or beside another."""
    queued = _queued(starts, turn.entry)
    level = starts.level(queued)
    if starts.alone(queued, level, (turn.why,), in_turn=True):
        return True
    beside, why = starts.partner_to_wait_no_more(queued, level)
    if beside is not None:
        starts.beside(queued, beside, (turn.why, *why))
    return beside is not None


def _nodes_for(starts: Starts, job: Job, before: KeptNodes | None, closed: set[int]) -> KeptNodes | None:
    """Nodes to keep for a job: those that are expected to have room for it first, by now. One GPU needs none: the
    first that comes free is its."""
    ledger = starts.ledger
    if before is not None:
        closed.difference_update(ledger.index[name] for name in before.names)
    if job.gpus == 1 and not (ledger.host_limits and (job.cpus or job.mem_mib)):
        return None
    found = keep(job, ledger, starts.now_s, starts.ends(), closed)
    if found is not None:
        closed.update(ledger.index[name] for name in found.names)
    return found


def serve_large(starts: Starts, served: Set[str]) -> ServedLarge:
    """In each VC the large job that has waited longest starts before the queue, or has nodes kept for it; unless it
    has to give way to smaller jobs."""
    found = [_serve_large(starts, partition, served) for partition in starts.by_vc()]
    return ServedLarge(
        frozenset().union(*(one.holders for one in found)),
        tuple(item for one in found for item in one.gave_way),
        earliest(*(one.changes_s for one in found)),
    )


def _serve_large(starts: Starts, partition: Partition, served: Set[str]) -> ServedLarge:
    """``partition``: a whole one, or one VC's jobs of a pool."""
    settings, now_s = starts.settings.reservation, starts.now_s
    per_node = starts.ledger.gpus_per_node
    holder, due_s = next_holder(partition, per_node, now_s, settings)
    if holder is None:
        return ServedLarge(changes_s=due_s)
    job = holder.job
    if job.id in served:
        return ServedLarge(frozenset({job.id}), changes_s=due_s)
    share, fails_s = large_share(holder, partition, per_node, now_s, settings)
    if share is not None and not share:
        return ServedLarge(gave_way=((job.id, share),))
    changes_s = fails_s
    queued = _queued(starts, holder)
    if starts.alone(queued, starts.level(queued), ()):
        return ServedLarge(frozenset({job.id}), changes_s=changes_s)
    why: tuple[Reserved, ...] = ()
    ends = starts.ends()
    quota_s = None if starts.quotas is None else starts.quotas.opens_s(job, ends)
    nodes = keep(job, starts.ledger, now_s, ends, starts.fences.nodes[-1])
    if nodes is not None:
        if quota_s is not None:  # until its quota has room for it, other jobs may have its nodes
            nodes = replace(nodes, until_s=max(nodes.until_s, quota_s))
        why = (_close(starts, job, nodes),)
        changes_s = earliest(changes_s, now_s + LOOK_AGAIN_S)
    room_s = why[0].room_s if why else 0.0
    starts.decisions[job.id] = Hold((*why, *_no_room(starts, holder, room_s)))
    return ServedLarge(frozenset({job.id}), changes_s=changes_s)


def _close(starts: Starts, job: Job, nodes: KeptNodes) -> Reserved:
    fence = nodes.fence(job, starts.ledger, starts.now_s, starts.settings.reservation.patience_s)
    starts.close(fence)
    return fence.room


def _no_room(starts: Starts, entry: Pending, room_s: float) -> tuple[Reason, ...]:
    """Why a job that goes before others does not start; in a pool its GPUs of its VC's quota are kept for it, but
    from jobs that take at most ``room_s``."""
    why = starts.no_room(_queued(starts, entry))
    if starts.quotas is not None:
        starts.quotas.keep(entry.job, room_s)
    return why


def _queued(starts: Starts, entry: Pending) -> QueuedJob:
    return QueuedJob(entry, starts.predictions[entry.job.id], starts.settings.packing.same_user_only)
