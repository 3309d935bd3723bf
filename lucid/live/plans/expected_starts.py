"""When a waiting job is expected to start, as every command says it: likely, and the range of 8 starts in 10."""

from __future__ import annotations

import math

from lucid.core.ahead import opens_s
from lucid.core.job import Pending
from lucid.core.snapshot import Partition, Snapshot
from lucid.live.plans.stored_starts import StartsAhead
from lucid.orchestrator.forecast.plan_ahead import Forecast
from lucid.orchestrator.forecast.start_times import StartTimes, Wait

__all__ = ["expected_start", "starts_ahead", "wait_of"]


def wait_of(partition: Partition, entry: Pending, ahead: Forecast) -> Wait | None:
    """What planning ahead came to for a job that waits; ``None`` where it never starts as things are."""
    planned_s = ahead.starts_s.get(entry.job.id)
    ahead_s = ahead.ahead_of(entry.job.id)
    if planned_s is None and (entry.barred or ahead_s == math.inf):
        return None
    reach_s = ahead_s if planned_s is None else planned_s
    spread = ahead.spreads.get(entry.job.id)
    return Wait(partition.name, entry.job.gpus, reach_s, planned_s is not None, partition.profiling, spread)


def expected_start(
    partition: Partition, entry: Pending, ahead: Forecast, times: StartTimes, now_s: float
) -> tuple[int, int, int] | None:
    """Whole seconds until a job's next start: early, likely, late. All 0 for a job that the plan starts now, and
    only for such a job; ``None`` where no start is foreseen.

    Planning ahead may end without a start. Then the range begins where planning ended, and is given only where
    starts of such jobs have been seen. None begins before its nodes open (``opens_s``)."""
    wait = wait_of(partition, entry, ahead)
    if wait is None:
        return None
    if wait.foreseen and wait.planned_s == 0.0:
        return 0, 0, 0
    if not wait.foreseen and not times.knows(wait):
        return None
    said = times.range_of(wait, now_s)
    opens = now_s if partition.profiling else opens_s(partition, entry.job.time_limit_s, now_s)
    least_s = 1 if opens == math.inf else max(math.ceil(opens - now_s), 1)
    early_s, likely_s, late_s = (max(math.ceil(at_s), least_s) for at_s in (said.early_s, said.likely_s, said.late_s))
    return early_s, likely_s, late_s


def starts_ahead(snapshot: Snapshot, ahead: Forecast, times: StartTimes) -> StartsAhead:
    """Of all jobs that wait in ``snapshot``. ``ahead``: planned from it; ``times``: what came true before."""
    spans = {
        entry.job.id: expected_start(partition, entry, ahead, times, snapshot.now_s)
        for partition in snapshot.partitions.values()
        for entry in partition.pending
    }
    return StartsAhead(snapshot.now_s, spans, ahead.ahead_s, ahead.own_ahead_s, len(times.known))
