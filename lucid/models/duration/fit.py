"""Training of the duration model: absolute-error additive tables, and what of them may be used.

Two additive models are candidates. "Habit" sees only how the user's latest and most similar jobs compare with
the anchor; "wide" sees everything known at submission. They are validated prequentially on finished jobs in
order of their ends: trained on the first half and checked on the next quarter, then trained on three quarters
and checked on the last. No job is judged by a model that learned from it, nor seen other than it stood at its
submission.

The habit model at full weight is what is used unless the evidence speaks for another candidate (half the
weight, none at all, or the wide model at half): its loss must be lower over the checked stretches by three
standard errors of the paired differences. Choosing the lowest loss outright follows each passing regime of a
cluster and did worse than any fixed choice, since the regime had usually changed by the time it was chosen.

Jobs that were profiled are a choice of their own: they lived long enough to be. What was measured of them corrects
the estimates that they had at submission, in tables trained on such jobs alone, if later ones evidently gain by it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import numpy as np

from lucid.errors import ModelError
from lucid.models.additive import AdditiveModel
from lucid.models.duration.anchor import ANCHORS, COUNT, DECILES, DEMAND, anchor_log, measured
from lucid.models.duration.estimate import Choice, FitSettings
from lucid.models.duration.features import (
    REQUEST_FEATURES,
    feature_columns,
    feature_types,
    from_log,
    profile_columns,
    replay,
    to_log,
)
from lucid.models.duration.intervals import IntervalTracker, residual, scale_of
from lucid.models.duration.jobtable import PROFILE_COLUMNS, FloatArray, JobTable
from lucid.models.duration.model import MOST_LOG, DurationModel
from lucid.models.duration.names import NameBuckets
from lucid.models.duration.tables import IntArray, TableTrainer

__all__ = ["fit", "rank_correlation", "relative_loss"]

FEWEST_JOBS: Final = 100
FEWEST_OF_USER: Final = 20
# Shares of the finished jobs: trained on up to the first, checked up to the second.
FOLDS: Final = ((0.5, 0.75), (0.75, 1.0))
_STRETCHES: Final = 10
_FEWEST_IN_STRETCH: Final = 5
_STANDARD_ERRORS: Final = 3.0
_CANDIDATES: Final = (("habit", 1.0), ("habit", 0.5), ("", 0.0), ("wide", 0.5))
_NEW_USER_WEIGHT: Final = 0.5
_NEW_USER_FOLDS: Final = 3
_NEW_USER_JOBS: Final = 200


def fit(jobs: JobTable, settings: FitSettings) -> DurationModel:
    """Train on the jobs of `jobs` that have a duration; with fewer than a hundred, the fallback alone.

    Raises:
        ModelError: the training libraries are not installed, or `settings` names no known feature.
    """
    _check(settings)
    ended = np.isfinite(jobs.duration_s) & np.isfinite(jobs.end_s)
    if int(ended.sum()) < FEWEST_JOBS:
        return DurationModel.untrained()
    facts = replay(jobs)[ended]
    jobs = jobs.take(ended)
    by_end = np.argsort(jobs.end_s, kind="stable")[-settings.most_jobs :]
    jobs, facts = jobs.take(by_end), facts[by_end]
    truth = to_log(jobs.duration_s)
    default = float(truth.mean())
    which = _choose_anchor(facts, truth, jobs.limit_s, default)
    anchor = anchor_log(facts, default, which)
    names = NameBuckets.fit(jobs.name.tolist())
    columns = {**feature_columns(jobs, facts, anchor, names(jobs.name.tolist())), **profile_columns(jobs)}
    train = TableTrainer(columns, feature_types(), truth - anchor, settings)

    known = np.flatnonzero(facts[:, COUNT] > 0)
    choice, tables = Choice("user median", anchor=which), None
    checked, point = np.empty(0, dtype=np.intp), anchor
    if len(known) >= FEWEST_JOBS:
        choice, checked, corrections = _choose(train, known, anchor, truth, jobs)
        choice = replace(choice, anchor=which)
        point = anchor.copy()
        point[checked] += corrections
        if choice.weight:
            tables = train(known, train.features[choice.name.split()[0]])
    new_user_tables, new_user_weight = _new_users(
        train, jobs, truth - np.where(np.isnan(facts[:, DEMAND]), default, facts[:, DEMAND])
    )
    profiled_tables, profiled_weight = _profiled(train, checked[measured(jobs)[checked]], point, truth, jobs.limit_s)
    deciles = facts[checked][:, list(DECILES)]
    scale = scale_of(point[checked], deciles[:, 0], deciles[:, 1])
    residuals = residual(truth[checked], point[checked], scale)
    return DurationModel(
        choice=choice,
        tables=tables,
        new_user_tables=new_user_tables,
        new_user_weight=new_user_weight,
        names=names,
        interval=IntervalTracker(residuals.tolist(), float(jobs.duration_s.max())),
        default_log=default,
        trained_jobs=len(jobs),
        users=_well_known(jobs, known),
        profiled_tables=profiled_tables,
        profiled_weight=profiled_weight,
    )


def rank_correlation(left: FloatArray, right: FloatArray) -> float:
    """Spearman's rank correlation with ties at their mean rank; 0 where one side is constant."""
    a, b = _ranks(left), _ranks(right)
    spread = float(a.std() * b.std())
    return float(((a - a.mean()) * (b - b.mean())).mean()) / spread if spread > 0 else 0.0


