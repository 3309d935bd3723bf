"""``LearnedForecaster``: the throughput model as a `Forecaster`; its evaluation; its kind of model.

An evaluation trains on the bins before a date and takes the mean absolute errors over all later bins. The newest
bin's age is how many bins before the predicted one the newest known bin lies."""

from __future__ import annotations

import math
import time
from collections import defaultdict
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final

import numpy as np

from lucid.core.job import Job
from lucid.core.snapshot import ArrivalForecast
from lucid.core.times import DAY_S
from lucid.errors import ModelError
from lucid.models.kind import SAMPLE, Kind, Tables, Task, split
from lucid.models.library import Library, Version
from lucid.models.throughput.bins import BIN_S, OTHERS, REACH_DAYS, Bins, FloatArray, utc
from lucid.models.throughput.fit import check_enough, fit_throughput
from lucid.models.throughput.model import ArrivalForecaster, ThroughputModel
from lucid.models.training import Drift, Evidence, Rules, psi


class LearnedForecaster:
    """Forecasts GPUs per VC: the model says how many GPUs the whole cluster is about to be asked for; seasonal means
    say which share of them each VC asks for. Seasonal means answer alone while there is no model, and until the
    submissions seen reach back as far as the model's inputs (three weeks).

    ``version`` names the model in explanations. ``epoch_s`` is added to times of jobs, so that hours and weekdays are
    those of the calendar."""

    def __init__(
        self, model: ThroughputModel | None, version: str, means: ArrivalForecaster, epoch_s: float = 0.0
    ) -> None:
        self.model = model
        self._name = f"throughput {version}"
        self._means = means
        self._epoch_s = epoch_s
        self._jobs: defaultdict[int, float] = defaultdict(float)
        self._gpus: defaultdict[int, float] = defaultdict(float)
        self._made_for: tuple[int, ThroughputModel] | None = None
        self._made = ArrivalForecast()

    @property
    def width_s(self) -> float:
        """Width of a bin."""
        return BIN_S if self.model is None else self.model.width_s

    def observe(self, job: Job) -> None:
        """Take in a job when it is first seen. Called once for each."""
        self._means.observe(job)
        if job.gpus > 0:
            at = math.floor((job.submit_s + self._epoch_s) / self.width_s)
            self._jobs[at] += 1
            self._gpus[at] += job.gpus

    def forecast(self, now_s: float) -> ArrivalForecast:
        """The forecast from whole bins before ``now_s`` alone; the same object until the next bin begins.

        Raises: ModelError: the model needs counts other than those of submissions."""
        plain = self._means.forecast(now_s)
        if self.model is None:
            return plain
        made_for = (math.floor((now_s + self._epoch_s) / self.width_s), self.model)
        if made_for != self._made_for:
            bins = self.past(now_s, REACH_DAYS + 1)
            enough = bins is not None and len(bins.start) * self.width_s >= (REACH_DAYS + 1) * DAY_S
            self._made = self._shared_out(self.model.gpus_per_hour(bins), plain) if bins and enough else plain
            self._made_for = made_for
        return self._made

    def past(self, now_s: float, days: float = math.inf) -> Bins | None:
        """Whole bins of at most so many days before ``now_s``; ``None`` where there are fewer than two."""
        width_s = self.width_s
        end = math.floor((now_s + self._epoch_s) / width_s)
        first = min(self._jobs, default=end)
        if days < math.inf:
            first = max(first, end - round(days * DAY_S / width_s))
        if end - first < 2:
            return None
        start = tuple(datetime.fromtimestamp(at * width_s, UTC) for at in range(first, end))
        jobs, gpus = (np.array([of.get(at, 0.0) for at in range(first, end)]) for of in (self._jobs, self._gpus))
        return Bins(start, jobs, gpus)

    def _shared_out(self, gpus_per_hour: float, plain: ArrivalForecast) -> ArrivalForecast:
        by_vc, profiled = plain.gpus_per_hour, plain.profiled_per_hour
        if not any(by_vc.values()):  # nothing of late, nor at this time of day: as in the past week
            by_vc, profiled = self._means.week()
        share = gpus_per_hour / (sum(by_vc.values()) or 1.0)
        return ArrivalForecast(self._name, {vc: share * rate for vc, rate in by_vc.items()}, share * profiled)


