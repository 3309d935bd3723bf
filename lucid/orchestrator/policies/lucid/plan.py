"""One plan of one VC by Lucid's own policy, in four steps: pairs, the large job, turns, the queue."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence, Set
from typing import TYPE_CHECKING

from msgspec import Struct, field
from msgspec.structs import replace

from lucid.binder.candidates import CalmSince, calm_since, depends_on_calm
from lucid.binder.parting import Partings
from lucid.core.decision import Hold, PartitionPlan, Start, earliest
from lucid.core.job import Job, Pending
from lucid.core.ledger import Ledgers
from lucid.core.ports import Predictor
from lucid.core.reason import Reason
from lucid.core.reasons.queue import LargeShare, OwnTurn, PlainOrder, Reserved
from lucid.core.snapshot import Partition, Snapshot
from lucid.orchestrator.capacity.placement import Feasibility
from lucid.orchestrator.capacity.reservations import PATIENCE_S, KeptNodes, keep, large_share, next_holder
from lucid.orchestrator.order.queue_order import QueuedJob, QueueOrder, QueueRow
from lucid.orchestrator.order.starvation_bound import Turn, own_turns, turns
from lucid.orchestrator.policies.backfill import BackfillPolicy
from lucid.orchestrator.policies.lucid.plain import DEPTH, WaitQueue, ranked, serve_plain
from lucid.orchestrator.policies.lucid.start import Starts
from lucid.orchestrator.policies.queue import SETTLE_S
from lucid.orchestrator.policies.shadow import Kept, Shadow, split

if TYPE_CHECKING:
    from lucid.config.policy import PolicySettings


class TurnsDue(Struct, frozen=True):
    """The jobs whose turn has come, by id, and the time at which this may change without an event, s. Turns by the
    starvation bound come first, earlier bounds first; then, in a pool, jobs that have waited for GPUs of their VC's
    own."""

    turns: Mapping[str, Turn] = field(default_factory=dict)
    changes_s: float | None = None


class ServedTurns(Struct, frozen=True):
    """The jobs whose turn has come, the nodes kept for those that did not start, and the time at which this may
    change without an event, s."""

    ids: Set[str] = frozenset()
    fences: Mapping[str, KeptNodes] = field(default_factory=dict)
    changes_s: float | None = None


class ServedLarge(Struct, frozen=True):
    """The large jobs that were served before the queue, by id; those that gave way to smaller ones, with the
    comparison; and when time alone may change this, s."""

    holders: Set[str] = frozenset()
    gave_way: tuple[tuple[str, LargeShare], ...] = ()
    changes_s: float | None = None


def turns_due(starts: Starts, shadow: Shadow | None) -> TurnsDue:
    """The jobs whose turn has come: by the starvation bound, where there is one, then those of a pool that have
    waited for GPUs of their VC's own."""
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

    Nodes are kept for the VC's other jobs only once that one has started: where many turns come at once, most of the
    VC would stand idle if nodes were kept for all of them. Jobs that wait for GPUs of their VC's own stay in the
    queue until then. ``served``: jobs to pass over."""
    fences: dict[str, KeptNodes] = {}
    keeping: set[str] = set()
    stuck: set[str] = set()
    """VCs in which a job waits for GPUs of the VC's own."""
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
    """Start the job outside the nodes kept for jobs before it, alone or beside another; returns whether there was
    room."""
    queued = _queued(starts, turn.entry)
    level = starts.level(queued)
    # by the starvation bound the VC's quota stops no job that may go beyond it
    beyond = isinstance(turn.why, PlainOrder) and turn.entry.job.borrows
    if starts.alone(queued, level, (turn.why,), in_turn=beyond):
        return True
    beside, why = starts.partner_to_wait_no_more(queued, level)
    if beside is not None:
        starts.beside(queued, beside, (turn.why, *why))
        return True
    return starts.claim(queued, level, (turn.why,), in_turn=beyond)


def _nodes_for(starts: Starts, job: Job) -> KeptNodes | None:
    """Nodes to keep for a job: those now expected to have room for it first. A job of one GPU needs none: it gets the
    first GPU that comes free."""
    ledger = starts.ledger
    if job.gpus == 1 and not ledger.picks(job):
        return None
    return keep(job, ledger, starts.now_s, starts.room(), starts.fences.nodes[-1])


