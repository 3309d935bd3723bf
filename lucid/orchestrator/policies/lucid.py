"""Lucid's own policy: profiled first, ordered by estimate x GPUs, packed in pairs, placed consolidated."""

from __future__ import annotations

from collections import defaultdict

from lucid.binder.dynamic import SharingMode, sharing_mode
from lucid.binder.pairing import Binder
from lucid.binder.unpack import partings
from lucid.config import PolicySettings
from lucid.core.decision import Action, Decision, Hold, PartitionPlan, Start, earliest
from lucid.core.job import Job, Pending, Running
from lucid.core.ledger import Ledger
from lucid.core.placement import Placement
from lucid.core.ports import Capability, Predictor
from lucid.core.prediction import Prediction
from lucid.core.reason import FreeGpus, HomeHasRoom, Priority, Reason, Reserved, SharedBy, SharingLevel
from lucid.core.snapshot import Partition, Snapshot
from lucid.orchestrator.order import QueuedJob, QueueOrder
from lucid.orchestrator.placement import Feasibility, consolidated
from lucid.orchestrator.policies.queue import SETTLE_S, no_place
from lucid.orchestrator.policy import PartitionPolicy
from lucid.orchestrator.reservation import Reservation, next_holder, reserve
from lucid.profiler.stage import goes_through_profiling, plan_profiling

__all__ = ["LucidPolicy"]


class LucidPolicy(PartitionPolicy):
    """Algorithm 2 of the paper, with a reservation for large jobs beside it (docs/decisions/0004).

    Not blocking at the head: a job that finds no place lets the next one try.
    """

    name = "lucid"

    def __init__(self, settings: PolicySettings, predictor: Predictor) -> None:
        super().__init__()
        self._settings = settings
        self._predictor = predictor
        self._orders: defaultdict[str, QueueOrder] = defaultdict(lambda: QueueOrder(settings.packing.same_user_only))
        needs = set()
        if settings.profiling.enabled:
            needs.add(Capability.PROFILE)
        if settings.packing.gss:
            needs.add(Capability.SHARE)
        self.needs = frozenset(needs)

    @classmethod
    def make(cls, settings: PolicySettings, predictor: Predictor) -> LucidPolicy:
        """The factory under the name ``lucid``."""
        return cls(settings, predictor)

    def profiled(self, job: Job) -> bool:
        """All but jobs above N_prof and those that may not be requeued."""
        return goes_through_profiling(job, self._settings.profiling)

    def _waiting_at_home(self, snapshot: Snapshot) -> dict[str, int]:
        return {name: len(p.pending) for name, p in snapshot.partitions.items() if not p.profiling}

    def looks_at(self, partition: Partition, snapshot: Snapshot) -> tuple[object, ...]:
        """The profiling queue looks for room in the VCs, where it is time-aware; dynamic sharing at the forecast."""
        if not partition.pending:
            return ()
        if not partition.profiling:
            return (snapshot.forecast.get(partition.name),) if self._settings.packing.dynamic else ()
        return tuple(snapshot.partitions.values()) if self._settings.profiling.time_aware else ()

    def plan_partition(self, partition: Partition, snapshot: Snapshot) -> PartitionPlan:
        """Profile, or order and place."""
        if partition.profiling:
            return plan_profiling(
                partition,
                snapshot.now_s,
                self._settings.profiling,
                self._waiting_at_home(snapshot),
                _RoomAtHome(snapshot, self._settings),
            )
        packing = self._settings.packing
        dynamic = packing.dynamic  # then even an empty queue goes to measure how long it has been calm
        if (
            not partition.pending
            and not dynamic
            and not partings(partition.running, partition.nodes, packing.part_below_speed)
        ):
            return PartitionPlan({})
        return _VcPlan(partition, snapshot, self._settings, self._predictor).make(self._orders[partition.name])


