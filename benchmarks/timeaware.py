"""What dynamic sharing and time-aware profiling do beside the best static settings: on P1, and on synthetic months
and bursts (named so)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np

from benchmarks.figure import Absent, Figure
from benchmarks.packs import pack
from lucid.config import settings_from
from lucid.simulator.engine import Run
from lucid.simulator.layout import NodeShape
from lucid.simulator.metrics import run_metrics
from lucid.simulator.scenario import Scenario, simulate
from lucid.simulator.traces.synth import preset, synthesise, with_workloads

__all__ = ["figures"]

_HOUR = 3600.0
_SEEDS = (1, 2, 3)
_VARIANTS: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "static": {},
    "dynamic sharing": {"packing": {"dynamic": True}},
    "time-aware profiling": {"profiling": {"time_aware": True}},
    "both": {"packing": {"dynamic": True}, "profiling": {"time_aware": True}},
}


def _synthetic(name: str, seed: int) -> Scenario:
    settings = preset(name)
    trace, _ = with_workloads(synthesise(settings, seed), seed)
    return Scenario(trace, {vc.name: vc.nodes for vc in settings.vcs}, NodeShape(settings.gpus_per_node))


def _scenes() -> Iterator[tuple[str, Scenario]]:
    with suppress(Absent):
        yield "P1", pack("P1", (("lucid", "P1_est_ebm.csv"),))
    for name in ("month-small", "burst"):
        for seed in _SEEDS:
            yield f"synthetic {name}, seed {seed}", _synthetic(name, seed)


def _profiler_wait_s(run: Run) -> float:
    """99th percentile of the wait before a profiling run, of the jobs that had one."""
    waits = [o.start_s - o.job.submit_s for o in run.outcomes if o.profiled_s > 0 or o.ended_in_profiling]
    return float(np.percentile(waits, 99)) if waits else 0.0


def figures(runs: int) -> Iterator[Figure]:  # noqa: ARG001 - deterministic
    """Average JCT, and the wait for a profiling node, by scene and variant, beside the static settings'."""
    for scene, scenario in _scenes():
        base: tuple[float, float] | None = None
        for name, policy in _VARIANTS.items():
            run = simulate(replace(scenario, settings=settings_from({"policy": dict(policy)}, name)), "lucid")
            jct_h, wait_s = run_metrics(run)["avg_jct_s"] / _HOUR, _profiler_wait_s(run)
            if base is None:
                base = (jct_h, wait_s)
            note = f"p99 wait for a profiling node {wait_s:.0f} s (static {base[1]:.0f} s)"
            yield Figure(f"{scene}: {name}, avg JCT", jct_h, "h", 1, base[0], "static", note=note)
