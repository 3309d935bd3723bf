"""What time-aware profiling, and pairs in a calm VC, do beside the default: on P1, and on synthetic months and bursts
(named so).

Pairs are remembered, as lucidd does.

One history says little: submissions that come up to a minute sooner or later move its average JCT by more than
either does. So each is replayed several times, with other such shifts, the same for all variants.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np

from benchmarks.figure import Absent, Figure
from benchmarks.packs import pack
from lucid.config.load import settings_from
from lucid.simulator.engine import Run
from lucid.simulator.layout import NodeShape
from lucid.simulator.metrics import run_metrics
from lucid.simulator.scenario import Scenario, simulate
from lucid.simulator.traces.presets import preset
from lucid.simulator.traces.synth import synthesise, with_workloads

__all__ = ["figures", "profiler_wait_s", "shifted", "synthetic"]

_HOUR = 3600.0
_SEEDS = (1, 2, 3)
_SHIFT_S = 60
_VARIANTS: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "static": {},
    "pairs in the calm, too": {"packing": {"when_calm": True}},
    "time-aware profiling": {"profiling": {"time_aware": True}},
}


def synthetic(name: str, seed: int) -> Scenario:
    """A synthetic history of one of the synthesiser's presets, with synthetic workloads, on its own nodes."""
    settings = preset(name)
    trace, _ = with_workloads(synthesise(settings, seed), seed)
    nodes = {vc.name: vc.nodes for vc in settings.vcs}
    return Scenario(trace, nodes, NodeShape(settings.gpus_per_node))


def _scenes() -> Iterator[tuple[str, Scenario]]:
    with suppress(Absent):
        yield "P1", pack("P1", (("lucid", "P1_est_ebm.csv"),))
    for name in ("month-small", "burst"):
        for seed in _SEEDS:
            yield f"synthetic {name}, seed {seed}", synthetic(name, seed)


def shifted(scenario: Scenario, seed: int) -> Scenario:
    """The same jobs, each submitted up to a minute sooner or later; those of seed 0 when they were."""
    if not seed:
        return scenario
    rng = random.Random(seed)
    moved = [
        replace(item, job=replace(item.job, submit_s=max(item.job.submit_s + rng.randint(-_SHIFT_S, _SHIFT_S), 0.0)))
        for item in scenario.trace.jobs
    ]
    moved.sort(key=lambda item: (item.job.submit_s, item.job.rank))
    return replace(scenario, trace=replace(scenario.trace, jobs=tuple(moved)))


def profiler_wait_s(run: Run) -> float:
    """99th percentile of the wait before a profiling run, of the jobs that had one."""
    waits = [o.start_s - o.job.submit_s for o in run.outcomes if o.profiled_s > 0 or o.ended_in_profiling]
    return float(np.percentile(waits, 99)) if waits else 0.0


def figures(runs: int) -> Iterator[Figure]:
    """Average JCT, and the wait for a profiling node, by scene and variant, beside the static settings': means over
    ``runs`` replays, the first of the history as it is."""
    for scene, scenario in _scenes():
        base: list[tuple[float, float]] = []
        for name, policy in _VARIANTS.items():
            found = []
            for seed in range(max(runs, 1)):
                chosen = replace(shifted(scenario, seed), settings=settings_from({"policy": dict(policy)}, name))
                run = simulate(chosen, "lucid")
                found.append((run_metrics(run)["avg_jct_s"] / _HOUR, profiler_wait_s(run)))
            base = base or found
            (jct_h, static_h), (wait_s, static_s) = (
                (statistics.mean(row[i] for row in found), statistics.mean(row[i] for row in base)) for i in (0, 1)
            )
            ratios = [mine[0] / theirs[0] for mine, theirs in zip(found, base, strict=True)]
            note = (
                f"single replays {min(row[0] for row in found):.2f} to {max(row[0] for row in found):.2f} h, against "
                f"static {min(ratios):.3f} to {max(ratios):.3f}; p99 wait for a profiling node {wait_s:.0f} s "
                f"(static {static_s:.0f} s)"
            )
            yield Figure(f"{scene}: {name}, avg JCT", jct_h, "h", len(found), static_h, "static", note=note)
