"""What forecasts submissions in a replay: seasonal means, the library's version, a model of the replay's own past."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_live_forecast import constant, serve

from builders import a_job, a_trace, by
from lucid.cli.replay.replay_options import read_scenario
from lucid.config.load import settings_from
from lucid.core.snapshot import ArrivalForecast
from lucid.models.kind import TooFew
from lucid.models.throughput.bins import Bins
from lucid.models.throughput.model import ArrivalForecaster, ThroughputModel
from lucid.simulator import predictors as learned
from lucid.simulator.predictors import WalkForwardForecaster
from lucid.simulator.scenario import Scenario, Throughput

HOUR_S = 3600.0
DAY_S = 24 * HOUR_S
TIME_AWARE = settings_from({"policy": {"profiling": {"time_aware": True}}}, "test")


def hourly(days: float) -> list[float]:
    return [HOUR_S * hour for hour in range(int(days * 24))]


def said(scenario: Scenario, now_s: float) -> ArrivalForecast:
    forecaster = scenario.forecaster_for(scenario.settings.policy, lambda job: False)
    assert forecaster is not None
    for item in scenario.trace.jobs:
        if item.job.submit_s <= now_s:
            forecaster.saw(item.job)
    return forecaster.forecast(now_s)


def test_nobody_forecasts_where_nobody_looks() -> None:
    scenario = Scenario(a_trace(by("a", 1, 60.0)))
    assert scenario.forecaster_for(scenario.settings.policy, lambda job: False) is None


def test_a_given_model_forecasts_and_knows_what_came_before_the_trace() -> None:
    before = [a_job(f"before{n}", 2, at_s - 30 * DAY_S) for n, at_s in enumerate(hourly(30))]
    trace = a_trace(*[by(f"j{n}", 2, 60.0, at_s) for n, at_s in enumerate(hourly(1))])
    alone = Scenario(trace, settings=TIME_AWARE, throughput=Throughput(constant(2.0), "v7"))
    assert said(alone, 20 * HOUR_S).by == "seasonal means"
    known = Scenario(trace, settings=TIME_AWARE, throughput=Throughput(constant(2.0), "v7", before))
    assert said(known, 20 * HOUR_S) == ArrivalForecast("throughput v7", {"vc": 18.0})
    means = Scenario(trace, settings=TIME_AWARE, throughput=Throughput(None, "", before))
    assert said(means, 20 * HOUR_S) == ArrivalForecast("seasonal means", {"vc": 2.0})


def test_as_live_goes_by_the_library_of_the_daemon(tmp_path: Path) -> None:
    (tmp_path / "lucid.toml").write_text('[models]\nlibrary = "kept"\n')
    serve(tmp_path / "kept", constant(2.0))
    options = dict.fromkeys(("fmt", "vcs", "nodes", "profiling_nodes", "pairs", "profiles", "semantics"))
    rest = {"gpus_per_node": 8, "gpu_mem_mib": 24576, "cpus_per_node": 0, "mem_mib_per_node": 0, "seed": 1}
    more = {"estimate_specs": (), "predictor": "history", "workloads": "trace", "skip_bad": False}
    trace = a_trace(by("a", 1, 60.0))

    def read(as_live: bool) -> tuple[Scenario, list[str]]:
        config = tmp_path / "lucid.toml"
        return read_scenario(trace, config=config, as_live=as_live, **options, **rest, **more)  # type: ignore[arg-type]

    scenario, notes = read(as_live=True)
    assert scenario.throughput.version == "v1"
    assert any("forecast by throughput v1" in note for note in notes)
    assert read(as_live=False)[0].throughput is None


def test_a_learned_forecast_is_trained_on_the_past_of_the_replay_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    def fit(bins: Bins, age: int) -> ThroughputModel:
        if len(bins.start) < 25 * 144:
            raise TooFew("collect more")
        seen.append(len(bins.start))
        return constant(2.0)

    monkeypatch.setattr(learned, "fit_throughput", fit)
    forecaster = WalkForwardForecaster(ArrivalForecaster())
    jobs, by_day = [a_job(f"j{n}", 2, at_s) for n, at_s in enumerate(hourly(40))], []
    for day in range(1, 40):
        for job in jobs[24 * (day - 1) : 24 * day]:
            forecaster.saw(job)
        by_day.append(forecaster.forecast(day * DAY_S).by)
    assert by_day.index("throughput learned in this replay") == 24
    assert set(by_day[24:]) == {"throughput learned in this replay"}
    assert seen == [144 * day for day in (25, 32, 39)], "anew every week, from all that is past"
