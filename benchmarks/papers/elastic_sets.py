"""The elastic platform's experiment in this simulator: sets of requests as traces, and their results (E16-E18)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.papers.elastic_replay import RESCALE_S
from benchmarks.papers.elastic_workload import MIXES, ElasticRequest, draw_set
from lucid.config.load import Settings
from lucid.config.policy import OverheadSettings
from lucid.core.job import Elastic, Job
from lucid.simulator.cluster.training import EpochTable
from lucid.simulator.layout import NodeShape
from lucid.simulator.scenario import Scenario, simulate
from lucid.simulator.traces.record import Trace, TraceJob

__all__ = ["CASES", "Comparison", "compare_case", "elastic_trace", "replay_set"]

_VC = "cluster"
_SERVERS, _GPUS_EACH = 3, 4
CASES: tuple[tuple[str, float], ...] = (
    *((mix, 15.0) for mix in MIXES),
    ("workload2", 10.0),
    ("workload2", 20.0),
    ("workload4", 10.0),
    ("workload4", 20.0),
)
"""Mix and mean interval in minutes: the four mixes at 15, and two of them at 10 and 20 too."""
_POLICIES = {"elastic": "elastic", "fcfs": "elastic-fcfs", "ef": "elastic-ef"}


def elastic_trace(requests: Sequence[ElasticRequest], name: str = "elastic") -> Trace:
    """Requests as a trace: jobs that may run on 1 to 12 GPUs, as fast as the table of their model says."""
    most = _SERVERS * _GPUS_EACH
    items = []
    for number, request in enumerate(requests):
        table = tuple(float(time) for time in request.model.epoch_s(most))
        limits = Elastic(most, epochs=float(request.epochs))
        job = Job(str(number), _VC, 1, request.arrival_s, number, name=request.model.name, elastic=limits)
        items.append(TraceJob(job, request.epochs * table[0], learning=EpochTable(float(request.epochs), table)))
    return Trace(name, tuple(items))


def replay_set(requests: Sequence[ElasticRequest], policy: str) -> tuple[float, float, int]:
    """Mean JCT (s), makespan from the first arrival (s) and resizes of one set, on three servers of four GPUs."""
    overheads = OverheadSettings(rescale_s=RESCALE_S, elastic_start_s=0.0)
    scenario = Scenario(
        elastic_trace(requests), {_VC: _SERVERS}, NodeShape(gpus=_GPUS_EACH), settings=Settings(overheads=overheads)
    )
    outcomes = simulate(scenario, policy).outcomes
    jct_s = sum(o.jct_s for o in outcomes) / len(outcomes)
    return jct_s, max(o.end_s for o in outcomes) - requests[0].arrival_s, sum(o.resizes for o in outcomes)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Means over the sets of one case. ``jct_s`` and ``makespan_s`` by rule: elastic, fcfs, ef."""

    mix: str
    mean_min: float
    sets: int
    jct_s: Mapping[str, float]
    makespan_s: Mapping[str, float]
    resizes: float

    def change(self, baseline: str, figure: str = "jct_s") -> float:
        """By how much the platform's figure differs from a baseline's: -0.4 is 40 % less."""
        values: Mapping[str, float] = getattr(self, figure)
        return values["elastic"] / values[baseline] - 1


def compare_case(
    mix: str, mean_min: float, sets: int = 10, jobs: int = 20, seed: int = 0, done: Callable[[], None] | None = None
) -> Comparison:
    """One point of the experiment: ``sets`` random sets, seeds ``seed`` and on, each under the three rules.

    ``done`` is called after each set.

    Raises:
        ConfigError: the mix is not known.
    """
    results: dict[str, list[tuple[float, float, int]]] = {rule: [] for rule in _POLICIES}
    for number in range(sets):
        requests = draw_set(mix, mean_min, seed + number, jobs)
        for rule, policy in _POLICIES.items():
            results[rule].append(replay_set(requests, policy))
        if done is not None:
            done()
    means = {rule: np.mean(values, axis=0) for rule, values in results.items()}
    return Comparison(
        mix,
        mean_min,
        sets,
        {rule: float(mean[0]) for rule, mean in means.items()},
        {rule: float(mean[1]) for rule, mean in means.items()},
        float(means["elastic"][2]),
    )
