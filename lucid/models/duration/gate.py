"""Which estimate serves a user: the running median, unless another one has proved better on this user's jobs.

Every finished job is judged by what could have been said of it at its submission. Per user, decayed sums of the
absolute error of the log, of that in seconds, and of misses (jobs not within a factor of two) are kept for

* the *statistics* (`STATISTICS`): the best of them so far is the user's champion;
* the *options* (`OPTIONS`): the user's median, which is the default; the log-mean of median and champion; the
  champion; the GA²M's tables; the log-mean of median, champion and tables. An option's record is that of what it
  would have said then, with the champion of then, so being the best of many by chance earns nothing;
* what was *issued*, over a longer memory: while that has been worse than the median, the median serves.

A statistic or an option may leave the median only if none of its three sums is above the median's. Of those that
may, the one with the least loss is taken. A loss is the mean of two ratios to the median's: error of the log, and
error in seconds. What was issued has been worse if its loss is above 1, or its error of the log above the median's:
one long burst makes an error in seconds large enough to hide many others.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left
from collections.abc import Sequence
from typing import Final, NamedTuple

from lucid.errors import ModelError

__all__ = ["NOBODY", "OPTIONS", "OPTION_WEIGHTS", "STATISTICS", "Record", "Serving", "statistics_of"]

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
"""Jobs of a user that must have been judged before anything but the median serves."""
FEWEST_BY_TABLES: Final = 20
"""Jobs of a user that must have been judged by tables that had not learned from them, before such tables serve."""
_SHRINK: Final = 2.0
_KEEP_STATISTICS: Final = 0.98
_KEEP_OPTIONS: Final = 0.99
_KEEP_ISSUED: Final = 0.998
_FLOOR: Final = 1e-6
_S, _O = len(STATISTICS), len(OPTIONS)
_SUMS: Final = 3 * _S + 3 * _O + 4 + 2
_TWICE: Final = math.log(2.0) + 1e-12
_BY_TABLES: Final = frozenset(map(OPTIONS.index, ("tables", "three")))
_ORDER: Final = range(_O)


def statistics_of(median: float, values: Sequence[float], counts: Sequence[float]) -> list[float]:
    """The statistics as they are used, in logs. Those over a part of the user's jobs (`counts` of them) are drawn
    towards the user's median as if that were two more; NaN becomes the median."""
    return [
        median
        if value != value
        else value
        if math.isinf(count)
        else (count * value + _SHRINK * median) / (count + _SHRINK)
        for value, count in zip(values, counts, strict=True)
    ]


class Serving(NamedTuple):
    """What serves a user. `best`: index of the champion among `STATISTICS`; `option`: of the best option among
    `OPTIONS`; `served`: of the one that serves; `ratio`: its loss relative to the median's; `judged`: over how many
    jobs."""

    best: int
    option: int
    served: int
    ratio: float
    judged: float


NOBODY: Final = Serving(0, 0, 0, 1.0, 0.0)


class Record:
    """How each estimate has done on one user's jobs, and what serves for that reason, now and at earlier moments."""

    __slots__ = ("_choices", "_sums", "_times")

    def __init__(self, sums: Sequence[float] = ()) -> None:
        self._sums = list(sums) or [0.0] * _SUMS
        self._times = array("d")
        self._choices: list[Serving] = [self._now()]

    @property
    def choice(self) -> Serving:
        """What serves now."""
        return self._choices[-1]

    def choice_at(self, time_s: float) -> Serving:
        """`choice` as it stood before the end of any job that ended at `time_s` or later."""
        return self._choices[bisect_left(self._times, time_s)]

    def add(
        self, statistics: Sequence[float], tables: float, truth: float, limit: float, submit_s: float, end_s: float
    ) -> None:
        """Judge a job that ended: `statistics` and `tables` (NaN: there were none) are logs of what they said at its
        submission, `truth` and `limit` (or infinity) logs of its duration and time limit."""
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

    def to_json(self) -> list[float]:
        """The sums, ready for JSON."""
        return list(self._sums)

    @classmethod
    def from_json(cls, data: object, *, source: str) -> Record:
        """Check and build.

        Raises:
            ModelError: not as many finite numbers, none below zero, as a record has; names `source`.
        """
        if (
            not isinstance(data, list)
            or len(data) != _SUMS
            or not all(isinstance(x, int | float) and not isinstance(x, bool) and 0 <= x < math.inf for x in data)
        ):
            raise ModelError(f"{source}: a record is not {_SUMS} numbers from zero up; train the model again")
        return cls([float(x) for x in data])

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
