"""The published packs, replayed, and the figures that the published simulator gives for them."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from lucid.simulator.estimates import read_estimates
from lucid.simulator.layout import read_vcs
from lucid.simulator.metrics import run_metrics
from lucid.simulator.scenario import Scenario, Semantics, simulate
from lucid.simulator.traces import Trace, read_trace
from lucid.simulator.truth import read_pairs

SHARED = Path(os.environ.get("LUCID_SHARED", str(Path(__file__).parents[3] / "shared")))
HOUR = 3600.0


def shared(name: str) -> Path:
    """A file of the shared data; skips where it is not at hand."""
    path = SHARED / "data" / name
    if not path.is_file():
        pytest.skip(f"{path} is not there (set LUCID_SHARED)")
    return path


@cache
def _trace(pack: str) -> Trace:
    return read_trace(shared(f"packs/{pack}.csv"))


@cache
def replayed(pack: str, policy: str, semantics: str, estimates: str = "") -> dict[str, Any]:
    """Figures of one policy on one pack, on the nodes that its configuration gives."""
    trace = _trace(pack)
    given = {policy: read_estimates(shared(f"packs/{estimates}.csv"), trace)} if estimates else {}
    scenario = Scenario(
        trace,
        read_vcs(shared(f"packs/{pack}_vc_config.csv")),
        interference=read_pairs(shared("pairs.csv")),
        durations_s=given,
        semantics=Semantics(semantics),
    )
    return run_metrics(simulate(scenario, policy))


def hours(figures: dict[str, Any], name: str) -> float:
    """A figure in hours, as the published tables give it."""
    return float(figures[name]) / HOUR
