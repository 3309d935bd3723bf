"""Generalised additive models (GA²M) as plain tables: scored with numpy, kept as JSON, copied from an EBM.

A GA²M is ``score = intercept + sum f_i(x_i) + sum f_ij(x_i, x_j)``; a fitted one is nothing but tables. `from_ebm`
copies them out of interpret's ``ExplainableBoostingRegressor`` once, after training; the daemon then loads JSON and
predicts without importing sklearn or interpret (together more than a second of start-up), and nothing is ever
unpickled.

Every axis of a table has one bin for "missing" in front and one for "unknown" (a category or text never seen in
training) behind, so a table over a categorical axis of n bins has length n + 2."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt
from msgspec import Struct, field, structs

from lucid.core import prediction
from lucid.errors import ModelError
from lucid.models.library import StoredModel
from lucid.models.packing.share_score import ShareTree
from lucid.text import shown

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.intp]

LINKS: Final = ("identity", "log")
_MISSING: Final = 0


class Axis(Struct, frozen=True, omit_defaults=True):
    """One feature as one term bins it.

    Continuous: `cuts` ascending; x falls into bin ``1 + #(cuts <= x)``, so a cut belongs to the bin above.
    Categorical: `categories` maps a name to its bin (1 and up; several names may share one)."""

    feature: str
    kind: Literal["continuous", "categorical"]
    cuts: tuple[float, ...] = ()
    categories: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if any(low >= high for low, high in itertools.pairwise(self.cuts)):
            raise ValueError(f"the cuts of {self.feature} do not ascend strictly")
        if not all(1 <= index <= len(self.categories) for index in self.categories.values()):
            raise ValueError(f"a category of {self.feature} is not in a bin from 1 to {len(self.categories)}")

    @property
    def size(self) -> int:
        """Bins including the missing one (index 0) and the unknown one (the last index)."""
        if self.kind == "continuous":
            return len(self.cuts) + 3
        return max(self.categories.values(), default=0) + 2

    def bins(self, column: Sequence[Any] | npt.NDArray[Any]) -> IntArray:
        """Bin index of every value of `column`, shape (n,)."""
        if self.kind == "continuous":
            return self._continuous(column)
        return self._categorical(column)

    def _continuous(self, column: Sequence[Any] | npt.NDArray[Any]) -> IntArray:
        try:
            values = np.asarray(column, dtype=np.float64)
        except (TypeError, ValueError):
            return self._unparsed(column)
        found = np.searchsorted(np.asarray(self.cuts, dtype=np.float64), values, side="right") + 1
        found[np.isnan(values)] = _MISSING
        return found

    def _unparsed(self, column: Sequence[Any] | npt.NDArray[Any]) -> IntArray:
        # Only for a column that holds text somewhere: text that is no number is an unknown value.
        found = np.empty(len(column), dtype=np.intp)
        for row, value in enumerate(column):
            try:
                number = math.nan if value is None else float(value)
            except (TypeError, ValueError):
                found[row] = self.size - 1
            else:
                found[row] = self._continuous([number])[0]
        return found

    def _categorical(self, column: Sequence[Any] | npt.NDArray[Any]) -> IntArray:
        known: dict[Any, int] = {None: _MISSING, **self.categories}
        get, unknown = known.get, self.size - 1
        values = column.tolist() if isinstance(column, np.ndarray) else column
        found = np.fromiter((get(value, -1) for value in values), dtype=np.intp, count=len(values))
        for row in np.flatnonzero(found < 0).tolist():
            value = values[row]
            if isinstance(value, str):
                found[row] = unknown
            elif isinstance(value, float) and math.isnan(value):
                found[row] = _MISSING
            else:
                raise ModelError(
                    f"feature {self.feature!r}, row {row}: {value!r} is a {type(value).__name__}, but the "
                    "feature is categorical; give text, or None where it is missing"
                )
        return found


class Term(Struct, frozen=True):
    """A main effect (one axis) or a pairwise effect (two).

    `scores` has one dimension per axis, of that axis's size; `weights` (same shape) is how much training data
    fell into each bin, for importances and plots; it does not enter a prediction."""

    name: str
    axes: tuple[Axis, ...]
    scores: FloatArray
    weights: FloatArray

    def __post_init__(self) -> None:
        shape = tuple(axis.size for axis in self.axes)
        if len(shape) not in (1, 2) or not self.scores.shape == self.weights.shape == shape:
            shapes = f"{self.scores.shape} and {self.weights.shape}"
            raise ValueError(f"the tables of {self.name} have shapes {shapes}, its axes say {shape}")
        if not np.isfinite(self.scores).all() or not (self.weights >= 0).all():
            raise ValueError(f"{self.name} has a score that is not finite, or a negative weight")

    @property
    def importance(self) -> float:
        """Mean absolute score over the training data (interpret's ``avg_weight``)."""
        total = float(self.weights.sum())
        return float(np.vdot(np.abs(self.scores), self.weights) / total) if total > 0 else 0.0


class AdditiveModel(StoredModel, frozen=True, tag="lucid-additive/1"):
    """Intercept plus terms; `link` says how a score becomes a prediction (identity, or exp for log)."""

    intercept: float
    link: Literal["identity", "log"]
    terms: tuple[Term, ...]

    def __post_init__(self) -> None:
        """Equal axes become one object, so that a prediction bins each of them once."""
        known: dict[tuple[Any, ...], Axis] = {}
        for term in self.terms:
            keys = [(axis.feature, axis.kind, axis.cuts, *axis.categories.items()) for axis in term.axes]
            axes = (known.setdefault(key, axis) for key, axis in zip(keys, term.axes, strict=True))
            structs.force_setattr(term, "axes", tuple(axes))

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the columns a prediction needs, in order of first use."""
        return tuple(dict.fromkeys(axis.feature for term in self.terms for axis in term.axes))

    def score_terms(self, columns: Mapping[str, Sequence[Any] | npt.NDArray[Any]]) -> FloatArray:
        """Every term's addend for every row, shape (rows, terms).

        Raises:
            ModelError: a needed column is absent, or the columns differ in length."""
        rows = self._rows(columns)
        binned: dict[int, IntArray] = {}
        out = np.empty((rows, len(self.terms)), dtype=np.float64)
        for number, term in enumerate(self.terms):
            index = tuple(self._bins(axis, columns, binned) for axis in term.axes)
            out[:, number] = term.scores[index]
        return out

    def score(self, columns: Mapping[str, Sequence[Any] | npt.NDArray[Any]]) -> FloatArray:
        """Intercept plus all addends per row (link space), shape (rows,)."""
        return np.asarray(self.intercept + self.score_terms(columns).sum(axis=1), dtype=np.float64)

    def predict(self, columns: Mapping[str, Sequence[Any] | npt.NDArray[Any]]) -> FloatArray:
        """Predictions in the target's own unit, shape (rows,)."""
        score = self.score(columns)
        return np.exp(score) if self.link == "log" else score

    def explain_one(self, row: Mapping[str, Any]) -> list[prediction.Term]:
        """The addends of one row in term order; they and the intercept sum to `score` of that row."""
        addends = self.score_terms({name: [row[name]] for name in self.features if name in row})[0]
        return [
            prediction.Term(term.name, ", ".join(_shown(row[axis.feature]) for axis in term.axes), float(addend))
            for term, addend in zip(self.terms, addends, strict=True)
        ]

    def _rows(self, columns: Mapping[str, Sequence[Any] | npt.NDArray[Any]]) -> int:
        absent = [name for name in self.features if name not in columns]
        if absent:
            raise ModelError(f"columns {absent} are needed by the model but were not given; got {sorted(columns)}")
        lengths = {len(columns[name]) for name in self.features} or {len(c) for c in columns.values()} or {0}
        if len(lengths) > 1:
            raise ModelError(f"columns differ in length: {sorted(lengths)}; give one value per row in each")
        return lengths.pop()

    @staticmethod
    def _bins(
        axis: Axis, columns: Mapping[str, Sequence[Any] | npt.NDArray[Any]], binned: dict[int, IntArray]
    ) -> IntArray:
        # Pair terms share axis objects, so one prediction bins each feature at each resolution once.
        if id(axis) not in binned:
            binned[id(axis)] = axis.bins(columns[axis.feature])
        return binned[id(axis)]


def frozen(values: Any) -> FloatArray:
    """The values as a read-only array."""
    array = np.array(values, dtype=np.float64)
    array.setflags(write=False)
    return array


def _shown(value: Any) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "missing"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


MOST_SHOWN = 20
"""Terms or categories that one picture can hold and stay readable."""


def bin_names(axis: Axis) -> dict[int, str]:
    """Bin number to a name for people, leaving out missing and unknown."""
    if axis.kind == "categorical":
        named: dict[int, list[str]] = {}
        for name, index in axis.categories.items():
            named.setdefault(index, []).append(name)
        return {i: _short(shown(n[0]) + (f" +{len(n) - 1}" if len(n) > 1 else "")) for i, n in named.items()}
    cuts = axis.cuts
    if not cuts:
        return {1: "any"}
    middle = {index + 1: f"{cuts[index - 1]:.3g}..{cuts[index]:.3g}" for index in range(1, len(cuts))}
    return {1: f"< {cuts[0]:.3g}", **middle, len(cuts) + 1: f">= {cuts[-1]:.3g}"}


def rows_shown(term: Term) -> list[int]:
    """Bins of the first axis of a term of two features that a picture shows, ascending: of many categories the
    ``MOST_SHOWN`` that matter most."""
    first = term.axes[0]
    rows = sorted(bin_names(first))
    if len(rows) > MOST_SHOWN and first.kind == "categorical":
        weight = np.abs(term.scores * np.maximum(term.weights, 1e-9)).sum(axis=1)
        rows = sorted(sorted(rows, key=lambda index: -float(weight[index]))[:MOST_SHOWN])
    return rows


def _short(name: str, most: int = 28) -> str:
    return name if len(name) <= most else name[: most - 1] + "…"


def ranked(model: AdditiveModel) -> list[Term]:
    """The most important terms, largest first."""
    return sorted(model.terms, key=lambda term: -term.importance)[:MOST_SHOWN]


def in_unit(unit: str) -> str:
    """The unit in brackets; empty if there is none."""
    return f" ({unit})" if unit else ""


def tree_unit(feature: str) -> str:
    """The unit of a threshold of the share tree."""
    return {"gmem_mib": " MiB", "amp": ""}.get(feature, " %")


def places_of(tree: ShareTree) -> dict[int, tuple[float, int]]:
    """Node number to (x, depth): leaves side by side, every split centred over its children."""
    places: dict[int, tuple[float, int]] = {}
    leaves = 0

    def place(index: int, depth: int) -> float:
        nonlocal leaves
        node = tree.nodes[index]
        if node.feature is None:
            x = float(leaves)
            leaves += 1
        else:
            x = (place(node.below, depth + 1) + place(node.above, depth + 1)) / 2
        places[index] = (x, depth)
        return x

    place(0, 0)
    return places


def from_ebm(ebm: Any) -> AdditiveModel:
    """Copy the tables out of a fitted ``interpret.glassbox.ExplainableBoostingRegressor`` (0.7).

    Interpret bins a feature by ``bins_[feature][resolution]``, resolution 0 for main effects and 1 (or the
    last there is) for pairs; a list holds cut points or a name-to-bin mapping; tensors keep missing at 0 and
    unknown last.

    Raises:
        ModelError: not a fitted regressor, a link other than identity or log, or a term of more than
            two features."""
    link = getattr(ebm, "link_", None)
    if link not in LINKS or not isinstance(ebm.intercept_, float):
        raise ModelError(
            f"cannot take tables from this estimator (link {link!r}); give a fitted regressor with "
            f"link {' or '.join(LINKS)}"
        )
    axes: dict[tuple[int, int], Axis] = {}
    terms = []
    for features, name, scores, weights in zip(
        ebm.term_features_, ebm.term_names_, ebm.term_scores_, ebm.bin_weights_, strict=True
    ):
        if len(features) > 2:
            raise ModelError(f"term {name!r} joins {len(features)} features; only one or two can be read")
        used = []
        for feature in features:
            level = min(len(ebm.bins_[feature]), len(features)) - 1
            if (feature, level) not in axes:
                axes[feature, level] = _axis(str(ebm.feature_names_in_[feature]), ebm.bins_[feature][level])
            used.append(axes[feature, level])
        terms.append(Term(str(name), tuple(used), frozen(scores), frozen(weights)))
    return AdditiveModel(float(ebm.intercept_), link, tuple(terms))


def _axis(feature: str, bins: Any) -> Axis:
    if isinstance(bins, dict):
        return Axis(feature, "categorical", categories={str(name): int(index) for name, index in bins.items()})
    return Axis(feature, "continuous", cuts=tuple(float(cut) for cut in bins))
