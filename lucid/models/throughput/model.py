"""Cluster throughput: GPU jobs and GPUs submitted in a coming bin, as a GA²M.

One model answers for one age: with bin s the newest known, it predicts bin s + age. For a daemon that has
just closed a bin, age 1 is the bin now beginning, age 2 the next. Per target

    score = intercept + sum f_i(x_i) + sum f_ij(x_i, x_j) + persistence * max(0, u(newest) - u(cap))
    prediction = max(0, u^-1(score)),   u(y) = sqrt(y + 1/4) or y

Inputs (Lucid, row L22): hour and weekday of the predicted bin, lags, rolling mean, median and standard
deviation, weighted soft sum, and the same hour a day and a week ago. The terms are interpret's explainable
boosting with a pseudo-Huber loss (a smooth absolute error: the forecast is judged by MAE, and counts are
heavy-tailed, so the mean would be drawn off by bursts); Anscombe's square root evens their variance out.

Tables cannot say more than they saw in training, and bursts grow from month to month. The last addend carries
what exceeds the training data's 99th percentile forward, at the rate (L1 slope) at which such bursts lasted
in training; where they did not, the rate is 0.
"""

from __future__ import annotations

import csv
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from lucid.errors import ModelError
from lucid.models.additive import AdditiveModel, TermScore, from_ebm

__all__ = ["Bins", "Forecaster", "ThroughputModel", "fit_throughput", "read_bins", "throughput_columns"]

FloatArray = npt.NDArray[np.float64]

FORMAT: Final = "lucid-throughput/1"
TARGETS: Final = ("jobs", "gpus")
_ROOT_SHIFT: Final = 0.25
_BURST_QUANTILE: Final = 0.99
_LEAST_BINS: Final = 500  # fewer rows cannot carry a term per input
_LAGS: Final = (0, 1, 2)
_MEANS: Final = (6, 18, 36, 144)  # bins; 144 bins of 10 minutes are a day
_MEDIANS: Final = (6, 18)
_SPREADS: Final = (6, 36)
_HALF_LIVES: Final = (2, 6)
_HELD_OUT: Final = 0.2
_LOSS_BEND: Final = {("jobs", True): 0.5, ("jobs", False): 3.0, ("gpus", True): 1.0}
_PAIRS: Final = (("hour", "weekday"), ("hour", "{}_soft2"), ("hour", "{}_mean36"))
_OTHERS: Final = {"started": "start_gpu_job", "ended": "end_gpu_job", "every": "submit_job_all"}
_SOFT_REACH: Final = 8  # half-lives after which a weight (2^-8) no longer matters


@dataclass(frozen=True)
class Bins:
    """Consecutive bins of equal width: their starts and what was counted in each, shape (n,) all.

    `jobs` and `gpus` are the GPU jobs and GPUs submitted (the targets); `others` are further counts known
    when a bin closes (GPU jobs started, GPU jobs ended, all jobs), by name: resubmissions follow endings.
    """

    start: tuple[datetime, ...]
    jobs: FloatArray
    gpus: FloatArray
    others: Mapping[str, FloatArray] = field(default_factory=dict)

    def __post_init__(self) -> None:
        lengths = {len(self.start), len(self.jobs), len(self.gpus), *map(len, self.others.values())}
        if len(lengths) > 1 or len(self.start) < 2:
            raise ModelError(f"throughput bins: need at least two, all counts equally many; got {lengths}")

    @property
    def width(self) -> timedelta:
        """Length of one bin."""
        return self.start[1] - self.start[0]

    def upto(self, end: datetime) -> Bins:
        """The bins that start before `end`."""
        keep = sum(start < end for start in self.start)
        others = {name: counts[:keep] for name, counts in self.others.items()}
        return Bins(self.start[:keep], self.jobs[:keep], self.gpus[:keep], others)


@dataclass(frozen=True)
class Forecaster:
    """The model of one target; `root` says whether it works on square roots."""

    model: AdditiveModel
    root: bool
    cap: float  # training data's 99th percentile of the target, in its own unit
    persistence: float  # 0 to 1

    def predict(self, columns: Mapping[str, Any], newest: FloatArray) -> FloatArray:
        """Predictions in the target's unit, shape (n,); never negative."""
        score = self.model.score(columns) + self.burst(newest)
        if not self.root:
            return np.asarray(np.maximum(score, 0.0), dtype=np.float64)
        return np.asarray(np.maximum(np.maximum(score, 0.0) ** 2 - _ROOT_SHIFT, 0.0), dtype=np.float64)

    def burst(self, newest: FloatArray) -> FloatArray:
        """The addend for a newest bin beyond the cap, in the score's unit, shape (n,)."""
        excess = np.maximum(_scale(newest, self.root) - _scale(np.array(self.cap), self.root), 0.0)
        return np.asarray(self.persistence * excess, dtype=np.float64)


