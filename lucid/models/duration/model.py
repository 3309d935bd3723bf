"""The duration model: the running median of a job's user, or an estimate that proved better on this user's jobs.

The estimate of a job, on the scale ``log(seconds + 10)``, is a sum that can be read:

    median + share × (champion - median) + share × weight × (intercept + f_1(x_1) + f_2(x_2) + ...)

The anchor is the median of the user's finished jobs. The champion is that statistic of the user's jobs (the latest,
those with the same request, those with such a name) which has estimated this user's jobs best so far. The sum at the
end is a small additive model (GA²M) of the log-ratio to the median, trained with an absolute-error loss. Which of
them serves, with which shares, is decided per user and job by job, by the record of each on this user's jobs
(`lucid.models.duration.gate`). The median serves wherever nothing has proved better, and the estimate says so. A user
without any job gets the median of the users who had jobs near the requested time limit, else the mean (of logs, so a
geometric mean) of jobs with the same GPU demand.

This module imports neither sklearn nor interpret; loading and predicting are numpy and JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Self

import numpy as np
from msgspec import Meta, field

from lucid.core.prediction import DurationTerms, Term
from lucid.models.additive import AdditiveModel
from lucid.models.duration.estimate import (
    COUNT,
    DECILES,
    DEMAND,
    NEAR,
    NEAR_USERS,
    Choice,
    Estimates,
    anchor_log,
    measured,
)
from lucid.models.duration.features import (
    FACT_NAMES,
    LOG_OFFSET_S,
    NameBuckets,
    feature_columns,
    from_log,
    profile_columns,
    to_log,
)
from lucid.models.duration.gate import OPTION_WEIGHTS, STATISTICS, SUMS, IntervalTracker, scale_of
from lucid.models.duration.history import DurationHistory
from lucid.models.duration.jobtable import FloatArray, JobTable, TextArray
from lucid.models.library import StoredModel

_EARLIER: Final = ("lucid-duration/2", "lucid-duration/3")
MOST_LOG: Final = 3.0
"""A correction multiplies or divides an anchor by at most e to this (some twenty-fold)."""


_CHAMPION, _BEST, _OPTION, _RATIO, _JUDGED = (
    FACT_NAMES.index(name) for name in ("champion", "champion_number", "option", "option_ratio", "judged")
)
_WEIGHTS: Final = np.array(OPTION_WEIGHTS)
_WORDS: Final = {
    "user_median": "user median",
    "user_median11": "median of the user's last 11",
    "request_median": "request median",
    "request_median11": "median of the request's last 11",
    "name_median": "name median",
    "name_median3": "median of the name's last 3",
}


class DurationModel(StoredModel, frozen=True, tag="lucid-duration/4"):
    """A fitted model; `default_log` is the estimate while no job has finished.

    `records` hold for each user how each estimate has done on jobs that ended until `learned_until_s`, the tables on
    jobs they had not learned from; a history that serves this model goes on from them (`history`).

    `profiled_tables` correct the estimates of profiled jobs further, by their measurements."""

    choice: Choice
    tables: AdditiveModel | None
    names: NameBuckets
    interval: IntervalTracker
    default_log: float
    trained_jobs: int
    records: Mapping[str, Sequence[float]] = field(default_factory=dict)
    learned_until_s: float | None = None
    profiled_tables: AdditiveModel | None = None
    profiled_weight: float = 0.0
    log_offset_s: Annotated[float, Meta(ge=LOG_OFFSET_S, le=LOG_OFFSET_S)] = LOG_OFFSET_S

    def __post_init__(self) -> None:
        if any(len(sums) != SUMS or min(sums) < 0 for sums in self.records.values()):
            raise ValueError(f"a record is not {SUMS} numbers from zero up")

    @classmethod
    def untrained(cls) -> DurationModel:
        """A model without tables; it estimates an hour where nothing has finished yet."""
        return cls(Choice(), None, NameBuckets(), IntervalTracker(), float(to_log(3600.0)), 0)

    def serve(self, history: DurationHistory) -> DurationHistory:
        """Let `history` judge this model's tables too, beginning with the records of training; returns `history`."""
        history.judge(
            self.said if self.tables is not None else None,
            self.records,
            -math.inf if self.learned_until_s is None else self.learned_until_s,
        )
        return history

    def said(self, jobs: JobTable, facts: FloatArray) -> FloatArray:
        """The estimates of the tables alone for jobs of users with a history, logs, shape (n,)."""
        anchor = anchor_log(facts, self.default_log)
        if self.tables is None:
            return anchor
        columns = feature_columns(jobs, facts, anchor, self.names(jobs.name.tolist()))
        score = self.choice.weight * self.tables.score({name: columns[name] for name in self.tables.features})
        return np.asarray(anchor + np.clip(score, -MOST_LOG, MOST_LOG), dtype=np.float64)

    def predict(self, jobs: JobTable, history: DurationHistory) -> Estimates:
        """Estimates of all jobs, by what `history` knows now."""
        return self.predict_facts(jobs, history.facts(jobs))

    def predict_facts(self, jobs: JobTable, facts: FloatArray) -> Estimates:
        """Estimate from facts looked up before (`DurationHistory.facts` or `replay`), shape (n, facts)."""
        point = self.point_log(jobs, facts)
        scale = scale_of(point, facts[:, DECILES[0]], facts[:, DECILES[1]])
        low, high = self.interval.bounds(point, scale, jobs.limit_s)
        point_s = np.fmin(from_log(point), jobs.limit_s)
        return Estimates(
            point_s,
            np.minimum(low, point_s),
            np.maximum(high, point_s),
            self._source(facts),
            scale,
        )

    def point_log(self, jobs: JobTable, facts: FloatArray) -> FloatArray:
        """log(estimate + 10) before the limit caps it, shape (n,)."""
        point = anchor_log(facts, self.default_log)
        known = np.flatnonzero(facts[:, COUNT] > 0)
        if not len(known):
            return point
        shares = _WEIGHTS[facts[known, _OPTION].astype(int)]
        median = point[known]
        point[known] = median + shares[:, 1] * (facts[known, _CHAMPION] - median)
        rows = shares[:, 2] > 0
        if self.tables is not None and rows.any():
            there = known[rows]
            point[there] += shares[rows, 2] * (self.said(jobs.select(there), facts[there]) - median[rows])
        there = known[measured(jobs)[known]]
        if self.profiled_tables is not None and self.profiled_weight and len(there):
            score = self.profiled_weight * self.profiled_tables.score(profile_columns(jobs.select(there)))
            point[there] += np.clip(score, -MOST_LOG, MOST_LOG)
        return point

    def explain_facts(self, job: JobTable, facts: FloatArray, ran_s: float = 0.0) -> tuple[float, str, DurationTerms]:
        """The estimate of the one job of `job` in seconds, its source and its terms, from facts looked up before,
        shape (1, facts); this is how one job is estimated.

        For a job known to have run `ran_s` seconds without ending, the estimate is that time and what is left of such
        jobs (`IntervalTracker.remaining_s`); a last term carries the difference."""
        anchors = anchor_log(facts, self.default_log)
        anchor, known = float(anchors[0]), bool(facts[0, COUNT] > 0)
        source = str(self._source(facts)[0])
        terms = [Term(*self._anchor_words(job, facts), anchor)]
        intercept, total = 0.0, float(self.point_log(job, facts)[0])
        _, champion_share, share = OPTION_WEIGHTS[int(facts[0, _OPTION])] if known else (1.0, 0.0, 0.0)
        if champion_share and (best := int(facts[0, _BEST])):
            beside = float(facts[0, _CHAMPION]) - anchor
            terms.append(Term(f"best {STATISTICS[best]}", f"{beside:.3g}", champion_share * beside))
        if self.tables is not None and share:
            share *= self.choice.weight
            columns = feature_columns(job, facts, anchors, self.names(job.name.tolist()))
            intercept = share * self.tables.intercept
            row = {name: columns[name][0] for name in self.tables.features}
            terms += [Term(t.name, t.value, share * t.score) for t in self.tables.explain_one(row)]
        if (tables := self.profiled_tables) is not None and self.profiled_weight and known and measured(job)[0]:
            columns = profile_columns(job)
            intercept += self.profiled_weight * tables.intercept
            seen = tables.explain_one({name: columns[name][0] for name in tables.features})
            terms += [Term(f"measured {t.name}", t.value, self.profiled_weight * t.score) for t in seen]
        beyond = total - anchor - intercept - math.fsum(term.score for term in terms[1:])
        if abs(beyond) > 1e-9:
            terms.append(Term("bound on corrections", f"×{math.exp(MOST_LOG):.0f}", beyond))
        free = float(from_log(total))
        estimate = float(np.fmin(free, job.limit_s[0]))
        score = float(to_log(estimate)) if estimate < free else total
        if score != total:
            terms.append(Term("requested limit", f"{job.limit_s[0]:.0f} s", score - total))
        point = np.array([total])
        scale = scale_of(point, facts[:, DECILES[0]], facts[:, DECILES[1]])
        low, high = (float(bound[0]) for bound in self.interval.bounds(point, scale, job.limit_s))
        if ran_s > 0.0:
            left = self.interval.remaining_s(np.array([estimate]), scale, job.limit_s, np.array([ran_s]))
            estimate, low = ran_s + float(left[0]), max(low, ran_s)
            terms.append(Term("time run so far", f"{ran_s:.0f} s", float(to_log(estimate)) - score))
            score = float(to_log(estimate))
        high_s = max(high, estimate) if math.isfinite(high) else None
        told = DurationTerms(intercept, tuple(terms), score, LOG_OFFSET_S, min(low, estimate), high_s)
        return estimate, source + self._why(facts), told

    @classmethod
    def from_json(cls, data: object, *, source: str = "duration model") -> Self:
        """As of any model. Records of an earlier format lack what tables have to prove now, so its tables are left
        out."""
        if isinstance(data, dict) and data.get("format") in _EARLIER:
            kept = {key: value for key, value in data.items() if key in ("interval", "default_log", "trained_jobs")}
            untrained: dict[str, Any] = {"choice": {}, "tables": None, "names": {}}
            return super().from_json({**untrained, **kept}, source=source)
        return super().from_json(data, source=source)

    def _anchor_words(self, job: JobTable, facts: FloatArray) -> tuple[str, str]:
        source = str(self._source(facts)[0])
        if source == "near limit":
            return source, f"{facts[0, NEAR_USERS]:.0f} users"
        if facts[0, COUNT] <= 0:
            return source, f"{job.gpus[0]:.0f} GPUs"
        return "user median", f"{facts[0, COUNT]:.0f} jobs"

    def _source(self, facts: FloatArray) -> TextArray:
        """What serves each job: statistics, the model, or a substitute for a new user; shape (n,)."""
        known, near = facts[:, COUNT] > 0, ~np.isnan(facts[:, NEAR])
        sources = np.where(np.isnan(facts[:, DEMAND]), "default", "demand mean").astype(object)
        sources[near] = "near limit"
        kinds = np.where(known, facts[:, _OPTION] * len(STATISTICS) + facts[:, _BEST], -1)
        for kind in np.unique(kinds[known]).astype(int).tolist():
            option, best = divmod(kind, len(STATISTICS))
            _, champion, tables = OPTION_WEIGHTS[option]
            names = [_WORDS["user_median"]] if champion + tables < 1.0 else []
            shares = ((_WORDS[STATISTICS[best]], champion), (self.choice.name, tables))
            names += [name for name, share in shares if share > 0]
            sources[kinds == kind] = " and ".join(dict.fromkeys(names))
        return sources

    def _why(self, facts: FloatArray) -> str:
        """Why this serves the user of the one job, as a comparison."""
        if not facts[0, COUNT] > 0:
            return ""
        jobs = f"{facts[0, _JUDGED]:.0f} of the user's jobs"
        if int(facts[0, _OPTION]):
            return f" (its error was {facts[0, _RATIO]:.2f} of the user median's on {jobs})"
        return f" (nothing has proved better on {jobs})" if facts[0, _JUDGED] else ""
