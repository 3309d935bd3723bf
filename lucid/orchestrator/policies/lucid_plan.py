"""One plan of one VC by Lucid's own policy."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, replace

from lucid.binder.dynamic import SharingMode, sharing_mode
from lucid.binder.pairing import Binder
from lucid.binder.unpack import partings
from lucid.config import PolicySettings
from lucid.core.decision import Action, Decision, Hold, PartitionPlan, Start, earliest
from lucid.core.job import Job, Pending, Running
from lucid.core.ledger import Ledger
from lucid.core.placement import Placement
from lucid.core.ports import Predictor
from lucid.core.prediction import Prediction
from lucid.core.reason import FreeGpus, LargeShare, Priority, Reason, Reserved, SharedBy, SharingLevel
from lucid.core.snapshot import Partition, Snapshot
from lucid.orchestrator.fences import Fence, Fences, KeptNodes, soonest
from lucid.orchestrator.order import QueuedJob, QueueOrder
from lucid.orchestrator.placement import Feasibility, consolidated
from lucid.orchestrator.policies.plain import Kept, Shadow
from lucid.orchestrator.policies.queue import SETTLE_S, no_place
from lucid.orchestrator.promise import Turn, turns
from lucid.orchestrator.reservation import Reservation, large_share, next_holder, reserve

__all__ = ["LucidMemory", "VcPlan", "promise_kept"]


@dataclass(frozen=True, slots=True)
class LucidMemory:
    """What a VC's plan leaves for the next where there is a starvation bound: plain order's shadow, and the mode of
    sharing, where that is dynamic."""

    shadow: Shadow
    mode: SharingMode | None = None


def promise_kept(memory: Mapping[str, object]) -> Kept | None:
    """The tally of the starvation bound over all VCs, from what their plans left; ``None`` where there is none."""
    found = [item.shadow.kept for item in memory.values() if isinstance(item, LucidMemory)]
    if not found:
        return None
    worst_s = max(kept.worst_s for kept in found)
    return Kept(found[0].bound_s, sum(kept.jobs for kept in found), sum(kept.past for kept in found), worst_s)


class VcPlan:
    """One plan of one VC in the making."""

    def __init__(
        self,
        partition: Partition,
        snapshot: Snapshot,
        settings: PolicySettings,
        predictor: Predictor,
        shadow: Shadow | None = None,
    ) -> None:
        self._partition = partition
        self._now_s = snapshot.now_s
        self._predictions = snapshot.predictions
        self._fair_share = snapshot.fair_share
        self._settings = settings
        self._shadow = shadow
        self._ledger = Ledger(partition)
        self._feasible = Feasibility(partition)
        self._level: tuple[SharingLevel, ...] = ()
        """Why sharing is less than configured, for the decisions that it makes different."""
        self._mode: SharingMode | None = None
        self._level_changes_s: float | None = None
        self._gss = settings.packing.gss
        lower = settings.packing.waiting_pair_speed
        self._yields = lower is not None and lower < settings.packing.least_pair_speed
        """Does who would otherwise wait take a slower partner?"""
        if settings.packing.dynamic and settings.packing.gss:
            self._weigh_sharing(snapshot)
        self._binder = Binder(
            partition,
            self._ledger,
            self._predictions,
            predictor,
            settings.packing,
            self._now_s,
            settings.profiling.restarts,
        )
        self._decisions: dict[str, Decision] = {}
        self._actions: list[Action] = []
        self._blocked: list[dict[tuple[object, ...], tuple[float, Hold]]] = []
        """Holds by how many fences the job must keep off and by its shape, with the GPU memory of the job that was
        held: what stopped it stops every later job of that shape which needs no less memory, because a plan only
        ever uses room up, and later jobs have higher priority values. The speed of a pair is not part of the
        shape: a lighter job of the same share score waits with the heavier one before it, until the next plan."""
        self._kept: Reservation | None = None
        self._fences = Fences()
        self._gave_way: tuple[str, LargeShare] | None = None
        """The large job that nothing is kept for, and why."""

    def _weigh_sharing(self, snapshot: Snapshot) -> None:
        name = self._partition.name
        before = snapshot.memory.get(name)
        if isinstance(before, LucidMemory):
            before = before.mode
        self._mode, level, self._level_changes_s = sharing_mode(
            self._ledger.free,
            sum(entry.job.gpus for entry in self._partition.pending),
            snapshot.arrivals.of(name),
            self._settings.packing,
            before if isinstance(before, SharingMode) else None,
            self._now_s,
            snapshot.arrivals.by,
        )
        self._level = () if level else (level,)
        self._gss = self._mode.gss

    def make(self, order: QueueOrder) -> PartitionPlan:
        """Part unstable pairs; then serve those whose turn it is by the starvation bound, then the reservation's
        holder; then everybody by estimate x GPUs."""
        partition, predictions = self._partition, self._predictions
        bound, restarts = self._settings.packing.part_below_speed, self._settings.profiling.restarts
        for parting in partings(partition.running, partition.nodes, bound, restarts):
            self._decisions[parting.entry.job.id] = parting.requeue
            self._actions.append(Action(parting.entry.job.id, partition.name, parting.requeue))
        parted = bool(self._actions)
        if not partition.pending:
            return self._plan(self._now_s + SETTLE_S if parted else None)
        turn_s = self._serve_turns()
        served = set() if self._shadow is None else {*self._decisions}
        holder, due_s = self._serve_large(served)
        decisions, fences = self._decisions, self._fences
        blocked = self._blocked = [{} for _ in fences.nodes]
        one, room_s = len(fences.fences) < 2, fences.rooms_s[0] if fences.fences else float("inf")
        queue = order(partition.pending, predictions, self._fair_share)
        if served:
            queue = [queued for queued in queue if queued.id not in served]
        for queued in queue:
            if queued.entry is holder:
                continue
            # most of a long queue is told here, by one look at what stopped a job of the same shape
            duration_s = queued.prediction.duration_s
            level = duration_s > room_s if one else fences.level(duration_s)
            known = blocked[level].get(queued.shape)
            if known is not None and known[0] <= queued.gpu_mem_mib:
                decisions[queued.id] = known[1]
            else:
                self._decide(queued, level)
        self._tell_who_gave_way()
        due_s = earliest(due_s, turn_s)
        if self._kept is not None:
            estimates_s = (queued.prediction.duration_s for queued in queue if queued.entry is not holder)
            due_s = earliest(due_s, self._kept.stands_until_s(self._now_s, estimates_s))
        return self._plan(self._now_s + SETTLE_S if parted else due_s)

    def _plan(self, wake_s: float | None) -> PartitionPlan:
        wake_s = earliest(earliest(wake_s, self._binder.changes_s), self._level_changes_s)
        memory: LucidMemory | SharingMode | None = self._mode
        if self._shadow is not None:
            told_s = {a.job_id: self._now_s for a in self._actions if isinstance(a.decision, Start)}
            memory = LucidMemory(replace(self._shadow, told_s=told_s), self._mode)
        return PartitionPlan(self._decisions, tuple(self._actions), wake_s, memory)

    def _serve_large(self, served: Container[str]) -> tuple[Pending | None, float | None]:
        """The large job whose turn it is, with when that may come to be otherwise by itself; one that has to give way
        to smaller jobs stands in the queue like anybody else."""
        partition, settings, per_node = self._partition, self._settings.reservation, self._ledger.gpus_per_node
        holder, due_s = next_holder(partition, per_node, self._now_s, settings)
        if holder is None or holder.job.id in served:
            return holder, due_s
        share, fails_s = large_share(holder, partition, per_node, self._now_s, settings)
        if share is not None and not share:
            self._gave_way = (holder.job.id, share)
            return None, None
        self._serve(holder)
        return holder, earliest(self._strict_from_s(holder), fails_s)

    def _tell_who_gave_way(self) -> None:
        if self._gave_way is None:
            return
        job_id, share = self._gave_way
        decision = self._decisions[job_id]
        if isinstance(decision, Hold):
            self._decisions[job_id] = Hold((share, *decision.reasons))

    def _strict_from_s(self, holder: Pending) -> float | None:
        at_s = holder.job.submit_s + self._settings.reservation.strict_after_s
        return at_s if at_s > self._now_s else None

    def _serve(self, holder: Pending) -> None:
        """The large job that has waited longest starts before anybody else, or gets nodes kept for it."""
        job, prediction = holder.job, self._predictions[holder.job.id]
        level = self._fences.level(prediction.duration_s)
        placement = self._place(job, level)
        if placement is not None:
            self._start_alone(holder, prediction.duration_s * job.gpus, placement)
            return
        settings, closed = self._settings.reservation, self._fences.nodes[-1]
        kept = reserve(holder, self._partition, self._ledger, self._predictions, self._now_s, settings, closed)
        self._kept, room = kept, kept.room(self._now_s)
        self._fences = Fences([*self._fences.fences, Fence(room, kept.nodes, kept.names)])
        self._decisions[job.id] = Hold((room, *no_place(self._ledger, holder)))

    def _serve_turns(self) -> float | None:
        """Those whose turn has come by the starvation bound start, each before all whose bound is later, or have
        nodes kept for them. When may that come to be otherwise by itself?"""
        if self._shadow is None:
            return None
        before, fairness, index = self._shadow, self._settings.fairness, self._ledger.index
        found, changes_s = turns(self._partition, before.starts_s, before.next_end_s, self._now_s, fairness)
        closed = {
            index[name]
            for turn in found
            if (kept := before.fences.get(turn.entry.job.id)) is not None
            for name in kept.names
        }
        fences: dict[str, KeptNodes] = {}
        for turn in found:
            job = turn.entry.job
            if self._start_in_turn(turn):
                continue
            nodes = self._keep(job, before.fences.get(job.id), closed)
            hold: tuple[Reason, ...] = (turn.why, *no_place(self._ledger, turn.entry))
            if nodes is not None:
                fences[job.id] = nodes
                changes_s = earliest(changes_s, nodes.until_s)
                hold = (turn.why, self._fence(turn, nodes), *hold[1:])
            self._decisions[job.id] = Hold(hold)
        self._shadow = replace(before, fences=fences)
        return changes_s

    def _keep(self, job: Job, before: KeptNodes | None, closed: set[int]) -> KeptNodes | None:
        """Nodes to keep for a job: those that were, until they should have had room and have not (jobs there outlived
        their estimates); then whichever are expected to have it first. One GPU needs none: the first that comes
        free is its."""
        index, nodes = self._ledger.index, self._ledger.nodes
        if before is not None:
            if self._now_s < before.until_s and all(nodes[index[name]].available for name in before.names):
                return before
            closed.difference_update(index[name] for name in before.names)
        if job.gpus == 1 and not (self._ledger.host_limits and (job.cpus or job.mem_mib)):
            return None
        found = soonest(job, self._partition.running, self._ledger, self._predictions, self._now_s, closed)
        if found is not None:
            closed.update(index[name] for name in found.names)
        return found

    def _fence(self, turn: Turn, nodes: KeptNodes) -> Reserved:
        """Close the nodes to others: to all, since estimates are too poor to let anybody in; unless the nodes are not
        expected within another bound. Then those may come that are expected to be gone by that time."""
        room_s = nodes.until_s - self._now_s
        strict = room_s <= turn.why.bound_s - turn.why.plain_s
        room_s = 0.0 if strict else room_s / self._settings.reservation.safety
        room = Reserved(turn.entry.job.id, nodes.until_s, room_s, len(nodes.names), strict)
        inside = frozenset(self._ledger.index[name] for name in nodes.names)
        self._fences = Fences([*self._fences.fences, Fence(room, inside, frozenset(nodes.names))])
        return room

    def _start_in_turn(self, turn: Turn) -> bool:
        """Start the job outside the nodes kept for those before it, if there is room, alone or beside another."""
        entry = turn.entry
        queued = QueuedJob(entry, self._predictions[entry.job.id], self._settings.packing.same_user_only)
        level = self._fences.level(queued.prediction.duration_s)
        placement = self._place(entry.job, level)
        if placement is not None:
            self._start_alone(entry, queued.value, placement, (turn.why,))
            return True
        beside, why = self._partner_to_wait_no_more(queued, level)
        if beside is not None:
            self._start_beside(queued, beside, (turn.why, *why))
        return beside is not None

    def _place(self, job: Job, level: int) -> Placement | None:
        """Free GPUs outside the fences that a job of this level must keep off."""
        nodes = self._fences.nodes[level]
        allowed = (lambda i: i not in nodes) if level else None
        return consolidated(self._ledger, job, allowed, self._settings.remainder_on_emptiest)

    def _decide(self, queued: QueuedJob, level: int) -> None:
        entry, value = queued.entry, queued.value
        job, fair = entry.job, () if queued.fair is None else (queued.fair,)
        beside, why = self._partner(queued, level, self._gss)
        if beside is not None:
            self._start_beside(queued, beside, (*fair, *self._level, *why))
            return
        if self._level:  # a pair that costs nobody anything keeps GPUs free for what nobody foretold
            packing = self._settings.packing
            beside, harmless = self._partner(queued, level, packing.gss, packing.harmless_pair_speed)
            if beside is not None:
                self._start_beside(queued, beside, (*fair, *harmless))
                return
        placement = self._place(job, level)
        if placement is not None:
            self._start_alone(entry, value, placement, (*fair, *self._level, *why))
            return
        if self._level or self._yields:  # sharing less, or only at speed, is for those who need not wait for it
            beside, why = self._partner_to_wait_no_more(queued, level)
            if beside is not None:
                self._start_beside(queued, beside, (*fair, *why))
                return
        hopeless = self._feasible.bar(job)
        if hopeless is not None:
            hold = Hold((hopeless,))
        elif level:
            hold = Hold((*fair, self._fences.why(level), *why, *no_place(self._ledger, entry)))
        else:
            hold = Hold((*fair, *why, *no_place(self._ledger, entry)))
        if queued.steady:  # the reason of an unsteady job names it, and is nobody else's
            self._blocked[level][queued.shape] = (queued.gpu_mem_mib, hold)
        self._decisions[job.id] = hold

    def _partner_to_wait_no_more(self, queued: QueuedJob, level: int) -> tuple[Running | None, tuple[Reason, ...]]:
        """Under the full capacity, and at the lower speed for those who would wait otherwise, where there is one."""
        packing = self._settings.packing
        return self._partner(queued, level, packing.gss, packing.waiting_pair_speed if self._yields else None)

    def _partner(
        self, queued: QueuedJob, level: int, gss: int, floor: float | None = None
    ) -> tuple[Running | None, tuple[Reason, ...]]:
        score = queued.prediction.share_score
        bar = self._binder.bars(queued.entry, score, gss)
        if bar is not None:
            return None, (bar,)
        assert score is not None
        return self._binder.partner(queued.entry, queued.value, score, gss, self._fences.names[level], floor)

    def _start_beside(self, queued: QueuedJob, beside: Running, why: tuple[Reason, ...]) -> None:
        job = queued.entry.job
        mps = self._settings.packing.mps
        by = () if mps is None else (SharedBy(beside.job.id, beside.job.user == job.user, mps),)
        reasons = (self._priority(queued.value, queued.prediction, job), *why, *by)
        self._binder.joined(queued.entry, beside)
        self._act(job, Start(beside.placement, reasons, beside.job.id, slots=True))

    def _priority(self, value: float, prediction: Prediction, job: Job) -> Priority:
        return Priority("estimate x GPUs", value, prediction.duration_s, job.gpus, prediction.duration_source)

    def _start_alone(self, entry: Pending, value: float, placement: Placement, why: tuple[Reason, ...] = ()) -> None:
        job = entry.job
        free = FreeGpus(job.gpus, self._ledger.largest, self._ledger.free, True)
        prediction = self._predictions[job.id]
        slots = self._binder.in_slots(entry, prediction.share_score, len(placement))
        reasons = (self._priority(value, prediction, job), *why, free, slots)
        start = Start(placement, reasons, slots=bool(slots))
        self._binder.started(entry, start.placement)
        for blocked in self._blocked:  # a job that may be joined could unblock its own kind
            for shape in [shape for shape in blocked if shape[0] == job.gpus]:
                del blocked[shape]
        self._act(job, start)

    def _act(self, job: Job, start: Start) -> None:
        self._decisions[job.id] = start
        self._actions.append(Action(job.id, self._partition.name, start))
