"""Runs a policy over a trace: the loop around the cycle."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from lucid.core.ports import Predictor, Recorder
from lucid.orchestrator.cycle import Cycle
from lucid.orchestrator.policy import Policy
from lucid.simulator.cluster import JobOutcome, SimulatedCluster

__all__ = ["Progress", "RunResult", "run"]

Progress = Callable[[float, int, int], None]
"""Called now and then with (trace time s, jobs ended, jobs in all)."""


@dataclass(frozen=True, slots=True)
class RunResult:
    """What became of every job, and what finding out took."""

    outcomes: list[JobOutcome]
    cycles: int
    wall_s: float
    cpu_s: float


def run(
    cluster: SimulatedCluster, policy: Policy, predictor: Predictor, recorder: Recorder | None = None
) -> RunResult:
    """Go from event to event until nothing is left to happen, one cycle at each (and one more at once whenever
    a job changed partition)."""
    began, began_cpu = time.perf_counter(), time.process_time()
    cycle = Cycle(cluster, predictor, policy, recorder)
    wake_s: float | None = None
    cycles = 0
    while True:
        event_s = cluster.next_event_s()
        if event_s is None and wake_s is None:
            break
        at_s = min(t for t in (event_s, wake_s) if t is not None)
        cluster.advance(at_s)
        while True:
            result = cycle.run()
            cycles += 1
            if not cluster.moved or not result.applied:
                break
        wake_s = result.plan.wake_s
    return RunResult(
        list(cluster.outcomes.values()), cycles, time.perf_counter() - began, time.process_time() - began_cpu
    )
