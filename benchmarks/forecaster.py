"""What the throughput model is worth beside seasonal means: how far forecasts are off, and what schedules gain.

P1 is a part of the Philly log, of which the weeks before are known. A synthetic history is three months long, and the
last one is replayed. Both forecasters know the submissions before the replay; the model is trained on them alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import numpy as np

from benchmarks.figure import Absent, Figure
from benchmarks.packs import pack, shared
from benchmarks.timeaware import profiler_wait_s, shifted
from lucid.config.load import settings_from
from lucid.core.job import Job
from lucid.core.ports import Forecaster
from lucid.models.throughput.fit import fit_throughput
from lucid.models.throughput.forecaster import LearnedForecaster
from lucid.models.throughput.model import ArrivalForecaster, ThroughputModel
from lucid.simulator.layout import NodeShape
from lucid.simulator.metrics import run_metrics
from lucid.simulator.scenario import Scenario, Throughput, simulate
from lucid.simulator.traces.presets import preset
from lucid.simulator.traces.read import read_trace
from lucid.simulator.traces.synth import synthesise, with_workloads

__all__ = ["figures"]

_HOUR_S = 3600.0
_DAY_S = 24 * _HOUR_S
_MONTH_DAYS = 30
_SEEDS = (1, 2, 3)
_P1_BEGINS = datetime(2017, 10, 23, 0, 1, 40, tzinfo=UTC)
_RULES: Mapping[str, Mapping[str, Any]] = {"profiling": {"time_aware": True}}


@dataclass(frozen=True)
class _Scene:
    name: str
    scenario: Scenario
    before: tuple[Job, ...]
    """Submitted before the replay, with times below 0."""

    def model(self) -> ThroughputModel:
        forecaster = self.forecaster(None)
        past = forecaster.past(0.0)
        assert past is not None
        return fit_throughput(past, 1, parallel=2)

    def forecaster(self, model: ThroughputModel | None) -> LearnedForecaster:
        found = LearnedForecaster(
            model, "of the weeks before", ArrivalForecaster(), self.scenario.trace.epoch_s or 0.0
        )
        for job in self.before:
            found.observe(job)
        return found


def _p1() -> _Scene:
    trace = pack("P1", (("lucid", "P1_est_ebm.csv"),))
    log = read_trace(shared("philly.csv"))
    begins_s = _P1_BEGINS.timestamp() - (log.epoch_s or 0.0)
    before = tuple(
        replace(item.job, submit_s=item.job.submit_s - begins_s) for item in log.jobs if item.job.submit_s < begins_s
    )
    dated = replace(trace.trace, epoch_s=_P1_BEGINS.timestamp())
    return _Scene("P1", replace(trace, trace=dated), before)


def _month(seed: int) -> _Scene:
    chosen = preset("month-small")
    whole, _ = with_workloads(synthesise(chosen.resized(None, 3 * _MONTH_DAYS), seed), seed)
    begins_s = 2 * _MONTH_DAYS * _DAY_S
    moved = [replace(i, job=replace(i.job, submit_s=i.job.submit_s - begins_s)) for i in whole.jobs]
    trace = replace(
        whole, jobs=tuple(i for i in moved if i.job.submit_s >= 0), epoch_s=(whole.epoch_s or 0.0) + begins_s
    )
    nodes = {vc.name: vc.nodes for vc in chosen.vcs}
    scenario = Scenario(trace, nodes, NodeShape(chosen.gpus_per_node))
    return _Scene(f"synthetic month, seed {seed}", scenario, tuple(i.job for i in moved if i.job.submit_s < 0))


def _scenes() -> Iterator[_Scene]:
    with suppress(Absent):
        yield _p1()
    for seed in _SEEDS:
        yield _month(seed)


def figures(runs: int) -> Iterator[Figure]:
    """Error of the forecasts by scene and forecaster; then average JCT with time-aware profiling,
    means over ``runs`` replays (with submissions up to a minute sooner or later)."""
    for scene in _scenes():
        model = scene.model()
        chosen = {"seasonal means": None, "throughput model": model}
        for hours in (1, 12):
            yield from _errors(scene, chosen, hours)
        yield from _schedules(scene, chosen, runs)


def _errors(scene: _Scene, chosen: Mapping[str, ThroughputModel | None], hours: int) -> Iterator[Figure]:
    """Mean absolute error of GPUs per hour of the whole cluster over the hours that follow, asked every hour."""
    jobs = [item.job for item in scene.scenario.trace.jobs]
    submit_s, gpus = np.array([job.submit_s for job in jobs]), np.array([float(job.gpus) for job in jobs])
    asked_s = np.arange(0.0, submit_s.max() - hours * _HOUR_S, _HOUR_S)
    sums = np.concatenate([[0.0], np.cumsum(gpus)])
    truth = (
        sums[np.searchsorted(submit_s, asked_s + hours * _HOUR_S)] - sums[np.searchsorted(submit_s, asked_s)]
    ) / hours
    base: float | None = None
    for name, model in chosen.items():
        said = _asked(scene.forecaster(model), jobs, asked_s)
        error = float(np.abs(said - truth).mean())
        base = error if base is None else base
        note = f"mean of the forecasts {said.mean():.0f} GPUs/h, of what came {truth.mean():.0f}"
        yield Figure(
            f"{scene.name}: error over the next {hours} h, {name}", error, "GPUs/h", 1, base, "means", note=note
        )


def _asked(forecaster: Forecaster, jobs: list[Job], asked_s: Any) -> Any:
    said, coming = [], iter(jobs)
    job = next(coming, None)
    for now_s in asked_s.tolist():
        while job is not None and job.submit_s < now_s:
            forecaster.observe(job)
            job = next(coming, None)
        said.append(sum(forecaster.forecast(now_s).gpus_per_hour.values()))
    return np.array(said)


def _schedules(scene: _Scene, chosen: Mapping[str, ThroughputModel | None], runs: int) -> Iterator[Figure]:
    settings = settings_from({"policy": {name: dict(part) for name, part in _RULES.items()}}, "forecaster")
    base: float | None = None
    static = [simulate(shifted(scene.scenario, seed), "lucid") for seed in range(runs)]
    static_h = float(np.mean([run_metrics(run)["avg_jct_s"] for run in static])) / _HOUR_S
    for name, model in chosen.items():
        known = replace(scene.scenario, settings=settings, throughput=Throughput(model, "model", scene.before))
        replays = [simulate(shifted(known, seed), "lucid") for seed in range(runs)]
        jct_h = float(np.mean([run_metrics(run)["avg_jct_s"] for run in replays])) / _HOUR_S
        wait_s = float(np.mean([profiler_wait_s(run) for run in replays]))
        base = jct_h if base is None else base
        note = f"static {static_h:.3f} h; p99 wait for a profiling node {wait_s:.0f} s"
        yield Figure(f"{scene.name}: avg JCT, {name}", jct_h, "h", runs, base, "means", note=note)
