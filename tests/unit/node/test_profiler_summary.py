"""What the profiler makes of readings: summary and shape."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from test_node_sampler import Readings, a_sampler, ticks

from lucid.core.gpu import GpuProcess
from lucid.core.job import JobProfile, TimeShares
from lucid.errors import MetricsError
from lucid.models.packing.like_profiles import LikeProfiles
from lucid.node import reports
from lucid.node.host_use import Host
from lucid.node.processes import JobSpec
from lucid.node.reports import prune_profiles, read_profile_files, read_summary, write_summary
from lucid.profiler import shape
from lucid.profiler.pair_watch import seen_speed, watched
from lucid.profiler.samples import GpuSample, Sample, pack, record_size, unpack
from lucid.profiler.shape import HostUse, mean_shares, pauses
from lucid.profiler.summary import Point, Series, Spell, Summary, merged_profile, point_of, summarise
from lucid.slurm.view.profiles import says_more


def test_a_record_comes_back_as_it_was_and_a_torn_or_damaged_one_is_none() -> None:
    gpus = (
        GpuSample(50.5, 20.0, 8000.0, 30.0, 10.0, 4000.0, 61.5, 40.0, 33.0, shared=True),
        GpuSample(lost=True),
        GpuSample(100.0, 0.0, 0.0),
    )
    sample = Sample(123456, 1.7e9 + 0.25, gpus)
    record = pack(sample, 1.7e9)
    assert len(record) == record_size(3) == 48
    assert unpack(record, 3, 1.7e9) == sample
    assert unpack(record[:-1], 3, 1.7e9) is None
    for i in range(len(record)):
        assert unpack(record[:i] + bytes([record[i] ^ 1]) + record[i + 1 :], 3, 1.7e9) is None


def test_memory_on_disk_is_never_less_than_it_was() -> None:
    for mib in (0.0, 1.0, 4.0, 20_518.3, 255_000.0):
        assert 0 <= unpack(pack(Sample(0, 0.0, (GpuSample(mem_mib=mib),)), 0.0), 1, 0.0).gpus[0].mem_mib - mib < 4


def series_of(samples: Iterable[GpuSample | tuple[GpuSample, ...]], series: Series | None = None) -> Series:
    """One a second, from the second 1000 on or behind what is there."""
    series = Series() if series is None else series
    begin = len(series)
    for i, sample in enumerate(samples, begin):
        series.add(point_of(Sample(i, 1000.0 + i, sample if isinstance(sample, tuple) else (sample,))))
    return series


def told_by(series: Series, **more: Any) -> Summary:
    return summarise(series, "7", "n1", ["GPU-a"], len(series), **more)


def filled(util: Iterable[float], mem: float = 4000.0, *, shared: bool = False, limit: int = 2048, own: float = 0.5):
    return series_of(
        (GpuSample(u, u / 2, mem, own * u, own * u / 2, mem / 2, shared=shared) for u in util), Series(limit)
    )


def swings(seed: int) -> list[float]:
    """Levels that come and go without a rhythm."""
    chance, util = random.Random(seed), list[float]()
    while len(util) < 300:
        util += [chance.uniform(5, 100)] * chance.randint(4, 19)
    return util


def test_a_series_that_is_full_joins_neighbours_and_keeps_means_and_the_most_of_memory() -> None:
    series = Series(limit=4)
    for i in map(float, range(5)):  # the last is still open
        series.add(Point(i, 1.0, 10 * i, 20 * i, 100 * i, True, 12 * i, 22 * i, 150 * i, 6 * i, 8 * i))
    assert series.points[:2] == [
        Point(0.0, 2.0, 5.0, 10.0, 100.0, True, 6.0, 11.0, 150.0, 3.0, 4.0),
        Point(2.0, 2.0, 25.0, 50.0, 300.0, True, 30.0, 55.0, 450.0, 15.0, 20.0),
    ]


def test_a_profile_leaves_start_up_and_a_rare_pause_out() -> None:
    found = told_by(filled([0.0] * 25 + [80.0] * 40 + [0.0] * 15 + [80.0] * 40), amp=True, workload="u/train")
    assert found.warm_up_s == 25.0
    starts = [("warm-up", 1000.0), ("work", 1025.0), ("pause", 1065.0), ("work", 1080.0)]
    assert [(phase.kind, phase.start_s) for phase in found.phases] == starts
    assert [phase.end_s for phase in found.phases] == [1025.0, 1065.0, 1080.0, 1120.0]
    profile = found.profile
    means = (profile.gpu_util, profile.mem_util, profile.gpu_mem_mib, profile.active_share)
    assert means == pytest.approx((80.0, 40.0, 4000.0, 77 / 92))
    assert (profile.amp, profile.workload, profile.unstable) == (True, "u/train", False)


@pytest.mark.parametrize(("idle", "work", "enough"), [(60, 0, False), (30, 12, False), (30, 40, True)])
def test_there_is_no_profile_before_enough_work(idle: int, work: int, enough: bool) -> None:
    assert (told_by(filled([0.0] * idle + [90.0] * work)).profile is not None) is enough


def test_an_unstable_job_is_marked_and_a_leak_is_reckoned_with() -> None:
    assert told_by(filled(swings(4))).profile.unstable
    leaking = told_by(series_of(GpuSample(80.0, 40.0, 4000.0 + 2.0 * i) for i in range(240))).profile
    assert leaking.mem_growing
    assert leaking.gpu_mem_mib == pytest.approx(4478 + 7200, rel=0.06)


def test_two_jobs_of_a_pair_are_told_apart_and_a_shared_stretch_makes_no_profile() -> None:
    found = told_by(filled([90.0] * 60, shared=True, own=0.7), partner="8")
    assert found.profile is None
    assert (found.together.gpu_util, found.together.card_util) == pytest.approx((63.0, 90.0))
    assert found.memory.peak_mib == 2000.0
    beside = GpuSample(100.0, 60.0, 9000.0, 50.0, 25.0, 3900.0, shared=True)
    both = told_by(series_of([beside] * 60, filled([80.0] * 60)), partner="8")
    assert (both.profile.gpu_util, both.profile.gpu_mem_mib) == pytest.approx((80.0, 4000.0))
    assert both.together.gpu_util == pytest.approx(50.0)


def test_a_lost_gpu_gives_no_point_and_a_lost_one_of_two_half() -> None:
    assert point_of(Sample(0, 0.0, (GpuSample(lost=True),))) is None
    point = point_of(Sample(0, 0.0, (GpuSample(lost=True), GpuSample(60.0, 20.0, 500.0))))
    assert (point.gpu_util, point.mem_mib) == (60.0, 500.0)


class TestFiles:
    def summary(self, job: str = "7", node: str = "n1", gpus: Any = ("GPU-a",), util: float = 80.0) -> Summary:
        return summarise(filled([0.0] * 20 + [util] * 60), job, node, gpus, 80, notes=("Xid 79 on GPU-a",))

    def test_what_is_written_is_read_again(self, tmp_path: Path) -> None:
        summary = self.summary("12_3")
        path = write_summary(tmp_path, summary)
        assert path.name == "12_3.json"
        assert read_summary(path) == summary
        found = read_profile_files(tmp_path)
        assert found.profiles == {"12_3": summary.profile}
        assert found.bad == ()

    def test_a_job_over_two_nodes_has_one_profile_once_both_are_measured(self, tmp_path: Path) -> None:
        write_summary(tmp_path, self.summary("7", "n1", ("GPU-a",), 90.0), several_nodes=True)
        write_summary(tmp_path, self.summary("7", "n2", ("GPU-b", "GPU-c", "GPU-d"), 50.0), several_nodes=True)
        assert read_profile_files(tmp_path).profiles["7"].gpu_util == pytest.approx(60.0)
        early = summarise(filled([0.0] * 10), "7", "n3", ("GPU-e",), 10)
        write_summary(tmp_path, early, several_nodes=True)
        assert read_profile_files(tmp_path).profiles == {}
        assert merged_profile([]) is None

    def test_files_of_jobs_that_ended_long_ago_go(self, tmp_path: Path) -> None:
        old, new = (write_summary(tmp_path, self.summary(job)) for job in ("7", "8"))
        os.utime(old, (1000.0, 1000.0))
        assert prune_profiles(tmp_path, 2000.0) == 1
        assert list(tmp_path.iterdir()) == [new]
        assert prune_profiles(tmp_path / "none", 2000.0) == 0

    def test_newer_and_older_samplers_are_read_and_a_bad_file_is_named(self, tmp_path: Path) -> None:
        data = reports.summary_to_dict(self.summary())
        data["profile"]["tensor_active"] = 5.0
        assert reports.summary_from_dict(json.loads(json.dumps(data))) == self.summary()
        older = {key: value for key, value in data["profile"].items() if key != "shares"}
        assert reports.summary_from_dict({**data, "profile": older}) == self.summary()
        busy = {**data["profile"], "gpu_util": 4000}
        wrong: list[dict[str, Any]] = [{"format": 99}, {"profile": busy}, {"job": "../../etc/passwd"}, {}]
        texts = [b"{", b"\xff\xfe", b"[]", *(json.dumps({**data, **one}).encode() for one in wrong)]
        for number, text in enumerate(texts, 1):
            (tmp_path / f"{number}.json").write_bytes(text)
        found = read_profile_files(tmp_path)
        assert list(found.profiles) == ["7"]
        assert all(f"{n}.json" in text for n, text in zip(range(1, 7), found.bad, strict=True))

    def test_no_folder_is_no_profile_and_a_bad_name_is_refused(self, tmp_path: Path) -> None:
        assert read_profile_files(tmp_path / "none").summaries == {}
        with pytest.raises(MetricsError, match="cannot name a file"):
            write_summary(tmp_path, self.summary("a/b"))
        with pytest.raises(MetricsError, match="cannot be written"):
            write_summary(tmp_path / "none", self.summary())


def noisy(mean: float, seconds: int, spread: float = 5.0, seed: int = 1) -> list[float]:
    chance = random.Random(seed)
    return [min(100.0, max(0.0, mean + chance.uniform(-spread, spread))) for _ in range(seconds)]


def bursts(high: float, on: int, off: int, seconds: int) -> list[float]:
    return [high if i % (on + off) < on else 0.0 for i in range(seconds)]


def test_percentile_interpolates() -> None:
    assert shape.percentile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert shape.percentile([0.0, 10.0], 0.25) == 2.5
    assert shape.percentile([1.0], 0.99) == 1.0


STARTS: dict[str, tuple[list[float], float, int | None]] = {
    "at once": (noisy(80, 60), 1.0, 0),
    "after a minute": ([0.0] * 60 + noisy(80, 60), 1.0, 60),
    "device checks are not work": ([0.0] * 10 + [90.0] * 2 + [0.0] * 8 + [90.0] + [0.0] * 9 + noisy(85, 60), 1.0, 30),
    "work at a low level": ([0.0] * 20 + noisy(6, 60, 2), 1.0, 20),
    "the first of several bursts": ([0.0] * 15 + bursts(90, 2, 8, 100), 1.0, 15),
    "a coarser step": ([0.0] * 5 + noisy(80, 30), 4.0, 5),
    "no reading": ([], 1.0, None),
    "all is idle": ([0.0] * 50, 1.0, None),
    "only just begun": ([0.0] * 50 + [95.0] * 2, 1.0, None),
}


@pytest.mark.parametrize("how", STARTS)
def test_start_up_ends_where_work_begins(how: str) -> None:
    util, step_s, begins = STARTS[how]
    assert shape.warm_up(util, step_s) == begins


def test_a_rare_pause_is_one_and_a_rhythm_is_none() -> None:
    work = noisy(80, 40)
    for util, found in (
        (work + [0.0] * 15 + work, [(40, 55)]),
        ((work + [0.0] * 15) * 4, []),
        (work + [0.0] * 20, [(40, 60)]),  # one that still goes on
    ):
        assert pauses(util, 1.0, shape.active_level(util)) == found
    assert pauses(work + [0.0] * 2 + work, 1.0, 20.0) == []


STEADY: dict[str, tuple[list[float], bool, bool]] = {
    "small noise": (noisy(80, 80, 10), False, False),
    "a regular rhythm, however large": (bursts(100, 5, 5, 100), True, False),
    "one change of level": (noisy(20, 40) + noisy(95, 40), True, False),
    "noise within seconds": ([random.Random(at).choice((40.0, 80.0)) for at in range(120)], False, False),
    "small swings of an idle job": (noisy(4, 300, 4), False, False),
    "too short a series": ([0.0, 100.0] * 10, False, False),
    "one reading": ([50.0], False, False),
    **{f"large irregular recurring swings, {seed}": (swings(seed), True, True) for seed in range(8)},
}
"""Whether its swings are large, and whether it is unstable."""


@pytest.mark.parametrize("how", STEADY)
def test_unstable_is_what_swings_widely_and_without_a_rhythm(how: str) -> None:
    util, large, unstable = STEADY[how]
    found = shape.steadiness(util, 1.0)
    assert (found.unstable, found.swing > found.swing_limit) == (unstable, large)


GROWTH: dict[str, tuple[list[float], float]] = {
    "level": ([4000.0] * 100, 0.0),
    "a leak": ([4000.0 + 5.0 * i for i in range(240)], 5.0),
    "leak in noisy steps": ([4000.0 + 200 * (i // 20) + random.Random(i).uniform(0, 40) for i in range(480)], 10.0),
    "an allocator that has filled its cache": ([min(4000.0 + 60.0 * i, 9000.0) for i in range(400)], 0.0),
    "coming and going": ([4000.0 + 2000.0 * (i // 10 % 2) for i in range(240)], 0.0),
    "too little": ([4000.0 + 0.1 * i for i in range(240)], 0.0),
    "few readings": ([1.0, 2.0, 3.0], 0.0),
}
"""Readings of memory, and what they tell to grow each second, in MiB."""


@pytest.mark.parametrize("how", GROWTH)
def test_growth_of_memory_is_foretold_where_it_is_one(how: str) -> None:
    memory, mib_per_s = GROWTH[how]
    trend = shape.memory_trend(memory, 1.0)
    assert (trend.growing, trend.peak_mib) == (mib_per_s > 0, max(memory))
    assert trend.mib_per_s == pytest.approx(mib_per_s, rel=0.25)
    assert trend.after(600) == pytest.approx(max(memory) + 600 * mib_per_s, rel=0.06)


@pytest.mark.parametrize(("falling", "grows"), [(12, True), (13, False)])
def test_growth_is_foretold_where_the_bins_rise_by_the_mann_kendall_test(falling: int, grows: bool) -> None:
    """24 readings are 24 bins, the first ones falling, the others rising above them. Of 276 pairs, rises less falls
    is 144 with 12 that fall and 120 with 13; a z above 3 needs 122."""
    bins = [4000.0 - 10.0 * i for i in range(falling)] + [5000.0 + 100.0 * i for i in range(24 - falling)]
    assert shape.memory_trend(bins, 1.0).growing is grows


PROFILE = JobProfile(50.0, 20.0, 3000.0, shares=TimeShares(0.1, 0.3, 0.6, "io.pressure"))


def use(cores: float, storage: float | None = 0.0, of: int = 8) -> HostUse:
    return HostUse(cores, of, storage, "x")


SECONDS: dict[str, tuple[HostUse, float, tuple[float | None, ...]]] = {
    "three stages that do not overlap": (use(0.3, 0.1), 0.6, (0.1, 0.3, 0.6)),
    "the thread that waits for its GPU in a busy loop": (use(1.0, 0.0), 0.95, (0.0, 0.125, 0.95)),
    "one thread prepares what the GPU then computes": (use(1.0, 0.0), 0.2, (0.0, 0.8, 0.2)),
    "loaders on all cores, while the GPU computes": (use(8.0, 0.0), 0.5, (0.0, 1.0, 0.5)),
    "loaders that read ahead": (use(0.1, 0.9), 0.9, (0.9, 0.0125, 0.9)),
    "nothing": (use(0.0, 0.0), 0.0, (0.0, 0.0, 0.0)),
    "more than all": (use(99.0, 7.0), 3.0, (1.0, 1.0, 1.0)),
    "storage is not known": (use(0.5, None), 0.1, (None, 0.5, 0.1)),
}


def parts(shares: TimeShares | None) -> tuple[float | None, float, float] | None:
    return shares and (shares.storage, shares.cpu, shares.gpu)


@pytest.mark.parametrize("how", SECONDS)
def test_a_second_is_divided_by_its_readings(how: str) -> None:
    readings, gpu, shares = SECONDS[how]
    assert parts(shape.shares_in(readings, gpu)) == pytest.approx(shares)


def test_means_leave_out_what_is_not_known() -> None:
    a, b = TimeShares(0.5, 0.2, 0.3, "x"), TimeShares(None, 0.4, 0.1)
    mean = mean_shares([(1.0, a), (5.0, None), (1.0, b)])
    assert (parts(mean), mean.storage_by) == (pytest.approx((0.5, 0.3, 0.2)), "x")
    assert mean_shares([(1.0, a), (3.0, b)]) == TimeShares(None, pytest.approx(0.35), pytest.approx(0.15))
    assert mean_shares([(1.0, a)], 2.0) is mean_shares([]) is None


def points(series: Series, start: int, count: int, util: float, host: HostUse | None, shared: bool = False) -> None:
    own = util if shared else None
    gpus = tuple(GpuSample(one, 10.0, 900.0, own, own, 900.0, shared=shared) for one in (util, util / 2))
    for second in range(start, start + count):
        series.add(point_of(Sample(second, float(second), gpus), 1.0, host))


def found_in(series: Series) -> TimeShares | None:
    profile = told_by(series).profile
    return None if profile is None else profile.shares


def test_start_up_and_time_beside_a_partner_do_not_count() -> None:
    series = Series()
    points(series, 0, 30, 0.0, use(1.0, 0.9))  # imports, and reads its libraries
    points(series, 30, 22, 60.0, use(0.3, 0.1))
    assert found_in(series) is None, "19 s of work, for the first three settle"
    points(series, 52, 10, 60.0, use(0.3, 0.1))
    alone = found_in(series)
    assert parts(alone) == pytest.approx((0.1, 0.3, 0.6))
    points(series, 62, 100, 90.0, use(0.9, 0.9), shared=True)
    assert found_in(series) == alone


def test_without_readings_of_the_node_there_is_a_profile_and_no_shares() -> None:
    series = Series()
    points(series, 0, 60, 60.0, None)
    assert told_by(series).profile is not None
    assert found_in(series) is None
    points(series, 60, 19, 60.0, use(0.3))
    assert found_in(series) is None, "a sampler that came later has to see as much"
    points(series, 79, 5, 60.0, use(0.3))
    assert found_in(series) is not None


def test_a_long_job_keeps_its_shares_at_a_coarser_step() -> None:
    series = Series(limit=64)
    points(series, 0, 1000, 60.0, use(0.3, 0.1))
    assert len(series) <= 64
    assert parts(found_in(series)) == pytest.approx((0.1, 0.3, 0.6))


class Told(Host):
    """A node that tells the same of job a every second, and of others nothing."""

    def use(self, job: str, number: str, pids: Sequence[int], now_s: float) -> HostUse | None:
        self.asked = (job, number, tuple(pids))
        return use(0.3, 0.1) if job == "a" else None


def test_the_sampler_asks_for_the_jobs_processes_and_writes_the_shares(tmp_path: Path) -> None:
    source, host = Readings(), Told()
    sampler = a_sampler(tmp_path, source, host=host)
    processes = (GpuProcess(101, 3000, 60, 30), GpuProcess(102, 3000, 0, 0))
    source.tell(60, 30, 3200, processes=processes)
    ticks(sampler, [JobSpec("a", ("GPU-0",), slurm_id="75", pids=(7,))], 0, 40)
    ticks(sampler, [], 40, 1)
    assert host.asked == ("a", "75", (7, 101, 102))
    shares = read_summary(tmp_path / "profiles/a.json").profile.shares
    assert (parts(shares), shares.storage_by) == (pytest.approx((0.1, 0.3, 0.6)), "x")


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
    for changes, more in (({"cpu": 0.38}, False), ({"cpu": 0.45}, True), ({"storage": None}, True)):
        assert says_more(PROFILE, replace(PROFILE, shares=replace(PROFILE.shares, **changes))) is more
    assert says_more(replace(PROFILE, shares=None), PROFILE)
    assert not says_more(PROFILE, replace(PROFILE, shares=None)), "a new sampler has to see for itself again"


def test_only_a_job_of_the_same_name_and_gpus_has_the_same_shares() -> None:
    like = LikeProfiles()
    like.note("ada", "train-1", 2, PROFILE, 0.0)
    assert like.profile_of("ada", "train-1", 2, 1.0).shares == PROFILE.shares
    for name, gpus in (("train-2", 2), ("train-1", 4)):
        found = like.profile_of("ada", name, gpus, 1.0)
        assert found is None or found.shares is None


def test_kinds_of_one_job_each_do_not_add_up_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lucid.models.packing.like_profiles.KINDS_KEPT", 20)
    like = LikeProfiles()
    for n in range(200):
        like.note("ada", f"once {'x' * n}", 1, PROFILE, float(n))
        like.note("ada", "often", 2, PROFILE, float(n))
        assert like.profile_of("ada", f"once {'x' * n}", 1, float(n)) is not None
    assert max(len(like._known), len(like._predicted)) <= 20
    assert like.profile_of("ada", "often", 2, 200.0) is not None
    assert like.profile_of("ada", "once x", 1, 200.0) is None


A = JobProfile(80, 40, 4000, dram_active=30)
B = JobProfile(60, 20, 3000, dram_active=10)


def bare(profile: JobProfile) -> JobProfile:
    return JobProfile(profile.gpu_util, profile.mem_util, profile.gpu_mem_mib)


@pytest.mark.parametrize("speed", [0.3, 0.5, 0.85, 1.0])
def test_each_rule_finds_the_speed_that_made_the_readings(speed: float) -> None:
    a, b = replace(A, sm_active=60), replace(B, sm_active=30)
    for method, found in (
        ("SM activity", seen_speed(a, b, Spell(120, dram_active=20, sm_active=speed * 90))),
        ("DRAM traffic", seen_speed(A, B, Spell(120, card_mem_util=50, dram_active=speed * 40))),
        ("memory time", seen_speed(bare(A), bare(B), Spell(120, card_mem_util=speed * 60))),
    ):
        assert (found.speed, found.method) == (pytest.approx(speed), method)


def test_too_short_too_little_or_unknown_is_not_judged() -> None:
    assert seen_speed(A, B, Spell(30, dram_active=10)) is None
    idle = JobProfile(50, 1, 1000, dram_active=1)
    assert seen_speed(idle, idle, Spell(120, mem_util=1, card_mem_util=2, dram_active=2)) is None
    assert seen_speed(bare(A), None, Spell(120, card_mem_util=30)) is None
    assert seen_speed(A, B, Spell(120)) is None
    assert seen_speed(A, B, Spell(120, dram_active=90)).speed == 1.2, "nobody runs much faster than alone"


def pair(util: list[float], mem: list[float], shared_from: int, partner: str | None = "b") -> Summary:
    gpus = [
        GpuSample(u, u / 2, 9000, u, u / 2, m, shared=True) if i >= shared_from else GpuSample(u, u / 2, m)
        for i, (u, m) in enumerate(zip(util, mem, strict=True))
    ]
    return told_by(series_of(gpus), partner=partner, partner_since_s=1000.0 + shared_from)


def test_the_profile_carries_what_was_seen_beside_the_partner() -> None:
    found = watched(pair([80.0] * 60 + [40.0] * 120, [4000.0] * 180, 60), None, B)
    assert (found.profile.gpu_util, found.seen_by) == (80, "memory time")
    assert found.profile.seen_speed == pytest.approx(20 / 60)  # 20 together, 40 and 20 alone
    assert watched(pair([80.0] * 180, [4000.0] * 180, 999, None), None, None).profile.seen_speed is None


def test_a_guest_keeps_the_profile_of_its_earlier_run_and_its_leak_is_foretold() -> None:
    summary = pair([40.0] * 240, [3000.0 + 2 * i for i in range(240)], 0)
    assert summary.profile is None
    assert watched(summary, None, B).profile is None
    found = watched(summary, A, B).profile
    assert (found.gpu_util, found.mem_growing) == (80, True)
    assert found.gpu_mem_mib == pytest.approx(3478 + 7200, rel=0.06)


def test_a_job_that_turns_unstable_beside_its_partner_is_marked() -> None:
    util = swings(3)
    assert watched(pair(util, [3000.0] * len(util), 0), A, B).profile.unstable
    assert not watched(pair([50.0] * 300, [3000.0] * 300, 0), A, B).profile.unstable


def test_only_readings_since_this_partner_came_tell_of_the_pair() -> None:
    series = series_of(GpuSample(90, 15 if i < 120 else 45, 9000, 40.0, 20.0, 3000, shared=True) for i in range(240))
    summary = told_by(series, partner="c", partner_since_s=1120.0)
    assert watched(summary, A, B).profile.seen_speed == pytest.approx(0.75)
