"""The pair model: how fast each of two jobs will run beside the other, with its ridge and its cross-validation.

For one side, its expected normalised speed (1 = as fast as alone) is

    intercept + f(overlap) + own workload + partner's workload + own configuration + partner's configuration
    + (workload, workload) + slopes of the four effects over the overlap

where ``overlap = gpu_util_own * gpu_util_partner`` (as fractions): the share of time in which both would hold the GPU
if neither knew of the other. f may only fall: more contention never helps. This one physical term is what carries
over to workloads never seen; everything that names a workload or a configuration is shrunk to zero as a random effect
(ridge) and stays at exactly zero for names that were not measured.

A pair is worth packing when the slower side is expected to reach `PairModel.threshold`, set so that about
`RECALL_GOAL` of the interference-free pairs (both speeds >= `FREE_SPEED`) are found in cross-validation. There the
bar is set for each held-out group by a second cross-validation over the rest, so no pairing helps to judge itself.
The normal equations are summed once and left-out rows subtracted, so hundreds of leavings-out need one pass over the
data. Training needs numpy alone."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from msgspec import Meta

from lucid.errors import ModelError
from lucid.models.additive import AdditiveModel, Axis, Term
from lucid.models.library import StoredModel
from lucid.models.packing.measured import Pairing, Usage

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]

_SWEEPS = 1000
_TOLERANCE = 1e-10
_INTERCEPT_PENALTY = 1e-9  # keeps the system regular when every row is left out of some column


class FallingRidge:
    """min ||y - b0 - F b - X c||^2 + sum_j p_j b_j^2 + sum_k q_k c_k^2 subject to b <= 0.

    `falling` is F, shape (n, j); `free` is X, shape (n, k); `falling_penalty` (j,) and `free_penalty` (k,)
    are p and q. The intercept b0 is not penalised."""

    def __init__(
        self,
        falling: FloatArray,
        free: FloatArray,
        target: FloatArray,
        falling_penalty: FloatArray,
        free_penalty: FloatArray,
    ) -> None:
        self._falling = falling.shape[1]
        # Signs turned, so that the bound becomes the usual b >= 0.
        self._design = np.concatenate([-falling, free, np.ones((len(target), 1))], axis=1)
        self._target = target
        self._penalty = np.diag(np.concatenate([falling_penalty, free_penalty, [_INTERCEPT_PENALTY]]))
        self._gram = self._design.T @ self._design
        self._moment = self._design.T @ target

    def fit(self, left_out: BoolArray | None = None) -> FloatArray:
        """Coefficients (j + k + 1,): falling, free, intercept; marked rows (n,) do not count."""
        gram, moment = self._gram + self._penalty, self._moment
        if left_out is not None:
            rows = self._design[left_out]
            gram = gram - rows.T @ rows
            moment = moment - rows.T @ self._target[left_out]
        bound, free = slice(0, self._falling), slice(self._falling, None)
        # The free block is eliminated exactly (Schur complement); what remains is small and bounded.
        solved = np.linalg.solve(gram[free, free], np.column_stack([gram[free, bound], moment[free]]))
        reduced = gram[bound, bound] - gram[bound, free] @ solved[:, :-1]
        beta = _nonnegative(reduced, moment[bound] - gram[bound, free] @ solved[:, -1])
        return np.concatenate([-beta, solved[:, -1] - solved[:, :-1] @ beta])

    def predict(self, coefficients: FloatArray, rows: npt.NDArray[np.intp]) -> FloatArray:
        """Fitted values of some of the rows, shape (len(rows),)."""
        turned = coefficients.copy()
        turned[: self._falling] *= -1.0
        return np.asarray(self._design[rows] @ turned, dtype=np.float64)


def _nonnegative(gram: FloatArray, moment: FloatArray) -> FloatArray:
    """min b'Gb/2 - m'b with b >= 0 by coordinate descent (G is positive definite: it converges)."""
    beta = np.maximum(np.linalg.solve(gram, moment), 0.0)
    slope = gram @ beta - moment
    for _ in range(_SWEEPS):
        largest = 0.0
        for j in range(len(beta)):
            step = max(-slope[j] / gram[j, j], -beta[j])
            if step != 0.0:
                beta[j] += step
                slope += step * gram[:, j]
                largest = max(largest, abs(step))
        if largest < _TOLERANCE:
            break
    return np.asarray(beta, dtype=np.float64)


IntArray = npt.NDArray[np.intp]

FREE_SPEED: Final = 0.85  # both sides at least this fast: the pair is called free of interference
RECALL_GOAL: Final = 0.87  # share of the free pairs that the threshold shall find
_SPEED_CAP: Final = 1.0  # faster together than alone is noise of the measurement
_CUTS: Final = 10
_FALLING_PENALTY: Final = 3.0
_EFFECT_PENALTY: Final = 5.0  # in pairings: an effect seen in five of them is believed half
_OVERLAP: Final = "overlap"
_NAMED: Final = ("own_workload", "partner_workload", "own_config", "partner_config")


class PairModel(StoredModel, frozen=True, tag="lucid-pairs/1"):
    """Expected speeds of a pair and the bar that its slower side must clear."""

    model: AdditiveModel
    threshold: Annotated[float, Meta(ge=0.0, le=2.0)]

    def __post_init__(self) -> None:
        if strange := set(self.model.features) - {_OVERLAP, *_NAMED}:
            raise ValueError(f"has terms over {sorted(strange)}, which no pair has")

    def speeds(self, pairs: Sequence[tuple[Usage, Usage]]) -> FloatArray:
        """Expected normalised speeds of both sides, shape (len(pairs), 2)."""
        sides = [*pairs, *((second, first) for first, second in pairs)]
        return self.model.predict(pair_columns(sides)).reshape(2, len(pairs)).T


def pair_columns(sides: Sequence[tuple[Usage, Usage]]) -> dict[str, Any]:
    """The model's features of (own, partner) sides: overlap as a fraction, names as text or None."""
    overlap = [own.gpu_util * partner.gpu_util / 1e4 for own, partner in sides]
    return {
        _OVERLAP: np.array(overlap, dtype=np.float64),
        "own_workload": [own.workload for own, _ in sides],
        "partner_workload": [partner.workload for _, partner in sides],
        "own_config": [own.config for own, _ in sides],
        "partner_config": [partner.config for _, partner in sides],
    }


