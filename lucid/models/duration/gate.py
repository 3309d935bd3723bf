"""Which estimate serves a user, by the record on this user's jobs; and conformal intervals round estimates.

The running median serves unless another estimate has proved better on this user's jobs. Every finished job is judged
by what could have been said of it at its submission. Per user, decayed sums of the absolute error of the log, of that
in seconds, and of misses (jobs not within a factor of two) are kept for

* the *statistics* (`STATISTICS`): the best of them so far is the user's champion;
* the *options* (`OPTIONS`): the user's median, which is the default; the log-mean of median and champion; the
  champion; the GA²M's tables; the log-mean of median, champion and tables. An option's record is that of what it
  would have said then, with the champion of then, so being the best of many by chance earns nothing;
* what was *issued*, over a longer memory: while that has been worse than the median, the median serves.

A statistic or an option may replace the median only if none of its three sums is above the median's. Of those that
may, the one with the least loss is taken: the mean of two ratios to the median's, error of the log and error in
seconds. The issued estimates have been worse if their loss is above 1, or their error of the log above the median's:
one long burst makes an error in seconds large enough to hide many others.

A residual is ``(log(true + 10) - log(estimate + 10)) / scale``; the scale is the distance from the estimate to the
lowest tenth of the user's own durations, or to the highest tenth, whichever side the truth lies on. A steady user
thus gets a narrow interval, and one whose jobs often fail at once a lower bound of nothing. The interval spans two
quantiles of past residuals (split conformal prediction), adapted online after Gibbs and Candès, "Adaptive conformal
inference under distribution shift" (2021): each miss below the interval lowers the lower level a little, each job
that is not below raises it, in proportions that settle at the wanted share of misses; likewise above. A residual
knows no bounds: a steady user's one job of a day, where all others took a minute, is some seventy times that user's
scale, and as many times the scale of a user whose jobs take seconds or days is more seconds than a float holds. So no
upper bound is above twice the longest job seen, or the top of the user's own middle 80 %."""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Final, NamedTuple

import numpy as np
from msgspec import Meta, Struct

from lucid.core.codec import from_json
from lucid.models.duration.features import LOG_OFFSET_S, from_log, to_log
from lucid.models.duration.jobtable import FloatArray

STATISTICS: Final = (
    *("user_median", "user_median11", "request_median", "request_median11", "name_median", "name_median3"),
)
"""Names of facts. Recent means were tried too: they lie between the modes of users who have two, and hit neither."""
OPTIONS: Final = ("median", "half", "statistic", "tables", "three")
_THIRD: Final = 1.0 / 3.0
OPTION_WEIGHTS: Final = (
    *((1.0, 0.0, 0.0), (0.5, 0.5, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0), (_THIRD, _THIRD, _THIRD)),
)
"""Weights of the user's median, of the champion and of the tables in each option; they sum to 1."""
FEWEST_JUDGED: Final = 3
"""How many jobs of a user must have been judged before anything but the median serves."""
FEWEST_BY_TABLES: Final = 20
"""How many jobs of a user must have been judged by tables that had not learned from them, before such tables
serve."""
_SHRINK: Final = 2.0
_KEEP_STATISTICS: Final = 0.98
_KEEP_OPTIONS: Final = 0.99
_KEEP_ISSUED: Final = 0.998
_FLOOR: Final = 1e-6
_S, _O = len(STATISTICS), len(OPTIONS)
SUMS: Final = 3 * _S + 3 * _O + 4 + 2
_TWICE: Final = math.log(2.0) + 1e-12
_BY_TABLES: Final = frozenset(map(OPTIONS.index, ("tables", "three")))
_ORDER: Final = range(_O)


def statistics_of(median: float, values: Sequence[float], counts: Sequence[float]) -> list[float]:
    """The statistics as they are used, in logs. Statistics over a part of the user's jobs (`counts` of them) are
    drawn towards the user's median as if that were two more; NaN becomes the median."""
    return [
        median
        if value != value
        else value
        if math.isinf(count)
        else (count * value + _SHRINK * median) / (count + _SHRINK)
        for value, count in zip(values, counts, strict=True)
    ]


class Serving(NamedTuple):
    """Which estimate serves a user. `best`: index of the champion among `STATISTICS`; `option`: index of the best
    option among `OPTIONS`; `served`: index of the one that serves; `ratio`: its loss relative to the median's;
    `judged`: over how many jobs."""

    best: int
    option: int
    served: int
    ratio: float
    judged: float


NOBODY: Final = Serving(0, 0, 0, 1.0, 0.0)


