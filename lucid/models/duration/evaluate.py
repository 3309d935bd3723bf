"""Walk-forward evaluation of the duration model on a log of finished jobs; and durations as a kind of model.

Every test job is estimated from jobs that had ended when it was submitted, by a model trained on such jobs only; the
model is refitted several times over the test part. Intervals adapt as test jobs end. It is compared with the running
median: that of the user's jobs so far; for a user without any, the mean of the same GPU demand.

Metrics: mean absolute error in seconds; the queue gain, the share of what the right order would save among the jobs
that waited together (`lucid.models.ranking`); the share of estimates within a factor of two, 10 s being added to both
sides, so that a job that ended at once has a ratio at all; Spearman's rank correlation; the share of durations inside
their 80 % interval. Jobs without a duration are not scored."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import numpy as np
from msgspec.structs import replace

from lucid.core.times import DAY_S
from lucid.errors import TraceError
from lucid.models.duration.estimate import DECILES, BoolArray, running_median_log
from lucid.models.duration.features import LOG_OFFSET_S, from_log, to_log
from lucid.models.duration.fit import IntArray, fit_durations, rank_correlation, relative_loss
from lucid.models.duration.gate import OPTIONS, IntervalTracker, Record, residual, scale_of
from lucid.models.duration.history import DurationHistory
from lucid.models.duration.jobtable import FloatArray, JobTable, TextArray, read_jobs
from lucid.models.duration.model import DurationModel
from lucid.models.kind import SAMPLE, Kind, Tables, Task, split
from lucid.models.library import Library
from lucid.models.ranking import queue_gain, queues_of
from lucid.models.training import Drift, Evidence, category_psi, error_ratio, psi

REFITS: Final = 12
MOST_WORSE: Final = 0.01
"""How much worse than the running median the model may be before it fails: relative for errors, absolute for shares
and rank correlations."""


@dataclass(frozen=True)
class WalkForward:
    """Estimates of the test jobs, arrays of shape (n_test,), and the choice of every refit in order."""

    point_s: FloatArray
    low_s: FloatArray
    high_s: FloatArray
    median_s: FloatArray
    source: TextArray
    choices: tuple[str, ...]


def evaluate_duration(
    path: Path,
    test_from: int | datetime,
    *,
    refits: int = REFITS,
    progress: Callable[[int, int], None] | None = None,
    read: Callable[[Path], JobTable] = read_jobs,
) -> dict[str, Any]:
    """Read a log and evaluate on its jobs from row `test_from` (0-based, ordered by submission) on, or on those
    submitted at that time or later (UTC where it names no zone).

    `progress` is called after each refit with (refits done, refits in all). In a log that names no user, the jobs of
    an account stand for those of a user; without accounts, those of a partition.

    Returns:
        ``mae_s``, ``within_2x``, ``spearman``, ``queue_gain`` (``None``: nobody queued), ``coverage_80``; the same of
        the running median of the user's jobs under ``running_median``; both once more as means over users
        (``per_user``: ``mae_s``, ``within_2x``); ``jobs_of``: what stands for a user (user, account or partition);
        ``users_tested``; ``days_tested``, days of submission with a job scored; ``jobs`` scored; ``worse`` than the
        running median, and by what, as sentences (`worse_than_median`); ``choices`` made at the refits; ``sources``
        counted.

    Raises:
        TraceError: the log cannot be read, or `test_from` leaves no jobs before or after it."""
    jobs, of = _with_users(read(path))
    if isinstance(test_from, datetime):
        moment = test_from if test_from.tzinfo is not None else test_from.replace(tzinfo=UTC)
        test_from = int(np.searchsorted(jobs.submit_s, moment.timestamp()))
    if not 0 < test_from < len(jobs):
        raise TraceError(f"{path}: has {len(jobs)} jobs, test from {test_from}; give a row from 1 to {len(jobs) - 1}")
    result = walk_forward(jobs, test_from, refits=refits, progress=progress)
    truth = jobs.duration_s[test_from:]
    scored = np.isfinite(truth)
    truth = truth[scored]
    inside = (result.low_s[scored] <= truth) & (truth <= result.high_s[scored])
    sources, counts = np.unique(result.source[scored].astype(str), return_counts=True)
    point, median = result.point_s[scored], result.median_s[scored]
    _, user = np.unique([str(name) for name in jobs.user[test_from:][scored]], return_inverse=True)
    days = np.floor(jobs.submit_s[test_from:][scored] / DAY_S)
    tested = jobs.select(np.flatnonzero(scored) + test_from)
    queues = queues_of(tested.submit_s, tested.end_s - tested.duration_s)
    took = tested.gpus * truth

    def gain(estimate: FloatArray) -> float | None:
        return queue_gain([((tested.gpus * estimate)[rows], took[rows]) for rows in queues])

    figures = {
        **metrics(point, truth),
        "queue_gain": gain(point),
        "coverage_80": float(inside.mean()),
        "per_user": per_user(point, truth, user),
        "running_median": {
            **metrics(median, truth),
            "queue_gain": gain(median),
            "per_user": per_user(median, truth, user),
        },
        "jobs_of": of,
        "users_tested": int(user.max()) + 1,
        "days_tested": len(set(days.tolist())),
        "jobs": int(scored.sum()),
        "choices": list(result.choices),
        "sources": dict(zip(sources.tolist(), counts.tolist(), strict=True)),
    }
    return {**figures, "worse": worse_than_median(figures)}


def _with_users(jobs: JobTable) -> tuple[JobTable, str]:
    """The jobs with whatever stands for their users (user, account or partition), and its name."""
    if not len(jobs):
        return jobs, "user"
    for column in ("user", "account", "partition"):
        names = getattr(jobs, column)
        if any(name is not None for name in names):
            return replace(jobs, user=names), column
    return jobs, "user"


def worse_than_median(figures: Mapping[str, Any]) -> list[str]:
    """The figures in which the model is worse than the running median by more than 1 %, as sentences with both
    figures."""
    median = figures["running_median"]
    found = []
    if figures["mae_s"] > (1.0 + MOST_WORSE) * median["mae_s"]:
        found.append(f"mean absolute error {figures['mae_s']:,.1f} s, the running median's {median['mae_s']:,.1f} s")
    if figures["within_2x"] < median["within_2x"] - MOST_WORSE:
        found.append(f"within a factor of 2 {figures['within_2x']:.1%}, the running median {median['within_2x']:.1%}")
    if figures["spearman"] < median["spearman"] - MOST_WORSE:
        found.append(f"rank correlation {figures['spearman']:.3f}, the running median's {median['spearman']:.3f}")
    own, other = figures["per_user"]["mae_s"], median["per_user"]["mae_s"]
    if own > (1.0 + MOST_WORSE) * other:
        found.append(f"mean over users of the absolute error {own:,.1f} s, the running median's {other:,.1f} s")
    return found


def per_user(point_s: FloatArray, truth_s: FloatArray, user: IntArray) -> dict[str, float]:
    """Means over users of each user's mean absolute error and share within a factor of two; `user`, shape (n,),
    numbers the users from 0."""
    jobs = np.bincount(user)
    error = np.bincount(user, weights=np.abs(point_s - truth_s)) / jobs
    within = np.bincount(user, weights=_within(point_s, truth_s)) / jobs
    return {"mae_s": float(error.mean()), "within_2x": float(within.mean())}


def metrics(point_s: FloatArray, truth_s: FloatArray) -> dict[str, float]:
    """Mean absolute error, share within a factor of two, Spearman's rank correlation."""
    return {
        "mae_s": float(np.abs(point_s - truth_s).mean()),
        "within_2x": float(_within(point_s, truth_s).mean()),
        "spearman": rank_correlation(point_s, truth_s),
    }