class PairDesign:
    """Measured pairings as a regression: rows 0..n-1 are first sides, rows n..2n-1 the second sides."""

    def __init__(self, pairings: Sequence[Pairing]) -> None:
        if not pairings:
            raise ModelError("no measured pairs to train on; measure some pairs together first")
        self.pairings = len(pairings)
        sides = [(p.first, p.second) for p in pairings] + [(p.second, p.first) for p in pairings]
        self._columns = pair_columns(sides)
        speeds = [p.speed_first for p in pairings] + [p.speed_second for p in pairings]
        overlap = self._columns[_OVERLAP]
        # Cuts between distinct values, so that no configuration measured often crowds out the rest.
        inner = np.quantile(np.unique(overlap.round(3)), np.linspace(0, 1, _CUTS + 2)[1:-1])
        self._overlap = Axis(_OVERLAP, "continuous", cuts=tuple(np.unique(inner.round(3)).tolist()))
        self._bins = self._overlap.bins(overlap)
        self._level = _bin_levels(overlap, self._bins, self._overlap.size)
        self._axes = {name: _names_axis(name, self._columns[name]) for name in _NAMED}
        both = (self._axes["own_workload"], self._axes["partner_workload"])
        overlaps = tuple((self._axes[name], self._overlap) for name in _NAMED)
        self._effects: list[tuple[Axis, ...]] = [*((a,) for a in self._axes.values()), both, *overlaps]
        steps = (self._bins[:, None] >= np.arange(2, len(self._overlap.cuts) + 2)[None, :]).astype(np.float64)
        blocks = [self._block(axes) for axes in self._effects]
        self._sizes = [block.shape[1] for block in blocks]
        free = np.concatenate(blocks, axis=1)
        self.solver = FallingRidge(
            steps,
            free,
            np.minimum(np.array(speeds, dtype=np.float64), _SPEED_CAP),
            np.full(steps.shape[1], _FALLING_PENALTY),
            np.full(free.shape[1], _EFFECT_PENALTY),
        )

    def slower(self, coefficients: FloatArray, pairs: IntArray) -> FloatArray:
        """Expected speed of the slower side of some pairings, shape (len(pairs),)."""
        one = self.solver.predict(coefficients, pairs)
        return np.minimum(one, self.solver.predict(coefficients, pairs + self.pairings))

    def tables(self, coefficients: FloatArray) -> AdditiveModel:
        """The fitted regression as term tables; their sum is the regression's prediction."""
        cuts = len(self._overlap.cuts)
        main = np.zeros(self._overlap.size)
        main[1:-1] = np.concatenate([[0.0], np.cumsum(coefficients[:cuts])])
        weights = np.bincount(self._bins, minlength=self._overlap.size).astype(np.float64)
        centre = float(np.average(main, weights=weights))
        main[1:-1] -= centre
        terms = [Term(_OVERLAP, (self._overlap,), main, weights)]
        start = cuts
        for axes, size in zip(self._effects, self._sizes, strict=True):
            values = coefficients[start : start + size]
            terms.append(self._effect_term(axes, values))
            start += size
        return AdditiveModel(float(coefficients[-1]) + centre, "identity", tuple(terms))

    def _effect_term(self, axes: tuple[Axis, ...], values: FloatArray) -> Term:
        shape = tuple(axis.size for axis in axes)
        index = tuple(axis.bins(self._columns[axis.feature]) for axis in axes)
        weights = np.zeros(shape)
        np.add.at(weights, index, 1.0)
        table = np.zeros(shape)
        if len(axes) == 1:
            table[1:-1] = values
        elif axes[1] is self._overlap:
            table[1:-1, :] = values[:, None] * self._level[None, :]
        else:
            table[1:-1, 1:-1] = values.reshape(shape[0] - 2, shape[1] - 2)
        return Term(" x ".join(axis.feature for axis in axes), axes, table, weights)

    def _block(self, axes: tuple[Axis, ...]) -> FloatArray:
        first = _one_hot(axes[0], self._columns)
        if len(axes) == 1:
            return first
        if axes[1] is self._overlap:
            return first * self._level[self._bins][:, None]
        second = _one_hot(axes[1], self._columns)
        return np.asarray((first[:, :, None] * second[:, None, :]).reshape(len(first), -1))