@dataclass(frozen=True)
class ThroughputModel:
    """Forecasters of both targets for one age (in bins) and bin width (s)."""

    age: int
    width_s: float
    jobs: Forecaster
    gpus: Forecaster

    def predict(self, bins: Bins) -> FloatArray:
        """Row s: jobs and GPUs expected in bin s + age, knowing bins up to s; shape (n, 2).

        The last row is the forecast for a bin still to come.

        Raises:
            ModelError: the bins are of another width than those trained on.
        """
        columns = self._columns(bins)
        parts = [self.jobs.predict(columns, bins.jobs), self.gpus.predict(columns, bins.gpus)]
        return np.stack(parts, axis=1)

    def explain(self, bins: Bins, target: str) -> list[TermScore]:
        """Addends of the newest forecast of `target` (jobs, gpus); with the intercept they are its score."""
        if target not in TARGETS:
            raise ModelError(f"throughput has no target {target!r}; known are {', '.join(TARGETS)}")
        forecaster: Forecaster = getattr(self, target)
        newest: FloatArray = getattr(bins, target)[-1:]
        row = {name: column[-1] for name, column in self._columns(bins).items()}
        burst = TermScore("burst", f"{newest[0]:g}", float(forecaster.burst(newest)[0]))
        return [*forecaster.model.explain_one(row), burst]

    def to_json(self) -> dict[str, Any]:
        """The model as JSON-ready data."""
        return {"format": FORMAT, "age": self.age, "width_s": self.width_s} | {
            name: {
                "root": forecaster.root,
                "cap": forecaster.cap,
                "persistence": forecaster.persistence,
                "model": forecaster.model.to_json(),
            }
            for name, forecaster in zip(TARGETS, (self.jobs, self.gpus), strict=True)
        }

    @classmethod
    def from_json(cls, data: object, *, source: str = "throughput model") -> ThroughputModel:
        """Check and build.

        Raises:
            ModelError: `data` is no consistent throughput model; the message names `source`.
        """
        if not isinstance(data, dict) or data.get("format") != FORMAT:
            raise ModelError(f"{source}: is not a {FORMAT} model; train the model again")
        age, width = data.get("age"), _number(data.get("width_s"), f"{source}: width_s", low=1e-3)
        if isinstance(age, bool) or not isinstance(age, int) or age < 1:
            raise ModelError(f"{source}: age is {age!r}, not a number of bins; train the model again")
        jobs, gpus = (_read_forecaster(data.get(name), f"{source}: {name}") for name in TARGETS)
        return cls(age, width, jobs, gpus)

    def _columns(self, bins: Bins) -> dict[str, FloatArray]:
        if bins.width.total_seconds() != self.width_s:
            raise ModelError(
                f"throughput model was trained on bins of {self.width_s:g} s, these are "
                f"{bins.width.total_seconds():g} s; give such bins or train again"
            )
        return throughput_columns(bins, self.age)


def throughput_columns(bins: Bins, age: int) -> dict[str, FloatArray]:
    """Inputs of every row s (bin s the newest known, bin s + age predicted), each of shape (n,).

    Values that reach back before the first bin are nan (the model's "missing").
    """
    coming = [start + age * bins.width for start in bins.start]
    columns = {
        "hour": np.array([time.hour + time.minute / 60 for time in coming], dtype=np.float64),
        "weekday": np.array([time.weekday() for time in coming], dtype=np.float64),
    }
    day = round(timedelta(days=1) / bins.width)
    for name, counts in (("jobs", bins.jobs), ("gpus", bins.gpus)):
        for lag in _LAGS:
            columns[f"{name}_lag{lag}"] = _shift(counts, lag)
        for span in _MEANS:
            columns[f"{name}_mean{span}"] = _rolling(counts, span, "mean")
        for span in _MEDIANS:
            columns[f"{name}_median{span}"] = _rolling(counts, span, "median")
        for span in _SPREADS:
            columns[f"{name}_std{span}"] = _rolling(counts, span, "std")
        for half_life in _HALF_LIVES:
            columns[f"{name}_soft{half_life}"] = _soft_sum(counts, half_life)
        # The hour around the same time of day: its newest bin lies two bins after that time.
        around = _rolling(counts, 5, "mean")
        for label, days in (("day", 1), ("week", 7)):
            columns[f"{name}_{label}_ago"] = _shift(around, days * day - 2 - age)
        typical = _rolling(counts, 5, "median")
        weeks = [_shift(typical, week * 7 * day - 2 - age) for week in (1, 2, 3)]
        columns[f"{name}_weeks"] = np.mean(weeks, axis=0)
    for name, counts in bins.others.items():
        columns[f"{name}_lag0"] = counts
        columns[f"{name}_soft2"] = _soft_sum(counts, 2)
    return columns


