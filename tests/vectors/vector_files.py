"""Where the reference vectors are, by kind: the beginning of a file's name."""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
SHARED = Path(os.environ.get("LUCID_SHARED", str(ROOT.parent / "shared")))
VECTORS = Path(os.environ.get("LUCID_VECTORS", str(SHARED / "vectors")))

SYSTEMS = ("muri", "pollux", "optimus", "elastic")
KINDS = (
    "elastic_dp", "elastic_placement", "muri_gamma", "muri_grouping", "optimus_alloc", "optimus_fit", "pollux_fit",
    "pollux_goodput", "pollux_optimize", "pollux_policy_master", "pollux_policy_osdi21", "pollux_speedup",
)  # fmt: skip
TRACE_FIGURES = ("muri_published", "pollux_published")
"""Results of whole traces: compared where traces are simulated, not here."""


def files(kind: str) -> Any:
    """Parametrises a test over all files of one kind; one skipped case where there are none."""
    found = sorted(VECTORS.glob(f"{kind}*.json"))
    if not found:
        reason = f"no {kind}*.json in {VECTORS} (set LUCID_VECTORS)"
        return pytest.mark.parametrize("vectors", [pytest.param(None, marks=pytest.mark.skip(reason=reason))])
    return pytest.mark.parametrize("vectors", found, ids=[path.stem for path in found])


def load(path: Path) -> dict[str, Any]:
    """The file's contents."""
    data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return data


def pollux_profile(app: str) -> tuple[np.ndarray, ...]:
    """Nodes, replicas, atomic size, pass time and step time of a measured application; skips without it."""
    path = SHARED / "data" / "pollux" / app / "placements.csv"
    if not path.exists():
        pytest.skip(f"{path} is not there (set LUCID_SHARED)")
    with path.open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    nodes = np.array([len(row["placement"]) for row in rows])
    replicas = np.array([sum(int(digit) for digit in row["placement"]) for row in rows])
    step, sync, atomic = (np.array([float(row[c]) for row in rows]) for c in ("step_time", "sync_time", "local_bsz"))
    return nodes, replicas, atomic, step - sync, step
