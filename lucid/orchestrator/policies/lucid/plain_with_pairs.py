"""Lucid's own policy where estimates do not rank jobs: the plan of plain Slurm, and pairs for those who would wait.

An order by such estimates is no better than any other for short jobs, and worse for large ones: nodes come free
for them by estimates alone. So every job starts as ``backfill`` starts it, alone. Who then waits may join a running
job on the usual terms.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from lucid.core.decision import Hold, Start
from lucid.core.reason import FairOrder, Reason, SlurmPriority, Unranked
from lucid.core.snapshot import Partition, Snapshot
from lucid.orchestrator.order.queue_order import QueuedJob
from lucid.orchestrator.policies.backfill import BackfillPolicy
from lucid.orchestrator.policies.lucid.start_job import Starts

if TYPE_CHECKING:
    from lucid.config import PolicySettings

__all__ = ["serve_plain", "unranked"]

_NEVER = Unranked("", 0, 0.0, 1.0)
"""The settings say so."""


def unranked(vc: str, snapshot: Snapshot, settings: PolicySettings) -> Unranked | None:
    """The comparison by which the jobs of a VC go in plain order; ``None`` where they go by estimates."""
    how = settings.fairness.estimates
    if how == "never":
        return _NEVER
    ranks = snapshot.unranked(vc) if how == "measured" else None
    return ranks or None


def serve_plain(starts: Starts, snapshot: Snapshot, plain: BackfillPolicy, why: Unranked) -> float | None:
    """Decide every pending job; when time alone may change this, s."""
    partition: Partition = starts.partition
    made = plain.plan_partition(partition, snapshot)
    entries = {entry.job.id: entry for entry in partition.pending}
    claims = False
    for job_id, decision in made.decisions.items():
        if not isinstance(decision, Start):
            continue
        entry, placement = entries[job_id], decision.placement
        reasons: tuple[Reason, ...] = (why, *decision.reasons)
        if decision.preempts:
            claims = True
            starts.act(job_id, replace(decision, reasons=reasons))
            continue
        starts.ledger.take(entry.job, placement)
        score = starts.predictions[job_id].share_score
        slots = starts.binder.in_slots(entry, score, len(placement))
        starts.binder.started(entry, placement)
        starts.act(job_id, Start(placement, (*reasons, slots), slots=bool(slots)))
    for job_id, decision in made.decisions.items():
        if not isinstance(decision, Hold):
            continue
        entry = entries[job_id]
        # GPUs of jobs that are preempted now are nobody's to join; why a job has no partner is not told here
        if not claims and entry.profile is not None and starts.binder.offered_to(entry.job):
            queued = QueuedJob(entry, starts.predictions[job_id])
            beside, terms = starts.partner_to_wait_no_more(queued, 0)
            if beside is not None:
                starts.beside(queued, beside, (why, *terms))
                continue
        ordered = isinstance(decision.reasons[0], FairOrder | SlurmPriority)  # others can never start here
        starts.decisions[job_id] = Hold((why, *decision.reasons)) if ordered else decision
    return made.wake_s
