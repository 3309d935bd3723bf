"""Where most jobs that wait need several nodes: who waits for longest for its estimate, and the larger, goes first.

By estimate x GPUs the smaller jobs take what comes free, and nodes are kept for one large job at a time. Where
nearly all are large, all but one of them wait for chance. Such a queue goes by (waited / estimate)^3 x GPUs, over
plain Slurm's backfilling (docs/decisions/0065).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from lucid.core.reason import Reason, WaitOrder
from lucid.core.snapshot import Partition, Snapshot
from lucid.orchestrator.order.precedence import in_precedence
from lucid.orchestrator.order.queue_order import fair_share_of
from lucid.orchestrator.order.starvation_bound import Turn
from lucid.orchestrator.policies.plain_queue import Shapes, WaitingJob

if TYPE_CHECKING:
    from lucid.config import ReservationSettings

__all__ = ["DEPTH", "WaitQueue"]

DEPTH = 10
"""Of how many jobs that cannot start GPUs are kept, by time limits. With a hundred smaller jobs wait for longer."""

_POWER = 3
_LEAST_S = 60.0
"""Shorter estimates count as this: the first seconds of a wait say nothing."""


class WaitQueue:
    """The queue of one partition in this order. What it keeps from plan to plan, the reasons told, saves work."""

    def __init__(self, share_bound: float) -> None:
        self._share_bound = share_bound
        self._shapes = Shapes()
        self._rows: dict[str, WaitingJob] = {}

    def of(
        self,
        partition: Partition,
        snapshot: Snapshot,
        due: Mapping[str, Turn],
        settings: ReservationSettings,
        least: int,
    ) -> list[WaitingJob]:
        """Those that wait: first those whose turn has come (``due``), in its order; then those that have waited for
        ``oldest_after_s``, the oldest first; then the greatest value first. Equals go in order of submission.
        ``least``: jobs of more GPUs are large.

        Raises:
            KeyError: a job has no prediction.
        """
        rows: dict[str, WaitingJob] = {}
        keyed: list[tuple[float, float, int, WaitingJob]] = []
        for entry in partition.pending:
            job, found = entry.job, snapshot.predictions[entry.job.id]
            turn = due.get(job.id)
            order: Reason = (
                WaitOrder(least, found.duration_s, job.gpus, found.duration_source, settings.oldest_after_s)
                if turn is None
                else turn.why
            )
            row = self._rows.get(job.id)
            if row is None or row.entry is not entry or row.order != order:
                row = WaitingJob(entry, order, self._shapes.of(job))
            rows[job.id] = row
            fair = fair_share_of(job, snapshot.fair_share, self._share_bound)
            waited_s = max(snapshot.now_s - job.submit_s, 0.0)
            times = waited_s / max(found.duration_s, _LEAST_S)
            value = times**_POWER * job.gpus / (1.0 if fair is None else fair.times)
            if waited_s >= settings.oldest_after_s:
                value = math.inf
            if turn is None:
                keyed.append((-value, job.submit_s, job.rank, row))
        self._rows = rows
        keyed.sort(key=lambda item: item[:3])
        line = [item[3] for item in keyed]
        return [*(rows[job_id] for job_id in due), *in_precedence(line, [row.entry.job for row in line])]
