"""The elastic platform against exhaustive optima and the placement rule executed by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from vector_files import files, load

from lucid.orchestrator.policies.rounds.expansion import best_fit, expand, reduce

pytestmark = pytest.mark.vectors


@files("elastic_dp")
def test_expansion_is_optimal(vectors: Path) -> None:
    for number, case in enumerate(load(vectors)["expansion"]):
        gained, total = expand(case["f"], case["s"], case["job"], case["K"])
        assert total == pytest.approx(case["max_total_gain"], rel=1e-9, abs=1e-9), number
        assert gained.sum() <= case["K"]
        f, s, left = np.array(case["f"]), np.array(case["s"]), np.array(case["job"])
        rows = np.arange(len(s))
        assert ((f[rows, s - 1] - f[rows, s + gained - 1]) * left).sum() == pytest.approx(total), number


@files("elastic_dp")
def test_reduction_is_optimal(vectors: Path) -> None:
    for number, case in enumerate(load(vectors)["reduction"]):
        reclaim = case["K_reclaimed"]
        lost, total = reduce(case["f"], case["s"], case["job"], reclaim)
        assert total == pytest.approx(case["min_total_loss"], rel=1e-9, abs=1e-9), number
        assert lost.sum() == reclaim
        assert (np.array(case["s"]) - lost >= 1).all()


@files("elastic_placement")
def test_placements_are_equal(vectors: Path) -> None:
    for number, case in enumerate(load(vectors)["cases"]):
        placed = best_fit(dict(case["nodes"]), [tuple(j) for j in case["jobs"]])
        ours = {str(job): [list(part) for part in parts] for job, parts in placed.items()}
        assert ours == case["placement"], number
