"""Fitting of additive tables with an absolute-error loss; imports interpret."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from lucid.models.additive import AdditiveModel
from lucid.models.duration.features import HABIT_FEATURES
from lucid.models.duration.jobtable import PROFILE_COLUMNS, FloatArray
from lucid.models.duration.model import MOST_LOG
from lucid.models.ebm import from_ebm

__all__ = ["Columns", "IntArray", "TableTrainer"]

_IRLS_ROUNDS: Final = 3
_IRLS_FLOOR: Final = 0.1

Columns = Mapping[str, Any]
IntArray = npt.NDArray[np.intp]


class TableTrainer:
    """Fits additive tables of the log-ratio `target` on chosen rows and features."""

    def __init__(
        self, columns: Columns, types: Mapping[str, str], target: FloatArray, monotone: Mapping[str, int]
    ) -> None:
        self.columns = columns
        self._types = {**types, **dict.fromkeys(PROFILE_COLUMNS, "continuous")}
        self._target = np.clip(target, -MOST_LOG, MOST_LOG)
        self._monotone = monotone
        self.features = {"habit": HABIT_FEATURES, "wide": tuple(types)}

    def __call__(
        self,
        rows: IntArray,
        features: Sequence[str],
        target: FloatArray | None = None,
        weight: FloatArray | None = None,
    ) -> AdditiveModel | None:
        """Tables minimising the absolute error, or None where no feature varies."""
        target = self._target if target is None else target
        some = {name: self.columns[name][rows] for name in self._types if name in features}
        some = {name: column for name, column in some.items() if _varies(column)}
        if not some:
            return None
        base = np.ones(len(rows)) if weight is None else weight[rows] / weight[rows].mean()
        weights, tables = base, None
        for _ in range(_IRLS_ROUNDS):
            # Iteratively reweighted least squares: squared error weighted by 1/|residual| is absolute error.
            # (Interpret's pseudo-Huber objective diverges on these tails when its delta is small.)
            tables = self._boost(some, target[rows], weights)
            weights = base / np.maximum(np.abs(target[rows] - tables.score(some)), _IRLS_FLOOR)
            weights = weights / weights.mean()
        return tables

    def score(self, tables: AdditiveModel | None, rows: IntArray) -> FloatArray:
        """What `tables` add on `rows` (nothing, where there are none)."""
        if tables is None:
            return np.zeros(len(rows))
        return tables.score({name: self.columns[name][rows] for name in tables.features})

    def _boost(self, columns: Columns, target: FloatArray, weights: FloatArray) -> AdditiveModel:
        import pandas as pd
        from interpret.glassbox import ExplainableBoostingRegressor

        wanted = {name: sign for name, sign in self._monotone.items() if name in columns}
        ebm = ExplainableBoostingRegressor(
            feature_types=[self._types[name] for name in columns],
            interactions=0,
            outer_bags=4,
            max_bins=32,
            max_rounds=150,
            learning_rate=0.02,
            min_samples_leaf=20,
            early_stopping_rounds=20,
            n_jobs=1,
            random_state=0,
        )
        with warnings.catch_warnings():
            # Our tables keep the bin of missing values, which interpret's own plots would leave out.
            warnings.filterwarnings("ignore", message="Missing values detected")
            ebm.fit(pd.DataFrame(dict(columns)), target, sample_weight=weights)
        for name, sign in wanted.items():
            ebm.monotonize(name, increasing=sign > 0)  # isotonic regression by PAV on the fitted shape
        return from_ebm(ebm)


def _varies(column: Any) -> bool:
    values = column[~np.isnan(column)] if column.dtype != object else column
    return len(set(values.tolist())) > 1
