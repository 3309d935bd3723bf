"""How Lucid's own policy starts one job of a VC: alone on free GPUs, beside a running job, or by preempting."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import TYPE_CHECKING

from lucid.binder.binder import Binder
from lucid.binder.candidates import CalmSince, calm_for, calm_since, depends_on_calm
from lucid.core.decision import Action, Decision, Hold, Requeue, Start
from lucid.core.job import Job, Pending, Running
from lucid.core.ledger import Ledger, gpus_by_node
from lucid.core.placement import Placement
from lucid.core.ports import Predictor
from lucid.core.reason import Reason
from lucid.core.reasons.queue import FreeGpus, Priority
from lucid.core.reasons.sharing import SharedBy
from lucid.core.snapshot import Partition, Snapshot
from lucid.orchestrator.capacity.placement import consolidated, domains, no_place, spread
from lucid.orchestrator.capacity.preemption import Yielding
from lucid.orchestrator.capacity.reservations import PLAN_AGAIN_S, NodeReservation, NodeReservations
from lucid.orchestrator.capacity.timeline import End, Timeline, expected_ends
from lucid.orchestrator.order.queue_order import QueuedJob
from lucid.orchestrator.order.quotas import Quotas

if TYPE_CHECKING:
    from lucid.config.policy import PolicySettings


_HARMLESS = 1.0
"""The least expected speed of the pairs that are made in a calm VC."""


class Starts:
    """What one plan has decided so far, and what is left of the VC for later jobs."""

    def __init__(
        self,
        partition: Partition,
        snapshot: Snapshot,
        settings: PolicySettings,
        predictor: Predictor,
        calm: CalmSince | None,
        ledger: Ledger | None = None,
    ) -> None:
        self.partition = partition
        self.now_s = snapshot.now_s
        self.predictions = snapshot.predictions
        self.settings = settings
        self.ledger = Ledger(partition, snapshot.now_s) if ledger is None else ledger
        self.quotas = Quotas(partition, settings.lending) if partition.quotas else None
        self._calm = calm
        self.binder = Binder(
            partition,
            self.ledger,
            self.predictions,
            predictor,
            settings.packing,
            self.now_s,
            settings.profiling.restarts,
        )
        self.yielding = Yielding(partition, self.ledger, snapshot.now_s)
        self.fences = NodeReservations()
        stay = {(e.job.vc, e.job.constraint) for e in partition.pending if e.job.stays} if partition.quotas else ()
        self._stay = [(vc, self.ledger.fitting.get(asked, frozenset())) for vc, asked in stay]
        """VCs with jobs that wait and stay in its partition, each with nodes for which one waits."""
        self.decisions: dict[str, Decision] = {}
        self.actions: list[Action] = []
        self._room: tuple[int, Timeline] | None = None
        self.held: list[Job] = []
        """Waiting jobs, at least one of each shape, without those that nodes are kept for."""

    # -- what is decided -----------------------------------------------------------------------------------

    def act(self, job_id: str, decision: Start | Requeue) -> None:
        """Note a decision that changes something."""
        self.decisions[job_id] = decision
        self.actions.append(Action(job_id, self.partition.name, decision))

    def settle(self, entry: Pending, start: Start, holders: Collection[Running] | None = None) -> None:
        """Book a start, whichever way it was found, but for its GPUs, which the ledger has by then. ``holders``: the
        running jobs on whose GPUs it starts; ``None``: these are free. No other job may now pair with them, or claim
        the GPUs of a partner."""
        if holders is None:
            self.binder.started(entry, start.placement)
        else:
            self.binder.left(holders)
        if start.beside is not None:
            self.yielding.keep(start.beside)
        elif self.quotas is not None:
            self.quotas.claim(entry.job)
        self.act(entry.job.id, start)

    def calm_since(self) -> CalmSince | None:
        """Since when the VC is calm, counted once the plan is made; ``None`` where sharing does not depend on it."""
        partition = self.partition
        if not depends_on_calm(self.settings.packing):
            return None
        waiting = len(partition.pending) - sum(isinstance(action.decision, Start) for action in self.actions)
        return calm_since(self._calm, waiting, len(partition.pending) + len(partition.running), self.now_s)

    def close(self, fence: NodeReservation) -> None:
        """Keep nodes for a job from here on."""
        self.fences = NodeReservations([*self.fences.fences, fence])

    def ends(self) -> list[End]:
        """When the jobs that hold GPUs by now are expected to give them back."""
        ends = expected_ends(self.partition.running, self.predictions, self.now_s)
        starts = {a.job_id: a.decision.placement for a in self.actions if isinstance(a.decision, Start)}
        if starts:
            jobs = {e.job.id: e.job for e in self.partition.pending if e.job.id in starts}
            ends += [(self.now_s + self.predictions[i].duration_s, jobs[i], where) for i, where in starts.items()]
        return ends

    def room(self) -> Timeline:
        """What is expected to be free when; read-only, and made anew once something more is decided."""
        if self._room is None or self._room[0] != len(self.actions):
            self._room = (len(self.actions), Timeline(self.ledger, self.now_s, self.ends()))
        return self._room[1]

    def plan_again_s(self) -> float | None:
        """When the plan is made anew since nodes are kept, for time alone moves what is expected of them. Soon where
        another job could start, or join one, if none were kept; else once the nodes were to have room, when their
        reasons are out of date."""
        fences, ledger = self.fences.fences, self.ledger
        if not fences:
            return None
        soon_s = self.now_s + PLAN_AGAIN_S
        if len(fences) > 1 or self.quotas is not None or self.yielding or ledger.closing or ledger.asleep:
            return soon_s
        for job in self.held:
            part = gpus_by_node(job, ledger.gpus_per_node)[:1]
            room = job.gpus <= ledger.free and part and part[0][0] <= ledger.largest
            if room or self.binder.any_to_join(job.gpus):
                return soon_s
        return max(soon_s, min(fence.room.until_s for fence in fences))

    def by_vc(self, above: int) -> list[Partition]:
        """The partition itself; or for a pool the jobs of each VC in which a job of more than ``above`` GPUs waits,
        with all nodes."""
        partition = self.partition
        if not partition.quotas:
            return [partition]
        pending: dict[str, list[Pending]] = {e.job.vc: [] for e in partition.pending if e.job.gpus > above}
        if not pending:
            return []
        running: dict[str, list[Running]] = {vc: [] for vc in pending}
        for waiting in partition.pending:
            if waiting.job.vc in pending:
                pending[waiting.job.vc].append(waiting)
        for entry in partition.running:
            if entry.job.vc in running:
                running[entry.job.vc].append(entry)
        return [
            replace(
                partition,
                pending=tuple(waits),
                running=tuple(running[vc]),
                quotas={vc: partition.quotas.get(vc, 0)},
            )
            for vc, waits in pending.items()
        ]

    def level(self, queued: QueuedJob) -> int:
        """The level of the job: how many fences it must keep off."""
        return self.fences.level(queued.prediction.duration_s)

    # -- ways to start -------------------------------------------------------------------------------------

    def alone(
        self,
        queued: QueuedJob,
        level: int,
        why: tuple[Reason, ...],
        in_turn: bool = False,
        quota: tuple[Reason, ...] | None = None,
        awake: bool = False,
    ) -> bool:
        """Start the job on free GPUs outside the fences that a job of this level must keep off; returns whether there
        are any. ``in_turn``: its turn has come, so its VC's quota does not stop it. ``quota``: the comparisons with
        the quota, where they are not those of every job. ``awake``: no node is woken for it."""
        entry, job = queued.entry, queued.entry.job
        quota = self._open(queued, in_turn, quota)
        if quota is None:
            return False
        placement = self._place(job, level, awake)
        if placement is None:
            return False
        free = FreeGpus(job.gpus, self.ledger.largest, self.ledger.free, True)
        near = self._spread(job, placement)
        slots = self.binder.in_slots(entry, queued.prediction.share_score, len(placement))
        reasons = (_priority(queued), *why, *quota, free, *near, slots)
        self.ledger.claim(job, placement)
        self.settle(entry, Start(placement, reasons, slots=bool(slots), within_quota=_within(quota)))
        return True

    def _spread(self, job: Job, placement: Placement) -> tuple[Reason, ...]:
        """The reason that says below how many switches the job starts, and when one switch would have had room."""
        found = spread(self.ledger, placement)
        if not found or found[0]:
            return found
        room, every = self.room(), frozenset(range(len(self.ledger.nodes)))
        slots = (room.find(job, 0.0, every - nodes) for nodes in domains(self.ledger, 0) if self._one_leaf(nodes))
        starts_s = [slot.start_s for slot in slots if slot is not None]
        return spread(self.ledger, placement, min(starts_s, default=None))

    def _one_leaf(self, nodes: frozenset[int]) -> bool:
        return len({self.ledger.nodes[i].switches[:1] for i in nodes}) == 1

    def claim(
        self,
        queued: QueuedJob,
        level: int,
        why: tuple[Reason, ...],
        in_turn: bool = False,
        quota: tuple[Reason, ...] | None = None,
    ) -> bool:
        """Start the job on GPUs of jobs that give way to it, where free GPUs and partners do not suffice; returns
        whether that was possible. The arguments are those of ``alone``."""
        job = queued.entry.job
        quota = self._open(queued, in_turn, quota) if self.yielding else None
        claim = None if quota is None else self.yielding.find(job, self._outside(level))
        if claim is None or quota is None:
            return False
        free = FreeGpus(job.gpus, self.ledger.largest, self.ledger.free, False)
        reasons = (_priority(queued), *why, *quota, free)
        self.yielding.claim(job, claim)
        self.settle(queued.entry, claim.start(reasons, within_quota=_within(quota)), claim.victims)
        return True

    def _open(self, queued: QueuedJob, in_turn: bool, quota: tuple[Reason, ...] | None) -> tuple[Reason, ...] | None:
        """The comparisons with its VC's quota by which the job may start alone; ``None`` if it may not."""
        if quota is None:
            quota = self.quota(queued)
        if quota and not quota[-1]:
            return () if in_turn else None
        return quota

    def _outside(self, level: int, awake: bool = False) -> Callable[[int], bool] | None:
        """A function that says which nodes a job of this level may use, with ``awake`` only those that do not sleep;
        ``None``: all nodes."""
        closed = self.fences.nodes[level] | self.ledger.asleep if awake else self.fences.nodes[level]
        return (lambda i: i not in closed) if closed else None

    def _place(self, job: Job, level: int, awake: bool = False) -> Placement | None:
        """Free GPUs for a job on the nodes that its level may use; if possible, on none for which a job of another VC
        waits that stays in its partition."""
        allowed, emptiest = self._outside(level, awake), self.settings.remainder_on_emptiest
        others = frozenset[int]().union(*[nodes for vc, nodes in self._stay if vc != job.vc])
        place = others and consolidated(
            self.ledger, job, lambda i: i not in others and (allowed is None or allowed(i)), emptiest
        )
        return place or consolidated(self.ledger, job, allowed, emptiest)

    def quota(self, queued: QueuedJob) -> tuple[Reason, ...]:
        """In a pool, the comparisons that decide whether the job's VC may start it alone: it may if the last one
        holds."""
        return () if self.quotas is None else self.quotas.tests(queued.entry.job, queued.prediction.duration_s)

    def no_room(self, queued: QueuedJob, quota: tuple[Reason, ...] | None = None) -> tuple[Reason, ...]:
        """Why a job does not start alone: its VC's quota, or no place. ``quota`` as in ``alone``."""
        if quota is None:
            quota = self.quota(queued)
        return quota if quota and not quota[-1] else (*quota, *no_place(self.ledger, queued.entry))

    def beside(self, queued: QueuedJob, found: Running, why: tuple[Reason, ...]) -> None:
        """Start the job on the GPUs of a running one."""
        job, mps = queued.entry.job, self.settings.packing.mps
        by = () if mps is None else (SharedBy(found.job.id, found.job.user == job.user, mps),)
        speeds = self.binder.speeds(queued.entry, found)
        reasons = (_priority(queued), *why, *by)
        self.ledger.claim(job, found.placement)
        self.settle(queued.entry, Start(found.placement, reasons, found.job.id, slots=True, speeds=speeds), (found,))

    def partner(
        self, queued: QueuedJob, level: int, gss: int, floor: float | None = None, waits: bool = False
    ) -> tuple[Running | None, tuple[Reason, ...]]:
        """The running job to start beside, with the comparisons that chose it; or ``None`` with those that ruled all
        out."""
        score = queued.prediction.share_score
        bar = self.binder.bars(queued.entry, score, gss)
        if bar is not None:
            return None, (bar,)
        assert score is not None
        return self.binder.partner(queued.entry, queued.value, score, gss, self.fences.names[level], floor, waits)

    def partner_to_wait_no_more(self, queued: QueuedJob, level: int) -> tuple[Running | None, tuple[Reason, ...]]:
        """A partner under the full sharing capacity for a job that would wait otherwise, at the lower speed where one
        is set for such jobs."""
        packing = self.settings.packing
        lower = packing.waiting_pair_speed if self.yields else None
        return self.partner(queued, level, packing.gss, lower, lower is not None)

    @property
    def yields(self) -> bool:
        """Whether a job that would otherwise wait takes a slower partner. Not where VCs lend: the GPUs of all of them
        come free sooner than a slow pair makes up for (record 0023)."""
        lower = self.settings.packing.waiting_pair_speed
        if lower is None or (self.quotas is not None and self.quotas.borrows):
            return False
        return lower < self.settings.packing.least_pair_speed

    def in_order(self, queued: QueuedJob, level: int) -> Hold | None:
        """Start a job of the queue, or return why it waits. It starts beside another, else alone, else beside another
        on the terms for jobs that would wait. In a calm VC only a pair that slows neither goes before GPUs of its
        own."""
        fair: tuple[Reason, ...] = () if queued.fair is None else (queued.fair,)
        packing = self.settings.packing
        borrows = queued.entry.job.borrows
        if self.quotas is not None and not (self.quotas.borrows and borrows):
            within = self.quotas.within(queued.entry.job, queued.prediction.duration_s)
            # a guest that outlasts its host holds GPUs of the quota, too, and in its own partition Slurm counts it
            if not within and (within.kept or not borrows):
                return Hold((*fair, within))
        calm = self._calm_for(queued)
        found, why = self.partner(queued, level, packing.gss, _HARMLESS if calm else None)
        if found is not None:
            self.beside(queued, found, (*fair, *why))
            return None
        if calm and self.quotas is not None and self.quotas.lends_later(queued.entry.job):
            return Hold((*fair, *why, *self.no_room(queued)))
        asleep = bool(self.ledger.asleep)
        if self.alone(queued, level, (*fair, *calm, *why), awake=True):
            return None
        # no sharing, or only fast pairs: not for a job that would wait for it
        if self.binder.too_slow and (calm or self.yields or asleep):
            found, why = self.partner_to_wait_no_more(queued, level)
            if found is not None:
                self.beside(queued, found, (*fair, *why))
                return None
        if asleep and self.alone(queued, level, (*fair, *why)):
            return None
        if self.claim(queued, level, (*fair, *why)):
            return None
        fenced: tuple[Reason, ...] = (self.fences.why(level),) if level else ()
        return Hold((*fair, *fenced, *why, *self.no_room(queued)))

    def _calm_for(self, queued: QueuedJob) -> tuple[Reason, ...]:
        """The comparison by which the job shares only if it would wait otherwise; empty where that does not hold."""
        if not depends_on_calm(self.settings.packing):
            return ()
        calm = calm_for(self._calm, queued.entry.job.vc, queued.prediction.duration_s, self.now_s)
        return (calm,) if calm else ()


def _within(quota: tuple[Reason, ...]) -> bool:
    """Whether the job stays within its VC's quota, as the first of the comparisons says."""
    return bool(quota) and bool(quota[0])


def _priority(queued: QueuedJob) -> Priority:
    found, job = queued.prediction, queued.entry.job
    made = "estimate x GPUs", queued.value, found.duration_s, job.gpus, found.duration_source
    return Priority(*made, job.tier, job.nice)
