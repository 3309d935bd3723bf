"""The policy ``backfill``, plain Slurm: jobs in order of priority on whole GPUs, backfilled by time limits.

This is what a cluster does without Lucid, as far as a snapshot shows: the multifactor priority plugin's order, starts
from the front (sched/builtin), and behind the first job that does not fit sched/backfill, which lets a job go before
others if by everybody's time limits none of them starts later for it."""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING

from lucid.core.decision import Action, Decision, Hold, PartitionPlan, Start, earliest
from lucid.core.job import Job, Pending, Running
from lucid.core.ledger import Ledger, Ledgers
from lucid.core.placement import Placement
from lucid.core.prediction import Prediction
from lucid.core.reason import Reason
from lucid.core.reasons.queue import Backfill, FreeGpus, SlurmPriority
from lucid.core.snapshot import Partition, Snapshot
from lucid.core.times import ROUNDING, past
from lucid.orchestrator.capacity.placement import Feasibility, consolidated, no_place, spread
from lucid.orchestrator.capacity.preemption import Claim, Yielding
from lucid.orchestrator.capacity.timeline import GOES_S, End, Slot, Timeline
from lucid.orchestrator.order.queue_order import in_precedence
from lucid.orchestrator.order.quotas import Quotas
from lucid.orchestrator.policies.waiting import SUBMITTED, PlainQueue, Shape, Shapes, WaitingJob, in_submission
from lucid.orchestrator.policy import PartitionPolicy, PolicyRules

if TYPE_CHECKING:
    from lucid.config.policy import BackfillSettings


CALC_PERIOD_S = 300.0
"""PriorityCalcPeriod: how often priorities are worked out."""
_UNLIMITED_S = 365 * 86400.0
"""The limit that Slurm's backfill assumes for a job without any time limit."""


def limits_s(jobs: Iterable[Job], predictions: Mapping[str, Prediction], settings: BackfillSettings) -> list[float]:
    """Seconds for which each job may hold its GPUs: its time limit; without one, so many times its estimate (users
    ask for more than they need); without an estimate, a year."""
    factor, least = settings.limit_factor, settings.least_limit_s
    return [  # without a call for each: a plan asks for hundreds of jobs
        job.time_limit_s
        if job.time_limit_s is not None
        else _UNLIMITED_S
        if job.id not in predictions
        else made
        if (made := predictions[job.id].duration_s * factor) > least
        else least
        for job in jobs
    ]


