"""How fast a pair runs, judged by work that adds up; pairs whose true speeds are known."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import pytest

import benchmarks.calibrate
from lucid.core.job import JobProfile
from lucid.profiler.pair_watch import seen_speed, watched
from lucid.profiler.samples import GpuSample, Sample
from lucid.profiler.summary import Series, Spell, Summary, point_of, summarise

A = JobProfile(80, 40, 4000, dram_active=30)
B = JobProfile(60, 20, 3000, dram_active=10)


def bare(profile: JobProfile) -> JobProfile:
    return JobProfile(profile.gpu_util, profile.mem_util, profile.gpu_mem_mib)


def busy(profile: JobProfile, sm_active: float) -> JobProfile:
    return replace(profile, sm_active=sm_active)


def alone_of(row: dict[str, str]) -> JobProfile:
    util, mem_util, mem_mib, sm_active, dram_active = (
        float(row[key]) for key in ("gpu_util", "gmem_util", "gmem", "sm_active", "dram_active")
    )
    return JobProfile(util, mem_util, mem_mib, sm_active=sm_active, dram_active=dram_active)


@pytest.mark.parametrize("speed", [0.3, 0.5, 0.85, 1.0])
def test_each_rule_finds_the_speed_that_made_the_readings(speed: float) -> None:
    by_sm = seen_speed(busy(A, 60), busy(B, 30), Spell(120, dram_active=20, sm_active=speed * 90))
    assert (by_sm.speed, by_sm.method) == (pytest.approx(speed), "SM activity")
    by_dram = seen_speed(A, B, Spell(120, card_mem_util=50, dram_active=speed * 40))
    assert (by_dram.speed, by_dram.method) == (pytest.approx(speed), "DRAM traffic")
    by_time = seen_speed(bare(A), bare(B), Spell(120, card_mem_util=speed * 60))
    assert (by_time.speed, by_time.method) == (pytest.approx(speed), "memory time")


def test_on_measured_pairs_sm_activity_finds_the_speed_and_traffic_says_somewhat_too_much() -> None:
    """The shipped table of one H100 under MPS: 15 pairs, steps a second against readings of the card."""
    folder = Path(benchmarks.calibrate.__file__).parent / "measured" / "h100-mps"
    with (folder / "profiles.csv").open() as file:
        alone = {row["model"]: alone_of(row) for row in csv.DictReader(file)}
    with (folder / "pairs.csv").open() as file:
        pairs = list(csv.DictReader(file))
    errors: dict[str, list[float]] = {}
    for row in pairs:
        own, partner = alone[row["model1"]], alone[row["model2"]]
        sm_active, dram_active, mem_util = (float(row[key]) for key in ("sm_active", "dram_active", "gmem_util"))
        for known in (
            Spell(120, sm_active=sm_active, dram_active=dram_active),
            Spell(120, dram_active=dram_active, card_mem_util=mem_util),
            Spell(120, card_mem_util=mem_util),
        ):
            seen = seen_speed(own, partner, known)
            if seen is not None:  # two jobs of cnn-small move too little to be judged by
                true = (float(row["speed1"]) + float(row["speed2"])) / 2
                errors.setdefault(seen.method, []).append(seen.speed - true)
    assert len(errors["SM activity"]) == 15
    assert max(map(abs, errors["SM activity"])) < 0.07
    for traffic in ("DRAM traffic", "memory time"):
        assert len(errors[traffic]) >= 13
        assert 0.05 < sum(errors[traffic]) / len(errors[traffic]) < 0.12


def test_one_side_without_traffic_leaves_the_others_share() -> None:
    found = seen_speed(bare(A), JobProfile(50, 0, 1000), Spell(120, card_mem_util=20))
    assert found.speed == pytest.approx(0.5)


def test_too_short_too_little_or_unknown_is_not_judged() -> None:
    assert seen_speed(A, B, Spell(30, dram_active=10)) is None
    idle = JobProfile(50, 1, 1000, dram_active=1)
    assert seen_speed(idle, idle, Spell(120, mem_util=1, card_mem_util=2, dram_active=2)) is None
    assert seen_speed(bare(A), None, Spell(120, card_mem_util=30)) is None
    assert seen_speed(A, B, Spell(120)) is None


def test_nobody_runs_much_faster_than_alone() -> None:
    found = seen_speed(A, B, Spell(120, dram_active=90))
    assert found.speed == 1.2


def pair(util: list[float], mem: list[float], shared_from: int, partner: str | None = "b") -> Summary:
    series = Series()
    for i, (u, m) in enumerate(zip(util, mem, strict=True)):
        shared = i >= shared_from
        gpu = GpuSample(u, u / 2, 9000, u, u / 2, m, shared=shared) if shared else GpuSample(u, u / 2, m)
        point = point_of(Sample(i, float(i), (gpu,)))
        assert point is not None
        series.add(point)
    return summarise(series, "a", "n1", ["GPU-a"], len(util), partner=partner, partner_since_s=shared_from)


def test_the_profile_carries_what_was_seen_beside_the_partner() -> None:
    summary = pair([80.0] * 60 + [40.0] * 120, [4000.0] * 180, 60)
    found = watched(summary, None, B).profile
    assert found.gpu_util == 80
    assert found.seen_speed == pytest.approx(20 / 60)  # memory time: 20 together, 40 and 20 alone
    assert watched(summary, None, B).seen_by == "memory time"
    gone = watched(pair([80.0] * 180, [4000.0] * 180, 999, None), None, None).profile
    assert gone.seen_speed is None


def test_a_guest_keeps_the_profile_of_its_earlier_run_and_its_leak_is_foretold() -> None:
    summary = pair([40.0] * 240, [3000.0 + 2 * i for i in range(240)], 0)
    assert summary.profile is None
    assert watched(summary, None, B).profile is None
    found = watched(summary, A, B).profile
    assert (found.gpu_util, found.mem_growing) == (80, True)
    assert found.gpu_mem_mib == pytest.approx(3478 + 7200, rel=0.06)


def test_a_job_that_turns_unstable_beside_its_partner_is_marked() -> None:
    import random

    chance = random.Random(3)
    util: list[float] = []
    while len(util) < 300:
        util += [chance.uniform(5, 100)] * chance.randint(4, 19)
    found = watched(pair(util, [3000.0] * len(util), 0), A, B).profile
    assert found.unstable
    steady = watched(pair([50.0] * 300, [3000.0] * 300, 0), A, B).profile
    assert not steady.unstable


def test_only_readings_since_this_partner_came_tell_of_the_pair() -> None:
    series = Series()
    for i in range(240):
        gpu = GpuSample(90, 15 if i < 120 else 45, 9000, 40.0, 20.0, 3000, shared=True)
        point = point_of(Sample(i, float(i), (gpu,)))
        assert point is not None
        series.add(point)
    summary = summarise(series, "a", "n1", ["GPU-a"], 240, partner="c", partner_since_s=120.0)
    found = watched(summary, A, B).profile
    assert found.seen_speed == pytest.approx(0.75)
