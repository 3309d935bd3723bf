"""One row at a time through additive tables, without numpy: a handful of look-ups instead of a handful of arrays.

For whole columns `AdditiveModel.score` is the faster way; for the one pair or job that a decision waits for, numpy
spends its time on setting up. Both give the same sum (to rounding; a test holds it).
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping
from typing import Any

from lucid.models.additive import AdditiveModel, Axis

__all__ = ["RowScorer"]


class RowScorer:
    """Scores rows given as a mapping of feature to value; text, number, or None (missing)."""

    def __init__(self, model: AdditiveModel) -> None:
        self.names = tuple(term.name for term in model.terms)
        self.features = model.features
        self.intercept = model.intercept
        axes: dict[int, int] = {}
        self._axes: list[Axis] = []
        self._terms: list[tuple[tuple[int, ...], Any]] = []
        for term in model.terms:
            for axis in term.axes:
                if id(axis) not in axes:
                    axes[id(axis)] = len(self._axes)
                    self._axes.append(axis)
            self._terms.append((tuple(axes[id(axis)] for axis in term.axes), term.scores.tolist()))
        self._last = [axis.size - 1 for axis in self._axes]

    def terms(self, row: Mapping[str, Any]) -> list[float]:
        """Every term's addend, in the model's order."""
        bins = [self._bin(axis, last, row[axis.feature]) for axis, last in zip(self._axes, self._last, strict=True)]
        return [
            scores[bins[axes[0]]] if len(axes) == 1 else scores[bins[axes[0]]][bins[axes[1]]]
            for axes, scores in self._terms
        ]

    def __call__(self, row: Mapping[str, Any]) -> float:
        """Intercept and addends together (link space)."""
        return self.intercept + math.fsum(self.terms(row))

    @staticmethod
    def _bin(axis: Axis, last: int, value: Any) -> int:
        if value is None or value != value:
            return 0
        if axis.kind == "categorical":
            return axis.categories.get(value, last)
        return bisect_right(axis.cuts, value) + 1