def _within(point_s: FloatArray, truth_s: FloatArray) -> BoolArray:
    ratio = np.abs(np.log((point_s + LOG_OFFSET_S) / (truth_s + LOG_OFFSET_S)))
    return np.asarray(ratio <= np.log(2.0) + 1e-12, dtype=np.bool_)


def walk_forward(
    jobs: JobTable,
    test_from: int,
    *,
    refits: int = REFITS,
    progress: Callable[[int, int], None] | None = None,
) -> WalkForward:
    """Estimate the rows of `jobs` (ordered by submission) from `test_from`, refitting before each block."""
    history = DurationHistory()
    facts = history.replay(jobs)
    starts = np.unique(np.linspace(test_from, len(jobs), refits + 1).astype(int)[:-1])
    rows = np.arange(test_from, len(jobs))
    point, default = np.empty(len(rows)), np.empty(len(rows))
    source = np.empty(len(rows), dtype=object)
    choices = []
    tracker = IntervalTracker()
    for start, end in zip(starts, [*starts[1:], len(jobs)], strict=True):
        # Only the past goes in: ended by now. (What had not ended has no duration to learn from.)
        past = np.flatnonzero(jobs.end_s < jobs.submit_s[start])
        model = fit_durations(jobs.select(past))
        choices.append(model.choice.name)
        block = np.arange(start, end)
        # What ended since the training is judged job by job; no job is seen before it had ended.
        facts[:end] = model.serve(history).rejudge(jobs.select(np.arange(end)), facts[:end])
        part = jobs.select(block)
        here = block - test_from
        point[here] = model.point_log(part, facts[block])
        estimates = model.predict_facts(part, facts[block])
        source[here] = estimates.source
        default[here] = model.default_log
        if start == starts[0]:
            tracker = model.interval
        if progress is not None:
            progress(len(choices), len(starts))
    scale = scale_of(point, *(facts[rows, decile] for decile in DECILES))
    low, high = _intervals(jobs, test_from, point, scale, tracker)
    point_s = np.fmin(from_log(point), jobs.limit_s[rows])
    median = running_median_log(facts[rows], np.nan)
    median = np.where(np.isnan(median), default, median)
    median_s = np.fmin(from_log(median), jobs.limit_s[rows])
    return WalkForward(point_s, np.minimum(low, point_s), np.maximum(high, point_s), median_s, source, tuple(choices))