def _choose(
    train: TableTrainer, known: IntArray, anchor: FloatArray, truth: FloatArray, jobs: JobTable
) -> tuple[Choice, IntArray, FloatArray]:
    """What to use, the rows it was checked on, and its corrections there."""
    losses: dict[str, list[float]] = {_label(*candidate): [] for candidate in _CANDIDATES}
    corrections: dict[str, list[FloatArray]] = {label: [] for label in losses}
    for trained_to, checked_to in FOLDS:
        cut, end = int(len(known) * trained_to), int(len(known) * checked_to)
        learn, check = known[:cut], known[cut:end]
        scores = {"": np.zeros(len(check))}
        trusted = _well_known(jobs, learn)
        for name, features in train.features.items():
            scores[name] = train.score(train(learn, features), check)
            scores[name][[user not in trusted for user in jobs.user[check].tolist()]] = 0.0
        for name, weight in _CANDIDATES:
            shift = np.clip(weight * scores[name], -MOST_LOG, MOST_LOG)
            corrections[_label(name, weight)].append(shift)
            losses[_label(name, weight)] += [
                relative_loss(anchor[rows], shift[part], truth[rows], jobs.limit_s[rows])
                for part in np.array_split(np.arange(len(check)), _STRETCHES)
                if len(part) >= _FEWEST_IN_STRETCH
                for rows in (check[part],)
            ]
    table = {label: np.array(values) for label, values in losses.items()}
    chosen = _evident(table)
    weights = {_label(name, weight): weight for name, weight in _CANDIDATES}
    choice = Choice(
        chosen, weights[chosen], {label: round(float(v.mean()), 6) for label, v in table.items() if len(v)}
    )
    rows = np.concatenate([known[int(len(known) * low) : int(len(known) * high)] for low, high in FOLDS])
    return choice, rows, np.concatenate(corrections[chosen])


