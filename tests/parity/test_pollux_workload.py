"""Pollux's workload 6 on 16 nodes of 4 GPUs: average JCT against the authors' own results (seconds).

Workloads 1 to 5, 7 and 8 of their artifact take part where ``LUCID_POLLUX_WORKLOADS`` names their folder. In
``make test`` Tiresias alone is replayed; the others' curves and choices are held to the vectors there."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from packs import on_nodes, shared

pytestmark = pytest.mark.parity

WITHIN = 0.03
OPTIMUS = {1: 4087.1, 2: 6913.9, 3: 3944.0, 4: 5967.8, 5: 5656.2, 6: 5301.9, 7: 7290.9, 8: 6293.8}
"""Of Optimus with an oracle, by workload."""


def figures(policy: str) -> dict[str, Any]:
    return on_nodes(shared("pollux/workload-6.csv"), 16, 4, policy)


@pytest.mark.parametrize(
    ("policy", "jct_s"), [("tiresias", 3470), pytest.param("optimus", 5302, marks=pytest.mark.slow)]
)
def test_jobs_of_fixed_size_and_an_oracle(policy: str, jct_s: float) -> None:
    assert figures(policy)["avg_jct_s"] == pytest.approx(jct_s, rel=WITHIN)
    assert figures(policy)["jobs"] == 160


@pytest.mark.slow
@pytest.mark.parametrize("number", sorted(OPTIMUS))
def test_optimus_knows_what_the_authors_oracle_knew(number: int) -> None:
    """With the truth instead, workloads 1, 3 and 4 were 3.7, 4.0 and 3.8 % off."""
    folder = os.environ.get("LUCID_POLLUX_WORKLOADS")
    if folder is None and number != 6:
        pytest.skip("LUCID_POLLUX_WORKLOADS names no folder with the authors' other workloads")
    profiles = shared("pollux/workload-6.csv").parent
    path = (profiles if folder is None else Path(folder)) / f"workload-{number}.csv"
    found = on_nodes(path, 16, 4, "optimus", profiles)
    assert found["avg_jct_s"] == pytest.approx(OPTIMUS[number], rel=0.01)


@pytest.mark.slow
def test_pollux_once_a_minute() -> None:
    """The authors give +-5 % from one run of their search to the next."""
    found = figures("pollux")
    assert found["avg_jct_s"] == pytest.approx(2446, rel=0.05)
    assert found["jobs"] == 160
    assert found["cpu_s"] < 300
