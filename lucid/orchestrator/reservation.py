"""For which large job nodes are kept, because it would starve behind small ones.

The rule is that of EASY backfilling: one reservation at a time, for the job that has waited longest; the nodes
are those expected to drain soonest; another job may start on them only if it is expected to be gone by then.
Estimates of single jobs are poor, so a job is held to ``safety`` times its estimate, and once the holder has
waited long enough nothing at all starts on its nodes any more: the wait is then bounded by what already runs.
Large jobs that come without end would so have everything to themselves; ``large_share`` is what stops that.
"""

from __future__ import annotations

from lucid.config import ReservationSettings
from lucid.core.job import Pending
from lucid.core.reason import LargeShare
from lucid.core.snapshot import Partition
from lucid.orchestrator.placement import Feasibility

__all__ = ["LOOK_AGAIN_S", "large_share", "next_holder"]

LOOK_AGAIN_S = 60.0
"""While nodes are kept for a large job, its plan is made anew after so long: time alone moves what is expected of
these nodes (docs/decisions/0005)."""


def next_holder(
    partition: Partition, gpus_per_node: int, now_s: float, settings: ReservationSettings
) -> tuple[Pending | None, float | None]:
    """The large job that has waited longest, once past the bound; else ``None`` and the time at which the
    next one will be."""
    if not settings.enabled:
        return None, None
    above = _above(gpus_per_node, settings)
    feasible = Feasibility(partition, up_only=True)  # nodes kept for a job that cannot come would stand idle
    large = [e for e in partition.pending if e.job.gpus > above and feasible.bar(e.job) is None]
    if not large:
        return None, None
    oldest = min(large, key=lambda e: (e.job.submit_s, e.job.rank))
    due_s = oldest.job.submit_s + settings.after_wait_s
    return (oldest, None) if now_s >= due_s else (None, due_s)


def _above(gpus_per_node: int, settings: ReservationSettings) -> int:
    """A job of more GPUs than this is large."""
    return gpus_per_node if settings.above_gpus is None else settings.above_gpus


def large_share(
    holder: Pending, partition: Partition, gpus_per_node: int, now_s: float, settings: ReservationSettings
) -> tuple[LargeShare | None, float | None]:
    """The comparison that keeps large jobs to their share of the GPUs that are up while a smaller job waits, made
    with the smaller job that has waited longest, and when it will fail by itself; ``None`` where there is nothing
    to compare, because no job as large runs, they would stay within their share, or no smaller one waits."""
    above = _above(gpus_per_node, settings)
    held = sum(entry.gpus for entry in partition.running if entry.job.gpus > above)
    total = sum(node.gpus for node in partition.nodes if node.available)
    if not held or held + holder.job.gpus <= settings.most_share * total or settings.most_share >= 1:
        return None, None  # before the queue is looked through
    feasible = Feasibility(partition, up_only=True)  # a job that can never start is helped by nobody's waiting
    smaller = [e for e in partition.pending if e.job.gpus <= above and feasible.bar(e.job) is None]
    if not smaller:
        return None, None
    first = min(smaller, key=lambda e: (e.job.submit_s, e.job.rank))
    since_s, holder_since_s = first.job.submit_s, holder.job.submit_s
    found = LargeShare(
        holder.job.gpus, held, total, settings.most_share, first.job.id, now_s - since_s, now_s - holder_since_s
    )
    return found, 2 * since_s - holder_since_s if found else None  # then it has waited half as long