def serve_large(starts: Starts, due: Mapping[str, Turn]) -> ServedLarge:
    """In each VC start one large job (``next_holder``) before the queue, or keep nodes for it, unless it has to give
    way to smaller jobs. ``due``: jobs whose turn has come."""
    per_node = starts.ledger.gpus_per_node
    found = [_serve_large(starts, partition, due) for partition in starts.by_vc(per_node)]
    return ServedLarge(
        frozenset().union(*(one.holders for one in found)),
        tuple(item for one in found for item in one.gave_way),
        earliest(*(one.changes_s for one in found)),
    )


def _serve_large(starts: Starts, partition: Partition, due: Mapping[str, Turn]) -> ServedLarge:
    """Serve the large job of ``partition``: a whole one, or one VC's jobs of a pool."""
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
    have waited on average. Where all wait for days, the holder alone has no claim to nodes that stand idle."""
    least_s, vc = PATIENCE_S, holder.vc
    others = [job.submit_s for e in starts.partition.pending if (job := e.job) is not holder and job.vc == vc]
    return max(least_s, starts.now_s - sum(others) / len(others)) if others else least_s


def _no_room(
    starts: Starts, entry: Pending, room_s: float, quota: tuple[Reason, ...] | None = None
) -> tuple[Reason, ...]:
    """Why a job that goes before others does not start. In a pool, GPUs of its VC's quota are kept for it from here
    on, except from jobs that take at most ``room_s``."""
    why = starts.no_room(_queued(starts, entry), quota)
    if starts.quotas is not None:
        starts.quotas.keep(entry.job, room_s)
    return why


def _queued(starts: Starts, entry: Pending) -> QueuedJob:
    return QueuedJob(entry, starts.predictions[entry.job.id])


class LucidMemory(Struct, frozen=True):
    """What a VC's plan leaves for the next where there is a starvation bound: plain order's shadow, and since when
    the VC is calm. ``by_vc``: in a pool the shadow of each VC, which ``shadow`` joins."""

    shadow: Shadow
    calm: CalmSince | None = None
    by_vc: Mapping[str, Shadow] = field(default_factory=dict)


def calm_of(memory: object) -> CalmSince | None:
    """Since when a VC is calm, as its last plan left it."""
    calm = memory.calm if type(memory) is LucidMemory else memory
    return calm if type(calm) is CalmSince else None


def promise_kept(memory: Mapping[str, object]) -> Kept | None:
    """The tally of the starvation bound over all VCs, from what their plans left; ``None`` where there is none."""
    found = [item.shadow.kept for item in memory.values() if isinstance(item, LucidMemory)]
    if not found:
        return None
    worst_s = max(kept.worst_s for kept in found)
    return Kept(found[0].bound_s, sum(kept.jobs for kept in found), sum(kept.past for kept in found), worst_s)


def promises_by_vc(memory: Mapping[str, object]) -> dict[str, Kept]:
    """The tally of the starvation bound for each VC by itself."""
    found: dict[str, Kept] = {}
    for name, item in memory.items():
        if isinstance(item, LucidMemory):
            found |= {vc: shadow.kept for vc, shadow in (item.by_vc or {name: item.shadow}).items()}
    return found


class VcBooks:
    """What the plans of one VC hand on to the next plans. All of it follows from the snapshot, so it saves work and
    decides nothing. ``order``: the queue's order; ``ledgers``: which jobs hold what; ``partings``: the pairs to part;
    ``plain``: plans where estimates do not rank jobs; ``by_wait`` and ``backfill``: plans where most waiting jobs are
    large."""

    def __init__(self, settings: PolicySettings) -> None:
        packing, restarts = settings.packing, settings.profiling.restarts
        self.order = QueueOrder(packing.same_user_only, settings.fairness.share_bound, restarts)
        self.ledgers = Ledgers()
        self.partings = Partings(restarts)
        self.plain = BackfillPolicy(settings.backfill)
        self.by_wait = WaitQueue(settings.fairness.share_bound)
        self.backfill = BackfillPolicy(settings.backfill.changed({"depth": DEPTH}))


def plan_vc(
    partition: Partition,
    snapshot: Snapshot,
    settings: PolicySettings,
    predictor: Predictor,
    books: VcBooks,
    shadow: Shadow | None = None,
    by_vc: Mapping[str, Shadow] | None = None,
) -> PartitionPlan:
    """The plan of one VC: part unstable pairs; serve the large job that has waited longest; then jobs whose turn has
    come by the starvation bound; then all others by estimate x GPUs.

    ``shadow``: plain order at this time, where there is a starvation bound. ``by_vc``: in a pool, the shadows that it
    joins."""
    parted, calm = books.partings(partition), calm_of(snapshot.memory.get(partition.name))
    if not partition.pending and shadow is None and not parted:
        if not depends_on_calm(settings.packing):
            return PartitionPlan({})
        return PartitionPlan({}, memory=calm_since(calm, 0, len(partition.running), snapshot.now_s))
    ledger = books.ledgers.ledger_of(partition, snapshot.now_s)
    starts = Starts(partition, snapshot, settings, predictor, calm, ledger)
    vcs = partition.vcs  # pairs of other partitions are seen here, too, and parted there
    parted = [one for one in parted if one.entry.job.vc in vcs]
    for parting in parted:
        starts.act(parting.entry.job.id, parting.requeue)
        starts.yielding.keep(parting.entry.job.id)
    if not partition.pending:
        return _made(
            starts, starts.calm_since(), shadow, by_vc or {}, starts.now_s + SETTLE_S if starts.actions else None
        )
    why, by_wait = ranked(partition, snapshot, settings, ledger.gpus_per_node)
    if why is not None:
        wake_s = serve_plain(starts, snapshot, books.plain, (why,))
        return _made(starts, starts.calm_since(), shadow, by_vc or {}, starts.now_s + SETTLE_S if parted else wake_s)
    due = turns_due(starts, shadow)
    if by_wait:
        line = books.by_wait.waiting_jobs(partition, snapshot, due.turns, ledger.gpus_per_node)
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
    due_s = starts.now_s + SETTLE_S if parted else earliest(large.changes_s, turns.changes_s, starts.plan_again_s())
    return _made(starts, starts.calm_since(), shadow, by_vc or {}, due_s)


def _serve_queue(starts: Starts, order: QueueOrder, queue: Sequence[QueueRow]) -> None:
    """Start or hold every job, in order.

    What stopped a job stops every later job of its shape and level (``NodeReservations.level``) that needs no less
    GPU memory: a plan only ever uses room up, and later jobs have higher priority values. A job that starts alone
    between the two may be joined, but only on GPUs that the first one could not have: CPUs or host memory were
    missing there, or the nodes are kept for another. The speed of a pair is not part of the shape: a lighter job of
    the same share score waits with the heavier one before it, until the next plan."""
    decisions, fences, feasible = starts.decisions, starts.fences, Feasibility(starts.partition)
    stopped: list[dict[object, tuple[float, Hold]]] = [{} for _ in fences.nodes]
    distinguish, rooms_s = _distinction(starts), fences.rooms_s
    for row in queue:
        # most jobs of a long queue are decided here, by what stopped a job of the same shape
        shape: object
        _, shape, gpu_mem_mib, duration_s, job_id, entry, _ = row
        level = bisect_left(rooms_s, duration_s) if rooms_s else 0  # Fences.level
        if distinguish is not None:
            shape = (shape, *distinguish(entry.job, duration_s))
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


def _distinction(starts: Starts) -> Callable[[Job, float], tuple[object, ...]] | None:
    """A function that gives what further distinguishes jobs of one shape in this plan; ``None`` where nothing
    does."""
    quotas, closing, by_qos = starts.quotas, starts.ledger.closing, starts.yielding.by_qos
    if quotas is None and not closing and not by_qos:
        return None

    def distinguish(job: Job, duration_s: float) -> tuple[object, ...]:
        vc = None if quotas is None or quotas.open_to(job, duration_s) else job.vc
        limit_s, qos = job.time_limit_s if closing else None, job.qos if by_qos else None
        return vc, limit_s, qos

    return distinguish


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
