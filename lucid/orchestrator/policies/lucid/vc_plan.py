"""One plan of one VC by Lucid's own policy, in four steps: pairs, the large job, turns, the queue."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from typing import TYPE_CHECKING

from lucid.binder.calm import CalmSince
from lucid.binder.unpack import Partings
from lucid.core.decision import Hold, PartitionPlan, Start, earliest
from lucid.core.frozen import dataclass
from lucid.core.job import Job
from lucid.core.ledgers import Ledgers
from lucid.core.ports import Predictor
from lucid.core.snapshot import Partition, Snapshot
from lucid.orchestrator.capacity.placement import Feasibility
from lucid.orchestrator.order.queue_order import QueueOrder, QueueRow
from lucid.orchestrator.policies.backfill import BackfillPolicy
from lucid.orchestrator.policies.lucid.before_queue import ServedLarge, serve_large, serve_turns, turns_due
from lucid.orchestrator.policies.lucid.plain_with_pairs import large_above, ranked, serve_plain
from lucid.orchestrator.policies.lucid.start_job import Starts
from lucid.orchestrator.policies.lucid.wait_order import DEPTH, WaitQueue
from lucid.orchestrator.policies.queue import SETTLE_S
from lucid.orchestrator.policies.shadow.by_vc import split
from lucid.orchestrator.policies.shadow.plain_order import Kept, Shadow

if TYPE_CHECKING:
    from lucid.config import PolicySettings

__all__ = ["LucidMemory", "VcBooks", "calm_of", "plan_vc", "promise_kept", "promises_by_vc"]


@dataclass(frozen=True, slots=True)
class LucidMemory:
    """What a VC's plan leaves for the next where there is a starvation bound: plain order's shadow, and since when
    the VC is calm. ``by_vc``: of a pool, the shadow of each VC; ``shadow`` then joins them."""

    shadow: Shadow
    calm: CalmSince | None = None
    by_vc: Mapping[str, Shadow] = field(default_factory=dict)


def calm_of(memory: object) -> CalmSince | None:
    """Since when a VC is calm, as its last plan left it."""
    calm = memory.calm if isinstance(memory, LucidMemory) else memory
    return calm if isinstance(calm, CalmSince) else None


def promise_kept(memory: Mapping[str, object]) -> Kept | None:
    """The tally of the starvation bound over all VCs, from what their plans left; ``None`` where there is none."""
    found = [item.shadow.kept for item in memory.values() if isinstance(item, LucidMemory)]
    if not found:
        return None
    worst_s = max(kept.worst_s for kept in found)
    return Kept(found[0].bound_s, sum(kept.jobs for kept in found), sum(kept.past for kept in found), worst_s)


def promises_by_vc(memory: Mapping[str, object]) -> dict[str, Kept]:
    """The same for each VC by itself."""
    found: dict[str, Kept] = {}
    for name, item in memory.items():
        if isinstance(item, LucidMemory):
            found |= {vc: shadow.kept for vc, shadow in (item.by_vc or {name: item.shadow}).items()}
    return found


class VcBooks:
    """What the plans of one VC take over from each other. It saves work, and decides nothing: all of it follows from
    the snapshot. ``order``: the queue's order; ``ledgers``: who holds what; ``partings``: the pairs to part;
    ``plain``: plans where estimates do not rank jobs; ``by_wait`` and ``backfill``: where most who wait are large."""

    def __init__(self, settings: PolicySettings) -> None:
        packing, restarts = settings.packing, settings.profiling.restarts
        self.order = QueueOrder(packing.same_user_only, settings.fairness.share_bound, restarts)
        self.ledgers = Ledgers()
        self.partings = Partings(packing.part_below_speed, restarts)
        self.plain = BackfillPolicy(settings.backfill)
        self.by_wait = WaitQueue(settings.fairness.share_bound)
        self.backfill = BackfillPolicy(settings.backfill.model_copy(update={"depth": DEPTH}))


def plan_vc(
    partition: Partition,
    snapshot: Snapshot,
    settings: PolicySettings,
    predictor: Predictor,
    books: VcBooks,
    shadow: Shadow | None = None,
    by_vc: Mapping[str, Shadow] | None = None,
) -> PartitionPlan:
    """Part unstable pairs; serve the large job that has waited longest; then those whose turn it is by the starvation
    bound; then all others by estimate x GPUs.

    ``shadow``: plain order at this time, where there is a starvation bound. ``by_vc``: in a pool, the shadows that it
    joins.
    """
    ledger = books.ledgers.of(partition, snapshot.now_s)
    starts = Starts(partition, snapshot, settings, predictor, calm_of(snapshot.memory.get(partition.name)), ledger)
    vcs = partition.vcs  # pairs of other partitions are seen here, too, and parted there
    parted = [one for one in books.partings(partition) if one.entry.job.vc in vcs]
    for parting in parted:
        starts.act(parting.entry.job.id, parting.requeue)
        starts.yielding.keep(parting.entry.job.id)
    if not partition.pending:
        return _made(
            starts, starts.calm_since(), shadow, by_vc or {}, starts.now_s + SETTLE_S if starts.actions else None
        )
    why, by_wait = ranked(partition, snapshot, settings)
    if why is not None:
        wake_s = serve_plain(starts, snapshot, books.plain, (why,))
        return _made(starts, starts.calm_since(), shadow, by_vc or {}, starts.now_s + SETTLE_S if parted else wake_s)
    due = turns_due(starts, shadow)
    if by_wait:
        least = large_above(partition, settings)
        line = books.by_wait.of(partition, snapshot, due.turns, settings.reservation, least)
        wake_s = earliest(due.changes_s, serve_plain(starts, snapshot, books.backfill, (), line))
        return _made(starts, starts.calm_since(), shadow, by_vc or {}, starts.now_s + SETTLE_S if parted else wake_s)
    large = serve_large(starts, due.turns)
    turns = serve_turns(starts, due, large.holders)
    if shadow is not None:
        shadow = replace(shadow, fences=turns.fences)
    served = {*turns.ids, *large.holders}
    queue = books.order(partition, starts.predictions, snapshot.fair_share)
    rest = [row for row in queue if row[4] not in served] if served else queue
    _serve_queue(starts, books.order, rest)
    if starts.quotas is not None and starts.quotas.lend():  # who stays within the VC's own goes before all who borrow
        _serve_queue(starts, books.order, [row for row in rest if isinstance(starts.decisions[row[4]], Hold)])
    _tell_who_gave_way(starts, large)
    due_s = starts.now_s + SETTLE_S if parted else earliest(large.changes_s, turns.changes_s, starts.look_again_s())
    return _made(starts, starts.calm_since(), shadow, by_vc or {}, due_s)


def _serve_queue(starts: Starts, order: QueueOrder, queue: Sequence[QueueRow]) -> None:
    """Start or hold every job, in order.

    What stopped a job stops every later job of its shape and level (``Fences.level``) that needs no less GPU memory:
    a plan only ever uses room up, and later jobs have higher priority values. A job that starts alone between the two
    may be joined, but on GPUs that the first one could not have: because CPUs or host memory were missing, of which
    there are then fewer, or because the nodes are kept for another. The speed of a pair is not part of the
    shape: a lighter job of the same share score waits with the heavier one before it, until the next plan.
    """
    decisions, fences, feasible = starts.decisions, starts.fences, Feasibility(starts.partition)
    stopped: list[dict[object, tuple[float, Hold]]] = [{} for _ in fences.nodes]
    told, rooms_s = _told_apart(starts), fences.rooms_s
    for row in queue:
        # most jobs of a long queue are decided here, by what stopped a job of the same shape
        shape: object
        _, shape, gpu_mem_mib, duration_s, job_id, entry, _ = row
        level = bisect_left(rooms_s, duration_s) if rooms_s else 0  # Fences.level
        if told is not None:
            shape = (shape, *told(entry.job, duration_s))
        known = stopped[level].get(shape)
        if known is not None and known[0] <= gpu_mem_mib:
            decisions[job_id] = known[1]
            continue
        hold = starts.in_order(order.job(row), level)
        if hold is None:
            continue
        starts.held.append(entry.job)
        hopeless = feasible.bar(entry.job)
        if hopeless is not None:
            hold = Hold((hopeless,))
        steady = entry.profile is None or not entry.profile.unstable
        # the reason of an unsteady job names that job, so no other job can have it
        if steady:
            stopped[level][shape] = (gpu_mem_mib, hold)
        decisions[job_id] = hold


def _told_apart(starts: Starts) -> Callable[[Job, float], tuple[object, ...]] | None:
    """What else tells jobs of one shape apart in this plan; ``None``: nothing."""
    quotas, closing, by_qos = starts.quotas, starts.ledger.closing, starts.yielding.by_qos
    if quotas is None and not closing and not by_qos:
        return None

    def told(job: Job, duration_s: float) -> tuple[object, ...]:
        vc = None if quotas is None or quotas.open_to(job, duration_s) else job.vc
        limit_s, qos = job.time_limit_s if closing else None, job.qos if by_qos else None
        return vc, limit_s, qos

    return told


def _tell_who_gave_way(starts: Starts, large: ServedLarge) -> None:
    for job_id, share in large.gave_way:
        decision = starts.decisions[job_id]
        if isinstance(decision, Hold):
            starts.decisions[job_id] = Hold((share, *decision.reasons))


def _made(
    starts: Starts, calm: CalmSince | None, shadow: Shadow | None, by_vc: Mapping[str, Shadow], wake_s: float | None
) -> PartitionPlan:
    wake_s = earliest(wake_s, starts.binder.changes_s, starts.yielding.changes_s)
    memory: LucidMemory | CalmSince | None = calm
    if shadow is not None:
        told_s = {a.job_id: starts.now_s for a in starts.actions if isinstance(a.decision, Start)}
        shadow = replace(shadow, told_s=told_s)
        memory = LucidMemory(shadow, calm, split(by_vc, shadow, starts.partition))
    return PartitionPlan(starts.decisions, tuple(starts.actions), wake_s, memory)
