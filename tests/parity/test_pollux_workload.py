"""Pollux's workload 6 on 16 nodes of 4 GPUs: average JCT against the authors' own results (seconds).

Workloads 1 to 5, 7 and 8 of their artifact take part where ``LUCID_POLLUX_WORKLOADS`` names their folder."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner
from packs import shared

from lucid.cli.main import lucidctl

pytestmark = [pytest.mark.parity, pytest.mark.slow]  # whole traces of the authors are replayed: 14 s a test

WITHIN = 0.03


OPTIMUS = {1: 4087.1, 2: 6913.9, 3: 3944.0, 4: 5967.8, 5: 5656.2, 6: 5301.9, 7: 7290.9, 8: 6293.8}
"""Of Optimus with an oracle, by workload."""


def figures(*args: str) -> dict[str, dict[str, float]]:
    return replayed(shared("pollux/workload-6.csv"), *args)


def replayed(path: Path, *args: str) -> dict[str, dict[str, float]]:
    command = ["simulate", str(path), "--nodes", "16", "--gpus-per-node", "4", *args, "--json"]
    result = CliRunner().invoke(lucidctl, command, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)["results"]  # type: ignore[no-any-return]


def test_tiresias_and_optimus_with_an_oracle() -> None:
    found = figures("--policy", "tiresias", "--policy", "optimus")
    assert found["tiresias"]["avg_jct_s"] == pytest.approx(3470, rel=WITHIN)
    assert found["optimus"]["avg_jct_s"] == pytest.approx(5302, rel=WITHIN)
    assert found["tiresias"]["jobs"] == found["optimus"]["jobs"] == 160


@pytest.mark.parametrize("number", sorted(OPTIMUS))
def test_optimus_knows_what_the_authors_oracle_knew(number: int) -> None:
    """With the truth instead, workloads 1, 3 and 4 were 3.7, 4.0 and 3.8 % off."""
    folder = os.environ.get("LUCID_POLLUX_WORKLOADS")
    if folder is None and number != 6:
        pytest.skip("LUCID_POLLUX_WORKLOADS names no folder with the authors' other workloads")
    profiles = shared("pollux/workload-6.csv").parent
    path = (profiles if folder is None else Path(folder)) / f"workload-{number}.csv"
    found = replayed(path, "--policy", "optimus", "--applications", str(profiles))["optimus"]
    assert found["avg_jct_s"] == pytest.approx(OPTIMUS[number], rel=0.01)


@pytest.mark.slow
def test_pollux_once_a_minute() -> None:
    """The authors give +-5 % from one run of their search to the next."""
    found = figures("--policy", "pollux")["pollux"]
    assert found["avg_jct_s"] == pytest.approx(2446, rel=0.05)
    assert found["jobs"] == 160
    assert found["cpu_s"] < 300
