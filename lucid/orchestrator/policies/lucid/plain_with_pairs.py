"""Lucid's own policy over plain Slurm's backfilling, where estimates do not rank jobs, and where most who wait are
large (``wait_order``): the plan of plain Slurm, and pairs for those who would wait.

An order by such estimates is no better than any other for short jobs, and worse for large ones: nodes come free
for them by estimates alone. So every job starts as ``backfill`` starts it, alone. Who then waits may join a running
job on the usual terms.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from lucid.core.decision import Start
from lucid.core.job import Pending
from lucid.core.reason import Reason, Unranked
from lucid.core.snapshot import Partition, Snapshot
from lucid.orchestrator.capacity.large_jobs import above
from lucid.orchestrator.order.queue_order import QueuedJob
from lucid.orchestrator.policies.backfill import BackfillPolicy
from lucid.orchestrator.policies.lucid.start_job import Starts
from lucid.orchestrator.policies.plain_queue import WaitingJob

if TYPE_CHECKING:
    from lucid.config import PolicySettings

__all__ = ["large_above", "mostly_large", "ranked", "serve_plain"]

_NEVER = Unranked("", 0, 0.0, 1.0)
"""The settings say so."""

_ALL_BUT_RIGHT = 0.8
"""From this gain on (``Unranked.gain``) estimates order better than waits do: true durations have 1."""


def ranked(partition: Partition, snapshot: Snapshot, settings: PolicySettings) -> tuple[Unranked | None, bool]:
    """The comparison by which the jobs that wait go in plain order, ``None`` where they do not; and where they do
    not, do they go by waited / estimate (``wait_order``)? Neither in a pool that lends: plain Slurm lends nothing."""
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
    return None, mostly_large(partition.pending, large_above(partition, settings))


def large_above(partition: Partition, settings: PolicySettings) -> int:
    """A job of more GPUs than this is large."""
    return above(max((node.gpus for node in partition.nodes), default=0), settings.reservation)


def mostly_large(pending: Sequence[Pending], least: int) -> bool:
    """Do several jobs wait that need over ``least`` GPUs, and are they more than two of three? For one alone nodes
    are kept anyway."""
    large = sum(entry.job.gpus > least for entry in pending)
    return large > 1 and 3 * large > 2 * len(pending)


def serve_plain(
    starts: Starts,
    snapshot: Snapshot,
    plain: BackfillPolicy,
    because: tuple[Reason, ...],
    queue: Sequence[WaitingJob] | None = None,
) -> float | None:
    """Decide every pending job; when time alone may change this, s. The rest is as for ``plan_because``, which books
    whom it starts."""
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
        starts.binder.started(entry, start.placement)
        starts.act(entry.job.id, replace(start, reasons=(*start.reasons, slots), slots=bool(slots)))
    starts.decisions |= held
    if claims:  # GPUs of jobs that are preempted now are nobody's to join
        return made.wake_s
    for row in queue:
        # why a job has no partner is not told here
        if row.entry.profile is None or row.id not in held:
            continue
        queued = QueuedJob(row.entry, starts.predictions[row.id])
        if starts.binder.offered_to(row.entry.job):
            beside, terms = starts.partner_to_wait_no_more(queued, 0)
            if beside is not None:
                starts.beside(queued, beside, (*because, *terms))
    return made.wake_s
