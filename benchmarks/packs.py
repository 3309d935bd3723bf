"""The real traces that figures are taken on, where they are at hand (LUCID_SHARED)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

from benchmarks.figure import Absent
from lucid.simulator.cluster.truth import read_pairs
from lucid.simulator.layout import read_vcs
from lucid.simulator.predictors import read_estimates
from lucid.simulator.scenario import Scenario
from lucid.simulator.traces.read import read_trace
from lucid.simulator.traces.window import POOL, pooled

__all__ = ["in_pool", "pack", "shared"]


def shared(name: str) -> Path:
    """A file of the shared data.

    Raises:
        Absent: it is not there.
    """
    root = Path(os.environ.get("LUCID_SHARED", Path(__file__).parents[2] / "shared"))
    path = root / "data" / name
    if not path.is_file():
        raise Absent(f"data/{name} is not in {root} (set LUCID_SHARED to the folder that has it)")
    return path


@cache
def pack(name: str, estimates: tuple[tuple[str, str], ...] = ()) -> Scenario:
    """A pack on its own nodes, with measured pairs as the true interference. ``estimates``: (policy, file) pairs.

    Raises:
        Absent: a file of it is not there.
    """
    trace = read_trace(shared(f"packs/{name}.csv"))
    given: Mapping[str, Mapping[str, float]] = {
        policy: read_estimates(shared(f"packs/{file}"), trace) for policy, file in estimates
    }
    return Scenario(
        trace,
        read_vcs(shared(f"packs/{name}_vc_config.csv")),
        interference=read_pairs(shared("pairs.csv")),
        durations_s=given,
        estimates_name="given estimates",
    )


def in_pool(scenario: Scenario) -> Scenario:
    """The same without walls: all jobs in one VC, which has the nodes of all VCs."""
    return replace(scenario, trace=pooled(scenario.trace), vcs={POOL: sum((scenario.vcs or {}).values())})
