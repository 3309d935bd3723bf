"""Training of the duration model: additive tables with an absolute-error loss, and every user's record.

Two additive models are candidates. "Habit" sees only how the user's latest and most similar jobs compare with the
median; "wide" sees everything known at submission. They are validated prequentially: trained on the first quarter of
the finished jobs in order of their ends and checked on jobs submitted later, then trained on the first half, and so
on. No job is judged by a model that learned from it, nor seen other than it stood at its submission.

Habit is trained for use unless wide is evidently better: its loss must be lower over the checked stretches by three
standard errors of the paired differences. That either is used for a user's jobs must be proved on this user's jobs:
the answers of the tables in validation go into the user's record, beside the median and the other statistics
(`lucid.models.duration.gate`).

Jobs that were profiled have a choice of their own, since they lived long enough to be. Their measurements correct the
estimates that they had at submission, in tables trained on such jobs alone, if later ones evidently gain by it."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from lucid.errors import ModelError
from lucid.models.additive import AdditiveModel, from_ebm
from lucid.models.duration.estimate import COUNT, DECILES, Choice, anchor_log, measured
from lucid.models.duration.features import (
    FACT_NAMES,
    HABIT_FEATURES,
    NameBuckets,
    feature_columns,
    feature_types,
    from_log,
    profile_columns,
    to_log,
)
from lucid.models.duration.gate import OPTION_WEIGHTS, IntervalTracker, residual, scale_of
from lucid.models.duration.history import DurationHistory
from lucid.models.duration.jobtable import PROFILE_COLUMNS, FloatArray, JobTable
from lucid.models.duration.model import MOST_LOG, DurationModel
from lucid.models.ranking import ranks_of

_IRLS_ROUNDS: Final = 3
_IRLS_FLOOR: Final = 0.1

Columns = Mapping[str, Any]
IntArray = npt.NDArray[np.intp]


class TableTrainer:
    """Fits additive tables of the log-ratio `target` on chosen rows and features."""

    def __init__(self, columns: Columns, types: Mapping[str, str], target: FloatArray) -> None:
        self.columns = columns
        self._types = {**types, **dict.fromkeys(PROFILE_COLUMNS, "continuous")}
        self._target = np.clip(target, -MOST_LOG, MOST_LOG)
        self.features = {"habit": HABIT_FEATURES, "wide": tuple(types)}

    def __call__(
        self,
        rows: IntArray,
        features: Sequence[str],
        target: FloatArray | None = None,
        weight: FloatArray | None = None,
    ) -> AdditiveModel | None:
        """Tables minimising the absolute error, or None where no feature varies."""
        target = self._target if target is None else target
        some = {name: self.columns[name][rows] for name in self._types if name in features}
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

    def score(self, tables: AdditiveModel | None, rows: IntArray) -> FloatArray:
        """The addends of `tables` on `rows`; zeros where there are no tables."""
        if tables is None:
            return np.zeros(len(rows))
        return tables.score({name: self.columns[name][rows] for name in tables.features})

    def _boost(self, columns: Columns, target: FloatArray, weights: FloatArray) -> AdditiveModel:
        import pandas as pd
        from interpret.glassbox import ExplainableBoostingRegressor

        ebm = ExplainableBoostingRegressor(
            feature_types=[self._types[name] for name in columns],
            interactions=0,
            outer_bags=4,
            max_bins=32,
            max_rounds=150,
            learning_rate=0.02,
            min_samples_leaf=20,
            early_stopping_rounds=20,
            n_jobs=1,
            random_state=0,
        )
        with warnings.catch_warnings():
            # Our tables keep the bin of missing values, which interpret's own plots would leave out.
            warnings.filterwarnings("ignore", message="Missing values detected")
            ebm.fit(pd.DataFrame(dict(columns)), target, sample_weight=weights)
        return from_ebm(ebm)


def _varies(column: Any) -> bool:
    values = column[~np.isnan(column)] if column.dtype != object else column
    return len(set(values.tolist())) > 1


FEWEST_JOBS: Final = 100
_MOST_JOBS: Final = 100_000
_CHAMPION, _OPTION = FACT_NAMES.index("champion"), FACT_NAMES.index("option")
# Shares of the finished jobs: trained on up to the first, checked on jobs submitted from then to the second.
FOLDS: Final = ((0.25, 0.5), (0.5, 0.75), (0.75, 1.0))
_STRETCHES: Final = 10
_FEWEST_IN_STRETCH: Final = 5
_STANDARD_ERRORS: Final = 3.0
_CANDIDATES: Final = (("habit", 1.0), ("wide", 0.5))


def fit_durations(jobs: JobTable) -> DurationModel:
    """Train on the jobs of `jobs` that have a duration; with fewer than a hundred, the fallback alone.

    Raises:
        ModelError: the training libraries are not installed."""
    try:
        import interpret.glassbox  # noqa: F401
    except ImportError as error:
        raise ModelError(
            f"training needs the extra 'models' ({error}); pip install 'lucid-scheduler[models]'"
        ) from error
    ended = np.isfinite(jobs.duration_s) & np.isfinite(jobs.end_s)
    if int(ended.sum()) < FEWEST_JOBS:
        return DurationModel.untrained()
    jobs = jobs.select(ended)
    jobs = jobs.select(np.sort(np.argsort(jobs.end_s, kind="stable")[-_MOST_JOBS:]))
    history = DurationHistory()
    facts = history.replay(jobs)
    order = np.argsort(jobs.end_s, kind="stable")
    truth = to_log(jobs.duration_s)
    default = float(truth.mean())
    anchor = anchor_log(facts, default)
    names = NameBuckets.fit(jobs.name.tolist())
    columns = {**feature_columns(jobs, facts, anchor, names(jobs.name.tolist())), **profile_columns(jobs)}
    train = TableTrainer(columns, feature_types(), truth - anchor)

    known = order[facts[order, COUNT] > 0]
    choice, tables = Choice(), None
    said = np.full(len(jobs), np.nan)
    if len(known) >= FEWEST_JOBS:
        choice, correction = _choose(train, known, anchor, truth, jobs)
        said = anchor + correction
        tables = train(known, train.features[choice.name.split()[0]])
    history.judge(None, {}, -math.inf)
    facts = history.rejudge(jobs, facts, said)
    point = _issued(facts, anchor, said)
    checked = known[len(known) // 2 :]
    profiled_tables, profiled_weight = _profiled(train, checked[measured(jobs)[checked]], point, truth, jobs.limit_s)
    deciles = facts[checked][:, list(DECILES)]
    scale = scale_of(point[checked], deciles[:, 0], deciles[:, 1])
    residuals = residual(truth[checked], point[checked], scale)
    history.finish(jobs, said)
    return DurationModel(
        choice=choice,
        tables=tables,
        names=names,
        interval=IntervalTracker(residuals.tolist(), float(jobs.duration_s.max())),
        default_log=default,
        trained_jobs=len(jobs),
        records=history.records,
        learned_until_s=float(jobs.end_s.max()),
        profiled_tables=profiled_tables,
        profiled_weight=profiled_weight,
    )


def rank_correlation(left: FloatArray, right: FloatArray) -> float:
    """Spearman's rank correlation with ties at their mean rank; 0 where one side is constant."""
    a, b = ranks_of(left), ranks_of(right)
    spread = float(a.std() * b.std())
    return float(((a - a.mean()) * (b - b.mean())).mean()) / spread if spread > 0 else 0.0


