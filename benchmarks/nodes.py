"""What nodes that close cost: beside plain Slurm order (``backfill``), as live, on two synthetic months and on P1."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from benchmarks.figure import Absent, Figure
from benchmarks.packs import pack
from benchmarks.timeaware import synthetic
from lucid.config.load import settings_from
from lucid.core.job import Elastic
from lucid.core.node import Window
from lucid.simulator.cluster.nodes import Outages, with_limits
from lucid.simulator.cluster.state import Semantics
from lucid.simulator.cluster.training import EpochTable
from lucid.simulator.metrics import run_metrics
from lucid.simulator.scenario import Scenario, simulate
from lucid.simulator.traces.record import TraceJob

__all__ = ["windows"]

_HOUR, _DAY = 3600.0, 86400.0
_SEEDS = (3, 4)


def _scenes() -> Iterator[tuple[str, Scenario, tuple[int, ...]]]:
    """With the days of its windows."""
    for seed in _SEEDS:
        yield f"synthetic month, seed {seed}", synthetic("month-small", seed), (10, 20)
    with suppress(Absent):
        yield "P1", pack("P1", (("lucid", "P1_est_ebm.csv"),)), (8,)


def _asked(item: TraceJob, draw: float) -> TraceJob:
    """A third of the jobs may be started over, half of these write checkpoints."""
    if draw >= 1 / 3:
        return item
    job = replace(item.job, restart_asked=True)
    if draw < 1 / 6:
        job = replace(job, elastic=Elastic(max_gpus=job.gpus, min_gpus=job.gpus))
        item = replace(item, learning=EpochTable(max(item.duration_s, 1.0) / 60.0, (60.0,) * job.gpus))
    return replace(item, job=job)


def _with_windows(scenario: Scenario, days: tuple[int, ...]) -> Scenario:
    """All nodes close for eight hours on these days. Jobs without a time limit get a made-up one."""
    rng = random.Random(7)
    trace, _ = with_limits(scenario.trace, scenario.settings.policy.backfill)
    trace = replace(trace, jobs=tuple(_asked(item, rng.random()) for item in trace.jobs))
    closed = tuple(Window(day * _DAY + 8 * _HOUR, day * _DAY + 16 * _HOUR, "maintenance") for day in days)
    names = [node.name for nodes in scenario.layout().values() for node in nodes]
    return replace(scenario, trace=trace, outages=Outages(dict.fromkeys(names, closed)))


def _run(scenario: Scenario, policy: str, sections: Mapping[str, Any]) -> dict[str, Any]:
    settings = settings_from({"policy": dict(sections)}, "benchmark")
    semantics = Semantics.HONEST if policy == "backfill" else Semantics.AS_LIVE
    return run_metrics(simulate(replace(scenario, settings=settings, semantics=semantics), policy))


def windows(runs: int) -> Iterator[Figure]:  # noqa: ARG001 - a replay is the same each time
    """GPU-hours left unused in the 24 h before windows, and average JCT."""
    variants: tuple[tuple[str, str, dict[str, Any]], ...] = (
        ("backfill", "backfill", {}),
        ("lucid", "lucid", {}),
    )
    for scene, history, days in _scenes():
        scenario, plain = _with_windows(history, days), None
        for name, policy, sections in variants:
            found = _run(scenario, policy, sections)
            of = found["windows"]
            plain = plain or of
            note = (
                f"avg JCT {found['avg_jct_s'] / _HOUR:.2f} h; of {of['there_before_gpu_h']:,.0f} GPU-hours; "
                f"{of['runs_cut']} runs cut by windows, {of['lost_gpu_h']:,.0f} GPU-hours of work lost"
            )
            unused, before = of["unused_before_gpu_h"], plain["unused_before_gpu_h"]
            yield Figure(f"{scene}: {name}, unused before windows", unused, "GPU h", 1, before, "backfill", note=note)
