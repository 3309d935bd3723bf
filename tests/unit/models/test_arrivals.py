"""The seasonal means that forecast submissions."""

from __future__ import annotations

import pytest

from builders import a_job
from lucid.models.throughput.bins import BIN_S
from lucid.models.throughput.model import ArrivalForecaster


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