def _choose(
    train: TableTrainer, known: IntArray, anchor: FloatArray, truth: FloatArray, jobs: JobTable
) -> tuple[Choice, FloatArray]:
    """The choice of tables to train, and the answers of every candidate's tables for every job, shape (n,): relative
    to the anchor, NaN for jobs before the first fold."""
    labels = {f"{name} model × {weight:g}": (name, weight) for name, weight in _CANDIDATES}
    losses: dict[str, list[float]] = {label: [] for label in labels}
    corrections = {label: np.full(len(jobs), np.nan) for label in labels}
    ends = jobs.end_s[known]
    for trained_to, checked_to in FOLDS:
        cut = int(len(known) * trained_to)
        from_s, to_s = ends[cut - 1], ends[int(len(known) * checked_to) - 1]
        submits = jobs.submit_s[known]
        check = known[(submits > from_s) & ((submits <= to_s) | (checked_to == 1.0))]
        for label, (name, weight) in labels.items():
            score = train.score(train(known[:cut], train.features[name]), check)
            shift = np.clip(weight * score, -MOST_LOG, MOST_LOG)
            corrections[label][check] = shift
            losses[label] += [
                relative_loss(anchor[rows], shift[part], truth[rows], jobs.limit_s[rows])
                for part in np.array_split(np.arange(len(check)), _STRETCHES)
                if len(part) >= _FEWEST_IN_STRETCH
                for rows in (check[part],)
            ]
    table = {label: np.array(values) for label, values in losses.items()}
    chosen = _evident(table)
    scores = {label: round(float(values.mean()), 6) for label, values in table.items() if len(values)}
    return Choice(chosen, labels[chosen][1], scores), corrections[chosen]


def _issued(facts: FloatArray, anchor: FloatArray, said: FloatArray) -> FloatArray:
    """The estimate that would have been issued for every job at its submission, logs, shape (n,)."""
    shares = np.array(OPTION_WEIGHTS)[facts[:, _OPTION].astype(int)]
    point = anchor + shares[:, 1] * np.nan_to_num(facts[:, _CHAMPION] - anchor)
    issued = point + shares[:, 2] * np.nan_to_num(said - anchor)
    return np.where(facts[:, COUNT] > 0, issued, anchor)


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


def relative_loss(anchor: FloatArray, shift: FloatArray, truth: FloatArray, limit_s: FloatArray) -> float:
    """The mean of log error and absolute error (seconds) of anchor + shift, each relative to the anchor's."""
    truth_s = from_log(truth)
    log_error, error_s = [], []
    for point in (anchor + shift, anchor):
        point_s = np.fmin(from_log(point), limit_s)
        log_error.append(float(np.abs(to_log(point_s) - truth).mean()))
        error_s.append(float(np.abs(point_s - truth_s).mean()))
    return 0.5 * (log_error[0] / max(log_error[1], 1e-9) + error_s[0] / max(error_s[1], 1e-9))


def _profiled(
    train: TableTrainer, rows: IntArray, point: FloatArray, truth: FloatArray, limit_s: FloatArray
) -> tuple[AdditiveModel | None, float]:
    """Tables of log(duration / estimate) by measurement, and their weight, where later jobs evidently gain by them.

    `rows`, in order of their ends, were profiled, and `point` estimates them by a model that had not seen them. That
    they lived to be profiled makes all of them longer than their estimates; the caller knows how long one has run and
    handles this (`IntervalTracker.remaining_s`). So the tables only say how measured jobs differ from each other."""
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
