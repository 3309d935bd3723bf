"""Training of the duration model: absolute-error additive tables, and what of them may be used.

Two additive models are candidates: "habit" sees only how the user's latest and most similar jobs compare with
the anchor; "wide" sees everything known at submission. Each is tried with several weights, beside the plain
running median and the median with a little of the user's trend. They are compared on the last quarter of the
finished jobs, after training on those before; whatever scores best is then trained on all. This is prequential:
nothing is judged on jobs that it learned from, and no job is seen other than as it stood at its submission.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from lucid.errors import ModelError
from lucid.models.additive import AdditiveModel, from_ebm
from lucid.models.duration import MOST_LOG, Choice, DurationModel, FitSettings, anchor_log
from lucid.models.features import (
    FACT_NAMES,
    HABIT_FEATURES,
    REQUEST_FEATURES,
    feature_columns,
    feature_types,
    from_log,
    replay,
    to_log,
)
from lucid.models.intervals import IntervalTracker, scale_of
from lucid.models.jobtable import FloatArray, JobTable
from lucid.models.names import NameBuckets

__all__ = ["fit", "rank_correlation"]

_COUNT: Final = FACT_NAMES.index("user_count")
_TREND: Final = FACT_NAMES.index("user_slow_mean")
_SPREAD: Final = FACT_NAMES.index("user_spread")
_DEMAND: Final = FACT_NAMES.index("demand_mean")
FEWEST_JOBS: Final = 100
HOLD_OUT: Final = 0.25
WEIGHTS: Final = (0.25, 0.5, 1.0)
TREND_WEIGHT: Final = 0.3
# A candidate whose absolute error exceeds the running median's by more than this is out, however it ranks.
_TOLERANCE: Final = 0.005
_NEW_USER_WEIGHT: Final = 0.5
_NEW_USER_FOLDS: Final = 3
_NEW_USER_JOBS: Final = 200
_IRLS_ROUNDS: Final = 3
_IRLS_FLOOR: Final = 0.3

Columns = Mapping[str, Any]


def fit(jobs: JobTable, settings: FitSettings) -> DurationModel:
    """Train on the jobs of `jobs` that have a duration; with fewer than a hundred, the fallback alone.

    Raises:
        ModelError: the training libraries are not installed, or `settings` names no known feature.
    """
    _check(jobs, settings)
    ended = np.isfinite(jobs.duration_s) & np.isfinite(jobs.end_s)
    if int(ended.sum()) < FEWEST_JOBS:
        return DurationModel.untrained()
    facts = replay(jobs)[ended]
    jobs = jobs.take(ended)
    by_end = np.argsort(jobs.end_s, kind="stable")[-settings.most_jobs :]
    jobs, facts = jobs.take(by_end), facts[by_end]
    truth = to_log(jobs.duration_s)
    default = float(truth.mean())
    anchor = anchor_log(facts, default)
    names = NameBuckets.fit(jobs.name.tolist())
    columns = feature_columns(jobs, facts, anchor, names(jobs.name.tolist()))
    train = _Trainer(columns, feature_types(jobs), truth - anchor, settings)

    known = np.flatnonzero(facts[:, _COUNT] > 0)
    cut = int(len(known) * (1 - HOLD_OUT))
    learn, check = known[:cut], known[cut:]
    choice, tables, validated = Choice("user median"), None, anchor
    if len(learn) >= FEWEST_JOBS // 2 and len(check) > 1:
        choice, corrections = _choose(train, learn, check, facts, anchor, truth, jobs)
        validated = anchor.copy()
        validated[check] += corrections
        if choice.weight:
            tables = train(known, train.wide if choice.name.startswith("wide") else train.habit)
    new_user_tables, new_user_weight = _new_users(
        train, jobs, truth - np.where(np.isnan(facts[:, _DEMAND]), default, facts[:, _DEMAND])
    )
    residuals = (truth - validated)[check] / scale_of(facts[check, _SPREAD])
    return DurationModel(
        choice=choice,
        tables=tables,
        new_user_tables=new_user_tables,
        new_user_weight=new_user_weight,
        names=names,
        interval=IntervalTracker(residuals.tolist()),
        default_log=default,
        trained_jobs=len(jobs),
    )


def rank_correlation(left: FloatArray, right: FloatArray) -> float:
    """Spearman's rank correlation with ties at their mean rank; 0 where one side is constant."""
    a, b = _ranks(left), _ranks(right)
    spread = float(a.std() * b.std())
    return float(((a - a.mean()) * (b - b.mean())).mean()) / spread if spread > 0 else 0.0


