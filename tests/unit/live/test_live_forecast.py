"""The forecast of starts, live and in replays."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from builders import a_job, a_trace, by
from daemon_site import Site
from lucid.cli.replay.replay_options import read_scenario
from lucid.config.load import settings_from
from lucid.core.job import Ended, Job
from lucid.core.snapshot import ArrivalForecast, Snapshot
from lucid.daemon.learning.models import LiveModels, live_forecaster
from lucid.left_out import LeftOut
from lucid.models.additive import AdditiveModel, Axis, Term
from lucid.models.kind import TooFew
from lucid.models.library import Library
from lucid.models.throughput.bins import BIN_S, Bins
from lucid.models.throughput.model import ArrivalForecaster, TargetModel, ThroughputModel
from lucid.orchestrator.annotate import Annotator
from lucid.simulator import predictors as learned
from lucid.simulator.predictors import WalkForwardForecaster
from lucid.simulator.scenario import ReplayOptions, Scenario, Throughput

HOUR_S = 3600.0
DAY_S = 24 * HOUR_S


def came(now_s: float, gpus_per_hour: int, hours: int) -> list[Ended]:
    """Jobs of 4 GPUs, as many in each of the last hours; all of them have ended."""
    jobs = [
        Job(f"old{hour}.{n}", "vc", 4, now_s - HOUR_S * (hour + 1) + 60.0 * n, 0, "ada", "lab")
        for hour in range(hours)
        for n in range(gpus_per_hour // 4)
    ]
    return [Ended(job, job.submit_s + 50.0, 50.0) for job in jobs]


def busy(site: Site, gpus_per_hour: int) -> None:
    """Ten hours of submissions before the site's daemon begins."""
    site.slurm.advance(1e6)
    lease = site.store.take_lease("before", site.slurm.now, 1.0)
    site.store.put_ended(came(site.slurm.now, gpus_per_hour, 10), lease.token)
    site.store.drop_lease(lease.token)


@pytest.fixture
def snapshots(monkeypatch: pytest.MonkeyPatch) -> list[Snapshot]:
    """What a daemon's policy looked at."""
    seen: list[Snapshot] = []
    annotate = Annotator.__call__

    def kept(annotator: Annotator, *given: Any) -> Snapshot:
        seen.append(annotate(annotator, *given))
        return seen[-1]

    monkeypatch.setattr(Annotator, "__call__", kept)
    return seen


@pytest.mark.parametrize("restarts", ["allowed", None])
def test_a_live_cycle_knows_what_was_submitted(tmp_path: Path, snapshots: list[Snapshot], restarts: Any) -> None:
    """Jobs that are profiled in place will not queue for profiling nodes. What comes counts from the next bin on."""
    site = Site(tmp_path, restarts)
    busy(site, 12)
    site.daemon.turn()
    profiled = 12.0 if restarts else 0.0
    assert snapshots[-1].arrivals == ArrivalForecast("seasonal means", {"vc": 12.0}, profiled)
    site.submit("1", 2, run_s=30.0)
    site.turns(BIN_S + 100.0)
    assert snapshots[-1].arrivals.per_hour("vc") == 7.0, "12 GPUs an hour ago, and 2 now, in two hours"


def constant(gpus: float, feature: str = "gpus_lag0") -> ThroughputModel:
    """Always so many GPUs in the next bin, whatever the input says."""
    table = Term(feature, (Axis(feature, "continuous", (1.0,)),), np.zeros(4), np.ones(4))
    target = TargetModel(AdditiveModel(gpus, "identity", (table,)), False, 1e9, 0.0, 1.5)
    return ThroughputModel(1, BIN_S, target, target)


def forecast(folder: Path, days: int, left_out: LeftOut | None = None) -> ArrivalForecast:
    models, now_s = LiveModels(folder), 100 * DAY_S
    models.make()
    ended = came(now_s, 8, 24 * days)
    return live_forecaster(models, ended, lambda job: True, left_out or LeftOut()).forecast(now_s)


def serve(folder: Path, model: ThroughputModel) -> None:
    library = Library(folder)
    library.promote("throughput", library.add("throughput", model.to_json(), {}), "judged better")


