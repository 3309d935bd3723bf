"""Walk-forward evaluation of waits told from a log: every job from what was known when it was submitted.

Boosted trees on log10 of the wait, absolute error, refitted as time goes on, only on jobs that had started by then.
Where a refit has fewer than ``_FEWEST`` of them, the median of the account stands in. The range round each answer
holds 8 of 10 of the latest answers that came true, and is made longer or shorter until it does (adaptive conformal
inference, Gibbs and Candes 2021); it is learned on the days before the test too.

Metrics: share within a factor of 2 and 3 of the wait, mean squared error of log10, share inside the range; waits
below a second count as one. Beside them the running median of the account: of its jobs that had started by then.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from heapq import heappop, heappush
from math import log10
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.ensemble import HistGradientBoostingRegressor
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]  # comes with sklearn

from benchmarks.waits.features import FEATURES, features_of
from benchmarks.waits.table import Floats, WaitTable
from lucid.errors import TraceError

__all__ = ["Told", "evaluate_waits", "walk_forward"]

Indices = NDArray[np.intp]

_DAY_S = 86400.0
_FEWEST = 200
_MOST_REFITS = 16
_WARM_S = 3 * _DAY_S
"""Answers to jobs of so long before the test are not counted: the range is learned from them."""
_REMEMBERED = 2_000
_LEARN = 0.002
_INSIDE = 0.8
_FIRST_RANGE = 0.6
"""log10 to either side, before anything came true."""
_MEDIAN = FEATURES.index("account_median")
_UNKNOWN = 4.0
"""log10 of the wait, s, where no job has started yet."""


@dataclass(frozen=True, slots=True)
class Told:
    """What was told of the tested jobs, arrays of shape (n_test,), log10 of seconds. ``index``: their rows."""

    index: Indices
    likely: Floats
    early: Floats
    late: Floats
    median: Floats
    refits: int


def evaluate_waits(
    table: WaitTable, test_from_s: float, progress: Callable[[int, int], None] | None = None
) -> dict[str, Any]:
    """Figures over all jobs submitted from ``test_from_s`` (seconds since 1970) on whose start is known.

    Raises:
        TraceError: there are no jobs before, or none from then on.
    """
    known = np.isfinite(table.start_s)
    tested = known & (table.submit_s >= test_from_s)
    if not tested.any() or tested.all():
        raise TraceError(
            f"{int(tested.sum())} of {len(table)} jobs with a start were submitted from that time on; give "
            "--test-from a time within the log, so that there are jobs before it and after it"
        )
    told = walk_forward(table, test_from_s, progress)
    truth = np.log10(np.maximum(table.wait_s[told.index], 1.0))
    days = {int(at_s // _DAY_S) for at_s in table.submit_s[told.index]}
    people = table.user if table.has_users else table.account
    ours, median = _scores(told.likely, truth), _scores(told.median, truth)
    ours["coverage_80"] = float(((told.early <= truth) & (truth <= told.late)).mean())
    return {
        **ours,
        "jobs": len(truth),
        "users_tested" if table.has_users else "accounts_tested": len(set(people[told.index].tolist())),
        "days_tested": len(days),
        "refits": told.refits,
        "account_median": median,
        "worse_than_median": ours["within_2x"] < median["within_2x"] or ours["mse_log10"] > median["mse_log10"],
    }


def walk_forward(table: WaitTable, test_from_s: float, progress: Callable[[int, int], None] | None = None) -> Told:
    """Tell every job from ``test_from_s`` on, in order."""
    every = 100
    features = features_of(table)
    truth = np.log10(np.maximum(table.wait_s, 1.0))
    began_s, last_s = test_from_s - _WARM_S, float(table.submit_s[-1])
    step_s = max(_DAY_S, (last_s - began_s) / _MOST_REFITS)
    ranges = _Ranges()
    rows: list[tuple[int, float, float, float]] = []
    refits, at_s = 0, began_s
    while at_s <= last_s:
        coming = np.flatnonzero((table.submit_s >= at_s) & (table.submit_s < at_s + step_s))
        likely = _answers(features, truth, np.flatnonzero(table.start_s <= at_s), coming)
        refits += 1
        for i, said in zip(coming.tolist(), likely.tolist(), strict=True):
            early, late = ranges.round(said, float(table.submit_s[i]))
            if np.isfinite(table.start_s[i]):
                ranges.told(said, float(truth[i]), early, late, float(table.start_s[i]))
                if table.submit_s[i] >= test_from_s:
                    rows.append((i, said, early, late))
        at_s += step_s
        if progress is not None:
            progress(min(round(every * (at_s - began_s) / (last_s - began_s + 1.0)), every), every)
    index = np.array([row[0] for row in rows], dtype=np.intp)
    told = np.array([row[1:] for row in rows])
    median = np.nan_to_num(features[index, _MEDIAN], nan=_UNKNOWN)
    return Told(index, told[:, 0], told[:, 1], told[:, 2], median, refits)


def _answers(features: Floats, truth: Floats, known: Indices, coming: Indices) -> Floats:
    """log10 of the wait, s, of the jobs ``coming``, learned from the jobs ``known``."""
    if len(coming) == 0 or len(known) < _FEWEST:
        stand_in: Floats = np.nan_to_num(features[coming, _MEDIAN], nan=_UNKNOWN)
        return stand_in
    model = HistGradientBoostingRegressor(
        loss="absolute_error",
        max_iter=120,
        learning_rate=0.06,
        max_leaf_nodes=15,
        min_samples_leaf=60,
        l2_regularization=1.0,
        early_stopping=False,
        random_state=0,
    )
    with threadpool_limits(1):  # threads that wait for one another cost more than they bring on a shared machine
        found: Floats = model.fit(features[known], truth[known]).predict(features[coming])
    return found


def _scores(said: Floats, truth: Floats) -> dict[str, float]:
    error = np.abs(said - truth)
    return {
        "within_2x": float((error <= log10(2.0)).mean()),
        "within_3x": float((error <= log10(3.0)).mean()),
        "mse_log10": float((error**2).mean()),
    }


class _Ranges:
    """Quantiles of the latest answers that came true; an answer is learned from once its job has started."""

    def __init__(self) -> None:
        self._coming: list[tuple[float, float, bool]] = []
        self._order: deque[float] = deque()
        self._sorted: list[float] = []
        self._stretch = 0.0

    def round(self, said: float, now_s: float) -> tuple[float, float]:
        """The range round an answer given at ``now_s``."""
        while self._coming and self._coming[0][0] <= now_s:
            _, error, inside = heappop(self._coming)
            self._order.append(error)
            insort(self._sorted, error)
            if len(self._order) > _REMEMBERED:
                self._sorted.remove(self._order.popleft())
            self._stretch += _LEARN * ((not inside) - (1.0 - _INSIDE))
        if len(self._sorted) < _FEWEST:
            return said - _FIRST_RANGE, said + _FIRST_RANGE
        outside = (1.0 - _INSIDE) / 2
        low, high = (self._sorted[int(share * len(self._sorted))] for share in (outside, 1.0 - outside))
        return said + min(low - self._stretch, 0.0), said + max(high + self._stretch, 0.0)

    def told(self, said: float, truth: float, early: float, late: float, start_s: float) -> None:
        """What became of an answer, known from ``start_s`` on."""
        heappush(self._coming, (start_s, truth - said, early <= truth <= late))
