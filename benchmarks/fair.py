"""Never worse than plain Slurm: Lucid against the policy ``backfill`` on an idle cluster, synthetic months and P0."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

from benchmarks.figure import Absent, Figure
from benchmarks.packs import pack
from benchmarks.quality import ESTIMATES
from benchmarks.timeaware import synthetic
from lucid.simulator.metrics import gains, run_metrics
from lucid.simulator.scenario import Scenario, simulate

__all__ = ["figures"]

_MONTH, _SEEDS, _FEW = "month-small", (1, 2, 3, 4, 5), 400
_LATEST_H = 12.0
_P1_H, _P1_LARGE_H = 5.70, 53.0


def figures(runs: int) -> Iterator[Figure]:  # noqa: ARG001 - deterministic
    """Each target on each scene: the average, the VCs and users that lose, the unluckiest job; and P1 by itself."""
    for name, scenario in _scenes():
        run, plain = simulate(scenario, "lucid"), simulate(scenario, "backfill")
        found = gains(run, plain)
        assert found is not None
        hours, plain_h = found.everybody.jct_s / 3600, found.everybody.baseline_s / 3600
        large_s = run_metrics(run)["avg_jct_large_s"]
        note = "" if large_s is None else f"jobs > 8 GPUs {large_s / 3600:.1f} h"
        yield Figure(f"{name}: avg JCT", hours, "h", 1, plain_h, "backfill", at_most=1.005 * plain_h, note=note)
        yield Figure(f"{name}: VCs that lose", found.vcs_losing, "VCs", 1, at_most=0.0)
        share = 100 * found.users_losing / len(found.users)
        yield Figure(f"{name}: users who lose more than 5 %", share, "%", 1, at_most=2.0)
        yield Figure(f"{name}: longest wait beyond backfill's", found.latest_s / 3600, "h", 1, at_most=_LATEST_H)
    with suppress(Absent):
        metrics = run_metrics(simulate(pack("P1", ESTIMATES), "lucid"))
        yield Figure("P1: avg JCT", metrics["avg_jct_s"] / 3600, "h", 1, at_most=_P1_H)
        yield Figure("P1: JCT of jobs > 8 GPUs", metrics["avg_jct_large_s"] / 3600, "h", 1, at_most=_P1_LARGE_H)


def _scenes() -> Iterator[tuple[str, Scenario]]:
    month = synthetic(_MONTH, 1)
    few = replace(month.trace, jobs=month.trace.jobs[:_FEW])
    yield f"the first {_FEW} jobs of month 1", replace(month, trace=few)
    with suppress(Absent):
        yield "P0", pack("P0")
    for seed in _SEEDS:
        yield f"synthetic month {seed}", synthetic(_MONTH, seed)
