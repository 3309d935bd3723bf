"""What one setting would have made of the past: a replay, reduced to arrays by job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from lucid.config import Settings
from lucid.errors import TraceError
from lucid.simulator.metrics import LARGE_GPUS
from lucid.simulator.scenario import Scenario, simulate
from lucid.simulator.traces.record import Trace
from lucid.tuner.space import Value, with_values

__all__ = ["DAY_S", "Evaluator", "JobTimes", "before", "replay", "score", "split_time_s"]

DAY_S = 86400.0

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class JobTimes:
    """By job, in order of arrival (shape (n,) each): submission, JCT and queueing delay in seconds, GPUs, and
    who submitted it where. Two replays of one trace have their jobs at the same places."""

    submit_s: Floats
    jct_s: Floats
    queue_s: Floats
    gpus: NDArray[np.int64]
    user: tuple[str, ...]
    vc: tuple[str, ...]

    def since(self, from_s: float) -> JobTimes:
        """Those submitted from a time on."""
        keep = self.submit_s >= from_s
        at = np.flatnonzero(keep)
        return JobTimes(
            self.submit_s[keep],
            self.jct_s[keep],
            self.queue_s[keep],
            self.gpus[keep],
            tuple(self.user[i] for i in at),
            tuple(self.vc[i] for i in at),
        )


def replay(scenario: Scenario, settings: Settings, policy: str = "lucid") -> JobTimes:
    """Replay the scenario's trace under these settings.

    Raises:
        ConfigError: the cluster cannot honour them.
    """
    run = simulate(replace(scenario, settings=settings), policy)
    done = [o for o in run.outcomes if o.end_s >= 0]
    return JobTimes(
        np.array([o.job.submit_s for o in done]),
        np.array([o.jct_s for o in done]),
        np.array([o.queue_s for o in done]),
        np.array([o.job.gpus for o in done], dtype=np.int64),
        tuple(o.job.user for o in done),
        tuple(o.job.vc for o in done),
    )


def before(trace: Trace, until_s: float) -> Trace:
    """The jobs of a trace submitted before a time.

    Raises:
        TraceError: none were.
    """
    jobs = tuple(item for item in trace.jobs if item.job.submit_s < until_s)
    if not jobs:
        raise TraceError(f"{trace.name}: no job was submitted before {until_s:g} s; give a longer history")
    return replace(trace, jobs=jobs)


def split_time_s(trace: Trace, share: float) -> float:
    """The first midnight (trace time) by which ``share`` of the jobs had been submitted."""
    at = trace.jobs[min(int(share * len(trace.jobs)), len(trace.jobs) - 1)].job.submit_s
    return float(np.ceil(at / DAY_S) * DAY_S)


_LARGE_WEIGHT = 0.1


def score(times: JobTimes) -> float:
    """What the search makes small, in seconds: the average JCT, plus a tenth of the average queueing delay of jobs
    above 8 GPUs, so that a setting which starves the few large jobs does not look good."""
    large = times.gpus > LARGE_GPUS
    average = float(times.jct_s.mean())
    if not large.any():
        return average
    return average + _LARGE_WEIGHT * float(times.queue_s[large].mean())


@dataclass(slots=True)
class Evaluator:
    """Replays one trace under values of the searched settings. Lives in each worker process."""

    scenario: Scenario

    def __call__(self, values: Mapping[str, Value]) -> float:
        """The score of these values; infinite where the cluster cannot honour them."""
        return score(replay(self.scenario, with_values(self.scenario.settings, values)))