class _Trainer:
    """Fits additive tables of the log-ratio `target` on chosen rows and features."""

    def __init__(
        self, columns: Columns, types: Mapping[str, str], target: FloatArray, settings: FitSettings
    ) -> None:
        self.columns = columns
        self._types = types
        self._target = np.clip(target, -MOST_LOG, MOST_LOG)
        self._settings = settings
        self.habit = [name for name in types if name in HABIT_FEATURES]
        self.wide = list(types)

    def __call__(
        self,
        rows: Any,
        features: Sequence[str],
        target: FloatArray | None = None,
        weight: FloatArray | None = None,
    ) -> AdditiveModel | None:
        """Tables minimising the absolute error, or None where no feature varies."""
        target = self._target if target is None else target
        some = {name: self.columns[name][rows] for name in features}
        some = {name: column for name, column in some.items() if _varies(column)}
        if not some:
            return None
        base = np.ones(len(rows)) if weight is None else weight[rows] / weight[rows].mean()
        weights, tables = base, None
        for _ in range(_IRLS_ROUNDS):
            # Iteratively reweighted least squares: squared error weighted by 1/|residual| is absolute error.
            # (Interpret's pseudo-Huber objective diverges on these tails when its delta is small.)
            tables = self._boost(some, target[rows], weights)
            weights = base / np.maximum(np.abs(target[rows] - tables.score(some)), _IRLS_FLOOR)
            weights = weights / weights.mean()
        return tables

    def _boost(self, columns: Columns, target: FloatArray, weights: FloatArray) -> AdditiveModel:
        import pandas as pd
        from interpret.glassbox import ExplainableBoostingRegressor

        wide = len(columns) > len(HABIT_FEATURES)
        wanted = {name: sign for name, sign in self._settings.monotone.items() if name in columns}
        ebm = ExplainableBoostingRegressor(
            feature_types=[self._types[name] for name in columns],
            interactions=self._settings.pairs if wide and not wanted else 0,
            outer_bags=2,
            max_bins=32,
            max_interaction_bins=16,
            max_rounds=150,
            learning_rate=0.05,
            min_samples_leaf=20,
            early_stopping_rounds=20,
            n_jobs=self._settings.n_jobs,
            random_state=self._settings.seed,
        )
        with warnings.catch_warnings():
            # Our tables keep the bin of missing values, which interpret's own plots would leave out.
            warnings.filterwarnings("ignore", message="Missing values detected")
            ebm.fit(pd.DataFrame(dict(columns)), target, sample_weight=weights)
        for name, sign in wanted.items():
            ebm.monotonize(name, increasing=sign > 0)  # isotonic regression by PAV on the fitted shape
        return from_ebm(ebm)


def _choose(
    train: _Trainer,
    learn: Any,
    check: Any,
    facts: FloatArray,
    anchor: FloatArray,
    truth: FloatArray,
    jobs: JobTable,
) -> tuple[Choice, FloatArray]:
    """The best candidate on the rows `check` and its corrections there."""
    trend = facts[check, _TREND] - anchor[check]
    candidates = [
        (Choice("user median"), np.zeros(len(check))),
        (
            Choice("user median and trend", trend=TREND_WEIGHT),
            np.clip(TREND_WEIGHT * trend, -MOST_LOG, MOST_LOG),
        ),
    ]
    for name, features in (("habit", train.habit), ("wide", train.wide)):
        tables = train(learn, features)
        if tables is None:
            continue
        score = tables.score({feature: train.columns[feature][check] for feature in tables.features})
        candidates += [
            (
                Choice(f"{name} model × {weight:g}", weight=weight),
                np.clip(weight * score, -MOST_LOG, MOST_LOG),
            )
            for weight in WEIGHTS
        ]
    losses = [_losses(anchor[check] + shift, truth[check], jobs.limit_s[check]) for _, shift in candidates]
    scores = [_relative(loss, losses[0]) for loss in losses]
    best = int(np.argmin(scores))
    table = {choice.name: round(score, 6) for (choice, _), score in zip(candidates, scores, strict=True)}
    chosen = candidates[best][0]
    return Choice(chosen.name, chosen.trend, chosen.weight, table), candidates[best][1]