def test_L22_the_version_in_service_forecasts_and_means_do_until_there_is_one(tmp_path: Path) -> None:
    assert forecast(tmp_path, 30) == ArrivalForecast("seasonal means", {"vc": 8.0}, 8.0)
    serve(tmp_path, constant(2.0))
    assert forecast(tmp_path, 23) == ArrivalForecast("throughput v1", {"vc": 18.0}, 18.0), "2 x 1.5 in ten minutes"
    assert forecast(tmp_path, 21).by == "seasonal means", "submissions do not reach back as far as the model looks"
    Library(tmp_path).suspend("throughput", "it drifted")
    assert forecast(tmp_path, 23).by == "seasonal means"


def test_a_version_trained_on_what_lucidd_does_not_count_is_passed_over(tmp_path: Path) -> None:
    serve(tmp_path, constant(2.0, "ended_lag0"))
    assert forecast(tmp_path, 30).by == "seasonal means"
    models = LiveModels(tmp_path)
    models.make()
    assert models.serving["throughput"].trouble
    assert "asks for ended_lag0, which lucidd does not count" in models.serving["throughput"].why


def test_a_forecast_that_fails_is_told_and_means_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    serve(tmp_path, constant(2.0))
    monkeypatch.setattr(ThroughputModel, "gpus_per_hour", lambda *_: 1 / 0)
    left_out = LeftOut()
    assert forecast(tmp_path, 30, left_out).by == "seasonal means"
    assert "division by zero" in str(left_out.summary())


TIME_AWARE = settings_from({"policy": {"profiling": {"time_aware": True}}}, "test")


def hourly(days: float) -> list[float]:
    return [HOUR_S * hour for hour in range(int(days * 24))]


def said(scenario: Scenario, now_s: float) -> ArrivalForecast:
    forecaster = scenario.forecaster_for(scenario.settings.policy, lambda job: False)
    for item in scenario.trace.jobs:
        if item.job.submit_s <= now_s:
            forecaster.observe(item.job)
    return forecaster.forecast(now_s)


def test_a_given_model_forecasts_and_knows_what_came_before_the_trace() -> None:
    unseen = Scenario(a_trace(by("a", 1, 60.0)))
    assert unseen.forecaster_for(unseen.settings.policy, lambda job: False) is None, "nobody looks at it"
    before = [a_job(f"before{n}", 2, at_s - 30 * DAY_S) for n, at_s in enumerate(hourly(30))]
    trace = a_trace(*[by(f"j{n}", 2, 60.0, at_s) for n, at_s in enumerate(hourly(1))])
    given = (constant(2.0), "v7"), (constant(2.0), "v7", before), (None, "", before)
    scenarios = (Scenario(trace, settings=TIME_AWARE, throughput=Throughput(*model)) for model in given)
    alone, known, means = (said(scenario, 20 * HOUR_S) for scenario in scenarios)
    assert (alone.by, known) == ("seasonal means", ArrivalForecast("throughput v7", {"vc": 18.0}))
    assert means == ArrivalForecast("seasonal means", {"vc": 2.0})


def test_as_live_goes_by_the_library_of_the_daemon(tmp_path: Path) -> None:
    (tmp_path / "lucid.toml").write_text('[models]\nlibrary = "kept"\n')
    serve(tmp_path / "kept", constant(2.0))
    trace = a_trace(by("a", 1, 60.0))

    read = partial(read_scenario, trace)
    scenario, notes = read(ReplayOptions(config=tmp_path / "lucid.toml", as_live=True))
    assert scenario.throughput.version == "v1"
    assert any("forecast by throughput v1" in note for note in notes)
    assert read(ReplayOptions(config=tmp_path / "lucid.toml"))[0].throughput is None


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
            forecaster.observe(job)
        by_day.append(forecaster.forecast(day * DAY_S).by)
    assert by_day.index("throughput learned in this replay") == 24
    assert set(by_day[24:]) == {"throughput learned in this replay"}
    assert seen == [144 * day for day in (25, 32, 39)], "anew every week, from all that is past"