def fit_throughput(bins: Bins, age: int, *, parallel: int = 1) -> ThroughputModel:
    """Train both targets on all the bins given.

    Raises:
        ModelError: too few bins, or an age below 1 or beyond a day.
    """
    day = round(timedelta(days=1) / bins.width)
    if not 1 <= age <= day - 2:
        raise ModelError(f"age of the newest bin is {age}; give 1 (the bin just closed) to {day - 2} bins")
    columns = throughput_columns(bins, age)
    table = np.column_stack(list(columns.values()))[:-age]
    whole = ~np.isnan(table).any(axis=1)
    if whole.sum() < _LEAST_BINS:
        raise ModelError(
            f"throughput needs {_LEAST_BINS} bins with three weeks of history before them, got "
            f"{int(whole.sum())}; collect more before training"
        )
    forecasters = []
    for target in TARGETS:
        counts: FloatArray = getattr(bins, target)
        # The jobs gain nothing from GPU counts, which are the noisier series.
        names = [name for name in columns if target == "gpus" or not name.startswith("gpus_")]
        inputs = table[whole][:, [list(columns).index(name) for name in names]]
        data = _Data(names, inputs, counts[:-age][whole], counts[age:][whole], parallel)
        forecasters.append(_fit(data, target))
    return ThroughputModel(age, bins.width.total_seconds(), *forecasters)


class _Data(NamedTuple):
    """One target's training rows, oldest first: inputs (n, names), newest and coming counts (n,)."""

    names: Sequence[str]
    inputs: FloatArray
    newest: FloatArray
    coming: FloatArray
    parallel: int

    def rows(self, part: slice) -> _Data:
        return self._replace(inputs=self.inputs[part], newest=self.newest[part], coming=self.coming[part])


def _fit(data: _Data, target: str) -> Forecaster:
    """Fit in that form (roots or raw counts) which forecast the last fifth better from what was before."""
    if target == "gpus":
        return _fit_form(data, target, root=True)  # raw GPU counts are too heavy-tailed to boost
    split = int(len(data.coming) * (1 - _HELD_OUT))
    before, later = data.rows(slice(None, split)), data.rows(slice(split, None))
    columns = dict(zip(data.names, later.inputs.T, strict=True))

    def error(root: bool) -> float:
        forecast = _fit_form(before, target, root=root).predict(columns, later.newest)
        return float(np.abs(forecast - later.coming).mean())

    return _fit_form(data, target, root=error(True) < error(False))


def _fit_form(data: _Data, target: str, *, root: bool) -> Forecaster:
    # Imported here: predicting must load neither interpret nor sklearn.
    from interpret.glassbox import ExplainableBoostingRegressor

    cap = float(np.quantile(data.newest, _BURST_QUANTILE))
    level = float(_scale(np.array(cap), root))
    burst, coming = _scale(data.newest, root) - level, _scale(data.coming, root)
    rate = _lasting(burst, coming - level)
    booster = ExplainableBoostingRegressor(
        feature_names=list(data.names),
        feature_types=["continuous"] * len(data.names),
        # Where the loss turns from square to absolute, in the score's unit.
        objective=f"pseudo_huber:delta={_LOSS_BEND[target, root]:g}",
        interactions=[(first, second.format(target)) for first, second in _PAIRS],
        max_bins=128,
        min_samples_leaf=20,
        outer_bags=2,
        learning_rate=0.04,
        # Far from the median the pseudo-Huber loss has hardly any curvature, and Newton steps overshoot
        # without bound; both settings keep them short.
        reg_lambda=10.0,
        min_hessian=10.0 if root else 1e-4,
        n_jobs=data.parallel,
        random_state=0,
    )
    with warnings.catch_warnings():
        # interpret's own use of its dependencies; nothing of ours.
        warnings.simplefilter("ignore", category=FutureWarning)
        booster.fit(data.inputs, coming - rate * np.maximum(burst, 0.0))
    return Forecaster(from_ebm(booster), root, cap, rate)


