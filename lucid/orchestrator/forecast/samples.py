"""Samples of waits as numpy columns, and the shortest range that holds 8 in 10 of those like a given wait.

``orchestrator.forecast.ranges`` loads this module when a range is first asked for: numpy takes a moment to load, and
much that holds forecasts never asks for a range. All values are logarithms."""

from __future__ import annotations

from math import exp, log

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

_Column = NDArray[np.float64]

_INSIDE = 0.8
"""Share of the samples that the range holds."""
_LIKE_WAIT, _LIKE_SPREAD = 3.0, 3.0
"""Logarithms of the ratio of two forecast waits, and of two spreads, at which a sample weighs 1/e."""
_UNLIKE = 7.0
"""The distance from which on a sample does not count at all."""
_OTHER_PARTITION = 0.5
_GOES_ON = 0.3
"""Weight of a wait that goes on, as a sample."""
_HALF_LIFE = 500
"""A sample weighs half after this many later ones."""
_BLUR = np.array((-2.0, -1.0, 0.0, 1.0, 2.0))
_WIDEST_BLUR, _LEAST_BLUR, _BLUR_BY = 0.25, 0.02, 0.8
"""How far each sample is blurred: ``_BLUR_BY`` times the interquartile range of n samples, over n**(1/5) (Silverman
1986), within the other two bounds. So a few equal samples do not make a forecast certain, and many do."""
_PRIOR = -0.9 + 0.15 * np.arange(13)
_PRIOR_LATER = 0.2 * np.arange(13)
"""Logarithms of real over forecast wait before there are samples, where a start is foreseen and where it is not."""
_PRIOR_WEIGHT = 2.0
_SAME = 1e-9
"""Shares this close are the same."""


class Like(Struct, frozen=True):
    """The features by which two waits are alike. Waits of different kinds say nothing of one another. ``planned``:
    logarithm of the forecast wait; ``spread``: of how far the planned paths differ."""

    foreseen: bool
    profiling: bool
    partition: str
    size: float
    planned: float
    spread: float

    @property
    def kind(self) -> int:
        """The kind of the wait as a number in its column."""
        return 2 * self.foreseen + self.profiling


class Samples:
    """The latest ``most_over`` waits that are over, and the first ``most_open`` that go on."""

    def __init__(self, most_over: int, most_open: int) -> None:
        self._most_over = most_over
        rows = most_over + most_open
        self._kinds = np.full(rows, -1, dtype=np.int64)
        """The kind of each row's wait, -1 in free rows."""
        self._partitions = np.zeros(rows, dtype=np.int64)
        self._codes: dict[str, int] = {}
        self._sizes, self._planned, self._spreads = np.zeros(rows), np.zeros(rows), np.zeros(rows)
        self._marks = np.zeros(rows)
        """By row: for a wait that is over the logarithm of real over forecast wait, for one that goes on its begin in
        seconds."""
        self._numbers = np.zeros(most_over)
        """How many waits were over before each wait."""
        self._count = 0
        self._rows: dict[str, int] = {}
        """The rows of the waits that go on, by job."""
        self._free = list(range(rows - 1, most_over - 1, -1))

    def over(self, like: Like, ratio: float) -> None:
        """Add a wait that is over. ``ratio``: logarithm of real over forecast wait."""
        row = self._count % self._most_over
        self._numbers[row] = self._count
        self._count += 1
        self._write(row, like, ratio)

    def began(self, job_id: str, like: Like, at_s: float) -> None:
        """Add a job that waits from ``at_s`` on."""
        if job_id not in self._rows:
            if not self._free:
                return
            self._rows[job_id] = self._free.pop()
        self._write(self._rows[job_id], like, at_s)

    def gone(self, job_id: str) -> None:
        """Remove a job that waits no longer."""
        row = self._rows.pop(job_id, None)
        if row is not None:
            self._kinds[row] = -1
            self._free.append(row)

    def _write(self, row: int, like: Like, mark: float) -> None:
        self._kinds[row] = like.kind
        self._partitions[row] = self._codes.setdefault(like.partition, len(self._codes))
        self._sizes[row], self._planned[row], self._spreads[row] = like.size, like.planned, like.spread
        self._marks[row] = mark

    def range_of(self, like: Like, now_s: float, floor_s: float) -> tuple[float, float, float]:
        """Start, median and end of the range, as logarithms of real over forecast wait. ``floor_s``: added to waits
        before their logarithms are taken."""
        rows = np.flatnonzero(self._kinds == like.kind)
        apart = np.abs(self._planned[rows] - like.planned) / _LIKE_WAIT + np.abs(self._sizes[rows] - like.size)
        apart += np.abs(self._spreads[rows] - like.spread) / _LIKE_SPREAD
        rows, apart = rows[apart < _UNLIKE], apart[apart < _UNLIKE]
        weights = np.exp(-apart)
        weights[self._partitions[rows] != self._codes.get(like.partition, -1)] *= _OTHER_PARTITION
        over = rows < self._most_over
        ages = self._count - 1 - self._numbers[rows[over]]
        weights[over] *= 0.5 ** (ages / _HALF_LIFE)
        weights[~over] *= _GOES_ON
        values = self._marks[rows]
        waited_s = np.maximum(now_s - values[~over], 0.0)
        values[~over] = np.log(waited_s + floor_s) - self._planned[rows[~over]]
        values, weights, seen = _blurred(values, weights, over)
        prior = _PRIOR if like.foreseen else _PRIOR_LATER
        return _shortest(
            *_survivors(
                np.concatenate((values, prior)),
                np.concatenate((weights, np.full(len(prior), _PRIOR_WEIGHT / len(prior)))),
                np.concatenate((seen, np.ones(len(prior), dtype=bool))),
            )
        )


