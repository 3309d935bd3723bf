"""What is known of a job when it is submitted: its request, and running statistics of jobs that had ended.

`DurationHistory` is fed finished jobs one by one, in order of their ends, and answers for any job what that
history says at this moment. `replay` runs a log through it in the order of events, so that every row of
training data sees exactly what a live daemon would have seen: a job counts only once it has ended.

Durations are compared as ``log(seconds + 10)``: heavy tails need a logarithm, and below about ten seconds
differences mean nothing to a scheduler (many jobs fail within the first second).
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Hashable, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from lucid.models.duration.jobtable import PROFILE_COLUMNS, FloatArray, JobTable

__all__ = [
    "FACT_NAMES",
    "HABIT_FEATURES",
    "LOG_OFFSET_S",
    "REQUEST_FEATURES",
    "DurationHistory",
    "feature_columns",
    "feature_types",
    "from_log",
    "name_stem",
    "profile_columns",
    "replay",
    "to_log",
]

LOG_OFFSET_S: Final = 10.0

# Oldest durations beyond this many per key are forgotten: bounds memory and insertion on years of history.
_WINDOW: Final = 20_000
_RECENT: Final = 11
# Weight of the newest duration in the two running means of log durations: some 50 and some 10 jobs of memory.
_SLOW: Final = 0.02
_FAST: Final = 0.1
_STAT_NAMES: Final = (
    *("count", "median", "upper", "spread", "last", "median3", "median11", "slow_mean", "fast_mean"),
    *("low_decile", "high_decile", "last_end_s"),
)
_LEVELS: Final = ("user", "request", "name")
_EMPTY: Final = (0.0, *([math.nan] * (len(_STAT_NAMES) - 1)))
_DIGITS: Final = re.compile(r"\d+", re.ASCII)
_DAY_S: Final = 86_400.0
_EPOCH_WEEKDAY: Final = 3  # 1 January 1970 was a Thursday, Monday counting 0


def to_log(seconds: npt.ArrayLike) -> FloatArray:
    """Seconds to log(s + 10); same shape."""
    return np.log(np.asarray(seconds, dtype=np.float64) + LOG_OFFSET_S)


def from_log(value: npt.ArrayLike) -> FloatArray:
    """Inverse of `to_log`, never below zero; same shape."""
    # Rounded to microseconds, so that whole seconds survive the way there and back.
    return np.maximum(np.round(np.exp(np.asarray(value, dtype=np.float64)) - LOG_OFFSET_S, 6), 0.0)


def name_stem(name: str | None) -> str | None:
    """A job name without what differs from run to run, case and numbers: ``Train-12`` -> ``train-#``."""
    return None if name is None else _DIGITS.sub("#", name.lower())


class _Running:
    """Statistics of one key's log durations; `stats` is recomputed only after an addition."""

    __slots__ = ("_fast", "_last_end_s", "_order", "_recent", "_slow", "_sorted", "_stats")

    def __init__(self) -> None:
        self._order: deque[float] = deque()
        self._sorted: list[float] = []
        self._recent: deque[float] = deque(maxlen=_RECENT)
        self._slow = self._fast = math.nan
        self._last_end_s = math.nan
        self._stats: tuple[float, ...] | None = None

    def add(self, value: float, end_s: float) -> None:
        self._order.append(value)
        insort(self._sorted, value)
        self._recent.append(value)
        first = len(self._order) == 1
        self._slow = value if first else self._slow + _SLOW * (value - self._slow)
        self._fast = value if first else self._fast + _FAST * (value - self._fast)
        self._last_end_s = end_s
        self._stats = None
        if len(self._order) > _WINDOW:
            del self._sorted[bisect_left(self._sorted, self._order.popleft())]

    @property
    def stats(self) -> tuple[float, ...]:
        if self._stats is None:
            recent = list(self._recent)
            ordered = self._sorted
            upper = _quantile(ordered, 0.75)
            self._stats = (
                float(len(ordered)),
                _median(ordered),
                upper,
                upper - _quantile(ordered, 0.25),
                recent[-1],
                _median(sorted(recent[-3:])),
                _median(sorted(recent)),
                self._slow,
                self._fast,
                _quantile(ordered, 0.1),
                _quantile(ordered, 0.9),
                self._last_end_s,
            )
        return self._stats


