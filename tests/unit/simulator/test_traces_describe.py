"""Figures about a trace, on one small enough to count by hand."""

from __future__ import annotations

import json

import pytest

from lucid.core.job import Job
from lucid.simulator.traces.describe import describe, quantile
from lucid.simulator.traces.record import Trace, TraceJob

MONDAY_S = 1704067200.0


def job(name: str, vc: str, gpus: int, submit_s: float, duration_s: float, user: str, state: str) -> TraceJob:
    return TraceJob(Job(name, vc, gpus, submit_s, user=user, name=f"run-{name}"), duration_s, state)


TRACE = Trace(
    "small",
    (
        job("1", "a", 1, 0.0, 80.0, "u1", "COMPLETED"),
        job("2", "a", 8, 10.0, 3600.0, "u1", "FAILED"),
        job("3", "b", 1, 7200.0, 81.0, "u2", ""),
        job("4", "b", 2, 36000.0, 7200.0, "u1", "COMPLETED"),
    ),
    epoch_s=MONDAY_S,
    skipped=(("short row", 2),),
)


def test_counts() -> None:
    figures = describe(TRACE)
    assert (figures["jobs"], figures["span_s"], figures["skipped"]) == (4, 36000.0, {"short row": 2})
    assert figures["gpus"] == {"1": 2, "2": 1, "8": 1}
    assert (figures["single_gpu_share"], figures["short_share"]) == (0.5, 0.25)
    assert figures["states"] == {"COMPLETED": 2, "FAILED": 1, "unknown": 1}
    assert figures["users"] == {"count": 2, "busiest_share": 0.75, "same_name_share": 0.5}
    assert figures["duration_s"]["p50"] == (81.0 + 3600.0) / 2
    assert figures["duration_s"]["max"] == 7200.0


def test_load_by_vc() -> None:
    figures = describe(TRACE)
    a_s, b_s = 80.0 + 8 * 3600.0, 81.0 + 2 * 7200.0
    assert figures["offered_gpu_h"] == pytest.approx((a_s + b_s) / 3600)
    assert figures["vcs"]["a"]["load_share"] == pytest.approx(a_s / (a_s + b_s))
    assert figures["vcs"]["b"]["mean_gpus_in_use"] == pytest.approx(b_s / 36000)
    assert (figures["vcs"]["b"]["users"], figures["vcs"]["a"]["max_gpus"]) == (2, 8)


def test_arrivals() -> None:
    arrivals = describe(TRACE)["arrivals"]
    assert arrivals["per_hour_mean"] == pytest.approx(0.4)
    assert (arrivals["per_hour_peak"], arrivals["peak_at_s"]) == (2, 0.0)
    assert arrivals["by_hour_of_day"][:3] == [2.0, 0.0, 1.0]
    assert arrivals["by_weekday"] == [pytest.approx(0.4), 0, 0, 0, 0, 0, 0]


def test_without_dates_there_is_no_rhythm() -> None:
    arrivals = describe(Trace("undated", TRACE.jobs))["arrivals"]
    assert arrivals["by_hour_of_day"] is None
    assert arrivals["by_weekday"] is None


def test_empty_and_single() -> None:
    assert describe(Trace("none", ()))["jobs"] == 0
    assert describe(Trace("one", TRACE.jobs[:1], epoch_s=0.0))["span_s"] == 0.0
    json.dumps(describe(Trace("one", TRACE.jobs[:1], epoch_s=0.0)), allow_nan=False)


def test_quantile() -> None:
    assert quantile([1.0, 2.0, 4.0], 0.5) == 2.0
    assert quantile([1.0, 2.0, 4.0], 0.75) == 3.0
    assert quantile([1.0], 0.99) == 1.0
    assert quantile([], 0.5) == 0.0