def _blurred(
    values: _Column, weights: _Column, seen: NDArray[np.bool_]
) -> tuple[_Column, _Column, NDArray[np.bool_]]:
    """The samples, each spread over its neighbourhood."""
    by = _WIDEST_BLUR
    total = float(weights.sum())
    if len(values) > 3 and total > 0.0:
        order = np.argsort(values)
        so_far = np.cumsum(weights[order])
        at = np.searchsorted(so_far, total * np.array((0.25, 0.75)) - 1e-12)
        low, high = values[order[np.minimum(at, len(order) - 1)]]
        count = total**2 / float((weights * weights).sum())
        by = min(max(_BLUR_BY * float(high - low) / exp(0.2 * log(count)), _LEAST_BLUR), _WIDEST_BLUR)
    spread = (values[:, None] + by * _BLUR).ravel()
    return spread, np.repeat(weights / len(_BLUR), len(_BLUR)), np.repeat(seen, len(_BLUR))


def _survivors(values: _Column, weights: _Column, seen: NDArray[np.bool_]) -> tuple[_Column, _Column]:
    """The values that were seen, in order, and the share of all values up to each (Kaplan and Meier, weighted). The
    true value of one that was not ``seen`` is only known to be larger."""
    order = np.lexsort((~seen, values))
    values, weights, seen = values[order], weights[order], seen[order]
    at_risk = np.cumsum(weights[::-1])[::-1]  # each and all that are larger
    left = np.where(seen, 1.0 - weights / np.maximum(at_risk, weights), 1.0)
    shares: _Column = 1.0 - np.cumprod(left, dtype=np.float64)
    return values[seen], shares[seen]


def _shortest(values: _Column, shares: _Column) -> tuple[float, float, float]:
    """Start, median and end of the shortest range of waits (not of logarithms) that holds ``_INSIDE``."""
    last = float(shares[-1])
    reach = np.concatenate(((0.0,), shares[:-1])) + _INSIDE
    begins = max(int(np.searchsorted(reach, last + _SAME, side="right")), 1)  # from later ones on, too few follow
    ends = np.searchsorted(shares, np.minimum(reach[:begins], last) - _SAME)
    waits = np.exp(values)
    begin = int(np.argmin(waits[ends] - waits[:begins]))
    early, late = float(values[begin]), float(values[ends[begin]])
    middle = float(values[min(int(np.searchsorted(shares, 0.5)), len(values) - 1)])
    return early, min(max(middle, early), late), late
