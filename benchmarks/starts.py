"""What a forecast of the whole queue costs: planning ahead and ranges, as CPU time and in plans."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator

from benchmarks.busy import busy_snapshot
from benchmarks.figure import Figure
from lucid.config.policy import PolicySettings
from lucid.models.history import HistoryPredictor
from lucid.orchestrator.forecast.plan_ahead import forecast
from lucid.orchestrator.forecast.ranges import StartTimes, Wait
from lucid.orchestrator.registry import make_policy

__all__ = ["figures"]

_PENDING, _GPUS = 2_000, 1_024


def figures(runs: int) -> Iterator[Figure]:
    """One forecast of 2,000 waiting jobs beside one cold plan of them, in the same process."""
    snapshot = busy_snapshot("lucid", _PENDING, _GPUS)
    (partition,) = snapshot.partitions.values()
    plans: list[float] = []
    forecasts: list[float] = []
    for _ in range(max(runs, 3)):
        policy = make_policy("lucid", PolicySettings(), HistoryPredictor())
        began_s = time.process_time()
        plan = policy.plan(snapshot)
        planned_s = time.process_time()
        ahead = forecast(snapshot, plan, policy)
        times = StartTimes()
        for entry in partition.pending:
            planned = ahead.starts_s.get(entry.job.id)
            reach_s = ahead.ahead_s if planned is None else planned
            times.waits(entry.job.id, Wait("vc", entry.job.gpus, reach_s, planned is not None), 0.0)
        plans.append(planned_s - began_s)
        forecasts.append(time.process_time() - planned_s)
    yield Figure("forecast of 2,000 waiting jobs, CPU", statistics.median(forecasts), "s")
    yield Figure("the same, in plans", statistics.median(forecasts) / statistics.median(plans), "x")
