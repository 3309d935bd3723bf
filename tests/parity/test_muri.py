"""Muri's own traces against the figures that its authors publish with their simulator."""

from __future__ import annotations

import json
import os
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from lucid.cli.main import lucidctl

pytestmark = [pytest.mark.parity, pytest.mark.slow]  # whole traces of the authors are replayed: 14 s a test

ROOT = Path(__file__).parents[2]
SHARED = Path(os.environ.get("LUCID_SHARED", str(ROOT.parent / "shared")))


@cache
def replayed(trace: str, *policies: str) -> dict[str, Any]:
    """Figures by policy, from the command as a user gives it."""
    path = SHARED / "data" / "muri" / f"{trace}.csv"
    if not path.exists():
        pytest.skip(f"{path} is not there (set LUCID_SHARED)")
    chosen = [word for name in policies for word in ("--policy", name)]
    words = ["simulate", str(path), "--nodes", "8", "--gpus-per-node", "8", *chosen, "--json"]
    done = CliRunner().invoke(lucidctl, words, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    results: dict[str, Any] = json.loads(done.output)["results"]
    return results


def published(kind: str, column: str, trace: str) -> float:
    path = SHARED / "vectors" / "muri_published.json"
    if not path.exists():
        pytest.skip(f"{path} is not there (set LUCID_SHARED)")
    return float(json.loads(path.read_text(encoding="utf-8"))["results"][kind][column][trace])


EXACT = {"srtf": "SRTF", "srsf": "SRSF", "tiresias": "Tiresias_L"}


@pytest.mark.parametrize("policy", EXACT)
def test_the_baselines_are_equal_to_the_published_digit(policy: str) -> None:
    figures = replayed("trace3", *EXACT, "muri-s", "muri-l")[policy]
    assert figures["avg_jct_s"] == pytest.approx(published("JCT", EXACT[policy], "trace3"), rel=1e-8)
    assert figures["makespan_s"] == pytest.approx(published("Makespan", EXACT[policy], "trace3"), rel=1e-8)


def test_muri_is_within_one_percent() -> None:
    figures = replayed("trace3", *EXACT, "muri-s", "muri-l")
    assert figures["muri-s"]["avg_jct_s"] == pytest.approx(83_242, rel=0.01)
    assert figures["muri-l"]["avg_jct_s"] == pytest.approx(published("JCT", "Muri_L", "trace3"), rel=0.01)
    assert figures["muri-s"]["cpu_s"] < 15
    assert figures["muri-s"]["packed_share"] > 0.5


def test_muri_without_unpacking_is_within_one_percent() -> None:
    figures = replayed("trace3", "muri-s-no-unpack", "muri-l-worst-order", "muri-l-no-matching")
    assert figures["muri-s-no-unpack"]["avg_jct_s"] == pytest.approx(published("JCT", "Muri_S", "trace3"), rel=0.01)
    assert figures["muri-l-worst-order"]["avg_jct_s"] == pytest.approx(146_324.4084, rel=0.01)
    # no matching, so no ties in it to break another way: everything else must be the same
    assert figures["muri-l-no-matching"]["avg_jct_s"] == pytest.approx(96_016.95407, rel=1e-8)


@pytest.mark.slow
@pytest.mark.parametrize("policy", EXACT)
@pytest.mark.parametrize("trace", ["trace1", "trace3_pr"])
def test_the_baselines_on_the_other_traces(trace: str, policy: str) -> None:
    figures = replayed(trace, *EXACT, "muri-s-no-unpack", "muri-l-no-unpack")[policy]
    assert figures["avg_jct_s"] == pytest.approx(published("JCT", EXACT[policy], trace), rel=1e-8)


@pytest.mark.slow
@pytest.mark.parametrize(("policy", "column"), [("muri-s-no-unpack", "Muri_S"), ("muri-l-no-unpack", "Muri_L")])
@pytest.mark.parametrize("trace", ["trace1", "trace3_pr"])
def test_muri_on_the_other_traces(trace: str, policy: str, column: str) -> None:
    figures = replayed(trace, *EXACT, "muri-s-no-unpack", "muri-l-no-unpack")[policy]
    assert figures["avg_jct_s"] == pytest.approx(published("JCT", column, trace), rel=0.03)


BOUND_BY = {1: (192543.9, 182804.0, 346383.4), 2: (192494.6, 135643.1, 346280.5), 3: (192278.0, 90861.6, 345883.8)}
"""Workloads bound by one, two and three kinds of resources (M22): average JCT under SRTF, Muri-S and Tiresias."""


@pytest.mark.parametrize("kinds", BOUND_BY)
def test_the_more_kinds_of_jobs_the_more_muri_gains(kinds: int) -> None:
    folder = os.environ.get("LUCID_MURI_TRACES")
    if folder is None:
        pytest.skip("LUCID_MURI_TRACES names no folder with the authors' job_type_1.csv to job_type_3.csv")
    figures = replayed(f"{Path(folder).absolute()}/job_type_{kinds}", "srtf", "muri-s", "tiresias")
    srtf, muri, tiresias = BOUND_BY[kinds]
    assert figures["srtf"]["avg_jct_s"] == pytest.approx(srtf, rel=1e-6)
    assert figures["tiresias"]["avg_jct_s"] == pytest.approx(tiresias, rel=1e-6)
    assert figures["muri-s"]["avg_jct_s"] == pytest.approx(muri, rel=0.01)
