"""The real traces, where they are at hand (LUCID_SHARED)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lucid.simulator.traces.read import read_trace

DATA = Path(os.environ.get("LUCID_SHARED", Path(__file__).parents[4] / "shared")) / "data"


def shared(*parts: str) -> Path:
    path = DATA.joinpath(*parts)
    if not path.is_file():
        pytest.skip(f"{'/'.join(parts)} is not in LUCID_SHARED")
    return path


@pytest.mark.parametrize(("pack", "jobs"), [("P0.csv", 1577), pytest.param("P1.csv", 10432, marks=pytest.mark.slow)])
def test_packs(pack: str, jobs: int) -> None:
    trace = read_trace(shared("packs", pack))
    assert len(trace.jobs) == jobs
    assert trace.skipped == ()
    assert [item.job.rank for item in trace.jobs] == list(range(jobs))
    assert {item.share_label for item in trace.jobs} == {0, 1, 2}
    assert all(item.profile is not None and item.profile.workload.count("|") == 3 for item in trace.jobs)


@pytest.mark.parametrize(
    ("lines", "jobs", "vcs"), [(3000, 2999, 11), pytest.param(None, 70982, 15, marks=pytest.mark.slow)]
)
def test_philly(tmp_path: Path, lines: int | None, jobs: int, vcs: int) -> None:
    path = tmp_path / "philly.csv"
    path.write_text("".join(shared("philly.csv").read_text().splitlines(keepends=True)[:lines]))
    trace = read_trace(path)
    assert len(trace.jobs) == jobs
    assert len(trace.vcs) == vcs
    keys = [(item.job.submit_s, item.job.rank) for item in trace.jobs]
    assert keys == sorted(keys)
    assert trace.jobs[0].job.submit_s == 0.0
