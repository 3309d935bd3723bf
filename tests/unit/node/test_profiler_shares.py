"""The profiler's watch and shares of a GPU."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from test_node_sampler import Given, Readings, ticks

from lucid.core.gpu import GpuProcess, GpuReading
from lucid.core.job import JobProfile, TimeShares
from lucid.errors import MetricsError
from lucid.models.packing.like_profiles import LikeProfiles
from lucid.node.host_use import Host
from lucid.node.processes import JobSpec
from lucid.node.reports import read_summary, summary_from_dict, summary_to_dict, write_summary
from lucid.node.sampler import Sampler
from lucid.profiler.pair_watch import seen_speed, watched
from lucid.profiler.samples import GpuSample, Sample
from lucid.profiler.shape import HostUse, mean_shares, shares_in
from lucid.profiler.summary import Series, Spell, Summary, point_of, summarise
from lucid.slurm.view.profiles import says_more

PROFILE = JobProfile(50.0, 20.0, 3000.0, shares=TimeShares(0.1, 0.3, 0.6, "io.pressure"))


def use(cores: float, storage: float | None = 0.0, of: int = 8) -> HostUse:
    return HostUse(cores, of, storage, "x")


@pytest.mark.parametrize(
    ("readings", "gpu", "shares"),
    [
        (use(0.3, 0.1), 0.6, (0.1, 0.3, 0.6)),  # three stages that do not overlap
        (use(1.0, 0.0), 0.95, (0.0, 0.125, 0.95)),  # the thread that waits for its GPU in a busy loop
        (use(1.0, 0.0), 0.2, (0.0, 0.8, 0.2)),  # one thread prepares what the GPU then computes
        (use(8.0, 0.0), 0.5, (0.0, 1.0, 0.5)),  # loaders on all cores, while the GPU computes
        (use(0.1, 0.9), 0.9, (0.9, 0.0125, 0.9)),  # loaders that read ahead
        (use(0.0, 0.0), 0.0, (0.0, 0.0, 0.0)),
        (use(99.0, 7.0), 3.0, (1.0, 1.0, 1.0)),
        (use(0.5, None), 0.1, (None, 0.5, 0.1)),
    ],
)
def test_a_second_is_divided_by_its_readings(readings: HostUse, gpu: float, shares: tuple[float | None, ...]) -> None:
    found = shares_in(readings, gpu)
    assert (found.storage, found.cpu, found.gpu) == pytest.approx(shares)


def test_where_stages_are_longer_than_a_second_it_is_the_rule_of_the_highest() -> None:
    """Of 10 s, 2 read, 3 compute on the CPU, 5 on the GPU, of which a host thread waits in a busy loop."""
    moments = [(0.9, 0.1, 0.0)] * 2 + [(0.05, 1.0, 0.0)] * 3 + [(0.0, 1.0, 0.95)] * 5
    shares = mean_shares([(1.0, shares_in(use(cpu, storage), gpu)) for storage, cpu, gpu in moments])
    assert shares is not None
    assert (shares.storage, shares.cpu, shares.gpu) == pytest.approx((0.2, 0.3, 0.5), abs=0.07)


def test_means_leave_out_what_is_not_known() -> None:
    a, b = TimeShares(0.5, 0.2, 0.3, "x"), TimeShares(None, 0.4, 0.1)
    assert mean_shares([(1.0, a), (5.0, None), (1.0, b)]) == TimeShares(
        0.5, pytest.approx(0.3), pytest.approx(0.2), "x"
    )
    assert mean_shares([(1.0, a), (3.0, b)]) == TimeShares(None, pytest.approx(0.35), pytest.approx(0.15))
    assert mean_shares([(1.0, a)], 2.0) is None
    assert mean_shares([]) is None


def points(series: Series, start: int, count: int, util: float, host: HostUse | None, shared: bool = False) -> None:
    for second in range(start, start + count):
        own = util if shared else None
        gpus = (
            GpuSample(util, 10.0, 900.0, own, own, 900.0, shared=shared),
            GpuSample(util / 2, 10.0, 900.0, own, own, 900.0, shared=shared),
        )
        point = point_of(Sample(second, float(second), gpus), 1.0, host)
        assert point is not None
        series.add(point)


def found_in(series: Series) -> TimeShares | None:
    profile = summarise(series, "a", "n", ("g0", "g1"), len(series)).profile
    return None if profile is None else profile.shares


def test_start_up_and_time_beside_a_partner_do_not_count() -> None:
    series = Series()
    points(series, 0, 30, 0.0, use(1.0, 0.9))  # imports, and reads its libraries
    points(series, 30, 22, 60.0, use(0.3, 0.1))
    assert found_in(series) is None, "19 s of work, for the first three settle"
    points(series, 52, 10, 60.0, use(0.3, 0.1))
    alone = found_in(series)
    assert (alone.storage, alone.cpu, alone.gpu) == pytest.approx((0.1, 0.3, 0.6))
    points(series, 62, 100, 90.0, use(0.9, 0.9), shared=True)
    assert found_in(series) == alone


def test_without_readings_of_the_node_there_is_a_profile_and_no_shares() -> None:
    series = Series()
    points(series, 0, 60, 60.0, None)
    assert summarise(series, "a", "n", ("g0",), 60).profile is not None
    assert found_in(series) is None
    points(series, 60, 19, 60.0, use(0.3))
    assert found_in(series) is None, "a sampler that came later has to see as much"
    points(series, 79, 5, 60.0, use(0.3))
    assert found_in(series) is not None


def test_a_long_job_keeps_its_shares_at_a_coarser_step() -> None:
    series = Series(limit=64)
    points(series, 0, 1000, 60.0, use(0.3, 0.1))
    assert len(series) <= 64
    found = found_in(series)
    assert (found.storage, found.cpu, found.gpu) == pytest.approx((0.1, 0.3, 0.6))


class Told(Host):
    """A node that tells the same of job a every second, and of others nothing."""

    def use(self, job: str, number: str, pids: Sequence[int], now_s: float) -> HostUse | None:
        self.asked = (job, number, tuple(pids))
        return use(0.3, 0.1) if job == "a" else None


def test_the_sampler_asks_for_the_jobs_processes_and_writes_the_shares(tmp_path: Path) -> None:
    (tmp_path / "profiles").mkdir()
    source, host = Readings(), Told()
    sampler = Sampler(source, tmp_path / "spool", tmp_path / "profiles", "n1", owners=Given(), host=host)
    processes = (GpuProcess(101, 3000, 60, 30), GpuProcess(102, 3000, 0, 0))
    source.now = {"GPU-0": GpuReading("GPU-0", 60, 30, 3200, processes=processes)}
    ticks(sampler, [JobSpec("a", ("GPU-0",), slurm_id="75", pids=(7,))], 0, 40)
    ticks(sampler, [], 40, 1)
    assert host.asked == ("a", "75", (7, 101, 102))
    profile = read_summary(tmp_path / "profiles/a.json").profile
    assert (profile.shares.storage, profile.shares.cpu, profile.shares.gpu) == pytest.approx((0.1, 0.3, 0.6))
    assert profile.shares.storage_by == "x"


def test_summaries_of_older_samplers_are_read(tmp_path: Path) -> None:
    summary = Summary("7", "n", (), 0.0, 30.0, 30, PROFILE)
    data = json.loads(json.dumps(summary_to_dict(summary)))
    assert summary_from_dict(data) == summary
    del data["profile"]["shares"]
    older = summary_from_dict(data).profile
    assert older.shares is None


@pytest.mark.parametrize(
    "shares",
    [7, [], "x", {"cpu": 0.1}, {"storage": 0.1, "cpu": 2.0, "gpu": 0.1}, {"storage": -1, "cpu": 0.1, "gpu": 0.1},
     {"storage": 0.1, "cpu": True, "gpu": 0.1}, {"storage": 0.1, "cpu": "1", "gpu": 0.1},
     {"storage": 0.1, "cpu": float("nan"), "gpu": 0.1}, {"storage": 0.1, "cpu": None, "gpu": 0.1}],
)  # fmt: skip
def test_shares_that_cannot_be_are_refused(tmp_path: Path, shares: object) -> None:
    path = write_summary(tmp_path, Summary("7", "n", (), 0.0, 30.0, 30, PROFILE))
    data = json.loads(path.read_bytes())
    data["profile"]["shares"] = shares
    path.write_text(json.dumps(data))
    with pytest.raises(MetricsError, match="not a job's summary"):
        read_summary(path)


def test_only_a_clear_change_says_more() -> None:
    """Each change of a profile makes plans anew."""
    assert PROFILE.shares is not None
    nearly, clearly = replace(PROFILE.shares, cpu=0.38), replace(PROFILE.shares, cpu=0.45)
    assert not says_more(PROFILE, replace(PROFILE, shares=nearly))
    assert says_more(PROFILE, replace(PROFILE, shares=clearly))
    assert says_more(replace(PROFILE, shares=None), PROFILE)
    assert not says_more(PROFILE, replace(PROFILE, shares=None)), "a new sampler has to see for itself again"
    assert says_more(PROFILE, replace(PROFILE, shares=replace(PROFILE.shares, storage=None)))


def test_only_a_job_of_the_same_name_and_gpus_has_the_same_shares() -> None:
    like = LikeProfiles()
    like.note("ada", "train-1", 2, PROFILE, 0.0)
    assert [
        None if found is None else found.shares
        for found in (
            like.profile_of("ada", "train-1", 2, 1.0),
            like.profile_of("ada", "train-2", 2, 1.0),
            like.profile_of("ada", "train-1", 4, 1.0),
        )
    ] == [PROFILE.shares, None, None]


def test_kinds_of_one_job_each_do_not_add_up_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lucid.models.packing.like_profiles.KINDS_KEPT", 20)
    like = LikeProfiles()
    for n in range(200):
        like.note("ada", f"once {'x' * n}", 1, PROFILE, float(n))
        like.note("ada", "often", 2, PROFILE, float(n))
        assert like.profile_of("ada", f"once {'x' * n}", 1, float(n)) is not None
    assert (len(like._known), len(like._predicted)) <= (20, 20)
    assert like.profile_of("ada", "often", 2, 200.0) is not None
    assert like.profile_of("ada", "once x", 1, 200.0) is None


A = JobProfile(80, 40, 4000, dram_active=30)
B = JobProfile(60, 20, 3000, dram_active=10)


def bare(profile: JobProfile) -> JobProfile:
    return JobProfile(profile.gpu_util, profile.mem_util, profile.gpu_mem_mib)


def busy(profile: JobProfile, sm_active: float) -> JobProfile:
    return replace(profile, sm_active=sm_active)


@pytest.mark.parametrize("speed", [0.3, 0.5, 0.85, 1.0])
def test_each_rule_finds_the_speed_that_made_the_readings(speed: float) -> None:
    by_sm = seen_speed(busy(A, 60), busy(B, 30), Spell(120, dram_active=20, sm_active=speed * 90))
    assert (by_sm.speed, by_sm.method) == (pytest.approx(speed), "SM activity")
    by_dram = seen_speed(A, B, Spell(120, card_mem_util=50, dram_active=speed * 40))
    assert (by_dram.speed, by_dram.method) == (pytest.approx(speed), "DRAM traffic")
    by_time = seen_speed(bare(A), bare(B), Spell(120, card_mem_util=speed * 60))
    assert (by_time.speed, by_time.method) == (pytest.approx(speed), "memory time")


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
