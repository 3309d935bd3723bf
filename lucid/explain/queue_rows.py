"""The waiting jobs as rows: the same for ``lucidctl queue`` and for the pages."""

from __future__ import annotations

from typing import Any

from lucid.core.decision import DecisionRow
from lucid.core.frozen import dataclass
from lucid.core.job import Pending
from lucid.explain.reasons import decision_text, reason_text
from lucid.explain.story import row_to_dict
from lucid.live.plans.stored_plan import StoredPlan
from lucid.live.plans.stored_starts import StartsAhead

__all__ = ["QueueRow", "line_of", "queue_row_to_dict", "queue_rows", "why_words"]


@dataclass(frozen=True, slots=True)
class QueueRow:
    """One waiting job. ``position``: its place in the order in which the policy served the partition's jobs, from 1;
    ``None`` where it starts, or moves on, elsewhere. ``starts_in_s``: seconds until its next start: early, likely and
    late (``expected_start``); ``None`` where no start is foreseen."""

    partition: str
    position: int | None
    entry: Pending
    decision: DecisionRow | None
    starts_in_s: tuple[int, int, int] | None


def queue_rows(last: StoredPlan, starts: StartsAhead) -> list[QueueRow]:
    """All waiting jobs, by partition, each in the plan's order; jobs that leave the partition's queue come first."""
    rows: list[QueueRow] = []
    for name, partition in last.snapshot.partitions.items():
        part = last.plan.partitions.get(name)
        positions = {} if part is None else part.positions
        for entry in sorted(partition.pending, key=lambda e: positions.get(e.job.id, 0)):
            job_id = entry.job.id
            starts_in_s = starts.starts_in_s[job_id]
            rows.append(QueueRow(name, positions.get(job_id), entry, last.row(job_id), starts_in_s))
    return rows


def queue_row_to_dict(row: QueueRow, last: StoredPlan) -> dict[str, Any]:
    """JSON form."""
    job = row.entry.job
    said = last.snapshot.predictions.get(job.id)
    return {
        "partition": row.partition,
        "vc": job.vc,
        "position": row.position,
        "job": job.id,
        "user": job.user,
        "gpus": job.gpus,
        "waited_s": round(last.snapshot.now_s - row.entry.since_s, 1),
        "estimate_s": None if said is None else round(said.duration_s, 1),
        "estimate_by": "" if said is None else said.duration_source,
        "starts_in_s": row.starts_in_s,
        "decision": None if row.decision is None else row_to_dict(row.decision),
    }


def line_of(row: QueueRow, last: StoredPlan) -> str:
    """The name of the job's queue: its partition. All VCs of a pool have one queue, so there it is the job's VC."""
    return row.entry.job.vc if last.snapshot.partitions[row.partition].quotas else row.partition


def why_words(decision: DecisionRow | None) -> str:
    """The decision on a waiting job, in words."""
    if decision is None:
        return "not decided yet"
    if decision.verb != "hold":
        return decision_text(decision)
    return "; ".join(reason_text(reason) for reason in decision.reasons)
