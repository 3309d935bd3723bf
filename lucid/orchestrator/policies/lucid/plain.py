"""Lucid where estimates do not rank jobs: plain order with pairs, or order by waited / estimate.

An order by estimates that do not rank is no better than any other for short jobs, and worse for large ones: nodes
come free for them by estimates alone. So every job starts alone as ``backfill`` starts it, and a job that then waits
may join a running one on the usual terms.

By estimate x GPUs the smaller jobs take what comes free, and nodes are kept for one large job at a time; where nearly
all waiting jobs are large, all but one of them wait for chance. Such a queue goes by (waited / estimate)^3 x GPUs,
over plain Slurm's backfilling (``wait_order``, docs/decisions/0065)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from lucid.core.decision import Start
from lucid.core.job import Pending
from lucid.core.reason import Reason
from lucid.core.reasons.queue import Unranked, WaitOrder
from lucid.core.snapshot import Partition, Snapshot
from lucid.orchestrator.capacity.reservations import OLDEST_AFTER_S
from lucid.orchestrator.order.queue_order import QueuedJob, fair_share_of, in_precedence
from lucid.orchestrator.order.starvation_bound import Turn
from lucid.orchestrator.policies.backfill import BackfillPolicy
from lucid.orchestrator.policies.lucid.start import Starts
from lucid.orchestrator.policies.waiting import Shapes, WaitingJob

if TYPE_CHECKING:
    from lucid.config.policy import PolicySettings


_NEVER = Unranked("", 0, 0.0, 1.0)
"""The comparison where the settings say that estimates are not used."""

_ALL_BUT_RIGHT = 0.8
"""The gain (``Unranked.gain``) from which on estimates order better than waits do: true durations have 1."""


def ranked(
    partition: Partition, snapshot: Snapshot, settings: PolicySettings, per_node: int
) -> tuple[Unranked | None, bool]:
    """The comparison by which jobs go in plain order, or ``None``; and if ``None``, whether they go by waited /
    estimate (``wait_order``). Neither in a pool that lends, for plain Slurm lends nothing. ``per_node``: the GPUs of
    the largest node; a job of more is large."""
    how = settings.fairness.estimates
    if partition.quotas or how == "always":
        return None, False
    if how == "never":
        return _NEVER, False
    ranks = snapshot.unranked(partition.name)
    if ranks is None or ranks:
        return ranks, False
    if ranks.gain >= _ALL_BUT_RIGHT or not settings.reservation.enabled:
        return None, False
    return None, mostly_large(partition.pending, per_node)


def mostly_large(pending: Sequence[Pending], least: int) -> bool:
    """Whether several jobs wait that need over ``least`` GPUs, and make up more than two of three. For a single one
    nodes are kept anyway."""
    large = sum([entry.job.gpus > least for entry in pending])
    return large > 1 and 3 * large > 2 * len(pending)


def serve_plain(
    starts: Starts,
    snapshot: Snapshot,
    plain: BackfillPolicy,
    because: tuple[Reason, ...],
    queue: Sequence[WaitingJob] | None = None,
) -> float | None:
    """Decide every pending job in plain order; returns when time alone may change this, s. The other arguments are
    those of ``plan_because``, which books the starts."""
    partition = starts.partition
    if queue is None:
        queue = plain.queue(partition, snapshot, because)
    made = plain.plan_because(partition, snapshot, because, queue, starts.ledger)
    held = dict(made.decisions)
    claims = any(isinstance(action.decision, Start) and action.decision.preempts for action in made.actions)
    entries = {row.id: row.entry for row in queue} if made.actions else {}
    for action in made.actions:
        entry, start = entries[action.job_id], held.pop(action.job_id)
        assert isinstance(start, Start)
        if start.preempts:
            starts.act(entry.job.id, start)
            continue
        score = starts.predictions[entry.job.id].share_score
        slots = starts.binder.in_slots(entry, score, len(start.placement))
        starts.settle(entry, replace(start, reasons=(*start.reasons, slots), slots=bool(slots)))
    starts.decisions |= held
    if claims:  # GPUs of jobs that are preempted now are nobody's to join
        return made.wake_s
    for row in queue:
        # why a job has no partner is not told here
        if row.entry.profile is not None and row.id in held and starts.binder.offered_to(row.entry.job):
            queued = QueuedJob(row.entry, starts.predictions[row.id])
            beside, terms = starts.partner_to_wait_no_more(queued, 0)
            if beside is not None:
                starts.beside(queued, beside, (*because, *terms))
    return made.wake_s


DEPTH = 10
"""For how many jobs that cannot start GPUs are kept, by time limits. With a hundred, smaller jobs wait for longer."""

_POWER = 3
_LEAST_S = 60.0
"""The least estimate that counts: the first seconds of a wait say nothing."""


class WaitQueue:
    """The queue of one partition by waited / estimate. The reasons that it keeps from plan to plan save work."""

    def __init__(self, share_bound: float) -> None:
        self._share_bound = share_bound
        self._shapes = Shapes()
        self._rows: dict[str, WaitingJob] = {}

    def waiting_jobs(
        self,
        partition: Partition,
        snapshot: Snapshot,
        due: Mapping[str, Turn],
        least: int,
    ) -> list[WaitingJob]:
        """The waiting jobs in order: first jobs whose turn has come (``due``), in its order; then jobs that have
        waited for ``OLDEST_AFTER_S``, the oldest first; then the greatest value first. Equals go in order of
        submission. ``least``: jobs of more GPUs are large.

        Raises: KeyError: a job has no prediction."""
        rows: dict[str, WaitingJob] = {}
        keyed: list[tuple[float, float, int, WaitingJob]] = []
        for entry in partition.pending:
            job, found = entry.job, snapshot.predictions[entry.job.id]
            turn = due.get(job.id)
            order: Reason = (
                WaitOrder(least, found.duration_s, job.gpus, found.duration_source, OLDEST_AFTER_S)
                if turn is None
                else turn.why
            )
            row = self._rows.get(job.id)
            if row is None or row.entry is not entry or row.order != order:
                row = WaitingJob(entry, order, self._shapes.shape_of(job))
            rows[job.id] = row
            fair = fair_share_of(job, snapshot.fair_share, self._share_bound)
            waited_s = max(snapshot.now_s - job.submit_s, 0.0)
            times = waited_s / max(found.duration_s, _LEAST_S)
            value = times**_POWER * job.gpus / (1.0 if fair is None else fair.times)
            if waited_s >= OLDEST_AFTER_S:
                value = math.inf
            if turn is None:
                keyed.append((-value, job.submit_s, job.rank, row))
        self._rows = rows
        keyed.sort(key=lambda item: item[:3])
        line = [item[3] for item in keyed]
        return [*(rows[job_id] for job_id in due), *in_precedence(line, [row.entry.job for row in line])]
