"""The throughput model: GPU jobs and GPUs submitted in a coming bin, as a GA²M; and plain seasonal means.

One model answers for one age: with bin s the newest known, it predicts bin s + age. For a daemon that has just closed
a bin, age 1 is the bin now beginning, age 2 the next. Per target

    score = intercept + sum f_i(x_i) + sum f_ij(x_i, x_j) + persistence * max(0, u(newest) - u(cap))
    prediction = max(0, u^-1(score)),    u(y) = sqrt(y + 1/4) or y

Inputs (Lucid, row L22): hour and weekday of the predicted bin, lags, rolling mean, median and standard deviation,
weighted soft sum, and the same hour a day and a week ago. The terms are interpret's explainable boosting with a
pseudo-Huber loss (a smooth absolute error: the forecast is judged by MAE, and counts are heavy-tailed, so the mean
would be drawn off by bursts); Anscombe's square root evens their variance out. Tables cannot say more than they saw
in training, and bursts grow from month to month. The last addend carries what exceeds the training data's 99th
percentile forward, at the rate (L1 slope) at which such bursts lasted in training; where they did not, the rate is
0."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final

import numpy as np
from msgspec import Meta, Struct

from lucid.core.job import Job
from lucid.core.prediction import Term
from lucid.core.snapshot import ArrivalForecast
from lucid.errors import ModelError
from lucid.models.additive import AdditiveModel
from lucid.models.library import StoredModel
from lucid.models.throughput.bins import BIN_S, Bins, FloatArray, newest_columns, throughput_columns

TARGETS: Final = ("jobs", "gpus")
_ROOT_SHIFT: Final = 0.25
NotNegative = Annotated[float, Meta(ge=0.0)]


class TargetModel(Struct, frozen=True):
    """The model of one target; `root` says whether it works on square roots."""

    model: AdditiveModel
    root: bool
    cap: NotNegative  # training data's 99th percentile of the target, in its own unit
    persistence: NotNegative  # 0 to 1
    mean_factor: NotNegative = 1.0
    """The training data's mean over the predictions' mean: bursts lie above the median."""

    def expected(self, columns: Mapping[str, Any], newest: FloatArray) -> FloatArray:
        """Expected counts, shape (n,): predictions, which are medians, times the factor by which they fell short in
        training."""
        return np.asarray(self.mean_factor * self.predict(columns, newest), dtype=np.float64)

    def predict(self, columns: Mapping[str, Any], newest: FloatArray) -> FloatArray:
        """Predictions in the target's unit, shape (n,); never negative."""
        score = self.model.score(columns) + self.burst(newest)
        if not self.root:
            return np.asarray(np.maximum(score, 0.0), dtype=np.float64)
        return np.asarray(np.maximum(np.maximum(score, 0.0) ** 2 - _ROOT_SHIFT, 0.0), dtype=np.float64)

    def burst(self, newest: FloatArray) -> FloatArray:
        """The addend for a newest bin beyond the cap, in the score's unit, shape (n,)."""
        excess = np.maximum(to_score(newest, self.root) - to_score(np.array(self.cap), self.root), 0.0)
        return np.asarray(self.persistence * excess, dtype=np.float64)