def evaluate(bins: Bins, train_until: datetime, age: int, *, parallel: int = 2) -> dict[str, Any]:
    """Train before the date, forecast every bin from it on, report errors and the time training took.

    Raises:
        ModelError: no bin before or none after the date, or too few to train."""
    past = bins.upto(utc(train_until))
    first = len(past.start)
    if first == len(bins.start):
        raise ModelError(f"no bin starts at or after {train_until}; choose an earlier date")
    began = time.perf_counter()
    model = fit_throughput(past, age, parallel=parallel)
    seconds = time.perf_counter() - began
    forecast = model.predict(bins)[first - age : len(bins.start) - age]
    truth = np.stack([bins.jobs, bins.gpus], axis=1)[first:]
    mae = np.abs(forecast - truth).mean(axis=0)
    return {
        "mae_jobs": round(float(mae[0]), 4),
        "mae_gpus": round(float(mae[1]), 4),
        "newest_bin": age,
        "trained_bins": first,
        "tested_bins": len(truth),
        "train_s": round(seconds, 2),
    }


# A bin is ten minutes in the usual case: a week of them calls for training, a day is worth it.
_WEEK_BINS: Final = 1008
_DAY_BINS: Final = 144
_AGE: Final = 1
"""The age of the newest bin: lucidd has just closed one when it asks."""


class ThroughputKind(Kind[ThroughputModel, Bins]):
    """The kind of model that forecasts throughput. It learns from submissions alone, which are all that lucidd
    counts. Its loss is the mean of both targets' errors, relative to the forecast 'as in the newest bin'."""

    name = "throughput"
    data = "bins"
    stand_in = ArrivalForecaster.name
    model = ThroughputModel

    def for_service(self, model: ThroughputModel) -> ThroughputModel:
        """The model, if it was trained on submissions alone: lucidd counts nothing else."""
        if others := sorted({name for name in model.features if name.split("_")[0] in OTHERS}):
            raise ModelError(
                f"throughput: this version asks for {', '.join(others)}, which lucidd does not count; train it again"
            )
        return model

    def rules(self, rules: Rules) -> Rules:
        """The bounds, in bins."""
        return replace(rules, new_jobs=_WEEK_BINS, least_jobs=_DAY_BINS, drift_jobs=_DAY_BINS)

    def tables(self, model: ThroughputModel) -> list[Tables]:
        """One table for each target."""
        return [
            Tables(f"{what} submitted per bin", "square root of the count" if part.root else what, part.model)
            for what, part in (("GPU jobs", model.jobs), ("GPUs", model.gpus))
        ]

    def task(self, library: Library, data: Bins) -> Task[ThroughputModel]:
        """Fit on past bins, judge on later ones."""
        bins = data.submissions()
        version = self.in_service(library)
        number = np.arange(len(bins.start), dtype=np.float64)
        learned = None if version is None else _learned_bin(version, bins)
        first = int(split(number, learned, "bins")) + 1
        past = bins.upto(bins.start[first])
        facts = {
            "learned_until": past.start[-1].isoformat(),
            "learned_from": len(past.start),
            "judged_on": len(bins.start) - first,
            "inputs": {"jobs": _thinned(past.jobs), "gpus": _thinned(past.gpus)},
        }
        return Task(lambda: fit_throughput(past, _AGE), lambda model: _ratio(model, data, first), facts)

    def evidence(self, library: Library, data: Bins, now: datetime) -> Evidence:
        """New bins, the age of the version in service, the drift of its error (against 'as in the newest bin') and of
        the counts."""
        version = self.in_service(library)
        if version is None:
            number = np.arange(len(data.start), dtype=np.float64)
            check_enough(data.upto(data.start[int(split(number, None, "bins")) + 1]), _AGE)
            return Evidence(now, None, len(data.start), Drift(None, 0))
        model, trained = self.read(version), datetime.fromisoformat(version.created)
        new = len(data.start) - 1 - int(_learned_bin(version, data))
        if new <= 0:
            return Evidence(now, trained, 0, Drift(None, 0))
        kept = version.facts.get("inputs", {})
        inputs = {name: psi(values, getattr(data, name)[-new:]) for name, values in kept.items()}
        return Evidence(now, trained, new, Drift(_ratio(model, data, len(data.start) - new), new, inputs))


THROUGHPUT: Final = ThroughputKind()


def _ratio(model: ThroughputModel, bins: Bins, first: int) -> float:
    first = max(first, model.age)
    truth = np.stack([bins.jobs, bins.gpus], axis=1)
    rows = slice(first - model.age, len(bins.start) - model.age)
    own = np.abs(model.predict(bins)[rows] - truth[first:]).mean(axis=0)
    same = np.abs(truth[rows] - truth[first:]).mean(axis=0)
    return float((own / np.maximum(same, 1e-9)).mean())


def _learned_bin(version: Version, bins: Bins) -> float:
    """Number of the newest bin that a version learned from."""
    until = utc(datetime.fromisoformat(str(version.facts.get("learned_until", bins.start[0]))))
    return float(sum(utc(start) <= until for start in bins.start) - 1)


def _thinned(values: FloatArray) -> list[float]:
    return [float(value) for value in values[np.unique(np.linspace(0, len(values) - 1, SAMPLE).astype(int))]]
