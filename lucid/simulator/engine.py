"""Runs a policy over a trace: the loop around the cycle, with the series of the cluster's state (``Series``)."""

from __future__ import annotations

import copy
import time
from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Any

from lucid.config.policy import PolicySettings
from lucid.core.ports import Forecaster, Predictor, Recorder
from lucid.orchestrator.cycle import Cycle
from lucid.orchestrator.policies.lucid.plan import promise_kept, promises_by_vc
from lucid.orchestrator.policies.shadow import Kept
from lucid.orchestrator.policy import Policy
from lucid.simulator.cluster.cluster import SimulatedCluster
from lucid.simulator.cluster.jobs import Jobs
from lucid.simulator.cluster.nodes import WindowFigures
from lucid.simulator.cluster.state import JobOutcome
from lucid.simulator.cluster.usage import LendingCost, LentByVc
from lucid.simulator.start_forecast import StartForecasts

Progress = Callable[[int, int], None]
"""Called now and then with (jobs ended, jobs in all)."""

_SAMPLE_S = 600.0
_MOST_SAMPLES = 52_560
"""Most samples: a year of them. A longer replay keeps fewer, so its series does not grow with time."""
_PROGRESS_CYCLES = 500


@dataclass(slots=True)
class Series:
    """State of the cluster every ``step_s`` seconds from trace time 0, and exact integrals over time."""

    step_s: float = _SAMPLE_S
    busy_gpus: array[int] = field(default_factory=lambda: array("l"))
    shared_gpus: array[int] = field(default_factory=lambda: array("l"))
    pending_gpus: array[int] = field(default_factory=lambda: array("l"))
    pending_jobs: dict[str, array[int]] = field(default_factory=dict)
    """Waiting jobs by partition, the profiling partition included."""
    busy_gpu_s: float = 0.0
    shared_gpu_s: float = 0.0

    def hold(self, jobs: Jobs, from_s: float, to_s: float) -> None:
        """Note that the state was what it is from ``from_s`` up to ``to_s``."""
        self.busy_gpu_s += jobs.busy_gpus * (to_s - from_s)
        self.shared_gpu_s += jobs.shared_gpus * (to_s - from_s)
        while to_s > _MOST_SAMPLES * self.step_s:
            self._thin()
        due = len(self.busy_gpus)
        times = int(-(-to_s // self.step_s)) - due
        if times <= 0:
            return
        self.busy_gpus.extend([jobs.busy_gpus] * times)
        self.shared_gpus.extend([jobs.shared_gpus] * times)
        self.pending_gpus.extend([jobs.pending_gpus] * times)
        for name, count in jobs.pending_by_vc().items():
            if name not in self.pending_jobs:
                self.pending_jobs[name] = array("l", [0] * due)
            self.pending_jobs[name].extend([count] * times)

    def _thin(self) -> None:
        """Keep every second sample."""
        self.step_s *= 2.0
        self.busy_gpus = self.busy_gpus[::2]
        self.shared_gpus = self.shared_gpus[::2]
        self.pending_gpus = self.pending_gpus[::2]
        self.pending_jobs = {name: counts[::2] for name, counts in self.pending_jobs.items()}

    def at_step(self, step_s: float) -> Series:
        """The series with samples ``step_s`` apart: its own distance, doubled some times."""
        found = copy.copy(self)
        while found.step_s < step_s:
            found._thin()
        return found


@dataclass(frozen=True, slots=True)
class Run:
    """One policy's replay of one trace. ``outcomes`` in order of arrival; a job that no node could ever hold
    has ``end_s`` -1. ``wall_s`` and ``cpu_s`` are the replay's own cost."""

    policy: str
    predictor: str
    outcomes: list[JobOutcome]
    series: Series
    total_gpus: int
    cycles: int
    wall_s: float
    cpu_s: float
    kept: Kept | None = None
    """How the starvation bound was kept, where there was one."""
    kept_by_vc: Mapping[str, Kept] = field(default_factory=dict)
    """How the starvation bound was kept, for each VC."""
    lent: Mapping[str, LentByVc] = field(default_factory=dict)
    """GPU-seconds that the VCs of a pool lent and borrowed."""
    start_forecast: Mapping[str, Any] | None = None
    """``StartForecasts.figures``, where starts were forecast."""
    windows: WindowFigures | None = None
    """The effects of windows and failing nodes, where there were any."""
    promise: Mapping[str, LendingCost] = field(default_factory=dict)
    """The cost of lending by VC, and under "" of all; empty where that was not asked for
    (``scenario.with_promise``)."""


def run(
    cluster: SimulatedCluster,
    policy: Policy,
    predictor: Predictor,
    recorder: Recorder | None = None,
    progress: Progress | None = None,
    jobs: int = 0,
    forecaster: Forecaster | None = None,
    starts: StartForecasts | None = None,
    settings: PolicySettings | None = None,
    naive: Predictor | None = None,
) -> Run:
    """Replay until nothing more happens. ``starts`` watches, and forecasts starts. ``settings``: the rules that plans
    are checked against; by default the default settings. ``naive``: the predictor whose estimates serve where the
    first one's rank jobs worse.

    Raises: ConfigError: the policy needs what this cluster does not offer. UnsafePlan: the policy broke a safety
    rule."""
    began_s, began_cpu_s = time.perf_counter(), time.process_time()
    cycle = Cycle(cluster, predictor, policy, settings or PolicySettings(), recorder, forecaster, naive=naive)
    series = Series()
    wake_s: float | None = None
    now_s, cycles = 0.0, 0
    while True:
        at_s = cluster.next_event_s()
        if at_s is None or (wake_s is not None and wake_s < at_s):
            at_s = wake_s
        if at_s is None:
            break
        series.hold(cluster.jobs, now_s, at_s)
        now_s = at_s
        cluster.advance(at_s)
        while True:  # again at the same instant while jobs move from one partition to another
            result = cycle.run()
            cycles += 1
            wake_s = result.plan.wake_s
            done = not (result.applied and cluster.moved)
            if starts is not None:
                coming = [t for t in (cluster.next_event_s(), wake_s) if t is not None] if done else [at_s]
                starts.observe(result.snapshot, result.plan, min(coming, default=inf))
            del result  # a snapshot without another reference can be changed into the next one
            if done:
                break
        if progress is not None and cycles % _PROGRESS_CYCLES == 0:
            progress(cluster.ended, jobs)
    return Run(
        policy.name,
        predictor.name,
        list(cluster.outcomes.values()),
        series,
        cluster.total_gpus,
        cycles,
        time.perf_counter() - began_s,
        time.process_time() - began_cpu_s,
        promise_kept(cycle.memory),
        promises_by_vc(cycle.memory),
        cluster.lent(),
        None if starts is None else starts.figures(),
        cluster.window_figures(),
    )