class _RoomAtHome:
    """Which jobs their own VC could start at once, asked one after the other within one plan."""

    def __init__(self, snapshot: Snapshot, settings: PolicySettings) -> None:
        self._partitions = snapshot.partitions
        self._settings = settings
        self._ledgers: dict[str, Ledger] = {}

    def __call__(self, job: Job) -> HomeHasRoom:
        """A job for which there is room is counted in from then on."""
        home = self._partitions.get(job.vc)
        if home is None or home.pending:
            return HomeHasRoom(job.vc, 0, False)
        ledger = self._ledgers.get(job.vc)
        if ledger is None:
            ledger = self._ledgers[job.vc] = Ledger(home)
        free = ledger.free
        placement = consolidated(ledger, job, None, self._settings.remainder_on_emptiest)
        if placement is None:
            return HomeHasRoom(job.vc, free, False)
        ledger.take(job, placement)
        return HomeHasRoom(job.vc, free, True)


class _VcPlan:
    """One plan of one VC in the making."""

    def __init__(
        self, partition: Partition, snapshot: Snapshot, settings: PolicySettings, predictor: Predictor
    ) -> None:
        self._partition = partition
        self._now_s = snapshot.now_s
        self._predictions = snapshot.predictions
        self._settings = settings
        self._ledger = Ledger(partition)
        self._feasible = Feasibility(partition)
        self._level: tuple[SharingLevel, ...] = ()
        """Why sharing is less than configured, for the decisions that it makes different."""
        self._mode: SharingMode | None = None
        self._level_changes_s: float | None = None
        self._gss = settings.packing.gss
        if settings.packing.dynamic and settings.packing.gss:
            self._weigh_sharing(snapshot)
        self._binder = Binder(partition, self._ledger, self._predictions, predictor, settings.packing, self._now_s)
        self._decisions: dict[str, Decision] = {}
        self._actions: list[Action] = []
        self._blocked: tuple[dict[tuple[object, ...], tuple[float, Hold]], ...] = ({}, {})
        """Holds by whether a reservation fences the job and by its shape, with the GPU memory of the job that was
        held: what stopped it stops every later job of that shape which needs no less memory, because a plan only
        ever uses room up, and later jobs have higher priority values. The speed of a pair is not part of the
        shape: a lighter job of the same share score waits with the heavier one before it, until the next plan."""
        self._kept: Reservation | None = None
        self._room: Reserved | None = None

    def _weigh_sharing(self, snapshot: Snapshot) -> None:
        name = self._partition.name
        before = snapshot.memory.get(name)
        self._mode, level, self._level_changes_s = sharing_mode(
            self._ledger.free,
            sum(entry.job.gpus for entry in self._partition.pending),
            snapshot.forecast.get(name, 0.0),
            self._settings.packing,
            before if isinstance(before, SharingMode) else None,
            self._now_s,
        )
        self._level = () if level else (level,)
        self._gss = self._mode.gss

    def make(self, order: QueueOrder) -> PartitionPlan:
        """Part unstable pairs; then serve the reservation's holder; then everybody by estimate x GPUs."""
        partition, predictions = self._partition, self._predictions
        for parting in partings(partition.running, partition.nodes, self._settings.packing.part_below_speed):
            self._decisions[parting.entry.job.id] = parting.requeue
            self._actions.append(Action(parting.entry.job.id, partition.name, parting.requeue))
        parted = bool(self._actions)
        if not partition.pending:
            return self._plan(self._now_s + SETTLE_S if parted else None)
        holder, due_s = next_holder(partition, self._ledger.gpus_per_node, self._now_s, self._settings.reservation)
        if holder is not None:
            self._serve(holder)
            due_s = self._strict_from_s(holder)
        blocked, decisions, room = self._blocked, self._decisions, self._room
        room_s = float("inf") if room is None else room.room_s
        queue = order(partition.pending, predictions)
        for queued in queue:
            if queued.entry is holder:
                continue
            # most of a long queue is told here, by one look at what stopped a job of the same shape
            fenced = queued.prediction.duration_s > room_s
            known = blocked[fenced].get(queued.shape)
            if known is not None and known[0] <= queued.gpu_mem_mib:
                decisions[queued.id] = known[1]
            else:
                self._decide(queued, fenced)
        if self._kept is not None:
            estimates_s = (queued.prediction.duration_s for queued in queue if queued.entry is not holder)
            due_s = earliest(due_s, self._kept.stands_until_s(self._now_s, estimates_s))
        return self._plan(self._now_s + SETTLE_S if parted else due_s)

    def _plan(self, wake_s: float | None) -> PartitionPlan:
        wake_s = earliest(earliest(wake_s, self._binder.changes_s), self._level_changes_s)
        return PartitionPlan(self._decisions, tuple(self._actions), wake_s, self._mode)

    def _strict_from_s(self, holder: Pending) -> float | None:
        at_s = holder.job.submit_s + self._settings.reservation.strict_after_s
        return at_s if at_s > self._now_s else None

    def _serve(self, holder: Pending) -> None:
        """The large job that has waited longest starts before anybody else, or gets nodes kept for it."""
        job, prediction = holder.job, self._predictions[holder.job.id]
        placement = consolidated(self._ledger, job, None, self._settings.remainder_on_emptiest)
        if placement is not None:
            self._start_alone(holder, prediction.duration_s * job.gpus, placement)
            return
        settings = self._settings.reservation
        kept = reserve(holder, self._partition, self._ledger, self._predictions, self._now_s, settings)
        self._kept, self._room = kept, kept.room(self._now_s)
        self._decisions[job.id] = Hold((self._room, *no_place(self._ledger, holder)))

    def _decide(self, queued: QueuedJob, fenced: bool) -> None:
        entry, value = queued.entry, queued.value
        job, kept, room = entry.job, self._kept, self._room
        beside, why = self._partner(queued, fenced, self._gss)
        if beside is not None:
            self._start_beside(queued, beside, (*self._level, *why))
            return
        nodes = kept.nodes if fenced and kept else None
        allowed = None if nodes is None else (lambda i: i not in nodes)
        placement = consolidated(self._ledger, job, allowed, self._settings.remainder_on_emptiest)
        if placement is not None:
            self._start_alone(entry, value, placement, (*self._level, *why))
            return
        if self._level:  # sharing less is for those who need not wait for it
            beside, why = self._partner(queued, fenced, self._settings.packing.gss)
            if beside is not None:
                self._start_beside(queued, beside, why)
                return
        hopeless = self._feasible.bar(job)
        if hopeless is not None:
            hold = Hold((hopeless,))
        elif fenced and room is not None:
            hold = Hold((room, *why, *no_place(self._ledger, entry)))
        else:
            hold = Hold((*why, *no_place(self._ledger, entry)))
        if queued.steady:  # the reason of an unsteady job names it, and is nobody else's
            self._blocked[fenced][queued.shape] = (queued.gpu_mem_mib, hold)
        self._decisions[job.id] = hold

    def _partner(self, queued: QueuedJob, fenced: bool, gss: int) -> tuple[Running | None, tuple[Reason, ...]]:
        score = queued.prediction.share_score
        bar = self._binder.bars(queued.entry, score, gss)
        if bar is not None:
            return None, (bar,)
        assert score is not None
        names = self._kept.names if fenced and self._kept else ()
        return self._binder.partner(queued.entry, queued.value, score, gss, names)

    def _start_beside(self, queued: QueuedJob, beside: Running, why: tuple[Reason, ...]) -> None:
        job = queued.entry.job
        mps = self._settings.packing.mps
        by = () if mps is None else (SharedBy(beside.job.id, beside.job.user == job.user, mps),)
        reasons = (self._priority(queued.value, queued.prediction, job), *why, *by)
        self._binder.joined(queued.entry, beside)
        self._act(job, Start(beside.placement, reasons, beside.job.id))

    def _priority(self, value: float, prediction: Prediction, job: Job) -> Priority:
        return Priority("estimate x GPUs", value, prediction.duration_s, job.gpus, prediction.duration_source)

    def _start_alone(self, entry: Pending, value: float, placement: Placement, why: tuple[Reason, ...] = ()) -> None:
        job = entry.job
        free = FreeGpus(job.gpus, self._ledger.largest, self._ledger.free, True)
        start = Start(placement, (self._priority(value, self._predictions[job.id], job), *why, free))
        self._binder.started(entry, start.placement)
        for blocked in self._blocked:  # a job that may be joined could unblock its own kind
            for shape in [shape for shape in blocked if shape[0] == job.gpus]:
                del blocked[shape]
        self._act(job, start)

    def _act(self, job: Job, start: Start) -> None:
        self._decisions[job.id] = start
        self._actions.append(Action(job.id, self._partition.name, start))
