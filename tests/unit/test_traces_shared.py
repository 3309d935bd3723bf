"""The real traces, where they are at hand (LUCID_SHARED)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lucid.simulator.traces import read_trace

DATA = Path(os.environ.get("LUCID_SHARED", Path(__file__).parents[3] / "shared")) / "data"


def shared(*parts: str) -> Path:
    path = DATA.joinpath(*parts)
    if not path.is_file():
        pytest.skip(f"{'/'.join(parts)} is not in LUCID_SHARED")
    return path


@pytest.mark.parametrize(("pack", "jobs"), [("P0.csv", 1577), ("P1.csv", 10432)])
def test_packs(pack: str, jobs: int) -> None:
    trace = read_trace(shared("packs", pack))
    assert len(trace.jobs) == jobs
    assert trace.skipped == ()
    assert [item.job.rank for item in trace.jobs] == list(range(jobs))
    assert {item.share_label for item in trace.jobs} == {0, 1, 2}
    assert all(item.profile is not None and item.profile.workload.count("|") == 3 for item in trace.jobs)


def test_philly_whole() -> None:
    trace = read_trace(shared("philly.csv"))
    assert len(trace.jobs) == 70982
    assert len(trace.vcs) == 15
    keys = [(item.job.submit_s, item.job.rank) for item in trace.jobs]
    assert keys == sorted(keys)
    assert trace.jobs[0].job.submit_s == 0.0
