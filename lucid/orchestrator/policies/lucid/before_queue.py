"""The jobs that Lucid's own policy serves before its queue, and the nodes that it keeps for them."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import field, replace

from lucid.core.decision import Hold, earliest
from lucid.core.frozen import dataclass
from lucid.core.job import Job, Pending
from lucid.core.reason import LargeShare, OwnTurn, PlainOrder, Reason, Reserved
from lucid.core.snapshot import Partition
from lucid.orchestrator.capacity.large_jobs import above, large_share, next_holder
from lucid.orchestrator.capacity.node_reservations import KeptNodes, keep
from lucid.orchestrator.order.queue_order import QueuedJob
from lucid.orchestrator.order.starvation_bound import Turn, own_turns, turns
from lucid.orchestrator.policies.lucid.start_job import Starts
from lucid.orchestrator.policies.shadow.plain_order import Shadow

__all__ = ["ServedLarge", "ServedTurns", "TurnsDue", "serve_large", "serve_turns", "turns_due"]


@dataclass(frozen=True, slots=True)
class TurnsDue:
    """The jobs whose turn has come, by id: by the starvation bound, earlier bounds first, then those of a pool that
    have waited for GPUs of their VC's own; and the time at which this may change without an event, s."""

    turns: Mapping[str, Turn] = field(default_factory=dict)
    changes_s: float | None = None


@dataclass(frozen=True, slots=True)
class ServedTurns:
    """The jobs whose turn has come, the nodes kept for the ones that did not start, and the
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


def turns_due(starts: Starts, shadow: Shadow | None) -> TurnsDue:
    """The jobs whose turn has come by the starvation bound, where there is one; then those of a pool that have waited
    for GPUs of their VC's own."""
    found: list[Turn] = []
    changes_s: float | None = None
    if shadow is not None:
        found, changes_s = turns(
            starts.partition, shadow.starts_s, shadow.next_end_s, starts.now_s, starts.settings.fairness
        )
    lending = starts.settings.lending
    if starts.quotas is not None and lending.mode == "borrow" and lending.turn_s is not None:
        own, own_changes_s = own_turns(starts.partition, starts.quotas, starts.now_s, lending.turn_s)
        changes_s, by_bound = earliest(changes_s, own_changes_s), {turn.entry.job.id for turn in found}
        found += [turn for turn in own if turn.entry.job.id not in by_bound]
    return TurnsDue({turn.entry.job.id: turn for turn in found}, changes_s)


def serve_turns(starts: Starts, due: TurnsDue, served: Set[str]) -> ServedTurns:
    """Start the jobs whose turn has come, earlier bounds first, outside the nodes that are kept already; or keep
    nodes for the first job of a VC that cannot start.

    Nodes are kept for the VC's other jobs once that one has started: where many turns come at once, most of the VC
    would stand idle if nodes were kept for all of them. Those that wait for GPUs of their VC's own stay in the queue
    until then. ``served``: jobs to pass over.
    """
    fences: dict[str, KeptNodes] = {}
    keeping: set[str] = set()
    stuck: set[str] = set()
    """VCs of which a job waits for GPUs of their own."""
    ids: set[str] = set()
    for turn in due.turns.values():
        job, own = turn.entry.job, isinstance(turn.why, OwnTurn)
        if own and job.vc in stuck:
            continue
        ids.add(job.id)
        if job.id in served or _start_in_turn(starts, turn):
            continue
        if own:
            stuck.add(job.vc)
        level = starts.level(_queued(starts, turn.entry))
        why: tuple[Reason, ...] = (turn.why, *((starts.fences.why(level),) if level else ()))
        nodes = None if job.vc in keeping else _nodes_for(starts, job)
        if nodes is not None:
            keeping.add(job.vc)
            fences[job.id] = nodes
            why = (turn.why, _close(starts, job, nodes))
        else:
            starts.held.append(job)
        starts.decisions[job.id] = Hold((*why, *_no_room(starts, turn.entry, 0.0)))
    return ServedTurns(ids, fences, due.changes_s)


def _start_in_turn(starts: Starts, turn: Turn) -> bool:
    """Start the job outside the nodes kept for those before it, if there is room, alone or beside another."""
    queued = _queued(starts, turn.entry)
    level = starts.level(queued)
    beyond = isinstance(turn.why, PlainOrder)  # by the starvation bound the VC's quota stops no job
    if starts.alone(queued, level, (turn.why,), in_turn=beyond):
        return True
    beside, why = starts.partner_to_wait_no_more(queued, level)
    if beside is not None:
        starts.beside(queued, beside, (turn.why, *why))
        return True
    return starts.claim(queued, level, (turn.why,), in_turn=beyond)


