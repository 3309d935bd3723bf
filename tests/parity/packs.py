"""Published traces, replayed, and the figures that the published simulators give for them.

Replays are called, not asked of the command line, which forecasts starts beside them and takes twice as long.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from lucid.simulator.cluster.state import Semantics
from lucid.simulator.cluster.truth import read_pairs
from lucid.simulator.layout import NodeShape, read_vcs, sized_vcs
from lucid.simulator.metrics import run_metrics
from lucid.simulator.predictors import read_estimates
from lucid.simulator.scenario import Scenario, simulate
from lucid.simulator.traces.read import read_trace, sniff
from lucid.simulator.traces.record import Trace

SHARED = Path(os.environ.get("LUCID_SHARED", str(Path(__file__).parents[3] / "shared")))
HOUR = 3600.0


def shared(name: str) -> Path:
    """A file of the shared data; skips where it is not at hand."""
    path = SHARED / "data" / name
    if not path.is_file():
        pytest.skip(f"{path} is not there (set LUCID_SHARED)")
    return path


@cache
def _trace(path: Path, applications: Path | None = None) -> Trace:
    return read_trace(path, applications=applications)


@cache
def replayed(pack: str, policy: str, semantics: str, estimates: str = "") -> dict[str, Any]:
    """Figures of one policy on one pack, on the nodes that its configuration gives."""
    trace = _trace(shared(f"packs/{pack}.csv"))
    given = {policy: read_estimates(shared(f"packs/{estimates}.csv"), trace)} if estimates else {}
    scenario = Scenario(
        trace,
        read_vcs(shared(f"packs/{pack}_vc_config.csv")),
        interference=read_pairs(shared("pairs.csv")),
        durations_s=given,
        semantics=Semantics(semantics),
    )
    return run_metrics(simulate(scenario, policy))


@cache
def on_nodes(path: Path, nodes: int, gpus: int, policy: str, applications: Path | None = None) -> dict[str, Any]:
    """Figures of one policy on a trace of Muri's or Pollux's authors, on so many equal nodes."""
    trace = _trace(path, applications)
    semantics = Semantics.MURI if sniff(path) == "muri" else Semantics.HONEST
    scenario = Scenario(trace, sized_vcs(trace, gpus, nodes), NodeShape(gpus), semantics=semantics)
    return run_metrics(simulate(scenario, policy))


def hours(figures: dict[str, Any], name: str) -> float:
    """A figure in hours, as the published tables give it."""
    return float(figures[name]) / HOUR