class BackfillPolicy(PartitionPolicy):
    """Conservative backfilling: of the jobs that cannot start, the first ``depth`` in order have GPUs kept for them
    from the time when limits say that these come free. With ``depth`` 1 it is EASY backfilling. Jobs from the front
    preempt those that give way to them; jobs behind one that cannot start do not."""

    name = "backfill"
    rules = PolicyRules(claims=True, quotas=True, reads_trust=False)

    def __init__(self, settings: BackfillSettings) -> None:
        super().__init__()
        self._settings = settings
        self._weighs = bool(settings.weight_age or settings.weight_size or settings.weight_fair_share)
        self._queues: defaultdict[str, PlainQueue] = defaultdict(PlainQueue)
        self._ledgers = Ledgers()

    def depends_on(self, partition: Partition, snapshot: Snapshot) -> tuple[object, ...]:
        """The fair-share factors, where they have a weight."""
        return (snapshot.fair_share,) if self._settings.weight_fair_share and partition.pending else ()

    def plan_partition(self, partition: Partition, snapshot: Snapshot) -> PartitionPlan:
        """Start jobs from the front; behind the first that does not fit, jobs that delay no other."""
        return self.plan_because(partition, snapshot, ())

    def plan_because(
        self,
        partition: Partition,
        snapshot: Snapshot,
        because: tuple[Reason, ...],
        queue: Sequence[WaitingJob] | None = None,
        ledger: Ledger | None = None,
    ) -> PartitionPlan:
        """The plan, as ``plan_partition`` makes it. ``because``: why jobs go in plain order, the first reason of each
        decision. ``queue``: the jobs in another order. ``ledger``: what is free, in which the starts are booked; by
        default what the partition shows."""
        if not partition.pending:
            return PartitionPlan({})
        queue = self.queue(partition, snapshot, because) if queue is None else queue
        ledger = self._ledgers.ledger_of(partition, snapshot.now_s) if ledger is None else ledger
        plan = _Plan(partition, snapshot, self._settings, queue, ledger, because)
        plan.start()
        plan.hold()
        return plan.made(self._changes_s(partition, snapshot.now_s))

    def starts(self, partition: Partition, snapshot: Snapshot, most: int | None = None) -> Sequence[Action]:
        """The starts of ``plan_partition``, in order, without the decisions on the others. ``most``: how many jobs of
        the queue to try."""
        if self._weighs:
            queue = self._by_priority(partition, snapshot)[:most]
        else:
            queue = in_submission(partition.pending, most)
        ledger = Ledger(partition, snapshot.now_s)
        plan = _Plan(partition, snapshot, self._settings, queue, ledger, tells=False)
        plan.start()
        return plan.actions

    def _changes_s(self, partition: Partition, now_s: float) -> float | None:
        """When priorities are next computed; ``None`` where no job runs, for then waiting jobs wait for a node, in
        any order."""
        if not self._weighs or not partition.running:
            return None
        return (math.floor(now_s / CALC_PERIOD_S) + 1) * CALC_PERIOD_S

    def queue(self, partition: Partition, snapshot: Snapshot, because: tuple[Reason, ...]) -> Sequence[WaitingJob]:
        """The queue: highest priority first; equals, and all jobs where nothing has a weight, in order of
        submission."""
        if self._weighs:
            return self._by_priority(partition, snapshot)
        return self._queues[partition.name].waiting_jobs(partition, because)

    def _by_priority(self, partition: Partition, snapshot: Snapshot) -> list[WaitingJob]:
        shapes = Shapes()
        at_s, gpus = math.floor(snapshot.now_s / CALC_PERIOD_S) * CALC_PERIOD_S, max(partition.gpus, 1)
        keyed = [
            (self._priority(entry, at_s, gpus, snapshot.fair_share), entry)
            for entry in sorted(partition.pending, key=SUBMITTED)
        ]
        keyed.sort(key=lambda item: -item[0].value)
        rows = [WaitingJob(entry, order, shapes.shape_of(entry.job)) for order, entry in keyed]
        return in_precedence(rows, [row.entry.job for row in rows])

    def _priority(
        self, entry: Pending, at_s: float, gpus: int, fair_share: Mapping[tuple[str, str], float]
    ) -> SlurmPriority:
        """Slurm's sum of factors from 0 to 1, each times its weight; an unknown fair-share counts as 1/2."""
        settings, job = self._settings, entry.job
        age = min(max(at_s - job.submit_s, 0.0) / settings.max_age_s, 1.0)
        size = job.gpus / gpus
        value, fair = settings.weight_age * age + settings.weight_size * size, None
        if settings.weight_fair_share:
            fair = fair_share.get((job.account, job.user))
            value += settings.weight_fair_share * (0.5 if fair is None else fair)
        return SlurmPriority(value, age, size, fair)


