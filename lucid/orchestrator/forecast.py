"""When a waiting job may start: list scheduling on the partition's GPUs, by the estimates.

Running jobs end when their estimate says, each waiting job in turn starts as soon as enough GPUs are free, whatever
node they are on, and nobody shares: a rough answer, given as a range because single estimates are off by large
factors. A job may still start earlier beside a partner, and later behind arrivals that go before it.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import dataclass

from lucid.core.prediction import Prediction
from lucid.core.snapshot import Partition

__all__ = ["Forecast", "forecast"]

_FACTOR = 2.0
"""Estimates are taken to be off by this factor either way."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """``position`` in the queue (from 1) and seconds from now: if estimates are half, right, or twice as long."""

    position: int
    early_s: float
    likely_s: float
    late_s: float


def forecast(partition: Partition, predictions: Mapping[str, Prediction], now_s: float) -> dict[str, Forecast]:
    """For each pending job that the partition's GPUs could ever hold, in order of estimate x GPUs."""
    queue = sorted(partition.pending, key=lambda e: predictions[e.job.id].duration_s * e.job.gpus)
    starts = [_starts(partition, predictions, now_s, factor) for factor in (1 / _FACTOR, 1.0, _FACTOR)]
    return {
        entry.job.id: Forecast(at, *(by_job[entry.job.id] for by_job in starts))
        for at, entry in enumerate(queue, start=1)
        if entry.job.id in starts[0]
    }


def _starts(
    partition: Partition, predictions: Mapping[str, Prediction], now_s: float, factor: float
) -> dict[str, float]:
    total = sum(node.gpus for node in partition.nodes if node.available)
    held = {part for entry in partition.running for part in entry.placement}
    free = total - sum(part.mask.bit_count() for part in held)
    ends: list[tuple[float, int]] = []
    for entry in partition.running:
        left_s = predictions[entry.job.id].remaining_s(entry.elapsed_s(now_s)) * factor
        ends.append((left_s, entry.gpus if entry.partner is None else 0))
    heapq.heapify(ends)
    found: dict[str, float] = {}
    clock_s = 0.0
    for waiting in sorted(partition.pending, key=lambda e: predictions[e.job.id].duration_s * e.job.gpus):
        job = waiting.job
        if job.gpus > total:
            continue
        while free < job.gpus and ends:
            clock_s, gpus = heapq.heappop(ends)
            free += gpus
        found[job.id] = clock_s
        free -= job.gpus
        heapq.heappush(ends, (clock_s + predictions[job.id].duration_s * factor, job.gpus))
    return found
