"""Start-up, pauses, steadiness and growth of memory, on series whose shape is known."""

from __future__ import annotations

import random

import pytest

from lucid.profiler.shape import active_level, memory_trend, pauses, percentile, steadiness, warm_up


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
