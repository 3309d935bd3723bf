"""What the profiler makes of readings: summary and shape."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterable
from pathlib import Path

import pytest

from lucid.errors import MetricsError
from lucid.node.reports import (
    prune_profiles,
    read_profile_files,
    read_summary,
    summary_from_dict,
    summary_to_dict,
    write_summary,
)
from lucid.profiler.samples import GpuSample, Sample, pack, record_size, unpack
from lucid.profiler.shape import active_level, memory_trend, pauses, percentile, steadiness, warm_up
from lucid.profiler.summary import Point, Series, Summary, merged_profile, point_of, summarise


def test_a_record_comes_back_as_it_was() -> None:
    gpus = (
        GpuSample(50.5, 20.0, 8000.0, 30.0, 10.0, 4000.0, 61.5, 40.0, 33.0, shared=True),
        GpuSample(lost=True),
        GpuSample(100.0, 0.0, 0.0),
    )
    sample = Sample(123456, 1.7e9 + 0.25, gpus)
    record = pack(sample, 1.7e9)
    assert len(record) == record_size(3) == 48
    assert unpack(record, 3, 1.7e9) == sample


def test_a_torn_or_damaged_record_is_none() -> None:
    record = pack(Sample(1, 2.0, (GpuSample(5.0),)), 0.0)
    assert unpack(record[:-1], 1, 0.0) is None
    for i in range(len(record)):
        assert unpack(record[:i] + bytes([record[i] ^ 1]) + record[i + 1 :], 1, 0.0) is None


def test_memory_on_disk_is_never_less_than_it_was() -> None:
    for mib in (0.0, 1.0, 4.0, 20_518.3, 255_000.0):
        found = unpack(pack(Sample(0, 0.0, (GpuSample(mem_mib=mib),)), 0.0), 1, 0.0)
        kept = found.gpus[0].mem_mib
        assert kept is not None
        assert 0 <= kept - mib < 4


def filled(util: Iterable[float], mem: float = 4000.0, *, shared: bool = False, limit: int = 2048, own: float = 0.5):
    series = Series(limit)
    for i, value in enumerate(util):
        gpu = GpuSample(value, value / 2, mem, own * value, own * value / 2, mem / 2, shared=shared)
        point = point_of(Sample(i, 1000.0 + i, (gpu,)))
        assert point is not None
        series.add(point)
    return series


def test_a_series_that_is_full_joins_neighbours_and_keeps_means_and_the_most_of_memory() -> None:
    series = Series(limit=4)
    for i in range(5):  # the last is still open
        series.add(
            Point(float(i), 1.0, 10.0 * i, 20.0 * i, 100.0 * i, True, 12.0 * i, 22.0 * i, 150.0 * i, 6.0 * i, 8.0 * i)
        )
    assert series.points[:2] == [
        Point(0.0, 2.0, 5.0, 10.0, 100.0, True, 6.0, 11.0, 150.0, 3.0, 4.0),
        Point(2.0, 2.0, 25.0, 50.0, 300.0, True, 30.0, 55.0, 450.0, 15.0, 20.0),
    ]


def test_a_profile_leaves_start_up_and_a_rare_pause_out() -> None:
    util = [0.0] * 25 + [80.0] * 40 + [0.0] * 15 + [80.0] * 40
    found = summarise(filled(util), "7", "n1", ["GPU-a"], len(util), amp=True, workload="u/train")
    assert found.warm_up_s == 25.0
    spans = [
        ("warm-up", 1000.0, 1025.0),
        ("work", 1025.0, 1065.0),
        ("pause", 1065.0, 1080.0),
        ("work", 1080.0, 1120.0),
    ]
    assert [(phase.kind, phase.start_s, phase.end_s) for phase in found.phases] == spans
    profile = found.profile
    assert profile.gpu_util == pytest.approx(80.0)
    assert profile.mem_util == pytest.approx(40.0)
    assert profile.gpu_mem_mib == 4000.0
    assert profile.active_share == pytest.approx(77 / 92)
    assert (profile.amp, profile.workload, profile.unstable) == (True, "u/train", False)


def test_there_is_no_profile_before_enough_work() -> None:
    assert summarise(filled([0.0] * 60), "7", "n1", ["GPU-a"], 60).profile is None
    assert summarise(filled([0.0] * 30 + [90.0] * 12), "7", "n1", ["GPU-a"], 42).profile is None
    assert summarise(filled([0.0] * 30 + [90.0] * 40), "7", "n1", ["GPU-a"], 70).profile is not None


def test_an_unstable_job_is_marked_and_a_leak_is_reckoned_with() -> None:
    chance = random.Random(4)
    util: list[float] = []
    while len(util) < 300:
        util += [chance.uniform(5, 100)] * chance.randint(4, 19)
    found = summarise(filled(util), "7", "n1", ["GPU-a"], len(util))
    assert found.profile.unstable

    series = Series()
    for i in range(240):
        point = point_of(Sample(i, float(i), (GpuSample(80.0, 40.0, 4000.0 + 2.0 * i),)))
        assert point is not None
        series.add(point)
    leaking = summarise(series, "8", "n1", ["GPU-a"], 240).profile
    assert leaking.mem_growing
    assert leaking.gpu_mem_mib == pytest.approx(4478 + 7200, rel=0.06)


def test_two_jobs_of_a_pair_are_told_apart_and_a_shared_stretch_makes_no_profile() -> None:
    found = summarise(filled([90.0] * 60, shared=True, own=0.7), "7", "n1", ["GPU-a"], 60, partner="8")
    assert found.profile is None
    assert found.together.gpu_util == pytest.approx(63.0)
    assert found.together.card_util == pytest.approx(90.0)
    assert found.memory.peak_mib == 2000.0

    series = filled([80.0] * 60)
    for i in range(60, 120):
        gpu = GpuSample(100.0, 60.0, 9000.0, 50.0, 25.0, 3900.0, shared=True)
        point = point_of(Sample(i, 1000.0 + i, (gpu,)))
        assert point is not None
        series.add(point)
    both = summarise(series, "7", "n1", ["GPU-a"], 120, partner="8")
    assert both.profile.gpu_util == pytest.approx(80.0)
    assert both.profile.gpu_mem_mib == 4000.0
    assert both.together.gpu_util == pytest.approx(50.0)


def test_a_long_series_is_bounded_and_keeps_its_means() -> None:
    util = [0.0] * 60 + [70.0 + (i % 3) for i in range(6_000)]
    series = filled(util, limit=256)
    assert len(series) <= 256
    found = summarise(series, "7", "n1", ["GPU-a"], len(util)).profile
    assert found.gpu_util == pytest.approx(71.0, abs=0.5)


def test_a_lost_gpu_gives_no_point_and_a_lost_one_of_two_half() -> None:
    assert point_of(Sample(0, 0.0, (GpuSample(lost=True),))) is None
    point = point_of(Sample(0, 0.0, (GpuSample(lost=True), GpuSample(60.0, 20.0, 500.0))))
    assert (point.gpu_util, point.mem_mib) == (60.0, 500.0)


class TestFiles:
    def summary(
        self, job: str = "7", node: str = "n1", gpus: tuple[str, ...] = ("GPU-a",), util: float = 80.0
    ) -> Summary:
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
        profile = read_profile_files(tmp_path).profiles["7"]
        assert profile.gpu_util == pytest.approx(60.0)
        early = summarise(filled([0.0] * 10), "7", "n3", ("GPU-e",), 10)
        write_summary(tmp_path, early, several_nodes=True)
        assert read_profile_files(tmp_path).profiles == {}

    def test_files_of_jobs_that_ended_long_ago_go(self, tmp_path: Path) -> None:
        old, new = (write_summary(tmp_path, self.summary(job)) for job in ("7", "8"))
        os.utime(old, (1000.0, 1000.0))
        assert prune_profiles(tmp_path, 2000.0) == 1
        assert list(tmp_path.iterdir()) == [new]
        assert prune_profiles(tmp_path / "none", 2000.0) == 0

    def test_a_newer_field_is_left_out_and_a_bad_file_is_named(self, tmp_path: Path) -> None:
        data = summary_to_dict(self.summary())
        data["profile"]["tensor_active"] = 5.0
        assert summary_from_dict(json.loads(json.dumps(data))) == self.summary()
        (tmp_path / "1.json").write_text("{")
        (tmp_path / "2.json").write_text(json.dumps({**data, "format": 99}))
        (tmp_path / "3.json").write_text(json.dumps({**data, "profile": {**data["profile"], "gpu_util": 4000}}))
        (tmp_path / "4.json").write_text(json.dumps({**data, "job": "../../etc/passwd"}))
        (tmp_path / "5.json").write_bytes(b"\xff\xfe")
        (tmp_path / "6.json").write_text("[]")
        (tmp_path / "7.json").write_text(json.dumps(data))
        found = read_profile_files(tmp_path)
        assert list(found.profiles) == ["7"]
        assert len(found.bad) == 6
        assert all(f"{n}.json" in text for n, text in enumerate(found.bad, 1))

    def test_no_folder_is_no_profile_and_a_bad_name_is_refused(self, tmp_path: Path) -> None:
        assert read_profile_files(tmp_path / "none").summaries == {}
        with pytest.raises(MetricsError, match="cannot name a file"):
            write_summary(tmp_path, self.summary("a/b"))
        with pytest.raises(MetricsError, match="cannot be written"):
            write_summary(tmp_path / "none", self.summary())

    def test_merging_waits_for_every_node(self) -> None:
        assert merged_profile([]) is None


def noisy(mean: float, seconds: int, spread: float = 5.0, seed: int = 1) -> list[float]:
    chance = random.Random(seed)
    return [min(100.0, max(0.0, mean + chance.uniform(-spread, spread))) for _ in range(seconds)]


def bursts(high: float, on: int, off: int, seconds: int) -> list[float]:
    return [high if i % (on + off) < on else 0.0 for i in range(seconds)]


def test_percentile_interpolates() -> None:
    assert percentile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert percentile([0.0, 10.0], 0.25) == 2.5


@pytest.mark.parametrize("idle", [0, 7, 25, 60])
def test_start_up_ends_where_work_begins(idle: int) -> None:
    assert warm_up([0.0] * idle + noisy(80, 60), 1.0) == idle


def test_blips_during_start_up_are_not_work() -> None:
    start = [0.0] * 30
    start[10] = start[11] = start[20] = 90.0  # a device check, a kernel compiled
    assert warm_up(start + noisy(85, 60), 1.0) == 30


def test_work_at_a_low_level_is_work() -> None:
    assert warm_up([0.0] * 20 + noisy(6, 60, 2), 1.0) == 20


def test_a_job_that_works_in_bursts_has_started_at_its_first() -> None:
    assert warm_up([0.0] * 15 + bursts(90, 2, 8, 100), 1.0) == 15


def test_nothing_has_started_while_all_is_idle_or_only_just_begun() -> None:
    assert warm_up([], 1.0) is None
    assert warm_up([0.0] * 50, 1.0) is None
    assert warm_up([0.0] * 50 + [95.0] * 2, 1.0) is None


def test_start_up_is_found_at_a_coarser_step() -> None:
    assert warm_up([0.0] * 5 + noisy(80, 30), 4.0) == 5


def test_a_rare_pause_is_one_and_a_rhythm_is_none() -> None:
    work = noisy(80, 40)
    once = work + [0.0] * 15 + work
    assert pauses(once, 1.0, active_level(once)) == [(40, 55)]
    often = (work + [0.0] * 15) * 4
    assert pauses(often, 1.0, active_level(often)) == []
    assert pauses(work + [0.0] * 2 + work, 1.0, 20.0) == []


def test_a_pause_that_still_goes_on_is_one() -> None:
    series = noisy(80, 40) + [0.0] * 20
    assert pauses(series, 1.0, active_level(series)) == [(40, 60)]


class TestUnstable:
    def test_steady_work_is_stable(self) -> None:
        assert not steadiness(noisy(80, 80, 10), 1.0).unstable

    def test_a_regular_rhythm_is_stable_however_large(self) -> None:
        found = steadiness(bursts(100, 5, 5, 100), 1.0)
        assert found.swing > found.swing_limit
        assert found.turns >= 4
        assert found.regularity > 0.6
        assert not found.unstable

    def test_one_change_of_level_is_stable(self) -> None:
        found = steadiness(noisy(20, 40) + noisy(95, 40), 1.0)
        assert found.swing > found.swing_limit
        assert found.turns == 1
        assert not found.unstable

    def test_noise_within_seconds_is_stable(self) -> None:
        chance = random.Random(2)
        assert not steadiness([chance.choice((40.0, 80.0)) for _ in range(120)], 1.0).unstable

    @pytest.mark.parametrize("seed", range(8))
    def test_large_irregular_recurring_swings_are_unstable(self, seed: int) -> None:
        chance = random.Random(seed)
        series: list[float] = []
        while len(series) < 300:
            series += [chance.uniform(5, 100)] * chance.randint(4, 19)
        found = steadiness(series, 1.0)
        assert found.unstable, found

    def test_too_short_a_series_is_not_judged(self) -> None:
        assert not steadiness([0.0, 100.0] * 10, 1.0).unstable
        assert not steadiness([50.0], 1.0).unstable

    def test_small_swings_of_an_idle_job_are_stable(self) -> None:
        chance = random.Random(5)
        assert not steadiness([chance.uniform(0, 8) for _ in range(300)], 1.0).unstable


class TestMemory:
    def test_level_memory_does_not_grow(self) -> None:
        trend = memory_trend([4000.0] * 100, 1.0)
        assert (trend.growing, trend.peak_mib, trend.after(3600)) == (False, 4000.0, 4000.0)

    def test_a_leak_is_foretold(self) -> None:
        trend = memory_trend([4000.0 + 5.0 * i for i in range(240)], 1.0)
        assert trend.mib_per_s == pytest.approx(5.0, rel=0.05)
        assert trend.after(600) == pytest.approx(5195 + 3000, rel=0.06)

    def test_a_leak_in_steps_under_noise_is_foretold(self) -> None:
        chance = random.Random(3)
        series = [4000.0 + 200.0 * (i // 20) + chance.uniform(0, 40) for i in range(480)]
        trend = memory_trend(series, 1.0)
        assert trend.mib_per_s == pytest.approx(10.0, rel=0.25)

    def test_an_allocator_that_has_filled_its_cache_has_stopped(self) -> None:
        series = [min(4000.0 + 60.0 * i, 9000.0) for i in range(400)]
        assert not memory_trend(series, 1.0).growing

    def test_coming_and_going_is_no_growth(self) -> None:
        assert not memory_trend([4000.0 + 2000.0 * (i // 10 % 2) for i in range(240)], 1.0).growing

    def test_little_growth_or_few_readings_foretell_nothing(self) -> None:
        assert not memory_trend([4000.0 + 0.1 * i for i in range(240)], 1.0).growing
        assert not memory_trend([1.0, 2.0, 3.0], 1.0).growing
        assert not memory_trend([5000.0], 1.0).growing


@pytest.mark.parametrize(("falling", "grows"), [(12, True), (13, False)])
def test_growth_is_foretold_where_the_bins_rise_by_the_mann_kendall_test(falling: int, grows: bool) -> None:
    """24 readings are 24 bins, the first ones falling, the others rising above them. Of 276 pairs, rises less falls
    is 144 with 12 that fall and 120 with 13; a z above 3 needs 122."""
    bins = [4000.0 - 10.0 * i for i in range(falling)] + [5000.0 + 100.0 * i for i in range(24 - falling)]
    assert memory_trend(bins, 1.0).growing is grows
