"""Lucid without each of its modules; and what is off by default, with VCs that lend as they do by default."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from benchmarks.papers.lucid_schedules import MONTHS, scenes, with_rules
from benchmarks.papers.replays import replayed
from benchmarks.papers.row import Row
from benchmarks.timeaware import shifted, synthetic
from lucid.simulator.scenario import Scenario

__all__ = ["VARIANTS", "minus", "shifted_months"]

_Rules = Mapping[str, Mapping[str, Any]]
VARIANTS: Final[Mapping[str, _Rules]] = {
    "all of it": {},
    "without the profiler": {"profiling": {"enabled": False}},
    "without the binder (nobody shares)": {"packing": {"gss": 0}},
    "without reservations": {"reservation": {"enabled": False}},
    "pairs in the calm, too": {"packing": {"when_calm": True}},
    "with time-aware profiling": {"profiling": {"time_aware": True}},
}
_AVERAGE, _TAIL = "avg JCT, h", "p99.9 queueing, h"
_SHIFTS: Final = 2


def minus() -> Iterator[Row]:
    """Average JCT of each scene by variant, VCs lending; then without lending. The paper draws its parts for other
    traces, and gives no figures."""
    names = (*VARIANTS, "without the estimator (all jobs alike)", "without lending")
    found: dict[str, dict[str, float]] = {name: {} for name in names}
    for scene, scenario in scenes():
        lending = replace(scenario, lends=True)
        made = [with_rules(lending, **rules) for rules in VARIANTS.values()]
        for name, variant in zip(names, (*made, alike(lending), scenario), strict=True):
            found[name][f"{scene}, h"] = replayed(variant, "lucid")[_AVERAGE]
    whole = found["all of it"]
    for name, row in found.items():
        worse = statistics.fmean(row[scene] / whole[scene] for scene in whole)
        yield Row(name, {**row, "mean of the ratios": worse})


def alike(scenario: Scenario) -> Scenario:
    """Every job is estimated to take as long as jobs take on average. (``fairness.estimates`` = never has no effect
    where VCs lend.)"""
    mean_s = statistics.fmean(item.duration_s for item in scenario.trace.jobs)
    given = {item.job.id: mean_s for item in scenario.trace.jobs}
    return replace(scenario, durations_s={"": given}, estimates_name="one estimate for all")


def shifted_months() -> Iterator[Row]:
    """Means over replays with submissions up to a minute sooner or later: one history says little."""
    names = ("all of it", "pairs in the calm, too", "with time-aware profiling")
    for seed in MONTHS[:3]:
        base: dict[str, float] = {}
        for name in names:
            runs = []
            for shift in range(_SHIFTS):
                scenario = replace(shifted(synthetic("month-small", seed), shift), lends=True)
                runs.append(replayed(with_rules(scenario, **VARIANTS[name]), "lucid"))
            row = {column: statistics.fmean(run[column] for run in runs) for column in (_AVERAGE, _TAIL)}
            base = base or row
            ratios = {"avg JCT beside it": row[_AVERAGE] / base[_AVERAGE]}
            yield Row(f"month {seed}, {name}", row | ratios)
