"""Training of the throughput model, which forecasts submissions; imports interpret."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from msgspec.structs import replace

from lucid.errors import ModelError
from lucid.models.additive import from_ebm
from lucid.models.kind import TooFew
from lucid.models.throughput.bins import REACH_DAYS, Bins, FloatArray, day_of, throughput_columns
from lucid.models.throughput.model import TARGETS, TargetModel, ThroughputModel, to_score

_BURST_QUANTILE: Final = 0.99
_LEAST_BINS: Final = 500  # fewer rows cannot carry a term per input
_HELD_OUT: Final = 0.2
_LOSS_BEND: Final = {("jobs", True): 0.5, ("jobs", False): 3.0, ("gpus", True): 1.0}
_PAIRS: Final = (("hour", "weekday"), ("hour", "{}_soft2"), ("hour", "{}_mean36"))


def fit_throughput(bins: Bins, age: int, *, parallel: int = 1) -> ThroughputModel:
    """Train both targets on all the bins given.

    Raises:
        TooFew: too few bins.
        ModelError: an age below 1 or beyond a day."""
    day = day_of(bins.width)
    if not 1 <= age <= day - 2:
        raise ModelError(f"age of the newest bin is {age}; give 1 (the bin just closed) to {day - 2} bins")
    check_enough(bins, age)
    columns = throughput_columns(bins, age)
    table = np.column_stack(list(columns.values()))[:-age]
    whole = ~np.isnan(table).any(axis=1)
    models = []
    for target in TARGETS:
        counts: FloatArray = getattr(bins, target)
        # The jobs gain nothing from GPU counts, which are the noisier series.
        names = [name for name in columns if target == "gpus" or not name.startswith("gpus_")]
        inputs = table[whole][:, [list(columns).index(name) for name in names]]
        data = _Data(names, inputs, counts[:-age][whole], counts[age:][whole], parallel)
        models.append(_fit(data, target))
    return ThroughputModel(age, bins.width.total_seconds(), *models)


def check_enough(bins: Bins, age: int) -> None:
    """Check that there are bins enough to train from.

    Raises: TooFew: there are not."""
    rows = len(bins.start) - age - (REACH_DAYS * day_of(bins.width) + 2 - age)
    if rows < _LEAST_BINS:
        raise TooFew(
            f"throughput needs {_LEAST_BINS} bins with three weeks of history before them, got {max(rows, 0)}; "
            "train when more have come"
        )


class _Data(NamedTuple):
    """One target's training rows, oldest first: inputs (n, names), newest and coming counts (n,)."""

    names: Sequence[str]
    inputs: FloatArray
    newest: FloatArray
    coming: FloatArray
    parallel: int

    def rows(self, part: slice) -> _Data:
        return self._replace(inputs=self.inputs[part], newest=self.newest[part], coming=self.coming[part])


def _fit(data: _Data, target: str) -> TargetModel:
    """The target's model in the form (roots or raw counts) which forecast the last fifth better from what was
    before."""
    if target == "gpus":
        return _fit_form(data, target, root=True)  # raw GPU counts are too heavy-tailed to boost
    split = int(len(data.coming) * (1 - _HELD_OUT))
    before, later = data.rows(slice(None, split)), data.rows(slice(split, None))
    columns = dict(zip(data.names, later.inputs.T, strict=True))

    def error(root: bool) -> float:
        forecast = _fit_form(before, target, root=root).predict(columns, later.newest)
        return float(np.abs(forecast - later.coming).mean())

    return _fit_form(data, target, root=error(True) < error(False))


def _fit_form(data: _Data, target: str, *, root: bool) -> TargetModel:
    # Imported here: predicting must load neither interpret nor sklearn.
    from interpret.glassbox import ExplainableBoostingRegressor

    cap = float(np.quantile(data.newest, _BURST_QUANTILE))
    level = float(to_score(np.array(cap), root))
    burst, coming = to_score(data.newest, root) - level, to_score(data.coming, root)
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
    fitted = TargetModel(from_ebm(booster), root, cap, rate)
    predicted = fitted.predict(dict(zip(data.names, data.inputs.T, strict=True)), data.newest).mean()
    return replace(fitted, mean_factor=float(data.coming.mean() / predicted) if predicted > 0 else 1.0)


def _lasting(burst: FloatArray, coming: FloatArray) -> float:
    """The share of a burst that is still there in the predicted bin: L1 slope through 0 (a weighted median)."""
    inside = burst > 0
    if inside.sum() < 20:
        return 0.0
    ratio = coming[inside] / burst[inside]
    order = np.argsort(ratio)
    weight = np.cumsum(burst[inside][order])
    slope = ratio[order][int(np.searchsorted(weight, weight[-1] / 2))]
    return float(np.clip(slope, 0.0, 1.0))