def fit_pairs(pairings: Sequence[Pairing]) -> PairModel:
    """Fit the pair model and set its bar from predictions for configurations left out.

    Raises:
        ModelError: no pairing at all, or none that is free of interference to set the bar by."""
    design = PairDesign(pairings)
    free = free_pairs(pairings)
    held = leave_out(design, sides_by(pairings, "config"), "one")
    threshold = recall_threshold(held.scores, free[held.pairs], RECALL_GOAL)
    return PairModel(design.tables(design.solver.fit()), threshold)


def free_pairs(pairings: Iterable[Pairing]) -> npt.NDArray[np.bool_]:
    """Which pairings left both sides at `FREE_SPEED` of their speed alone or more, shape (n,)."""
    return np.array([pairing.slower >= FREE_SPEED for pairing in pairings], dtype=np.bool_)


def recall_threshold(scores: FloatArray, free: npt.NDArray[np.bool_], recall: float) -> float:
    """The highest bar that still finds `recall` of the free pairs, half-way to the next lower score.

    Raises:
        ModelError: there is no free pair."""
    found = np.sort(scores[free])[::-1]
    if not len(found):
        raise ModelError("no measured pair is free of interference; the bar for packing cannot be set")
    last = float(found[min(len(found), max(1, int(np.ceil(recall * len(found) - 1e-9)))) - 1])
    below = scores[scores < last]
    return (last + float(below.max())) / 2 if len(below) else last


def _names_axis(feature: str, names: Sequence[str | None]) -> Axis:
    known = sorted({name for name in names if name is not None})
    return Axis(feature, "categorical", categories={name: number for number, name in enumerate(known, 1)})


def _one_hot(axis: Axis, columns: Mapping[str, Any]) -> FloatArray:
    bins = axis.bins(columns[axis.feature])
    return np.eye(axis.size)[bins][:, 1:-1]


def _bin_levels(overlap: FloatArray, bins: IntArray, size: int) -> FloatArray:
    """Mean overlap of every bin minus that of all rows: what slopes are multiplied with, shape (size,)."""
    rows = np.bincount(bins, minlength=size)
    sums = np.bincount(bins, weights=overlap, minlength=size)
    levels = np.where(rows > 0, sums / np.maximum(rows, 1) - overlap.mean(), 0.0)
    levels[0] = levels[-1] = 0.0  # an overlap that is not known tilts nothing
    return np.asarray(levels, dtype=np.float64)


