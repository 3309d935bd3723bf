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

__all__ = ["VARIANTS", "minus", "shifted_months"]

_Rules = Mapping[str, Mapping[str, Any]]
VARIANTS: Final[Mapping[str, _Rules]] = {
    "all of it": {},
    "without the profiler": {"profiling": {"enabled": False}},
    "without the binder (nobody shares)": {"packing": {"gss": 0}},
    "without the estimator (plain order)": {"fairness": {"estimates": "never"}},
    "without trust (always by estimates)": {"fairness": {"estimates": "always"}},
    "without reservations": {"reservation": {"enabled": False}},
    "pairs in the calm, too": {"packing": {"when_calm": True}},
    "with time-aware profiling": {"profiling": {"time_aware": True}},
}
_AVERAGE, _TAIL = "avg JCT, h", "p99.9 queueing, h"
_SHIFTS: Final = 3


def minus() -> Iterator[Row]:
    """Average JCT of each scene by variant, VCs lending, then without lending. Nothing is published by figures: the
    paper draws its parts (figure 10) for other traces."""
    found: dict[str, dict[str, float]] = {name: {} for name in (*VARIANTS, "without lending")}
    for scene, scenario in scenes():
        lending = replace(scenario, lends=True)
        for name, rules in VARIANTS.items():
            found[name][f"{scene}, h"] = replayed(with_rules(lending, **rules), "lucid")[_AVERAGE]
        found["without lending"][f"{scene}, h"] = replayed(scenario, "lucid")[_AVERAGE]
    whole = found["all of it"]
    for name, row in found.items():
        worse = statistics.fmean(row[scene] / whole[scene] for scene in whole)
        yield Row(name, {**row, "mean of the ratios": worse})


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
