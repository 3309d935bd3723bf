"""Replays, with the columns of a paper's table; where the data of the papers is."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.figure import Absent
from lucid.simulator.cluster.state import Semantics
from lucid.simulator.engine import Run
from lucid.simulator.layout import NodeShape, sized_vcs
from lucid.simulator.metrics import run_metrics
from lucid.simulator.scenario import Scenario, simulate
from lucid.simulator.traces.read import read_trace

__all__ = ["columns", "folder_of", "hours", "on_nodes", "p99_jct_h", "published_json", "replayed"]

_HOUR_S = 3600.0
_NAMES = {
    "avg JCT, h": "avg_jct_s",
    "queueing, h": "avg_queue_s",
    "p99.9 queueing, h": "p999_queue_s",
    "makespan, h": "makespan_s",
    "JCT > 8 GPUs, h": "avg_jct_large_s",
}


def replayed(scenario: Scenario, policy: str) -> dict[str, float]:
    """The columns of one replay."""
    return columns(simulate(scenario, policy))


def columns(run: Run) -> dict[str, float]:
    """Every column that the run has; all in hours."""
    found = run_metrics(run)
    return {name: found[key] / _HOUR_S for name, key in _NAMES.items() if found[key] is not None}


def p99_jct_h(run: Run) -> float:
    """As Muri's authors take it: the JCT of a job, not a mean of two."""
    jct_s = [outcome.jct_s for outcome in run.outcomes if outcome.end_s >= 0]
    return float(np.percentile(jct_s, 99, method="higher")) / _HOUR_S


def hours(seconds: Mapping[str, float]) -> dict[str, float]:
    """Published seconds by column, in hours."""
    return {name: value / _HOUR_S for name, value in seconds.items()}


def on_nodes(path: Path, nodes: int, gpus: int, semantics: Semantics, applications: Path | None = None) -> Scenario:
    """A trace of Muri's or Pollux's authors, on so many equal nodes."""
    trace = read_trace(path, applications=applications)
    return Scenario(trace, sized_vcs(trace, gpus, nodes), NodeShape(gpus), semantics=semantics)


@cache
def published_json(system: str) -> dict[str, Any]:
    """The file of published figures of ``muri`` or ``pollux``.

    Raises:
        Absent: it is not there.
    """
    root = Path(os.environ.get("LUCID_SHARED", Path(__file__).parents[3] / "shared"))
    path = root / "vectors" / f"{system}_published.json"
    if not path.is_file():
        raise Absent(f"vectors/{path.name} is not in {root} (set LUCID_SHARED to the folder that has it)")
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def folder_of(variable: str, what: str) -> Path | None:
    """The folder that an environment variable names; ``None`` where it names none.

    Raises:
        Absent: it is not there.
    """
    named = os.environ.get(variable)
    if not named:
        return None
    if not Path(named).is_dir():
        raise Absent(f"{variable}={named} is not a folder; it should be that of {what}")
    return Path(named)
