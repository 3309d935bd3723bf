"""Sharing where the card is not the one whose pairs were measured: the state of a site before it calibrates.

Each table of pairs is the interference of a replay of P1, and what is expected of a pair before one like it was seen
comes from another card: from the share labels of the trace and the contention model, or from models of ``pairs.csv``.
Figures are average JCTs, beside the same without sharing, which no table changes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from benchmarks.figure import Figure
from benchmarks.packs import pack, shared
from benchmarks.quality import ESTIMATES
from lucid.config.load import settings_from
from lucid.simulator.cluster.truth import Interference, PairsTable, read_pairs
from lucid.simulator.metrics import run_metrics
from lucid.simulator.predictors import train_packing
from lucid.simulator.scenario import Scenario, simulate

__all__ = ["figures"]

_MOST = 0.93
"""Asked for: so many times the average JCT without sharing."""
_HOUR = 3600.0


def _tables() -> dict[str, Interference]:
    """Cards by name, and what the jobs of a pair run at there. 29 % of the pairs of ``pairs.csv`` have a job below
    0.85 of its speed alone, 93 % on the V100, all on the P100."""
    return {
        "RTX 3090 (pairs.csv)": read_pairs(shared("pairs.csv")),
        "V100": read_pairs(shared("pairs_v100_simulation.csv")),
        "P100": read_pairs(shared("pairs_p100_simulation.csv")),
        "a card on which every pair runs at half speed": PairsTable({}, (0.5, 0.5)),
    }


def figures(runs: int) -> Iterator[Figure]:  # noqa: ARG001 - deterministic
    """One row for each card, by where expectations come from."""
    plain = pack("P1", ESTIMATES)
    none = replace(plain, settings=settings_from({"policy": {"packing": {"gss": 0}}}, "no sharing"))
    alone_h = _jct_h(none)
    models = train_packing(shared("profiles.csv"), shared("pairs.csv"))
    for source, scenario in (("labels", plain), ("models of pairs.csv", replace(plain, packing=models))):
        for card, truth in _tables().items():
            yield Figure(
                f"avg JCT on P1, {card}, pairs foretold by {source}",
                _jct_h(replace(scenario, interference=truth)),
                "h",
                1,
                alone_h,
                "no sharing",
                at_most=_MOST * alone_h,
            )


def _jct_h(scenario: Scenario) -> float:
    return run_metrics(simulate(scenario, "lucid"))["avg_jct_s"] / _HOUR