def _lasting(burst: FloatArray, coming: FloatArray) -> float:
    """Share of a burst that is still there in the predicted bin: L1 slope through 0 (a weighted median)."""
    inside = burst > 0
    if inside.sum() < 20:
        return 0.0
    ratio = coming[inside] / burst[inside]
    order = np.argsort(ratio)
    weight = np.cumsum(burst[inside][order])
    slope = ratio[order][int(np.searchsorted(weight, weight[-1] / 2))]
    return float(np.clip(slope, 0.0, 1.0))


def read_bins(path: Path) -> Bins:
    """Bins from a CSV with the columns time (ISO), submit_gpu_job and submit_gpu_num.

    start_gpu_job, end_gpu_job and submit_job_all are used where the file has them; others are ignored.

    Raises:
        ModelError: the file cannot be read, or a bin is malformed, negative or out of step.
    """
    start: list[datetime] = []
    counts: list[list[float]] = []
    try:
        with path.open(encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file)
            others = {name: column for name, column in _OTHERS.items() if column in (reader.fieldnames or ())}
            wanted = ("submit_gpu_job", "submit_gpu_num", *others.values())
            for row in reader:
                where = f"{path}, line {reader.line_num}"
                start.append(_time(row, where))
                counts.append([_count(row, name, where) for name in wanted])
                if len(start) > 2 and start[-1] - start[-2] != start[1] - start[0]:
                    raise ModelError(f"{where}: bin {start[-1]} is not one step after {start[-2]}; fill the gap")
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ModelError(f"{path}: cannot be read ({error}); check the path and that it is CSV") from error
    if len(start) < 2 or start[1] <= start[0]:
        raise ModelError(f"{path}: needs at least two bins in ascending order; got {len(start)}")
    table = np.array(counts, dtype=np.float64)
    further = {name: table[:, number] for number, name in enumerate(others, start=2)}
    return Bins(tuple(start), table[:, 0], table[:, 1], further)


def _time(row: Mapping[str, str], where: str) -> datetime:
    try:
        return datetime.fromisoformat(row["time"])
    except (KeyError, TypeError, ValueError):
        raise ModelError(f"{where}: time is {row.get('time')!r}; give YYYY-MM-DD HH:MM:SS") from None


def _count(row: Mapping[str, str], name: str, where: str) -> float:
    try:
        return _number(float(row[name]), f"{where}: {name}", low=0.0)
    except (KeyError, TypeError, ValueError):
        raise ModelError(f"{where}: {name} is {row.get(name)!r}, not a number") from None


def _scale(counts: FloatArray, root: bool) -> FloatArray:
    return np.asarray(np.sqrt(counts + _ROOT_SHIFT) if root else counts, dtype=np.float64)


def _shift(values: FloatArray, lag: int) -> FloatArray:
    shifted = np.full(len(values), np.nan)
    if lag < len(values):
        shifted[lag:] = values[: len(values) - lag]
    return shifted


def _rolling(values: FloatArray, span: int, what: str) -> FloatArray:
    out = np.full(len(values), np.nan)
    if len(values) < span:
        return out
    windows = np.lib.stride_tricks.sliding_window_view(values, span)
    if what == "std":
        out[span - 1 :] = windows.std(axis=1, ddof=1)
    else:
        out[span - 1 :] = windows.mean(axis=1) if what == "mean" else np.median(windows, axis=1)
    return out


def _soft_sum(values: FloatArray, half_life: int) -> FloatArray:
    """Weighted mean of the last bins, weights halving every `half_life` bins."""
    weights = 0.5 ** (np.arange(_SOFT_REACH * half_life) / half_life)
    weights /= weights.sum()
    out = np.full(len(values), np.nan)
    if len(values) >= len(weights):
        out[len(weights) - 1 :] = np.convolve(values, weights, mode="valid")
    return out


def _read_forecaster(data: object, where: str) -> Forecaster:
    if not isinstance(data, dict) or not isinstance(data.get("root"), bool):
        raise ModelError(f"{where}: is no forecaster; train the model again")
    rate = _number(data.get("persistence"), f"{where}.persistence", low=0.0)
    cap = _number(data.get("cap"), f"{where}.cap", low=0.0)
    return Forecaster(AdditiveModel.from_json(data.get("model"), source=f"{where}.model"), data["root"], cap, rate)


def _number(value: object, where: str, *, low: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value < math.inf:
        raise ModelError(f"{where} is {value!r}, not a finite number of at least {low:g}")
    return float(value)