def _losses(point: FloatArray, truth: FloatArray, limit_s: FloatArray) -> FloatArray:
    """Mean log error, mean absolute error in seconds, lost rank correlation."""
    point_s, truth_s = np.fmin(from_log(point), limit_s), from_log(truth)
    return np.array(
        [
            np.abs(to_log(point_s) - truth).mean(),
            np.abs(point_s - truth_s).mean(),
            1.0 - rank_correlation(point_s, truth_s),
        ]
    )


def _relative(losses: FloatArray, reference: FloatArray) -> float:
    ratio = losses / np.maximum(reference, 1e-12)
    # Twice as bad is a finite way of saying never; it keeps the table of scores plain numbers.
    return float(ratio.mean()) if ratio[1] <= 1 + _TOLERANCE else max(float(ratio.mean()), 2.0)


def _new_users(train: _Trainer, jobs: JobTable, ratio: FloatArray) -> tuple[AdditiveModel | None, float]:
    """Tables of `ratio`, log(duration / demand mean), by request alone, if they help users left out of training.

    Every user counts alike, whoever submitted how many jobs: the next new user is one more user, not one more
    job of a busy one.
    """
    target = np.clip(ratio, -MOST_LOG, MOST_LOG)
    users, user = np.unique(np.array([str(name) for name in jobs.user]), return_inverse=True)
    if len(users) < 3 * _NEW_USER_FOLDS:
        return None, 0.0
    rows = np.concatenate([np.flatnonzero(user == number)[-_NEW_USER_JOBS:] for number in range(len(users))])
    weight = 1.0 / np.maximum(np.bincount(user[rows], minlength=len(users)), 1)[user]
    gains = np.zeros(len(users))
    for fold in range(_NEW_USER_FOLDS):
        out = user[rows] % _NEW_USER_FOLDS == fold
        tables = (
            train(rows[~out], REQUEST_FEATURES, target, weight) if (~out).sum() >= FEWEST_JOBS // 2 else None
        )
        if tables is None:
            return None, 0.0
        score = tables.score({name: train.columns[name][rows[out]] for name in tables.features})
        gain = np.abs(target[rows[out]]) - np.abs(target[rows[out]] - _NEW_USER_WEIGHT * score)
        gains += np.bincount(user[rows[out]], weights=gain * weight[rows[out]], minlength=len(users))
    if gains.mean() <= 0:
        return None, 0.0
    return train(rows, REQUEST_FEATURES, target, weight), _NEW_USER_WEIGHT


def _check(jobs: JobTable, settings: FitSettings) -> None:
    known = feature_types(jobs)
    for name, sign in settings.monotone.items():
        if known.get(name) != "continuous" or sign not in (-1, 1):
            numeric = ", ".join(name for name, kind in known.items() if kind == "continuous")
            raise ModelError(
                f"monotone constraint {name}={sign}: give +1 or -1 for one of the ordered features {numeric}"
            )
    try:
        import interpret.glassbox  # noqa: F401
    except ImportError as error:
        raise ModelError(
            f"training needs the extra 'models' ({error}); pip install 'lucid-scheduler[models]'"
        ) from error


def _varies(column: Any) -> bool:
    values = column[~np.isnan(column)] if column.dtype != object else column
    return len(set(values.tolist())) > 1


def _ranks(values: FloatArray) -> FloatArray:
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return np.asarray((last - (counts - 1) / 2.0)[inverse], dtype=np.float64)