def _choose_anchor(facts: FloatArray, truth: FloatArray, limit_s: FloatArray, default: float) -> str:
    """Which median to start from, over the later half of the known users' jobs; nothing is trained for it, so
    each job is judged by what was known when it was submitted. The user's unless the other is evidently better."""
    known = np.flatnonzero(facts[:, COUNT] > 0)
    later = known[len(known) // 2 :]
    user, request = (anchor_log(facts[later], default, anchor) for anchor in ANCHORS)
    parts = [
        part for part in np.array_split(np.arange(len(later)), 2 * _STRETCHES) if len(part) >= _FEWEST_IN_STRETCH
    ]
    losses = [
        relative_loss(user[part], (request - user)[part], truth[later[part]], limit_s[later[part]]) for part in parts
    ]
    return _evident({"user": np.ones(len(losses)), "request": np.array(losses)})


def _well_known(jobs: JobTable, rows: IntArray) -> frozenset[str]:
    """Users with enough jobs among `rows` for tables trained on these to be used on them."""
    counts = Counter(jobs.user[rows].tolist())
    return frozenset(user for user, count in counts.items() if user is not None and count >= FEWEST_OF_USER)


def _evident(table: Mapping[str, FloatArray]) -> str:
    """The first candidate, or the best of the candidates that are clearly better."""
    default, *others = table
    best = default
    if len(table[default]) < 2:
        return default  # too few jobs of known users to check anything by
    for label in others:
        gain = table[default] - table[label]
        error = float(gain.std(ddof=1)) / np.sqrt(len(gain))
        if float(gain.mean()) > _STANDARD_ERRORS * error and table[label].mean() < table[best].mean():
            best = label
    return best


def _label(name: str, weight: float) -> str:
    return f"{name} model × {weight:g}" if name else "user median"


def relative_loss(anchor: FloatArray, shift: FloatArray, truth: FloatArray, limit_s: FloatArray) -> float:
    """Log error and absolute error (seconds) of anchor + shift, each relative to the anchor's; their mean."""
    truth_s = from_log(truth)
    log_error, error_s = [], []
    for point in (anchor + shift, anchor):
        point_s = np.fmin(from_log(point), limit_s)
        log_error.append(float(np.abs(to_log(point_s) - truth).mean()))
        error_s.append(float(np.abs(point_s - truth_s).mean()))
    return 0.5 * (log_error[0] / max(log_error[1], 1e-9) + error_s[0] / max(error_s[1], 1e-9))


def _new_users(train: TableTrainer, jobs: JobTable, ratio: FloatArray) -> tuple[AdditiveModel | None, float]:
    """Tables by request of `ratio`, log(duration / demand mean), if they help users left out of training.

    Every user counts equally, regardless of the number of jobs: the next new user is one more user, not one more
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
        tables = train(rows[~out], REQUEST_FEATURES, target, weight) if (~out).sum() >= FEWEST_JOBS // 2 else None
        if tables is None:
            return None, 0.0
        score = train.score(tables, rows[out])
        gain = np.abs(target[rows[out]]) - np.abs(target[rows[out]] - _NEW_USER_WEIGHT * score)
        gains += np.bincount(user[rows[out]], weights=gain * weight[rows[out]], minlength=len(users))
    if gains.mean() <= 0:
        return None, 0.0
    return train(rows, REQUEST_FEATURES, target, weight), _NEW_USER_WEIGHT


def _profiled(
    train: TableTrainer, rows: IntArray, point: FloatArray, truth: FloatArray, limit_s: FloatArray
) -> tuple[AdditiveModel | None, float]:
    """Tables by measurement of log(duration / estimate), where later jobs evidently gain by them.

    `rows`, in order of their ends, were profiled, and `point` estimates them by a model that had not seen them. That
    they lived to be profiled makes all of them longer than their estimates; the caller knows how long one has
    run and handles this (`IntervalTracker.remaining_s`). So the tables only say how measured jobs differ from each
    other.
    """
    features = (*PROFILE_COLUMNS, "gpus")
    if len(rows) < FEWEST_JOBS:
        return None, 0.0
    half = len(rows) // 2
    later = rows[half:]
    longer = float(np.median((truth - point)[rows[:half]]))
    target = np.clip(truth - point - longer, -MOST_LOG, MOST_LOG)
    shift = train.score(train(rows[:half], features, target), later)
    losses = [
        relative_loss(longer + point[later[part]], shift[part], truth[later[part]], limit_s[later[part]])
        for part in np.array_split(np.arange(len(later)), _STRETCHES)
        if len(part) >= _FEWEST_IN_STRETCH
    ]
    if _evident({"": np.ones(len(losses)), "measured": np.array(losses)}) == "":
        return None, 0.0
    target = np.clip(truth - point - float(np.median((truth - point)[rows])), -MOST_LOG, MOST_LOG)
    return train(rows, features, target), 1.0


def _check(settings: FitSettings) -> None:
    known = feature_types()
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


def _ranks(values: FloatArray) -> FloatArray:
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return np.asarray((last - (counts - 1) / 2.0)[inverse], dtype=np.float64)