def _intervals(
    jobs: JobTable, test_from: int, point: FloatArray, scale: FloatArray, tracker: IntervalTracker
) -> tuple[FloatArray, FloatArray]:
    """Bounds of every test job from residuals of the jobs that had ended at its submission."""
    low, high = np.empty(len(point)), np.empty(len(point))
    truth = to_log(jobs.duration_s[test_from:])
    residuals = residual(truth, point, scale)
    ends, submits = jobs.end_s[test_from:], jobs.submit_s[test_from:]
    finishing = [int(i) for i in np.argsort(ends, kind="stable") if np.isfinite(ends[i]) and np.isfinite(truth[i])]
    done = 0
    for row in range(len(point)):
        while done < len(finishing) and ends[finishing[done]] < submits[row]:
            ended = finishing[done]
            tracker.add(
                float(residuals[ended]),
                duration_s=float(jobs.duration_s[test_from + ended]),
                below=bool(jobs.duration_s[test_from + ended] < low[ended]),
                above=bool(jobs.duration_s[test_from + ended] > high[ended]),
            )
            done += 1
        one = slice(row, row + 1)
        low[one], high[one] = tracker.bounds(
            point[one], scale[one], jobs.limit_s[test_from + row : test_from + row + 1]
        )
    return low, high


MOST_LOSS: Final = 1.01
"""A model is promoted only if its loss is at most this times the running median's."""
_RECENT: Final = 2000
_NUMBERS: Final = ("gpus", "cpus", "nodes", "memory_mib", "limit_s")
_NAMES: Final = ("user", "partition")
_WORDS: Final = {
    "median": "the median",
    "half": "the mean of median and best statistic",
    "statistic": "the best statistic",
    "tables": "the tables",
    "three": "the mean of all three",
}


