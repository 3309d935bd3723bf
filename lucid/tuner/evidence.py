"""Does a gain survive on later data? A paired bootstrap over days."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lucid.simulator.metrics import LARGE_GPUS
from lucid.tuner.evaluate import DAY_S, JobTimes

__all__ = ["LEAST_DAYS", "Change", "Evidence", "UserEffect", "compare_days"]

LEAST_DAYS = 5
"""Fewer days than this say nothing about days."""

_RESAMPLES = 2000
_LEAST_GAIN = 0.002
"""A gain under 0.2 % is not worth a change, however sure."""
_LOW, _HIGH = 2.5, 97.5


@dataclass(frozen=True, slots=True)
class Change:
    """One figure before and after, in seconds, with the bounds of its relative change (95 % of the resamples)."""

    name: str
    before_s: float
    after_s: float
    low: float
    high: float

    @property
    def relative(self) -> float:
        """after / before - 1; negative is a gain."""
        return self.after_s / self.before_s - 1.0 if self.before_s else 0.0


@dataclass(frozen=True, slots=True)
class UserEffect:
    """What a change does to one user's average JCT."""

    user: str
    jobs: int
    before_s: float
    after_s: float


@dataclass(frozen=True, slots=True)
class Evidence:
    """The comparison of two replays of the same jobs. ``survives``: the whole interval of the average JCT's
    change lies below zero by at least a fifth of a percent, and the 99th percentile is not surely worse."""

    days: int
    jobs: int
    changes: tuple[Change, ...]
    losers: tuple[UserEffect, ...]
    by_day: tuple[tuple[int, float, float], ...]
    """(day, average JCT before, after)."""
    survives: bool
    why: str

    def change(self, name: str) -> Change:
        """One of ``changes`` by name."""
        return next(c for c in self.changes if c.name == name)


def compare_days(old: JobTimes, new: JobTimes, seed: int) -> Evidence:
    """Compare two replays of the same jobs, resampling whole days of submission with replacement.

    Jobs of one day share its load, so that jobs are not independent and days are nearly.

    Raises:
        ValueError: the replays are not of the same jobs.
    """
    if len(old.submit_s) != len(new.submit_s) or not np.array_equal(old.submit_s, new.submit_s):
        raise ValueError("two replays of different jobs cannot be compared")
    day = np.floor(old.submit_s / DAY_S).astype(np.int64)
    days = np.unique(day)
    members = [np.flatnonzero(day == d) for d in days]
    count = len(days)
    large = old.gpus > LARGE_GPUS
    figures = [("avg JCT", _mean), ("median JCT", _median), ("p99 JCT", _p99)]
    changes = [_change(name, of, old.jct_s, new.jct_s, members, seed) for name, of in figures]
    changes.append(_change("avg queueing", _mean, old.queue_s, new.queue_s, members, seed))
    if large.any():
        inside = [m[large[m]] for m in members]
        changes.append(_change("JCT of jobs > 8 GPUs", _mean, old.jct_s, new.jct_s, inside, seed))
    survives, why = _judge(count, changes)
    by_day = tuple(
        (int(d), float(old.jct_s[m].mean()), float(new.jct_s[m].mean())) for d, m in zip(days, members, strict=True)
    )
    return Evidence(count, len(day), tuple(changes), _losers(old, new), by_day, survives, why)


def _judge(days: int, changes: list[Change]) -> tuple[bool, str]:
    average = changes[0]
    if days < LEAST_DAYS:
        return False, f"the later data spans {days} days; at least {LEAST_DAYS} are needed to tell a gain from luck"
    if average.high >= -_LEAST_GAIN:
        return False, (
            f"the average JCT changes by {average.relative:+.1%} on later data, but between {average.low:+.1%} and "
            f"{average.high:+.1%} could be luck of the days"
        )
    for change in changes[2:]:
        if change.low > 0:
            return False, f"the {change.name} would surely be worse ({change.low:+.1%} to {change.high:+.1%})"
    return True, (
        f"the average JCT falls by {-average.relative:.1%} on later data (95 % of resampled days: "
        f"{-average.high:.1%} to {-average.low:.1%})"
    )


def _mean(values: NDArray[np.float64]) -> float:
    return float(values.mean())


def _median(values: NDArray[np.float64]) -> float:
    return float(np.median(values))


def _p99(values: NDArray[np.float64]) -> float:
    return float(np.percentile(values, 99))


def _change(
    name: str,
    of: Callable[[NDArray[np.float64]], float],
    old: NDArray[np.float64],
    new: NDArray[np.float64],
    members: list[NDArray[np.int64]],
    seed: int,
) -> Change:
    every = np.concatenate(members)
    before, after = of(old[every]), of(new[every])
    rng = np.random.default_rng(seed)
    ratios = np.empty(_RESAMPLES if of is _mean else _RESAMPLES // 10)
    if of is _mean:  # sums by day are all that a mean needs
        old_sum = np.array([old[m].sum() for m in members])
        new_sum = np.array([new[m].sum() for m in members])
        picks = rng.integers(0, len(members), (len(ratios), len(members)))
        below = old_sum[picks].sum(axis=1)
        ratios = np.divide(new_sum[picks].sum(axis=1), below, out=np.ones(len(picks)), where=below > 0) - 1.0
    else:
        for i in range(len(ratios)):
            at = np.concatenate([members[j] for j in rng.integers(0, len(members), len(members))])
            base = of(old[at]) if len(at) else 0.0
            ratios[i] = of(new[at]) / base - 1.0 if base else 0.0
    low, high = np.percentile(ratios, [_LOW, _HIGH])
    return Change(name, before, after, float(low), float(high))


def _losers(old: JobTimes, new: JobTimes, most: int = 10) -> tuple[UserEffect, ...]:
    """The users whose jobs, taken together, lose the most time."""
    at: dict[str, list[int]] = {}
    for i, user in enumerate(old.user):
        at.setdefault(user, []).append(i)
    lost = sorted(((float((new.jct_s[i] - old.jct_s[i]).sum()), user) for user, i in at.items()), reverse=True)
    return tuple(
        UserEffect(user, len(at[user]), float(old.jct_s[at[user]].mean()), float(new.jct_s[at[user]].mean()))
        for loss, user in lost[:most]
        if loss > 0
    )
