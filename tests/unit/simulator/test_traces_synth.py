"""Synthetic histories have the shape that docs/traces.md promises, and the same bytes every time."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace
from functools import cache
from hashlib import sha256
from math import log
from pathlib import Path
from statistics import fmean, median, pvariance
from typing import Any

import pytest

from benchmarks.log_shapes import shape, spearman
from builders import a_trace, by
from lucid.errors import ConfigError
from lucid.simulator.traces.describe import describe
from lucid.simulator.traces.formats.own import write_trace
from lucid.simulator.traces.presets import PRESETS, SynthSettings, preset, vc_layout
from lucid.simulator.traces.read import read_trace
from lucid.simulator.traces.record import Trace, TraceJob
from lucid.simulator.traces.synth import WORKLOADS, synthesise

SEEDS = (1, 2, 3, 4, 5)


@cache
def drawn(name: str, seed: int) -> tuple[Trace, dict[str, Any]]:
    """A history, and the figures about it."""
    trace = synthesise(preset(name), seed)
    return trace, describe(trace)


@pytest.fixture(params=SEEDS)
def month(request: pytest.FixtureRequest) -> Trace:
    return drawn("month-small", request.param)[0]


def full_runs(trace: Trace) -> list[TraceJob]:
    return [item for item in trace.jobs if item.state == "COMPLETED" and not item.job.name.startswith("debug-")]


def test_same_settings_and_seed_give_the_same_bytes(tmp_path: Path) -> None:
    few = preset("month-small").resized(400, None)
    first, again, other = (synthesise(few, seed) for seed in (7, 7, 8))
    for name, trace in (("a", first), ("b", again)):
        write_trace(trace, tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert read_trace(tmp_path / "a") == again
    assert other.jobs != first.jobs


def offered_gpu_h(settings: SynthSettings) -> float:
    """What the jobs ask for, over all VCs."""
    return sum(vc.nodes * vc.utilisation for vc in settings.vcs) * settings.gpus_per_node * settings.days * 24


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_presets_keep_their_promises(name: str) -> None:
    settings = preset(name)
    for seed in SEEDS if settings.jobs < 10_000 else SEEDS[:2]:
        trace, figures = drawn(name, seed)
        assert len(trace.jobs) == settings.jobs
        assert trace.vcs == tuple(sorted(vc_layout(name)))
        assert 0.60 <= figures["single_gpu_share"] <= 0.90
        assert figures["offered_gpu_h"] == pytest.approx(offered_gpu_h(settings), rel=0.005)
        for vc in settings.vcs:
            wanted = vc.utilisation * vc.nodes * settings.gpus_per_node * settings.days * 24
            assert figures["vcs"][vc.name]["offered_gpu_h"] == pytest.approx(wanted, rel=0.005)
            assert figures["vcs"][vc.name]["max_gpus"] <= vc.nodes * settings.gpus_per_node
        for item in trace.jobs:
            assert 1 <= item.duration_s <= min(settings.most_s, item.job.time_limit_s or settings.most_s)
            assert item.job.gpus.bit_count() == 1


def test_month_logs_has_what_public_logs_have() -> None:
    """docs/traces.md shows the ranges of the logs; every seed lies among them, or near."""
    for seed in SEEDS:
        found = shape(drawn("month-logs", seed)[0])
        assert 4 <= found["jobs > 8 GPUs, %"] <= 12
        assert 25 <= found["of the GPU-hours, %"] <= 90
        assert found["their median run time, h"] < 1.0
        assert 3 <= found["median run time, min"] <= 40
        assert found["longest run time, days"] > 20
        assert found["jobs in series of 10 and more, %"] > 20
        assert 0.15 < found["Spearman, median of the user's last 20"] < 0.65


def test_what_a_shape_is_made_of() -> None:
    series = [by(f"s{i}", 1, 60.0, 60.0 * i, user="ada") for i in range(12)]
    long = [by(f"l{i}", 16, 4 * 86400.0, 86400.0 * i, user="bob") for i in range(1, 4)]
    found = shape(a_trace(*series, *long))
    assert found["jobs > 8 GPUs, %"] == found["jobs in series of 10 and more, %"] - 60 == 20
    assert found["longest run time, days"] == 4
    assert found["GPU-hours of runs of 3 days and more, %"] == pytest.approx(100, abs=0.01)
    assert spearman([1, 2, 3, 4], [10, 20, 30, 5]) == pytest.approx(-0.2)
    assert spearman([1, 1, 2], [1, 2, 3]) == pytest.approx(0.866, abs=1e-3)


MADE = {"month-small": "6a9e425bdd7c89ab", "month-10k": "8cf73aa42373b19c", "burst": "dfe3590fe4a33c20"}


@pytest.mark.parametrize("name", MADE)
def test_the_older_presets_are_byte_for_byte_what_they_were(name: str, tmp_path: Path) -> None:
    """Every figure of the documentation is of these histories."""
    write_trace(drawn(name, 1)[0], tmp_path / "made.csv")
    assert sha256((tmp_path / "made.csv").read_bytes()).hexdigest()[:16] == MADE[name]


def test_month_small_is_what_the_demo_needs() -> None:
    settings = preset("month-small")
    assert (settings.jobs, settings.days, len(settings.vcs)) == (4000, 28, 5)
    assert 24 <= settings.nodes <= 32
    load = offered_gpu_h(settings) / (settings.nodes * settings.gpus_per_node * settings.days * 24)
    assert 0.70 <= load <= 0.80


def test_days_and_weeks_have_their_rhythm(month: Trace) -> None:
    arrivals = describe(month)["arrivals"]
    by_hour, by_day = arrivals["by_hour_of_day"], arrivals["by_weekday"]
    assert fmean(by_hour[14:18]) > 3 * fmean(by_hour[2:6])
    assert fmean(by_day[:5]) > 1.3 * fmean(by_day[5:])


def test_durations_are_heavy_tailed(month: Trace) -> None:
    durations = [item.duration_s for item in month.jobs]
    assert fmean(durations) > 4 * median(durations)
    assert 0.10 < describe(month)["short_share"] < 0.40


def test_states_and_debugging(month: Trace) -> None:
    states = Counter(item.state for item in month.jobs)
    assert 0.5 < states["COMPLETED"] / len(month.jobs) < 0.75
    assert 0.12 < states["FAILED"] / len(month.jobs) < 0.30
    assert 0.10 < states["CANCELLED"] / len(month.jobs) < 0.25
    assert states["TIMEOUT"] > 0
    debug = [item for item in month.jobs if item.job.name.startswith("debug-")]
    assert median(item.duration_s for item in debug) < 120
    at_work = [item for item in debug if 9 <= ((month.epoch_s or 0) + item.job.submit_s) % 86400 / 3600 < 20]
    assert len(at_work) > 0.7 * len(debug)


def test_user_and_name_tell_something_of_the_duration_but_not_all(month: Trace) -> None:
    groups: dict[tuple[str, str], list[float]] = defaultdict(list)
    for item in full_runs(month):
        project = item.job.name.rsplit("-", 2)[0]
        groups[item.job.user, project].append(log(item.duration_s))
    values = [value for group in groups.values() for value in group]
    inside = sum(pvariance(group) * len(group) for group in groups.values()) / len(values)
    explained = 1 - inside / pvariance(values)
    assert 0.4 < explained < 0.95


def test_users_resubmit_under_rising_versions(month: Trace) -> None:
    figures = describe(month)
    assert figures["users"]["same_name_share"] > 0.5
    assert figures["users"]["busiest_share"] > 3 / figures["users"]["count"]
    last: dict[tuple[str, str], int] = {}
    falls = rises = 0
    for item in full_runs(month):
        stem, _, version = item.job.name.rpartition("-v")
        key = (item.job.user, stem.rsplit("-", 1)[0])
        if key in last:
            falls += int(version) < last[key]
            rises += int(version) > last[key]
        last[key] = int(version)
    assert rises > 20 * falls  # long debugging may carry one submission past the start of the next


def test_time_limits_are_generous(month: Trace) -> None:
    limited = [item for item in full_runs(month) if item.job.time_limit_s is not None]
    assert 0.6 < len(limited) / len(full_runs(month)) < 1.0
    assert median((item.job.time_limit_s or 0) / item.duration_s for item in limited) > 2


def test_storm_shows() -> None:
    trace = synthesise(preset("burst"), 1)
    start_s = (trace.epoch_s or 0) - 1704067200.0
    hours = Counter(int((item.job.submit_s + start_s) // 3600) for item in trace.jobs)
    storm = sum(hours[hour] for hour in range(33, 41))
    day_before = sum(hours[hour] for hour in range(9, 17))
    assert storm > 3 * day_before


def test_workload_table() -> None:
    profiles = [item.profile for item in WORKLOADS]
    assert len({profile.workload for profile in profiles}) == 40
    assert all(profile.workload.startswith("syn-") for profile in profiles)
    assert all(0 < profile.gpu_util < 100 and 0 < profile.mem_util < 100 for profile in profiles)
    assert all(profile.gpu_mem_mib < 24576 for profile in profiles)
    assert sum(profile.unstable for profile in profiles) == 8
    first = profiles[0]  # the documented formula, by hand: 1 - exp(-0.010 sqrt(128))
    assert (first.gpu_util, first.mem_util, first.gpu_mem_mib) == (10.7, 3.5, 1192.0)


def test_resizing_keeps_the_rate() -> None:
    small = preset("month-small").resized(400, None)
    assert (small.jobs, small.days) == (400, pytest.approx(2.8))
    week = preset("month-small").resized(None, 7)
    assert (week.jobs, week.days) == (1000, 7)
    assert preset("burst").resized(None, None) is preset("burst")
    trace = synthesise(week, 3)
    assert describe(trace)["offered_gpu_h"] == pytest.approx(offered_gpu_h(week), rel=0.005)


def test_too_few_jobs_for_the_load() -> None:
    with pytest.raises(ConfigError, match="ask for more jobs"):
        synthesise(preset("month-small").resized(20, 28))


def test_unknown_preset_lists_the_known_ones() -> None:
    for ask in (preset, vc_layout):
        with pytest.raises(ConfigError, match=r"'moon' \(known: burst, month-10k, month-logs, month-small\)"):
            ask("moon")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"jobs": 0}, "jobs = 0"),
        ({"days": float("nan")}, "days = nan"),
    ],
)
def test_settings_are_checked(change: dict[str, object], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        replace(preset("burst"), **change)  # type: ignore[arg-type]
