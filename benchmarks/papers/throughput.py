"""Lucid's throughput model beside what it was compared with (Table 7), trained and judged on the same bins.

Lucid does not depend on LightGBM and XGBoost. This program installs them, into build/papers.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.figure import Absent
from benchmarks.packs import shared
from benchmarks.papers.row import Row
from lucid.models.throughput.bins import Bins, read_bins, throughput_columns
from lucid.models.throughput.forecaster import evaluate

__all__ = ["table7"]

PACKAGES: Final = Path(__file__).resolve().parents[2] / "build" / "papers"
_INSTALL: Final = "python -m pip install --no-deps --target build/papers lightgbm xgboost-cpu"
_UNTIL: Final = datetime(2020, 9, 1, tzinfo=UTC)
_AGES: Final = {5: "newest bin 50 min old, as published", 1: "newest bin known"}
_PUBLISHED: Final[Mapping[str, tuple[float, float]]] = {
    "GA²M": (4.07, 48.2),
    "LightGBM": (4.50, 53.3),
    "random forest": (4.51, 66.7),
    "XGBoost": (5.59, 63.5),
    "small network": (4.90, 57.7),
    "constant median": (5.17, 45.8),
}
"""With the published set-up of inputs."""
_AGAIN: Final = {1: (3.68, 36.3)}
"""The newest bin again."""


def table7() -> Iterator[Row]:
    """Mean absolute error of GPU jobs and GPUs submitted in ten minutes, September 2020 of Venus."""
    bins = read_bins(shared("venus_throughput.csv"))
    _packages()
    for age, words in _AGES.items():
        found = evaluate(bins, _UNTIL, age, parallel=1)
        ours = _columns(found["mae_jobs"], found["mae_gpus"])
        published = _columns(*_PUBLISHED["GA²M"]) if age == 5 else {}
        yield Row(f"GA²M, {words}", ours, published, at_most=age == 5)
        for name, fit in _PEERS.items():
            errors = _peer(bins, age, fit)
            theirs = _columns(*_PUBLISHED[name]) if age == 5 else {}
            yield Row(f"{name} on the GA²M's inputs, {words}", _columns(*errors), theirs)
        first = len(bins.upto(_UNTIL).start)
        series = (bins.jobs, bins.gpus)
        again = [float(np.abs(one[first - age : -age] - one[first:]).mean()) for one in series]
        yield Row(f"the newest bin again, {words}", _columns(*again), _columns(*_AGAIN[age]) if age in _AGAIN else {})
    constant = [float(np.abs(np.median(one[:first]) - one[first:]).mean()) for one in series]
    yield Row("constant median", _columns(*constant), _columns(*_PUBLISHED["constant median"]), within=0.01)


def _columns(jobs: float, gpus: float) -> dict[str, float]:
    return {"MAE, GPU jobs": jobs, "MAE, GPUs": gpus}


def _packages() -> None:
    """Raises ``Absent`` where the packages are not there."""
    if str(PACKAGES) not in sys.path:
        sys.path.append(str(PACKAGES))  # at the end, so that packages of Lucid's own environment come first
    try:
        for name in ("lightgbm", "xgboost"):
            importlib.import_module(name)
    except ImportError as error:
        raise Absent(f"{error}; install what is compared: {_INSTALL}") from None


def _peer(bins: Bins, age: int, fit: Callable[[Any, Any], Any]) -> tuple[float, float]:
    """Errors of one peer, trained on the bins before September."""
    table = np.column_stack(list(throughput_columns(bins, age).values()))[:-age]
    first = len(bins.upto(_UNTIL).start) - age
    whole = ~np.isnan(table[:first]).any(axis=1)
    errors = []
    for counts in (bins.jobs, bins.gpus):
        coming = counts[age:]
        model = fit(table[:first][whole], coming[:first][whole])
        said = np.maximum(model.predict(table[first:]), 0.0)
        errors.append(float(np.abs(said - coming[first:]).mean()))
    return errors[0], errors[1]


def _lightgbm(inputs: Any, truth: Any) -> Any:
    made = importlib.import_module("lightgbm").LGBMRegressor(n_jobs=1, random_state=0, verbose=-1)
    return made.fit(inputs, truth)


def _xgboost(inputs: Any, truth: Any) -> Any:
    return importlib.import_module("xgboost").XGBRegressor(n_jobs=1, random_state=0).fit(inputs, truth)


def _forest(inputs: Any, truth: Any) -> Any:
    from sklearn.ensemble import RandomForestRegressor

    return RandomForestRegressor(n_estimators=100, max_features=1 / 3, n_jobs=1, random_state=0).fit(inputs, truth)


def _network(inputs: Any, truth: Any) -> Any:
    from sklearn.neural_network import MLPRegressor
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    network = MLPRegressor(hidden_layer_sizes=(64, 32), early_stopping=True, random_state=0)
    return make_pipeline(StandardScaler(), network).fit(inputs, truth)


_PEERS: Final = {"LightGBM": _lightgbm, "XGBoost": _xgboost, "random forest": _forest, "small network": _network}
"""Each with the defaults of its package, as the paper has them as far as it says."""
