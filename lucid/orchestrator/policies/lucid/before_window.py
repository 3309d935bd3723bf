"""Jobs that are started before a window although their time limit reaches into it, to be requeued just before.

Nodes that close soon stand empty: hardly a time limit is short enough. A job whose user asked that it may be started
over need not wait for that. If it ends by then, as most do long before their limit, the GPUs did its work; if not,
it goes back to the queue, with its work where it writes checkpoints.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

from lucid.core.decision import Hold, Start
from lucid.core.job import Job
from lucid.core.reason import FreeGpus, StartsUntil
from lucid.core.restart import may_restart
from lucid.core.rounding import reached
from lucid.orchestrator.capacity.placement import consolidated
from lucid.orchestrator.order.queue_order import QueueRow
from lucid.orchestrator.policies.lucid.start_job import Starts

__all__ = ["serve_until"]


def serve_until(starts: Starts, queue: Iterable[QueueRow]) -> None:
    """Give GPUs that no job has, on nodes that close, to the jobs of the queue that may be started over, in order.
    Not in a pool, whose GPUs are given out by quotas."""
    settings, ledger = starts.settings.before_windows, starts.ledger
    if not settings.fill or not ledger.closing or not ledger.free or starts.quotas is not None:
        return
    restarts = starts.settings.profiling.restarts
    closes_s = sorted(
        {node.closes_s(starts.now_s) for i, node in enumerate(ledger.nodes) if ledger.free_count[i]} - {math.inf},
        reverse=True,
    )
    full: set[tuple[float, ...]] = set()
    """Of which sizes no more find room, and until when: a plan only uses room up."""
    for _, _, _, duration_s, job_id, entry, _ in queue:
        if not ledger.free:
            return
        job = entry.job
        if not isinstance(starts.decisions.get(job_id), Hold) or not (
            may_restart(job, "asked") and may_restart(job, restarts)
        ):
            continue
        for at_s in closes_s:
            until_s = at_s - settings.margin_s
            keeps = job.elastic is not None
            room_s, needed_s = until_s - starts.now_s, settings.least_s
            if not keeps:
                needed_s = max(needed_s, settings.sure * duration_s)
            if job.time_limit_s is not None and reached(room_s, job.time_limit_s):
                continue  # it ends by its limit, and something else is in its way
            why = StartsUntil(until_s, room_s, needed_s, keeps)
            size = (at_s, job.gpus, job.min_nodes, job.cpus, job.mem_mib)
            if not why or size in full:
                continue
            if _start(starts, job, why):
                break
            full.add(size)


def _start(starts: Starts, job: Job, why: StartsUntil) -> bool:
    ledger = starts.ledger
    nodes = starts.fences.nodes[starts.fences.level(why.room_s)]  # it is gone by then
    short = replace(job, time_limit_s=why.room_s)  # as Slurm is told, or it would not start the job
    placement = consolidated(ledger, short, lambda i: i not in nodes)
    if placement is None:
        return False
    free = FreeGpus(job.gpus, ledger.largest, ledger.free, True)
    ledger.take(job, placement)
    starts.act(job.id, Start(placement, (why, free), until_s=why.until_s))
    return True
