"""How far a duration may lie from its estimate: conformal intervals, and the time left of a running job.

A residual is ``(log(true + 10) - log(estimate + 10)) / scale``; the scale is the distance from the estimate
to the lowest tenth of the user's own durations, or to the highest tenth, whichever side the truth lies on. A
steady user thus gets a narrow interval, and one whose jobs often fail at once a lower bound of nothing.

The interval spans two quantiles of past residuals (split conformal prediction). Which quantiles is adapted
online, after Gibbs and Candès, "Adaptive conformal inference under distribution shift" (2021): each miss
below the interval lowers the lower level a little, each job that is not below raises it, in proportions that
settle at the wanted share of misses; likewise above.

A residual knows no bounds: a steady user's one job of a day, where all others took a minute, is some seventy times
that user's scale, and as many times the scale of a user whose jobs take seconds or days is more seconds than a float
holds. So nothing is said to run longer than twice the longest job seen, or the top of the user's own middle 80 %.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterable
from typing import Any, Final

import numpy as np

from lucid.errors import ModelError
from lucid.models.duration.features import LOG_OFFSET_S, from_log, to_log
from lucid.models.duration.jobtable import FloatArray

__all__ = ["COVERAGE", "IntervalTracker", "residual", "scale_of"]

COVERAGE: Final = 0.80
_WINDOW: Final = 1000
_RATE: Final = 0.005
_FEWEST: Final = 10
# The interval never ends inside the user's own middle 80 %, which stand at residuals of -1 and 1: quantiles
# over everybody's latest jobs forget what one user's jobs do only now and then.
_OWN_DECILE: Final = 1.0
_LEAST_SCALE: Final = 0.1
_UNKNOWN_SCALE: Final = 1.5
# What outlives all that was seen is expected to run as long again (see `remaining_s`).
_MARGIN_LOG: Final = math.log(2.0)
# In place of the longest job seen, for trackers that were stored without it: beyond what clusters let a job run.
_YEAR_S: Final = 366 * 86_400.0


class IntervalTracker:
    """The latest residuals in order of the jobs' ends, and the two quantile levels in use. `longest_s` is the
    longest duration among the jobs that ended, in seconds; without it a year is taken."""

    def __init__(self, residuals: Iterable[float] = (), longest_s: float = _YEAR_S) -> None:
        self._order: deque[float] = deque()
        self._sorted: list[float] = []
        self._miss = (1.0 - COVERAGE) / 2.0
        self.low = self._miss
        self.high = 1.0 - self._miss
        self._longest_s = longest_s
        for residual in residuals:
            self._push(float(residual))

    def __len__(self) -> int:
        """How many residuals it holds."""
        return len(self._order)

    def bounds(self, point: FloatArray, scale: FloatArray, limit_s: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Lower and upper bounds in seconds, shape (n,), of estimates given as logs (n,); `scale` is (n, 2).

        A lower bound under ten seconds is given as zero: at that length nothing tells jobs apart. The upper one is
        at most twice the longest duration seen, unless the user's own highest tenth begins later. With fewer than
        ten residuals it knows nothing: zero to the limit (or infinity).
        """
        limit = np.where(np.isnan(limit_s), np.inf, limit_s)
        if len(self._sorted) < _FEWEST:
            return np.zeros(len(point)), limit
        low = from_log(point + scale[:, 0] * min(self._quantile(self.low), -_OWN_DECILE))
        high = from_log(
            np.minimum(
                point + scale[:, 1] * max(self._quantile(self.high), _OWN_DECILE), self._most_log(point, scale)
            )
        )
        return np.minimum(np.where(low < LOG_OFFSET_S, 0.0, low), limit), np.minimum(high, limit)

    def add(self, residual: float, *, duration_s: float, below: bool, above: bool) -> None:
        """Learn from a job that ended: its residual, how long it ran (seconds), and whether that lay below or above
        its own interval."""
        self._push(residual)
        self._longest_s = max(self._longest_s, duration_s)
        self.low = min(max(self.low + _RATE * (self._miss - below), 0.0), 0.5)
        self.high = min(max(self.high - _RATE * (self._miss - above), 0.5), 1.0)

    def remaining_s(
        self, point_s: FloatArray, scale: FloatArray, limit_s: FloatArray, ran_s: FloatArray
    ) -> FloatArray:
        """Median time left of jobs that have already run `ran_s`, shape (n,), seconds.

        Taken over the outcomes ``estimate × residual`` that exceed `ran_s`, none of them longer than an upper bound
        may be (`bounds`). A job that outran all of them is
        expected to run as long again: for heavy (Pareto) tails the time left grows with the time spent.
        The limit caps it.
        """
        limit = np.where(np.isnan(limit_s), np.inf, limit_s)
        levels = np.array([self._quantile(level) for level in np.linspace(0.005, 0.995, 100)])
        if len(self._sorted) < _FEWEST:
            levels = np.zeros(1)
        shift = np.where(levels < 0, scale[:, :1], scale[:, 1:]) * levels
        point = to_log(point_s)
        outcome = np.minimum(point[:, None] + shift, self._most_log(point, scale)[:, None])
        outcomes = np.minimum(from_log(outcome), limit[:, None])
        left = np.where(outcomes > ran_s[:, None], outcomes - ran_s[:, None], np.nan)
        none = np.isnan(left).all(axis=1)
        left[none] = np.minimum(ran_s, limit - ran_s)[none, None]
        return np.asarray(np.maximum(np.nanmedian(left, axis=1), 0.0), dtype=np.float64)

    def to_json(self) -> dict[str, Any]:
        """Residuals, oldest first, levels, and the longest duration in seconds, ready for JSON."""
        return {"low": self.low, "high": self.high, "residuals": list(self._order), "longest_s": self._longest_s}

    @classmethod
    def from_json(cls, data: object, *, source: str) -> IntervalTracker:
        """Check and build. Models of earlier versions have no `longest_s`.

        Raises:
            ModelError: levels out of range, or residuals or a longest duration that are not finite numbers; names
                `source`.
        """
        remedy = "train the model again or restore an earlier version"
        if not isinstance(data, dict) or {*data, "longest_s"} != {"low", "high", "residuals", "longest_s"}:
            raise ModelError(f"{source}: interval must have exactly low, high, residuals and longest_s; {remedy}")
        longest_s = data.get("longest_s", _YEAR_S)
        numbers = [
            data["low"],
            data["high"],
            longest_s,
            *(data["residuals"] if isinstance(data["residuals"], list) else [None]),
        ]
        if not all(_finite(number) for number in numbers):
            raise ModelError(f"{source}: interval holds something that is not a finite number; {remedy}")
        if not 0.0 <= data["low"] <= 0.5 <= data["high"] <= 1.0:
            raise ModelError(f"{source}: interval levels {data['low']}, {data['high']} are out of range; {remedy}")
        tracker = cls(data["residuals"], float(longest_s))
        tracker.low, tracker.high = float(data["low"]), float(data["high"])
        return tracker

    def _most_log(self, point: FloatArray, scale: FloatArray) -> FloatArray:
        """The longest duration to speak of, shape (n,), as logs."""
        return np.maximum(to_log(self._longest_s) + _MARGIN_LOG, point + scale[:, 1] * _OWN_DECILE)

    def _push(self, residual: float) -> None:
        self._order.append(residual)
        insort(self._sorted, residual)
        if len(self._order) > _WINDOW:
            del self._sorted[bisect_left(self._sorted, self._order.popleft())]

    def _quantile(self, level: float) -> float:
        # Conformal quantile: of n residuals the ceil((n + 1) level)-th, mirrored below the median.
        size = len(self._sorted)
        if size == 0:
            return 0.0
        rank = math.ceil((size + 1) * level) if level >= 0.5 else math.floor((size + 1) * level)
        return self._sorted[min(max(rank, 1), size) - 1]


def _finite(number: Any) -> bool:
    return isinstance(number, int | float) and not isinstance(number, bool) and math.isfinite(number)


def scale_of(point: FloatArray, low_decile: FloatArray, high_decile: FloatArray) -> FloatArray:
    """Scales below and above each estimate, shape (n, 2), from the user's deciles (logs; NaN: none)."""
    below = np.nan_to_num(point - low_decile, nan=_UNKNOWN_SCALE)
    above = np.nan_to_num(high_decile - point, nan=_UNKNOWN_SCALE)
    return np.maximum(np.stack([below, above], axis=1), _LEAST_SCALE)


def residual(truth: FloatArray, point: FloatArray, scale: FloatArray) -> FloatArray:
    """Scaled residuals of log durations, shape (n,); negative where the job was shorter than estimated."""
    return (truth - point) / np.where(truth < point, scale[:, 0], scale[:, 1])
