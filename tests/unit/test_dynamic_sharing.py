"""Dynamic sharing (L17) and the forecast it looks at."""

from __future__ import annotations

from dataclasses import replace

import pytest

from builders import LIGHT, FixedPredictor, a_job, decide, guess, nodes, part, reason, runs, snap, waits
from lucid.binder.dynamic import SharingMode, sharing_mode
from lucid.config import PackingSettings
from lucid.core.decision import Decision, Start
from lucid.core.reason import PairSpeed, SharingLevel
from lucid.models.throughput.arrivals import ArrivalForecaster
from lucid.models.throughput.bins import BIN_S

RULES = PackingSettings(dynamic=True, calm_s=600.0, horizon_h=2.0)


@pytest.mark.parametrize(
    ("idle", "waiting", "per_hour", "wanted"),
    [(0, 0, 0.0, 0), (10, 1, 2.0, 0), (9, 1, 2.0, 1), (5, 1, 2.0, 1), (4, 1, 2.0, 2), (0, 1, 0.0, 2)],
)
def test_L17_calm_steps_down_to_what_the_demand_allows(idle: int, waiting: int, per_hour: float, wanted: int) -> None:
    mode: SharingMode | None = None
    seen = []
    for now_s in (0.0, 599.0, 600.0, 1200.0, 5000.0):
        mode, level, _ = sharing_mode(idle, waiting, per_hour, RULES, mode, now_s)
        assert level.gss == mode.gss
        seen.append(mode.gss)
    assert seen == [2, 2, max(1, wanted), wanted, wanted]


def test_more_sharing_comes_at_once() -> None:
    off = SharingMode(0, 100.0)
    mode, level, wake_s = sharing_mode(3, 4, 0.0, RULES, off, 200.0)
    assert (mode, wake_s) == (SharingMode(2), None)
    assert level


def test_a_look_between_does_not_delay_the_step() -> None:
    mode, _, wake_s = sharing_mode(9, 0, 0.0, RULES, None, 0.0)
    assert wake_s == 600.0
    for now_s in (100.0, 300.0, 599.9):
        mode, _, wake_s = sharing_mode(9, 0, 0.0, RULES, mode, now_s)
        assert (mode.gss, wake_s) == (2, 600.0)
    assert sharing_mode(9, 0, 0.0, RULES, mode, 600.0)[0].gss == 1


def test_a_flap_around_the_bound_changes_nothing() -> None:
    mode: SharingMode | None = None
    for step in range(20):
        mode, _, _ = sharing_mode(9 if step % 2 else 0, 1, 0.0, RULES, mode, step * 500.0)
        assert mode.gss == 2


def in_a_calm_vc(idle: int, speed: float = 0.89, **packing: object) -> Decision:
    vc = part(nodes(2, 4), [waits("new", profile=LIGHT)], [runs("old", "n1:0", profile=LIGHT)])
    if not idle:
        vc = part(nodes(1, 1), [waits("new", profile=LIGHT)], [runs("old", "n1:0", profile=LIGHT)])
    found = snap(0.0, vc, predictions={"new": guess(5000.0, 0), "old": guess(50000.0, 0)})
    found = replace(found, memory={"vc": SharingMode(0, -9e9)})
    predictor = FixedPredictor(speed=lambda a, b: (speed, 1.0))
    rules = {"dynamic": True, **packing}
    return decide("lucid", found, predictor, profiling={"enabled": False}, packing=rules).decisions["new"]


def test_a_calm_cluster_gives_a_job_its_own_gpu_and_says_why() -> None:
    decision = in_a_calm_vc(idle=7)
    assert isinstance(decision, Start)
    assert decision.beside is None
    level = reason(decision, SharingLevel)
    assert (level.idle_gpus, level.waiting_gpus, level.gss) == (7, 1, 0)


@pytest.mark.parametrize(
    ("speed", "harmless", "beside"), [(0.9, 0.9, "old"), (0.89, 0.9, None), (1.0, 1.0, "old"), (0.99, 1.0, None)]
)
def test_pairs_that_hurt_nobody_are_made_even_then(speed: float, harmless: float, beside: str | None) -> None:
    decision = in_a_calm_vc(7, speed, harmless_pair_speed=harmless)
    assert isinstance(decision, Start)
    assert decision.beside == beside
    if beside is not None:
        assert reason(decision, PairSpeed).floor == harmless
        assert not any(isinstance(why, SharingLevel) for why in decision.reasons)


def test_nobody_waits_because_sharing_is_off() -> None:
    decision = in_a_calm_vc(idle=0)
    assert isinstance(decision, Start)
    assert decision.beside == "old"


def test_the_forecast_is_the_larger_of_now_and_then() -> None:
    hour = 3600.0
    forecaster = ArrivalForecaster()
    for day in range(3):
        forecaster.saw(a_job(f"noon{day}", 12, day * 24 * hour + 12 * hour))
    forecaster.saw(a_job("odd", 4, 2 * 24 * hour + 15 * hour))
    noon = 3 * 24 * hour + 12 * hour
    assert forecaster.forecast(noon).of("vc") == pytest.approx(12 / 3)
    assert forecaster.forecast(2 * 24 * hour + 16 * hour).of("vc") == pytest.approx(4 / 2)
    assert forecaster.forecast(noon + 6 * hour).of("vc") == 0.0


def test_the_forecast_is_of_whole_bins_and_the_same_object_within_one() -> None:
    forecaster = ArrivalForecaster()
    forecaster.saw(a_job("a", 6, 10.0))
    first = forecaster.forecast(BIN_S - 1)
    assert first.of("vc") == 0.0  # its bin is not over
    assert forecaster.forecast(BIN_S).of("vc") == pytest.approx(3.0)
    assert forecaster.forecast(BIN_S + 1) is forecaster.forecast(BIN_S + 2)