def _nodes_for(starts: Starts, job: Job) -> KeptNodes | None:
    """Nodes to keep for a job: those that are expected to have room for it first, by now. One GPU needs none: the
    first that comes free is its."""
    ledger = starts.ledger
    if job.gpus == 1 and not ledger.picks(job):
        return None
    return keep(job, ledger, starts.now_s, starts.room(), starts.fences.nodes[-1])


def serve_large(starts: Starts, due: Mapping[str, Turn]) -> ServedLarge:
    """In each VC one large job (``next_holder``) starts before the queue, or has nodes kept for it; unless it has to
    give way to smaller jobs. ``due``: whose turn has come."""
    least = above(starts.ledger.gpus_per_node, starts.settings.reservation)
    found = [_serve_large(starts, partition, due) for partition in starts.by_vc(least)]
    return ServedLarge(
        frozenset().union(*(one.holders for one in found)),
        tuple(item for one in found for item in one.gave_way),
        earliest(*(one.changes_s for one in found)),
    )


def _serve_large(starts: Starts, partition: Partition, due: Mapping[str, Turn]) -> ServedLarge:
    """``partition``: a whole one, or one VC's jobs of a pool."""
    settings, now_s = starts.settings.reservation, starts.now_s
    per_node = starts.ledger.gpus_per_node
    estimates = starts.predictions if starts.quotas is None else None  # lending is settled with the oldest
    holder, due_s = next_holder(partition, per_node, now_s, settings, estimates)
    if holder is None:
        return ServedLarge(changes_s=due_s)
    job = holder.job
    turn = due.get(job.id)
    quotas = starts.quotas
    within = quotas is None or not quotas.borrows
    share, fails_s = large_share(holder, partition, per_node, now_s, settings, within_quotas=within)
    if share is not None and not share:
        return ServedLarge(gave_way=((job.id, share),))
    queued = _queued(starts, holder)
    quota = None if quotas is None else quotas.large(job, queued.prediction.duration_s)
    if turn:
        started = _start_in_turn(starts, turn)
    else:
        level = starts.level(queued)
        started = starts.alone(queued, level, (), quota=quota) or starts.claim(queued, level, (), quota=quota)
    if started:
        return ServedLarge(frozenset({job.id}), changes_s=fails_s)
    why: tuple[Reserved, ...] = ()
    quota_s = None if quotas is None or (quota and quota[-1]) else quotas.opens_s(job, starts.ends())
    nodes = keep(job, starts.ledger, now_s, starts.room(), starts.fences.nodes[-1])
    if nodes is not None:
        if quota_s is not None:  # until its quota has room for it, other jobs may have its nodes
            nodes = replace(nodes, until_s=max(nodes.until_s, quota_s))
        why = (_close(starts, job, nodes),)
    room_s = why[0].room_s if why else 0.0
    own: tuple[Reason, ...] = (turn.why,) if turn else ()
    starts.decisions[job.id] = Hold((*own, *why, *_no_room(starts, holder, room_s, quota)))
    return ServedLarge(frozenset({job.id}), changes_s=fails_s)


def _close(starts: Starts, job: Job, nodes: KeptNodes) -> Reserved:
    fence = nodes.fence(job, starts.ledger, starts.now_s, _patience_s(starts, job))
    starts.close(fence)
    return fence.room


def _patience_s(starts: Starts, holder: Job) -> float:
    """How long the holder waits before guests must be the surer to end in time: as long as the other jobs of its VC
    have waited on average, for where all wait for days the holder alone has no claim to nodes that stand idle."""
    least_s, vc = starts.settings.reservation.patience_s, holder.vc
    others = [job.submit_s for e in starts.partition.pending if (job := e.job) is not holder and job.vc == vc]
    return max(least_s, starts.now_s - sum(others) / len(others)) if others else least_s


def _no_room(
    starts: Starts, entry: Pending, room_s: float, quota: tuple[Reason, ...] | None = None
) -> tuple[Reason, ...]:
    """Why a job that goes before others does not start; in a pool its GPUs of its VC's quota are kept for it, but
    from jobs that take at most ``room_s``."""
    why = starts.no_room(_queued(starts, entry), quota)
    if starts.quotas is not None:
        starts.quotas.keep(entry.job, room_s)
    return why


def _queued(starts: Starts, entry: Pending) -> QueuedJob:
    return QueuedJob(entry, starts.predictions[entry.job.id])