def _median(ordered: Sequence[float]) -> float:
    # The mean of the middle two is taken in seconds, as the running-median baseline takes it.
    size = len(ordered)
    low, high = ordered[(size - 1) // 2], ordered[size // 2]
    return low if low == high else math.log(0.5 * (math.exp(low) + math.exp(high)))


def _quantile(ordered: Sequence[float], level: float) -> float:
    return ordered[min(int(level * len(ordered)), len(ordered) - 1)]


class DurationHistory:
    """Running statistics of finished jobs: by user, by user and request, by user and name, by GPU demand."""

    def __init__(self) -> None:
        self._running: dict[Hashable, _Running] = {}
        self._demand: dict[float, tuple[int, float]] = {}
        self._all = (0, 0.0)

    @classmethod
    def of(cls, jobs: JobTable) -> DurationHistory:
        """The history after all of `jobs` have ended."""
        history = cls()
        history.add(jobs)
        return history

    def __len__(self) -> int:
        """How many finished jobs were added."""
        return self._all[0]

    def add(self, finished: JobTable) -> None:
        """Add jobs that have ended, in order of their ends; those without a duration are left out."""
        keys, gpus, values = _keys(finished), finished.gpus.tolist(), to_log(finished.duration_s).tolist()
        ends = finished.end_s.tolist()
        for index in _by_end(finished):
            self.add_one(keys[index], gpus[index], values[index], ends[index])

    def facts(self, jobs: JobTable) -> FloatArray:
        """What the history says of every row at this moment, shape (n, len(FACT_NAMES)); logs of s + 10."""
        seen: dict[Hashable, int] = {}
        rows: list[tuple[float, ...]] = []
        where = np.empty(len(jobs), dtype=np.intp)
        for index, key in enumerate(zip(_keys(jobs), jobs.gpus.tolist(), strict=True)):
            found = seen.get(key)
            if found is None:
                found = seen[key] = len(rows)
                rows.append(self.facts_one(*key))
            where[index] = found
        return np.array(rows, dtype=np.float64).reshape(len(rows), len(FACT_NAMES))[where]

    def add_one(self, keys: _Keys, gpus: float, value: float, end_s: float) -> None:
        """Add one log duration under its keys (see `add`, which makes them)."""
        for key in keys:
            running = self._running.get(key)
            if running is None:
                running = self._running[key] = _Running()
            running.add(value, end_s)
        count, total = self._demand.get(gpus, (0, 0.0))
        self._demand[gpus] = (count + 1, total + value)
        self._all = (self._all[0] + 1, self._all[1] + value)

    def facts_one(self, keys: _Keys, gpus: float) -> tuple[float, ...]:
        """The statistics of each level, then the mean log duration of the same GPU demand (else of all)."""
        row: tuple[float, ...] = ()
        for key in keys:
            running = self._running.get(key)
            row += _EMPTY if running is None else running.stats
        count, total = self._demand.get(gpus) or self._all
        return (*row, total / count if count else math.nan)


def replay(jobs: JobTable, history: DurationHistory | None = None) -> FloatArray:
    """Facts for every row as they stood when it was submitted, shape (n, len(FACT_NAMES)).

    A job is added to the (given or fresh) history once its end is before the submission looked at: strictly,
    so that a job which ended in its first second does not see itself.
    """
    history = DurationHistory() if history is None else history
    keys, gpus, values = _keys(jobs), jobs.gpus.tolist(), to_log(jobs.duration_s).tolist()
    submits, ends = jobs.submit_s.tolist(), jobs.end_s.tolist()
    finishing = _by_end(jobs)
    facts = np.empty((len(jobs), len(FACT_NAMES)), dtype=np.float64)
    done = 0
    for index in np.argsort(jobs.submit_s, kind="stable").tolist():
        while done < len(finishing) and ends[finishing[done]] < submits[index]:
            ended = finishing[done]
            history.add_one(keys[ended], gpus[ended], values[ended], ends[ended])
            done += 1
        facts[index] = history.facts_one(keys[index], gpus[index])
    return facts


def feature_types() -> dict[str, str]:
    """Feature name to interpret's feature type, in the order a model is trained with."""
    return {
        **dict.fromkeys(_CATEGORICAL, "nominal"),
        **dict.fromkeys((*REQUEST_FEATURES[3:], *_TIME, *_HISTORY, *HABIT_FEATURES), "continuous"),
    }


def profile_columns(jobs: JobTable) -> dict[str, FloatArray]:
    """What corrects the estimate of a profiled job: columns of length n, NaN where nothing was measured.

    They are kept out of `feature_columns`: a job without a profile is either new or ended before it was measured, so
    a model that saw both together would take every job at its submission for a short one.
    """
    nothing = np.full(len(jobs), np.nan)
    return {**{name: jobs.profile.get(name, nothing) for name in PROFILE_COLUMNS}, "gpus": jobs.gpus}


def feature_columns(
    jobs: JobTable, facts: FloatArray, anchor: FloatArray, bucket: Sequence[str | None]
) -> dict[str, Any]:
    """All features as columns of length n, from requests, `facts` and the names' buckets.

    `anchor` (n,) is the log duration that a model corrects; the history enters as differences from it, so
    that what is learned from one user's habits carries over to another's.
    """
    fact = {name: facts[:, number] for number, name in enumerate(FACT_NAMES)}
    return {
        "user": jobs.user,
        "account": jobs.account,
        "partition": jobs.partition,
        "qos": jobs.qos,
        "name": np.array(bucket, dtype=object),
        "gpus": jobs.gpus,
        "cpus": jobs.cpus,
        "nodes": jobs.nodes,
        "memory_mib": jobs.memory_mib,
        "limit_s": jobs.limit_s,
        "hour": jobs.submit_s % _DAY_S / 3600.0,
        "weekday": np.floor(jobs.submit_s / _DAY_S + _EPOCH_WEEKDAY) % 7,
        "user_jobs": fact["user_count"],
        "user_spread": fact["user_spread"],
        "user_idle_s": jobs.submit_s - fact["user_last_end_s"],
        "user_last": fact["user_last"] - anchor,
        "user_last_3": fact["user_median3"] - anchor,
        "user_last_11": fact["user_median11"] - anchor,
        "user_trend": fact["user_slow_mean"] - anchor,
        "user_upper": fact["user_upper"] - anchor,
        "same_request_jobs": fact["request_count"],
        "same_request": fact["request_median"] - anchor,
        "same_request_recent": fact["request_fast_mean"] - anchor,
        "same_request_last": fact["request_last"] - anchor,
        "same_name_jobs": fact["name_count"],
        "same_name": fact["name_median"] - anchor,
        "limit_ratio": to_log(jobs.limit_s) - anchor,
    }


_Keys = tuple[Hashable, ...]
FACT_NAMES: Final = (*(f"{level}_{name}" for level in _LEVELS for name in _STAT_NAMES), "demand_mean")
# How the user's jobs ran of late and how the most similar ones ran, each relative to the anchor.
HABIT_FEATURES: Final = (
    *("user_last_11", "user_trend", "user_upper", "same_request", "same_request_recent", "same_name"),
)
# What is known of a job whose user has no history.
REQUEST_FEATURES: Final = ("partition", "qos", "name", "gpus", "cpus", "nodes", "memory_mib", "limit_s")
_CATEGORICAL: Final = ("user", "account", "partition", "qos", "name")
_TIME: Final = ("hour", "weekday")
_HISTORY: Final = (
    *("user_jobs", "user_spread", "user_idle_s", "user_last", "user_last_3"),
    *("same_request_jobs", "same_request_last", "same_name_jobs", "limit_ratio"),
)


def _by_end(jobs: JobTable) -> list[int]:
    order = np.argsort(jobs.end_s, kind="stable")
    known = np.isfinite(jobs.end_s[order]) & np.isfinite(jobs.duration_s[order])
    return [int(index) for index in order[known]]


def _keys(jobs: JobTable) -> list[_Keys]:
    """One key per level for every row; NaN becomes -1, since NaN is no equal of itself."""
    numbers = (jobs.nodes, jobs.gpus, jobs.cpus, jobs.memory_mib, jobs.limit_s)
    requests = zip(
        jobs.user,
        jobs.partition,
        jobs.qos,
        *(np.nan_to_num(n, nan=-1.0).tolist() for n in numbers),
        strict=True,
    )
    stems = {name: name_stem(name) for name in set(jobs.name.tolist())}
    return [
        (user, request, (user, stems[name]))
        for user, request, name in zip(jobs.user.tolist(), requests, jobs.name.tolist(), strict=True)
    ]