class ThroughputModel(StoredModel, frozen=True, tag="lucid-throughput/1"):
    """The models of both targets for one age (in bins) and bin width (s)."""

    age: Annotated[int, Meta(ge=1)]
    width_s: Annotated[float, Meta(ge=1e-3)]
    jobs: TargetModel
    gpus: TargetModel

    @property
    def features(self) -> set[str]:
        """Names of the inputs of both targets."""
        return {*self.jobs.model.features, *self.gpus.model.features}

    def predict(self, bins: Bins) -> FloatArray:
        """Jobs and GPUs expected in bin s + age from bins up to s, in row s; shape (n, 2).

        The last row is the forecast for a bin still to come.

        Raises: ModelError: the bins are of another width than those trained on."""
        columns = self._columns(bins)
        parts = [self.jobs.predict(columns, bins.jobs), self.gpus.predict(columns, bins.gpus)]
        return np.stack(parts, axis=1)

    def gpus_per_hour(self, bins: Bins) -> float:
        """GPUs expected per hour after the newest of these bins, at the rate of the bin that is predicted.

        The bins must reach back three weeks and two hours.

        Raises:
            ModelError: the bins are of another width, or the model needs counts that these bins lack."""
        self._check_width(bins)
        columns = newest_columns(bins, self.age)
        return float(self.gpus.expected(columns, bins.gpus[-1:])[0]) * 3600.0 / self.width_s

    def explain(self, bins: Bins, target: str) -> list[Term]:
        """Addends of the newest forecast of `target` (jobs, gpus); with the intercept they are its score."""
        if target not in TARGETS:
            raise ModelError(f"throughput has no target {target!r}; known are {', '.join(TARGETS)}")
        one: TargetModel = getattr(self, target)
        newest: FloatArray = getattr(bins, target)[-1:]
        row = {name: column[-1] for name, column in self._columns(bins).items()}
        burst = Term("burst", f"{newest[0]:g}", float(one.burst(newest)[0]))
        return [*one.model.explain_one(row), burst]

    def _columns(self, bins: Bins) -> dict[str, FloatArray]:
        self._check_width(bins)
        return throughput_columns(bins, self.age)

    def _check_width(self, bins: Bins) -> None:
        if bins.width.total_seconds() != self.width_s:
            raise ModelError(
                f"throughput model was trained on bins of {self.width_s:g} s, these are "
                f"{bins.width.total_seconds():g} s; give such bins or train again"
            )


def to_score(counts: FloatArray, root: bool) -> FloatArray:
    """Counts on the scale on which terms add up: themselves, or their square root, shape (n,)."""
    return np.asarray(np.sqrt(counts + _ROOT_SHIFT) if root else counts, dtype=np.float64)


_HOUR = 6
_DAY, _WEEK = 24 * _HOUR, 7 * 24 * _HOUR
_RECENT = 2 * _HOUR

Counts = Mapping[int, float]


class ArrivalForecaster:
    """Seasonal means: GPUs that each VC's users are about to submit, per hour, from when its jobs came before.

    The forecast is the larger of two rates: that of the last two hours, and the mean of the three hours around the
    same time of day yesterday and a week ago, as far as the past reaches. It is the larger one because a forecast
    that is too low turns sharing off just when it is needed.

    ``profiled`` says which jobs go through profiling nodes: they are forecast by themselves as well."""

    name = "seasonal means"

    def __init__(self, profiled: Callable[[Job], bool] = lambda _: False) -> None:
        self._profiled = profiled
        self._gpus: defaultdict[str, defaultdict[int, float]] = defaultdict(lambda: defaultdict(float))
        self._to_profile: defaultdict[int, float] = defaultdict(float)
        self._first: int | None = None
        self._made_for: int | None = None
        self._made = ArrivalForecast(self.name)

    def observe(self, job: Job) -> None:
        """Take in a job when it is first seen. Called once for each."""
        at = math.floor(job.submit_s / BIN_S)
        self._first = at if self._first is None else min(self._first, at)
        self._gpus[job.vc][at] += job.gpus
        if self._profiled(job):
            self._to_profile[at] += job.gpus

    def forecast(self, now_s: float) -> ArrivalForecast:
        """The forecast from whole bins before ``now_s`` alone; the same object until the next bin begins."""
        at = math.floor(now_s / BIN_S)
        if at != self._made_for:
            self._made_for = at
            rates = {vc: self._rate(bins, at) for vc, bins in self._gpus.items()}
            self._made = ArrivalForecast(self.name, rates, self._rate(self._to_profile, at))
            for bins in (*self._gpus.values(), self._to_profile):
                for old in [b for b in bins if b < at - _WEEK - 2 * _HOUR]:
                    del bins[old]
        return self._made

    def week(self) -> tuple[dict[str, float], float]:
        """GPUs submitted in the week before the last forecast: by VC, and to profiling nodes."""
        return {vc: sum(bins.values()) for vc, bins in self._gpus.items()}, sum(self._to_profile.values())

    def _rate(self, bins: Counts, at: int) -> float:
        recent = sum(bins.get(b, 0) for b in range(at - _RECENT, at)) * _HOUR / _RECENT
        first = self._first if self._first is not None else at
        before = [
            sum(bins.get(b, 0) for b in range(at - lag - _HOUR, at - lag + 2 * _HOUR)) / 3
            for lag in (_DAY, _WEEK)
            if at - lag - _HOUR >= first
        ]
        return max(recent, sum(before) / len(before) if before else 0.0)