Leaving = Literal["one", "both"]


class Held(NamedTuple):
    """Predictions for pairings left out: which pairings, and the slower side's expected speed of each."""

    pairs: IntArray
    scores: FloatArray


@dataclass(frozen=True)
class Honest:
    """Decisions about pairings left out; `scores` and `bars` per decision, `free` what really happened."""

    scores: FloatArray
    bars: FloatArray
    free: npt.NDArray[np.bool_]

    @property
    def precision(self) -> float:
        """Share of the packed pairs that were free of interference (nan if none was packed)."""
        packed = self.scores >= self.bars
        return float(self.free[packed].mean()) if packed.any() else float("nan")

    @property
    def recall(self) -> float:
        """Share of the free pairs that were packed."""
        return float((self.scores >= self.bars)[self.free].mean())


def sides_by(pairings: Sequence[Pairing], what: Literal["workload", "config"], folds: int = 0) -> IntArray:
    """A group number for both sides of every pairing, shape (n, 2).

    With `folds`, names are dealt into that many groups in sorted order (neighbours apart)."""
    names = [(str(getattr(p.first, what)), str(getattr(p.second, what))) for p in pairings]
    known = {name: number for number, name in enumerate(sorted({n for pair in names for n in pair}))}
    groups = np.array([[known[first], known[second]] for first, second in names], dtype=np.intp)
    return groups % folds if folds else groups


def leave_out(design: PairDesign, sides: IntArray, leaving: Leaving, absent: Sequence[int] = ()) -> Held:
    """Predict every pair from the pairs that share no group with either of its jobs (``both``); or every pairing
    twice, each time with one side's group unknown and the other's known (``one``).

    A pairing within one group is then predicted once. This is the new configuration that arrives in a cluster
    where its partner has been measured before."""
    return _held(design, sides, _CELLS[leaving](sides, absent), absent)


def judge(
    design: PairDesign, pairings: Sequence[Pairing], sides: IntArray, leaving: Leaving, recall: float
) -> Honest:
    """Decide every pairing with its groups left out and a bar set without them."""
    free = free_pairs(pairings)
    scores, bars, truths = [], [], []
    for groups, pairs in _CELLS[leaving](sides, ()):
        held = _held(design, sides, [(groups, pairs)], ())
        inner = leave_out(design, sides, leaving, groups)
        bar = recall_threshold(inner.scores, free[inner.pairs], recall)
        scores.append(held.scores)
        bars.append(np.full(len(pairs), bar))
        truths.append(free[pairs])
    return Honest(np.concatenate(scores), np.concatenate(bars), np.concatenate(truths))


_Cell = tuple[tuple[int, ...], IntArray]


def _both(sides: IntArray, absent: Sequence[int]) -> list[_Cell]:
    present = [g for g in np.unique(sides).tolist() if g not in absent]
    cells: list[_Cell] = []
    for one, other in itertools.combinations_with_replacement(present, 2):
        inside = (sides.min(axis=1) == one) & (sides.max(axis=1) == other)
        if inside.any():
            cells.append(((one, other), np.flatnonzero(inside)))
    return cells


def _one(sides: IntArray, absent: Sequence[int]) -> list[_Cell]:
    allowed = ~_touching(sides, absent)
    cells: list[_Cell] = []
    for group in np.unique(sides).tolist():
        inside = allowed & _touching(sides, (group,))
        if group not in absent and inside.any():
            cells.append(((group,), np.flatnonzero(inside)))
    return cells


_CELLS = {"both": _both, "one": _one}


def _held(design: PairDesign, sides: IntArray, cells: Sequence[_Cell], absent: Sequence[int]) -> Held:
    pairs, scores = [], []
    for groups, inside in cells:
        left_out = _touching(sides, (*groups, *absent))
        coefficients = design.solver.fit(np.concatenate([left_out, left_out]))
        pairs.append(inside)
        scores.append(design.slower(coefficients, inside))
    return Held(np.concatenate(pairs), np.concatenate(scores))


def _touching(sides: IntArray, groups: Sequence[int]) -> npt.NDArray[np.bool_]:
    return np.asarray(np.isin(sides, list(groups)).any(axis=1))