class _Plan:
    """One plan of one partition in the making.

    A job that cannot start has GPUs kept for it only when a later job could start otherwise: most plans start nobody
    behind the first job that does not fit, so the time when its GPUs would come free is not needed. ``_owed`` are the
    jobs for which no GPUs are kept yet, in order."""

    def __init__(
        self,
        partition: Partition,
        snapshot: Snapshot,
        settings: BackfillSettings,
        queue: Sequence[WaitingJob],
        ledger: Ledger,
        because: tuple[Reason, ...] = (),
        tells: bool = True,
    ) -> None:
        """``because``: the first reason of each decision. ``tells``: give the reasons why jobs wait."""
        self._tells = tells
        self._because = because
        self._partition = partition
        self._now_s = snapshot.now_s
        self._predictions = snapshot.predictions
        self._settings = settings
        self._queue = queue
        self._ledger = ledger
        self._yielding = Yielding(partition, self._ledger, snapshot.now_s)
        self._quotas = Quotas(partition) if partition.quotas else None
        self._feasible = Feasibility(partition)
        self._hopeless: dict[Shape, Hold | None] = {}
        """What keeps jobs of each shape from ever starting here."""
        self._ends: list[End] | None = None
        self._started: list[tuple[Job, Placement]] = []
        self._decided = 0
        """How many jobs of the queue are decided."""
        self._timeline: Timeline | None = None
        self._owed: deque[tuple[WaitingJob, float]] = deque()
        self._ever: dict[Shape, bool] = {}
        """Whether a job of each shape will find room once all others are gone; no decision of a plan changes that."""
        self._until_s: dict[Shape, tuple[int, float]] = {}
        """By shape: until when there is room for a job that starts now, and how many slots were taken at that time.
        There is ever less room, so an old answer errs on one side only."""
        self._not_before_s: dict[Shape, tuple[float, float]] = {}
        """By shape: the limit and the start of the last job for which GPUs were kept. There is ever less room, so a
        job with no lower limit cannot start earlier."""
        self._taken = 0
        self._reserved = 0
        self._decisions: dict[str, Decision] = {}
        self.actions: list[Action] = []

    def _limit(self, job: Job) -> float:
        return limits_s((job,), self._predictions, self._settings)[0]

    def start(self) -> None:
        """Decide jobs in order, up to the first behind which no job is small enough for what is free."""
        queue, ledger = self._queue, self._ledger
        until, largest, started = len(queue), 0, -1
        for at, row in enumerate(queue):
            if started != len(self.actions):
                started, largest = len(self.actions), ledger.largest
                if largest < ledger.gpus_per_node:
                    until = _small_until(queue, largest, at, until)
            if at >= until and (self._timeline is not None or not self._yielding):
                return
            self._decided += 1
            barred = self._barred_shape(row) or (None if self._quotas is None else self._barred_by_quota(row))
            if barred is not None:
                self._decisions[row.id] = barred
            elif self._timeline is None:
                self._from_the_front(row)
            else:
                self._behind(self._timeline, row)

    def hold(self) -> None:
        """Let the jobs that are left wait; those of one shape have the same reasons."""
        decisions, quotas, closing = self._decisions, self._quotas, self._ledger.closing
        keeps: dict[Shape | tuple[Shape, float | None], Hold | tuple[Reason, ...]] = {}
        for row in self._queue[self._decided :]:
            shape = (row.shape, row.entry.job.time_limit_s) if closing else row.shape
            why = keeps.get(shape)
            if why is None:
                why = keeps[shape] = self._barred_shape(row) or self._keeps(row)
            if isinstance(why, Hold):
                decisions[row.id] = why
                continue
            if quotas is not None and (barred := self._barred_by_quota(row)) is not None:
                decisions[row.id] = barred
                continue
            if row.reported is not why:  # most jobs wait for what they waited for in the plan before
                row.reported, row.hold = why, self._hold(row, *why)
            decisions[row.id] = row.hold

    def _hold(self, row: WaitingJob, *why: Reason) -> Hold:
        return Hold((*self._because, row.order, *why))

    def _keeps(self, row: WaitingJob) -> tuple[Reason, ...]:
        """Why there is no place for jobs of this shape: the same object as in the previous plan if it is equal."""
        found = no_place(self._ledger, row.entry)
        if found != row.shape.keeps:
            row.shape.keeps = found
        return row.shape.keeps

    def _barred_shape(self, row: WaitingJob) -> Hold | None:
        try:
            return self._hopeless[row.shape]
        except KeyError:
            bar = self._feasible.bar(row.entry.job)
            found = self._hopeless[row.shape] = None if bar is None else Hold((bar,))
            return found

    def _barred_by_quota(self, row: WaitingJob) -> Hold | None:
        # Slurm keeps no GPUs for a job that a limit of its association stops
        assert self._quotas is not None
        tests = self._quotas.tests(row.entry.job)
        return None if all(tests) else self._hold(row, *tests)

    def made(self, changes_s: float | None) -> PartitionPlan:
        """The plan. ``changes_s``: when time alone may change the order, s."""
        # a job that outlives its made-up limit changes what the others wait for; one that gives way goes when it is
        # preempted, not by itself
        going = {entry.job.id for entry in self._partition.running if entry.yields and entry.yields.to_all}
        ends = self._running_until()
        ends_s = [end_s for end_s, job, _ in ends if job.id not in going] if going else [*map(_END_S, ends)]
        wake_s = earliest(changes_s, min(ends_s, default=None), self._yielding.changes_s)
        return PartitionPlan(self._decisions, tuple(self.actions), wake_s)

    def _running_until(self) -> list[End]:
        """When the jobs that hold GPUs by now are to end."""
        now_s, running = self._now_s, self._partition.running
        if self._ends is None:
            limits = limits_s([entry.job for entry in running], self._predictions, self._settings)
            self._ends = [
                (self._until(entry, limit), entry.job, entry.placement)
                for entry, limit in zip(running, limits, strict=True)
            ]
        started = [(now_s + max(self._limit(job), 1.0), job, placement) for job, placement in self._started]
        return [*self._ends, *started]

    def _until(self, entry: Running, limit: float) -> float:
        """When the job ends by its limit. A job that gives way to the partition's jobs counts as gone as soon as it
        may be preempted. One that has outlived its limit (a made-up one: Slurm ends jobs at theirs) counts as having
        twice the limit, and so on."""
        if entry.yields is not None and entry.yields.to_all:
            return max(entry.yields.from_s, self._now_s + GOES_S)
        limit = max(limit, 1.0)
        while not past(entry.start_s + limit, self._now_s):
            limit *= 2
        return entry.start_s + limit

    def _from_the_front(self, row: WaitingJob) -> None:
        job = row.entry.job
        placement = consolidated(self._ledger, job)
        if placement is not None:
            self._start(row, placement, ())
            return
        claim = self._yielding.find(job)
        if claim is not None:
            self._start(row, claim.placement, (), claim)
            return
        self._decisions[row.id] = self._hold(row, *no_place(self._ledger, row.entry))
        self._timeline = Timeline(self._ledger, self._now_s, self._running_until())
        self._owe(self._timeline, row, self._limit(job))

    def _behind(self, timeline: Timeline, row: WaitingJob) -> None:
        limit = self._limit(row.entry.job)
        while (fits := self._fits_now(timeline, row, limit)) and self._owed:
            self._keep(timeline, *self._owed.popleft())
        if not fits:
            if self._tells:
                told = self._reserved, limit
                if row.reported != told:
                    row.reported, row.hold = told, self._hold(row, Backfill(self._reserved, limit, False))
                self._decisions[row.id] = row.hold
            if self._reserved < self._settings.depth:
                self._owe(timeline, row, limit)
            return
        test = Backfill(self._reserved, limit, True)
        slot = self._keep(timeline, row, limit)
        self._start(row, tuple(self._ledger.lowest(i, here) for i, here in slot.parts), (test,))

    def _fits_now(self, timeline: Timeline, row: WaitingJob, limit: float) -> bool:
        """Whether there is room for the job from now on, beside the GPUs that are kept for others by now."""
        end_s = self._now_s + limit - ROUNDING
        taken, until_s = self._until_s.get(row.shape, _NEVER_ASKED)
        if end_s <= until_s and taken != self._taken:
            until_s = timeline.room_s(row.entry.job)
            self._until_s[row.shape] = (self._taken, until_s)
        return end_s <= until_s

    def _owe(self, timeline: Timeline, row: WaitingJob, limit: float) -> None:
        """Note that GPUs are to be kept for the job, unless it waits for a node that is down."""
        ever = self._ever.get(row.shape)
        if ever is None:
            ever = self._ever[row.shape] = timeline.ever(row.entry.job)
        if ever:
            self._owed.append((row, limit))
            self._reserved += 1
        elif self._ledger.closing:  # there may be room until a window begins: whether, only those before it say
            while self._owed:
                self._keep(timeline, *self._owed.popleft())
            slot = timeline.find(row.entry.job, limit)
            if slot is not None:
                self._book(timeline, row, limit, slot)
                self._reserved += 1

    def _keep(self, timeline: Timeline, row: WaitingJob, limit: float) -> Slot:
        """Keep GPUs for the job from the time when it can have them."""
        lower, start_s = self._not_before_s.get(row.shape, (math.inf, self._now_s))
        slot = timeline.find(row.entry.job, limit, from_s=start_s if limit >= lower else self._now_s)
        assert slot is not None
        self._book(timeline, row, limit, slot)
        return slot

    def _book(self, timeline: Timeline, row: WaitingJob, limit: float, slot: Slot) -> None:
        self._not_before_s[row.shape] = (limit, slot.start_s)
        timeline.book(row.entry.job, slot, limit)
        self._taken += 1

    def _start(
        self, row: WaitingJob, placement: Placement, why: tuple[Reason, ...], claim: Claim | None = None
    ) -> None:
        job, because = row.entry.job, (*self._because, row.order, *why)
        free = FreeGpus(job.gpus, self._ledger.largest, self._ledger.free, claim is None)
        if claim is None:
            reasons = (*because, free, *spread(self._ledger, placement))
            start = Start(placement, reasons, within_quota=self._quotas is not None)
            self._ledger.claim(job, placement)
        else:
            start = claim.start((*because, free), within_quota=self._quotas is not None)
            self._yielding.claim(job, claim)
        self._started.append((job, placement))
        if self._quotas is not None:
            self._quotas.claim(job)
        self._decisions[job.id] = start
        self.actions.append(Action(job.id, self._partition.name, start))


def _small_until(queue: Sequence[WaitingJob], largest: int, first: int, until: int) -> int:
    """Up to where the queue has to be searched: all jobs behind need more GPUs than any node has free, and no
    decision of a plan frees any."""
    while until > first and queue[until - 1].gpus > largest:
        until -= 1
    return until


_NEVER_ASKED = (-1, math.inf)
_END_S: Callable[[End], float] = itemgetter(0)
