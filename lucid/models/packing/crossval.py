"""Leaving out what must not be known: cross-validation of the pair model by workload or configuration.

Every choice is made inside: the bar that decides packing is set for each held-out group by a second
cross-validation over the rest, so no pairing helps to judge itself.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from lucid.models.packing.measured import Pairing
from lucid.models.packing.pair_speed import PairDesign, free_pairs, recall_threshold

__all__ = ["Held", "Honest", "Leaving", "judge", "leave_out", "sides_by"]

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.intp]
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

    With `folds`, names are dealt into that many groups in sorted order (neighbours apart).
    """
    names = [(str(getattr(p.first, what)), str(getattr(p.second, what))) for p in pairings]
    known = {name: number for number, name in enumerate(sorted({n for pair in names for n in pair}))}
    groups = np.array([[known[first], known[second]] for first, second in names], dtype=np.intp)
    return groups % folds if folds else groups


def leave_out(design: PairDesign, sides: IntArray, leaving: Leaving, absent: Sequence[int] = ()) -> Held:
    """Predict every pair from the pairs that share no group with either of its jobs (``both``); or every pairing
    twice, each time with one side's group unknown and the other's known (``one``).

    A pairing within one group is then predicted once. This is the new configuration that arrives in a cluster
    where its partner has been measured before.
    """
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