class Record:
    """How each estimate has done on one user's jobs, and which therefore serves, now and at earlier moments."""

    __slots__ = ("_choices", "_sums", "_times")

    def __init__(self, sums: Sequence[float] = ()) -> None:
        self._sums = list(sums) or [0.0] * SUMS
        self._times = array("d")
        self._choices: list[Serving] = [self._now()]

    @property
    def choice(self) -> Serving:
        """The estimate that serves now."""
        return self._choices[-1]

    def choice_at(self, time_s: float) -> Serving:
        """`choice` as it stood before the end of any job that ended at `time_s` or later."""
        return self._choices[bisect_left(self._times, time_s)]

    def add(
        self, statistics: Sequence[float], tables: float, truth: float, limit: float, submit_s: float, end_s: float
    ) -> None:
        """Judge a job that ended. `statistics` and `tables` (NaN: there were none) are their estimates at its
        submission, as logs; `truth` and `limit` (or infinity) are logs of its duration and time limit."""
        best, option, *_ = self.choice_at(submit_s)
        median, champion = statistics[0], statistics[best]
        said = median if tables != tables else tables
        options = [own * median + other * champion + third * said for own, other, third in OPTION_WEIGHTS]
        sums, seconds = self._sums, math.exp(truth)
        at = 0
        for values, keep in ((statistics, _KEEP_STATISTICS), (options, _KEEP_OPTIONS)):
            size = len(values)
            for number, value in enumerate(values, at):
                for kind, error in enumerate(_errors(value, truth, seconds, limit)):
                    sums[number + kind * size] = sums[number + kind * size] * keep + error
            at += 3 * size
        issued = (*_errors(options[option], truth, seconds, limit)[:2], *_errors(median, truth, seconds, limit)[:2])
        for number, error in enumerate(issued):
            sums[at + number] = sums[at + number] * _KEEP_ISSUED + error
        sums[-2] += 1.0
        sums[-1] += tables == tables
        self._times.append(end_s)
        self._choices.append(self._now())

    @property
    def sums(self) -> list[float]:
        """The sums, by which `Record` begins again."""
        return list(self._sums)

    def _losses(self, at: int, size: int) -> list[float]:
        """Losses of the `size` estimates whose sums begin at `at`, the median first; infinite where any of the three
        sums is above the median's."""
        logs, seconds, misses = (self._sums[at + kind * size : at + (kind + 1) * size] for kind in range(3))
        log, second = max(logs[0], _FLOOR), max(seconds[0], _FLOOR)
        return [
            0.5 * (a / log + b / second)
            if number == 0 or (a <= logs[0] and b <= seconds[0] and c <= misses[0])
            else math.inf
            for number, (a, b, c) in enumerate(zip(logs, seconds, misses, strict=True))
        ]

    def _now(self) -> Serving:
        losses = self._losses(0, _S)
        best = losses.index(min(losses))
        losses = self._losses(3 * _S, _O)
        order = [number for number in _ORDER if number not in _BY_TABLES or self._sums[-1] >= FEWEST_BY_TABLES]
        option = min(order, key=losses.__getitem__) if self._sums[-2] >= FEWEST_JUDGED else 0
        log, error_s, median_log, median_s = self._sums[-6:-2]
        # Both options and their choice are judged: the best of five by chance is no better than the median.
        loss = 0.5 * (log / max(median_log, _FLOOR) + error_s / max(median_s, _FLOOR))
        served = 0 if loss > 1.0 or log > median_log else option
        return Serving(best, option, served, losses[served] if served else 1.0, self._sums[-2])


def _errors(value: float, truth: float, truth_s: float, limit: float) -> tuple[float, float, float]:
    """Error of the log, error in seconds, and whether it missed a factor of two."""
    value = min(value, limit)
    error = abs(value - truth)
    return error, abs(math.exp(value) - truth_s), float(error > _TWICE)


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


class _Levels(Struct, frozen=True):
    """An interval tracker as it is stored."""

    low: Annotated[float, Meta(ge=0.0, le=0.5)]
    high: Annotated[float, Meta(ge=0.5, le=1.0)]
    residuals: tuple[float, ...]
    longest_s: float = _YEAR_S


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

    def bounds(self, point: FloatArray, scale: FloatArray, limit_s: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Lower and upper bounds in seconds, shape (n,), of estimates given as logs (n,); `scale` is (n, 2).

        A lower bound under ten seconds is given as zero: at that length nothing tells jobs apart. The upper one is
        at most twice the longest duration seen, unless the user's own highest tenth begins later. With fewer than
        ten residuals it knows nothing: zero to the limit (or infinity)."""
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
        The limit caps it."""
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
    def from_json(cls, data: object) -> IntervalTracker:
        """The tracker that `to_json` wrote. Models of earlier versions have no `longest_s`.

        Raises: ValueError: a level is out of range, or a value is not a number."""
        stored = from_json(_Levels, data)
        tracker = cls(stored.residuals, stored.longest_s)
        tracker.low, tracker.high = stored.low, stored.high
        return tracker

    def _most_log(self, point: FloatArray, scale: FloatArray) -> FloatArray:
        """The largest upper bound of a duration, shape (n,), as logs."""
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


def scale_of(point: FloatArray, low_decile: FloatArray, high_decile: FloatArray) -> FloatArray:
    """Scales below and above each estimate, shape (n, 2), from the user's deciles (logs; NaN: none)."""
    below = np.nan_to_num(point - low_decile, nan=_UNKNOWN_SCALE)
    above = np.nan_to_num(high_decile - point, nan=_UNKNOWN_SCALE)
    return np.maximum(np.stack([below, above], axis=1), _LEAST_SCALE)


def residual(truth: FloatArray, point: FloatArray, scale: FloatArray) -> FloatArray:
    """Scaled residuals of log durations, shape (n,); negative where the job was shorter than estimated."""
    return (truth - point) / np.where(truth < point, scale[:, 0], scale[:, 1])
