"""The duration model: what a job's user tends to need, corrected by a small additive model (GA²M).

The estimate of a job, on the scale ``log(seconds + 10)``, is a sum that can be read:

    anchor + weight × (intercept + f_1(x_1) + f_2(x_2) + ...)

The anchor is the median of the user's finished jobs (or, on clusters where finished jobs show this to be clearly
better, of those with the same request); for a user without any, the mean (of logs, so a geometric mean) of jobs
with the same GPU demand. What the additive model learns is only the log-ratio to that
anchor, with an absolute-error loss, and with how much weight, if any, is decided on finished jobs that it was
not trained on (`lucid.models.duration.fit`). Where it does not help there, and for users it was not trained
on, the estimate IS the anchor, and says so.

This module imports neither sklearn nor interpret; loading and predicting are numpy and JSON.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from lucid.errors import ModelError
from lucid.models.additive import AdditiveModel, TermScore
from lucid.models.duration.anchor import (
    ANCHORS,
    COUNT,
    DECILES,
    DEMAND,
    REQUEST_COUNT,
    anchor_log,
    measured,
    of_request,
)
from lucid.models.duration.estimate import Choice, Estimates, Explanation, FitSettings
from lucid.models.duration.features import (
    LOG_OFFSET_S,
    DurationHistory,
    feature_columns,
    from_log,
    profile_columns,
    to_log,
)
from lucid.models.duration.intervals import IntervalTracker, scale_of
from lucid.models.duration.jobtable import FloatArray, JobTable, TextArray
from lucid.models.duration.names import NameBuckets

__all__ = ["DurationModel"]

FORMAT: Final = "lucid-duration/2"
MOST_LOG: Final = 3.0
"""A correction multiplies or divides an anchor by at most e to this (some twenty-fold)."""
_REMEDY: Final = "train the model again or restore an earlier version"


@dataclass(frozen=True)
class DurationModel:
    """A fitted model; `default_log` is the estimate while no job has finished.

    `users` are those whom the tables know well enough: what was learned from others' habits made estimates of
    a newcomer's jobs worse than the newcomer's own median, so anybody else is estimated by that alone.

    `profiled_tables` correct the estimates of profiled jobs further, by what was measured of them.
    """

    choice: Choice
    tables: AdditiveModel | None
    new_user_tables: AdditiveModel | None
    new_user_weight: float
    names: NameBuckets
    interval: IntervalTracker
    default_log: float
    trained_jobs: int
    users: frozenset[str] = frozenset()
    profiled_tables: AdditiveModel | None = None
    profiled_weight: float = 0.0

    @classmethod
    def untrained(cls) -> DurationModel:
        """The fallback alone: running medians and demand means, an hour where nothing has finished yet."""
        choice = Choice("user median")
        return cls(choice, None, None, 0.0, NameBuckets(), IntervalTracker(), float(to_log(3600.0)), 0)

    @classmethod
    def fit(cls, jobs: JobTable, settings: FitSettings | None = None) -> DurationModel:
        """Train on finished jobs, each seen as it was when submitted; imports sklearn and interpret.

        Raises:
            ModelError: the training libraries are not installed, or the settings are wrong.
        """
        from lucid.models.duration.fit import fit

        return fit(jobs, settings or FitSettings())

    def predict(self, jobs: JobTable, history: DurationHistory) -> Estimates:
        """Estimate every job from what `history` says now."""
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
            self._source(jobs, facts),
            scale,
            jobs.limit_s,
        )

    def point_log(self, jobs: JobTable, facts: FloatArray) -> FloatArray:
        """log(estimate + 10) before the limit caps it, shape (n,)."""
        anchor = self._anchor(facts)
        return np.asarray(anchor + self._correction(jobs, facts, anchor), dtype=np.float64)

    def remaining_s(self, estimates: Estimates, ran_s: FloatArray) -> FloatArray:
        """Expected (median) time left of jobs that have run `ran_s` seconds, shape (n,), seconds."""
        return self.interval.remaining_s(estimates.point_s, estimates.scale, estimates.limit_s, ran_s)

    def explain_facts(self, job: JobTable, facts: FloatArray, ran_s: float = 0.0) -> Explanation:
        """Why the one job of `job` is estimated as it is, from facts looked up before, shape (1, facts); this is also
        how one job is estimated.

        Of a job known to have run `ran_s` seconds without ending the estimate is that time and what is left of
        such jobs (`IntervalTracker.remaining_s`); a last term carries the difference.
        """
        anchors = self._anchor(facts)
        anchor, known = float(anchors[0]), bool(facts[0, COUNT] > 0)
        trained = bool(self._trained(job)[0])
        source = str(self._source(job, facts)[0])
        terms = [TermScore(*self._anchor_words(job, facts, source), anchor)]
        tables, weight = self._parts(known) if trained or not known else (None, 0.0)
        intercept = 0.0
        if tables is not None and weight:
            columns = feature_columns(job, facts, anchors, self.names(job.name.tolist()))
            intercept = weight * tables.intercept
            row = {name: columns[name][0] for name in tables.features}
            terms += [TermScore(t.term, t.value, weight * t.score) for t in tables.explain_one(row)]
        if (tables := self.profiled_tables) is not None and self.profiled_weight and known and measured(job)[0]:
            columns = profile_columns(job)
            intercept += self.profiled_weight * tables.intercept
            seen = tables.explain_one({name: columns[name][0] for name in tables.features})
            terms += [TermScore(f"measured {t.term}", t.value, self.profiled_weight * t.score) for t in seen]
        correction = intercept + math.fsum(term.score for term in terms[1:])
        bounded = min(max(correction, -MOST_LOG), MOST_LOG)
        if bounded != correction:
            terms.append(TermScore("bound on corrections", f"×{math.exp(MOST_LOG):.0f}", bounded - correction))
        total = anchor + bounded
        free = float(from_log(total))
        estimate = float(np.fmin(free, job.limit_s[0]))
        score = float(to_log(estimate)) if estimate < free else total
        if score != total:
            terms.append(TermScore("requested limit", f"{job.limit_s[0]:.0f} s", score - total))
        point = np.array([total])
        scale = scale_of(point, facts[:, DECILES[0]], facts[:, DECILES[1]])
        low, high = (float(bound[0]) for bound in self.interval.bounds(point, scale, job.limit_s))
        if ran_s > 0.0:
            left = self.interval.remaining_s(np.array([estimate]), scale, job.limit_s, np.array([ran_s]))
            estimate, low = ran_s + float(left[0]), max(low, ran_s)
            terms.append(TermScore("time run so far", f"{ran_s:.0f} s", float(to_log(estimate)) - score))
            score = float(to_log(estimate))
        return Explanation(score, intercept, tuple(terms), estimate, source, min(low, estimate), max(high, estimate))

    def to_json(self) -> dict[str, Any]:
        """The model as JSON-ready data; `from_json` gives an equal model back."""
        return {
            "format": FORMAT,
            "log_offset_s": LOG_OFFSET_S,
            "trained_jobs": self.trained_jobs,
            "default_log": self.default_log,
            "users": sorted(self.users),
            "choice": {
                "name": self.choice.name,
                "weight": self.choice.weight,
                "scores": dict(self.choice.scores),
                "anchor": self.choice.anchor,
            },
            "tables": self.tables and self.tables.to_json(),
            "new_user_weight": self.new_user_weight,
            "new_user_tables": self.new_user_tables and self.new_user_tables.to_json(),
            "profiled_weight": self.profiled_weight,
            "profiled_tables": self.profiled_tables and self.profiled_tables.to_json(),
            "names": self.names.to_json(),
            "interval": self.interval.to_json(),
        }

    @classmethod
    def from_json(cls, data: object, *, source: str = "duration model") -> DurationModel:
        """Check and build; `source` is the file that messages name.

        Raises:
            ModelError: anything that does not make a consistent model.
        """
        if not isinstance(data, dict) or set(data) != set(cls.untrained().to_json()):
            raise ModelError(f"{source}: is not a duration model with exactly its keys; {_REMEDY}")
        if data["format"] != FORMAT or data["log_offset_s"] != LOG_OFFSET_S:
            raise ModelError(f"{source}: format is {data['format']!r}, this version reads {FORMAT!r}; {_REMEDY}")
        if not isinstance(data["users"], list) or not all(isinstance(name, str) for name in data["users"]):
            raise ModelError(f"{source}: users is not a list of names; {_REMEDY}")
        choice = data["choice"]
        if not isinstance(choice, dict) or set(choice) != {"name", "weight", "scores", "anchor"}:
            raise ModelError(f"{source}: choice must have name, weight, scores and anchor; {_REMEDY}")
        if not isinstance(choice["name"], str) or not isinstance(choice["scores"], dict):
            raise ModelError(f"{source}: choice.name must be text and choice.scores an object; {_REMEDY}")
        if choice["anchor"] not in ANCHORS:
            raise ModelError(f"{source}: choice.anchor is {choice['anchor']!r}, not of {ANCHORS}; {_REMEDY}")
        for where, value in (
            ("choice.weight", choice["weight"]),
            *((name, data[name]) for name in ("new_user_weight", "profiled_weight", "default_log")),
            *((f"choice.scores[{name!r}]", score) for name, score in choice["scores"].items()),
            ("trained_jobs", data["trained_jobs"]),
        ):
            if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
                raise ModelError(f"{source}: {where} is {value!r}, not a finite number; {_REMEDY}")
        return cls(
            Choice(choice["name"], choice["weight"], dict(choice["scores"]), choice["anchor"]),
            _tables(data["tables"], f"{source}: tables"),
            _tables(data["new_user_tables"], f"{source}: new_user_tables"),
            float(data["new_user_weight"]),
            NameBuckets.from_json(data["names"], source=source),
            IntervalTracker.from_json(data["interval"], source=source),
            float(data["default_log"]),
            int(data["trained_jobs"]),
            frozenset(data["users"]),
            _tables(data["profiled_tables"], f"{source}: profiled_tables"),
            float(data["profiled_weight"]),
        )

    def _anchor_words(self, job: JobTable, facts: FloatArray, source: str) -> tuple[str, str]:
        if facts[0, COUNT] <= 0:
            return source.split(",")[0], f"{job.gpus[0]:.0f} GPUs"
        if self.choice.anchor == "request" and of_request(facts)[0]:
            return "request median", f"{facts[0, REQUEST_COUNT]:.0f} jobs"
        return "user median", f"{facts[0, COUNT]:.0f} jobs"

    def _parts(self, known: bool) -> tuple[AdditiveModel | None, float]:
        if known:
            return self.tables, self.choice.weight
        return self.new_user_tables, self.new_user_weight

    def _anchor(self, facts: FloatArray) -> FloatArray:
        return anchor_log(facts, self.default_log, self.choice.anchor)

    def _correction(self, jobs: JobTable, facts: FloatArray, anchor: FloatArray) -> FloatArray:
        correction = np.zeros(len(jobs))
        bucket = self.names(jobs.name.tolist())
        columns = feature_columns(jobs, facts, anchor, bucket)
        known = facts[:, COUNT] > 0
        for which, rows in ((True, known & self._trained(jobs)), (False, ~known)):
            tables, weight = self._parts(which)
            if tables is not None and weight and rows.any():
                some = {name: columns[name][rows] for name in tables.features}
                correction[rows] = weight * tables.score(some)
        rows = known & measured(jobs)
        if self.profiled_tables is not None and self.profiled_weight and rows.any():
            taken = profile_columns(jobs.take(rows))
            correction[rows] += self.profiled_weight * self.profiled_tables.score(taken)
        return np.clip(correction, -MOST_LOG, MOST_LOG)

    def _source(self, jobs: JobTable, facts: FloatArray) -> TextArray:
        known = facts[:, COUNT] > 0
        anchored = np.where(np.isnan(facts[:, DEMAND]), "default", "demand mean").astype(object)
        if self.new_user_weight and self.new_user_tables is not None:
            anchored = anchored + ", corrected by request"
        alone = np.full(len(jobs), "user median", dtype=object)
        if self.choice.anchor == "request":
            alone[of_request(facts)] = "request median"
        own = np.where(self._trained(jobs), self.choice.name, alone)
        return np.where(known, own, anchored).astype(object)

    def _trained(self, jobs: JobTable) -> npt.NDArray[np.bool_]:
        return np.array([user in self.users for user in jobs.user.tolist()], dtype=np.bool_)


def _tables(data: object, source: str) -> AdditiveModel | None:
    return None if data is None else AdditiveModel.from_json(data, source=source)