class DurationKind(Kind[DurationModel, JobTable]):
    """The kind of model that estimates how long jobs take."""

    name = "duration"
    data = "jobs"
    stand_in = "history means"
    model = DurationModel

    def words(self, model: DurationModel) -> list[str]:
        """The number of jobs it was trained on, and how each candidate did in validation."""
        choice = model.choice
        scores = [
            f"    validation, {name}: {score:.3f} of the running median's loss"
            for name, score in choice.scores.items()
        ]
        serving = [Record(sums).choice.served for sums in model.records.values()]
        counts = [f"{_WORDS[option]} {serving.count(number)}" for number, option in enumerate(OPTIONS)]
        return [
            f"  trained on {model.trained_jobs:,} jobs; tables: {model.choice.name}",
            f"    what had the best record on the jobs of {len(serving)} users: {', '.join(counts)}",
            *scores,
        ]

    def tables(self, model: DurationModel) -> list[Tables]:
        """The tables for jobs of users whose records speak for them, and for profiled jobs, where there are any."""
        titles = (
            (f"Duration: {model.choice.name}, beside the user's median", model.tables),
            ("Duration of profiled jobs, beside the estimate at submission", model.profiled_tables),
        )
        return [Tables(title, "log of the factor", tables) for title, tables in titles if tables is not None]

    def task(self, library: Library, data: JobTable) -> Task[DurationModel]:
        """Fit on finished jobs, judge on jobs that ended later."""
        jobs = _ended(data).by_submit()
        version = self.in_service(library)
        learned_until = None if version is None else float(version.facts.get("learned_until", -math.inf))
        until_s = split(np.sort(jobs.end_s), learned_until, "jobs")
        past, later = jobs.select(jobs.end_s <= until_s), np.flatnonzero(jobs.end_s > until_s)
        judged = jobs.select(later)
        truth = to_log(judged.duration_s)

        def loss(model: DurationModel) -> float:
            facts = model.serve(DurationHistory()).replay(jobs)[later]
            anchor = running_median_log(facts, model.default_log)
            return relative_loss(anchor, model.point_log(judged, facts) - anchor, truth, judged.limit_s)

        known = {
            "learned_until": until_s,
            "learned_from": len(past),
            "judged_on": len(judged),
            "inputs": _inputs(past),
        }
        return Task(lambda: fit_durations(past), loss, known, MOST_LOSS)

    def evidence(self, library: Library, data: JobTable, now: datetime) -> Evidence:
        """New jobs, the age of the version in service, the drift of its error (against the running median, over the
        same jobs) and of its inputs."""
        jobs = _ended(data).by_submit()
        version = self.in_service(library)
        if version is None:
            return Evidence(now, None, len(jobs), Drift(None, 0))
        model = self.read(version)
        new = np.flatnonzero(jobs.end_s > float(version.facts.get("learned_until", -math.inf)))
        recent = new[np.argsort(jobs.end_s[new], kind="stable")][-_RECENT:]
        part, facts = jobs.select(recent), model.serve(DurationHistory()).replay(jobs)[recent]
        median = np.fmin(from_log(running_median_log(facts, model.default_log)), part.limit_s)
        point = model.predict_facts(part, facts).point_s
        inputs = _moved(version.facts.get("inputs", {}), part)
        drift = Drift(error_ratio(part.duration_s, point, median), len(part), inputs)
        return Evidence(now, datetime.fromisoformat(version.created), len(new), drift)


DURATION: Final = DurationKind()


def _ended(jobs: JobTable) -> JobTable:
    return jobs.select(np.isfinite(jobs.duration_s) & np.isfinite(jobs.end_s))


def _inputs(jobs: JobTable) -> dict[str, list[Any]]:
    """Up to `SAMPLE` evenly spaced values of every input, JSON-ready."""
    rows = np.unique(np.linspace(0, len(jobs) - 1, SAMPLE).astype(int)) if len(jobs) else np.empty(0, dtype=int)
    kept: dict[str, list[Any]] = {name: getattr(jobs, name)[rows].tolist() for name in _NAMES}
    for name in _NUMBERS:
        kept[name] = [None if value != value else value for value in getattr(jobs, name)[rows].tolist()]
    return kept


def _moved(kept: Mapping[str, Sequence[Any]], recent: JobTable) -> dict[str, float]:
    found: dict[str, float] = {}
    for name, values in kept.items():
        if name in _NAMES:
            found[name] = category_psi(values, getattr(recent, name).tolist())
        elif name in _NUMBERS:
            before = np.array([math.nan if value is None else value for value in values], dtype=np.float64)
            found[name] = psi(before, getattr(recent, name))
    return found
