"""``compare_days``: whether a gain survives on later data, by a paired bootstrap over days."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lucid.core.times import DAY_S
from lucid.simulator.metrics import LARGE_GPUS
from lucid.tuner.search import JobTimes

LEAST_DAYS = 5
"""The least number of days: fewer say nothing about days."""

_RESAMPLES = 2000
_LEAST_GAIN = 0.002
"""The least gain that is worth a change, however sure: 0.2 %."""
_BEYOND = 0.025
"""The share of resamples that may lie beyond either bound."""
_OF_QUANTILES = 500
"""How many resamples there are for a median or a percentile, which take longer than a mean."""
_AT_ONCE = 2_000_000
"""How many numbers are held at a time while looking for percentiles."""


@dataclass(frozen=True, slots=True)
class Change:
    """One figure before and after, in seconds, with the bounds of its relative change (95 %)."""

    name: str
    before_s: float
    after_s: float
    low: float
    high: float

    @property
    def relative(self) -> float:
        """The relative change, after / before - 1; negative is a gain."""
        return self.after_s / self.before_s - 1.0 if self.before_s else 0.0


@dataclass(frozen=True, slots=True)
class UserEffect:
    """The effect of a change on one user's average JCT."""

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
    """Average JCT by day: (day, before, after)."""
    survives: bool
    why: str


def compare_days(old: JobTimes, new: JobTimes, seed: int) -> Evidence:
    """Compare two replays of the same jobs, resampling whole days of submission with replacement.

    Jobs of one day share its load, so that jobs are not independent and days are nearly. Bounds are those of the
    expanded percentile interval (Hesterberg 2015, What Teachers Should Know About the Bootstrap): with a week or two
    of days the plain 2.5th and 97.5th percentiles would be too close together.

    Raises:
        ValueError: the replays are not of the same jobs."""
    if len(old.submit_s) != len(new.submit_s) or not np.array_equal(old.submit_s, new.submit_s):
        raise ValueError("two replays of different jobs cannot be compared")
    day = np.floor(old.submit_s / DAY_S).astype(np.int64)
    days = np.unique(day)
    members = [np.flatnonzero(day == d) for d in days]
    count = len(days)
    large = old.gpus > LARGE_GPUS
    figures = [("avg JCT", None), ("median JCT", 0.5), ("p99 JCT", 0.99)]
    changes = [_change(name, quantile, old.jct_s, new.jct_s, members, seed) for name, quantile in figures]
    changes.append(_change("avg queueing", None, old.queue_s, new.queue_s, members, seed))
    if large.any():
        inside = [m[large[m]] for m in members]
        changes.append(_change("JCT of jobs > 8 GPUs", None, old.jct_s, new.jct_s, inside, seed))
    survives, why = _judge(count, changes)
    by_day = tuple(
        (int(d), float(old.jct_s[m].mean()), float(new.jct_s[m].mean())) for d, m in zip(days, members, strict=True)
    )
    return Evidence(count, len(day), tuple(changes), _losers(old, new), by_day, survives, why)


def _judge(days: int, changes: list[Change]) -> tuple[bool, str]:
    average = changes[0]
    if days < LEAST_DAYS:
        return False, f"the later data spans {days} days; at least {LEAST_DAYS} days are needed for a judgement"
    if average.high >= -_LEAST_GAIN:
        return False, (
            f"the average JCT changes by {average.relative:+.1%} on later data, which is not significant "
            f"(95 % interval {average.low:+.1%} to {average.high:+.1%})"
        )
    for change in changes[2:]:
        if change.low > 0:
            return False, f"the {change.name} would surely be worse ({change.low:+.1%} to {change.high:+.1%})"
    return True, (
        f"the average JCT falls by {-average.relative:.1%} on later data (95 % of resampled days: "
        f"{-average.high:.1%} to {-average.low:.1%})"
    )


def _change(
    name: str,
    quantile: float | None,
    old: NDArray[np.float64],
    new: NDArray[np.float64],
    members: list[NDArray[np.int64]],
    seed: int,
) -> Change:
    """The change of one figure. ``quantile``: which one to compare; ``None`` compares means."""
    every = np.concatenate(members)
    before, after = (
        (float(v[every].mean()) if quantile is None else float(np.quantile(v[every], quantile))) for v in (old, new)
    )
    count = len(members)
    picks = np.random.default_rng(seed).integers(0, count, (_RESAMPLES if quantile is None else _OF_QUANTILES, count))
    weights = np.stack([np.bincount(row, minlength=count) for row in picks])
    if quantile is None:  # sums by day are all that a mean needs
        below = weights @ np.array([old[m].sum() for m in members])
        above = weights @ np.array([new[m].sum() for m in members])
    else:
        below, above = (_quantiles(values, members, weights, quantile) for values in (old, new))
    ratios = np.divide(above, below, out=np.ones(len(below)), where=below > 0) - 1.0
    beyond = _beyond(count)
    low, high = np.quantile(ratios, [beyond, 1.0 - beyond])
    return Change(name, before, after, float(low), float(high))


def _quantiles(
    values: NDArray[np.float64], members: list[NDArray[np.int64]], weights: NDArray[np.int64], quantile: float
) -> NDArray[np.float64]:
    """(R,) the quantile of the jobs of each resample: the least value that at least this share of them do not exceed.

    Args:
        values: by job.
        members: jobs of each of D days.
        weights: (R, D) how often each day is in each resample.
        quantile: between 0 and 1."""
    every = np.concatenate(members)
    day = np.repeat(np.arange(len(members)), [len(m) for m in members])
    order = np.argsort(values[every], kind="stable")
    ordered, day = values[every][order], day[order]
    found = np.zeros(len(weights))
    step = max(_AT_ONCE // max(len(every), 1), 1)
    for first in range(0, len(weights), step):
        upto = np.cumsum(weights[first : first + step][:, day], axis=1)
        if upto.shape[1]:
            at = np.argmax(upto >= np.maximum(np.ceil(quantile * upto[:, -1:]), 1), axis=1)
            found[first : first + step] = np.where(upto[:, -1] > 0, ordered[at], 0.0)
    return found


def _beyond(days: int) -> float:
    """The share of resamples to leave out on either side, for bounds that are to hold in 95 % of the cases."""
    if days < 2:
        return 0.0
    from scipy.stats import norm, t

    return float(norm.cdf(np.sqrt(days / (days - 1)) * t.ppf(_BEYOND, days - 1)))


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
