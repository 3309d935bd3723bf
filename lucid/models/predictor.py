"""``LearnedPredictor``: the trained models as one `Predictor`, live and in the simulator.

Durations come from a `DurationModel` and the history of finished jobs, which is added to as jobs end. Share scores
come from a `ShareTree`, pair speeds from a `PairModel`; another predictor answers where there is no model."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Any

from lucid.core.job import Ended, Job, JobProfile
from lucid.core.ports import PairSpeeds, Predictor
from lucid.core.prediction import DurationTerms, Prediction
from lucid.models.additive import AdditiveModel, Axis
from lucid.models.duration.evaluate import DURATION
from lucid.models.duration.history import DurationHistory
from lucid.models.duration.jobtable import PROFILE_COLUMNS, JobTable, request_columns
from lucid.models.duration.model import DurationModel
from lucid.models.kinds import Served
from lucid.models.packing.kind import PAIRS, SHARE
from lucid.models.packing.measured import Usage
from lucid.models.packing.pair_speed import PairModel, pair_columns
from lucid.models.packing.share_score import ShareTree

_MOST_PAIRS = 200_000


class LearnedPredictor:
    """Answers from models; `otherwise` answers where there is no model. `epoch_s` is added to times of jobs, so that
    hours and weekdays are those of the calendar. A job with a profile has run for `profiled_s` without ending, and is
    estimated as such. `sources` name the duration model and the share tree in explanations, where these go by other
    names."""

    name = "learned"

    def __init__(
        self,
        duration: DurationModel | None,
        history: DurationHistory,
        otherwise: Predictor,
        *,
        share: ShareTree | None = None,
        pairs: PairModel | None = None,
        epoch_s: float = 0.0,
        profiled_s: float = 0.0,
        sources: Mapping[str, str] | None = None,
    ) -> None:
        self._sources = {"duration": self.name, "share": "share tree", **(sources or {})}
        self._profiled_s = profiled_s
        self.history = history
        self.duration: DurationModel | None = None
        if duration is not None:
            self.use_model(duration)
        self._otherwise = otherwise
        self._share = share
        self._pairs = None if pairs is None else RowScorer(pairs.model)
        self._epoch_s = epoch_s
        self._speeds: dict[tuple[JobProfile, JobProfile], tuple[float, float]] = {}

    @classmethod
    def from_served(
        cls,
        served: Served,
        history: DurationHistory,
        otherwise: Predictor,
        *,
        profiled_s: float = 0.0,
        share: ShareTree | None = None,
    ) -> LearnedPredictor:
        """The predictor of the versions that serve; a kind without one is left to `otherwise`, and share scores to
        the tree `share`, where one is given."""
        tree = served.model(SHARE)
        source = SHARE.stand_in if tree is None else f"share tree {served.version(SHARE)}"
        return cls(
            served.model(DURATION),
            history,
            otherwise,
            share=tree or share,
            pairs=served.model(PAIRS),
            profiled_s=profiled_s,
            sources={"duration": f"{cls.name} {served.version(DURATION)}", "share": source},
        )

    def use_model(self, duration: DurationModel) -> None:
        """Estimate durations by this model from now on; the history judges the model's tables as jobs end."""
        self.duration = duration
        duration.serve(self.history)

    def predict(self, job: Job, profile: JobProfile | None, now_s: float) -> Prediction:
        """The duration with its terms; the share score, with the path through the tree, once there is a profile."""
        duration_s, source, terms = self._duration(job, profile, now_s)
        if profile is None:
            return Prediction(duration_s, source, duration_terms=terms)
        if self._share is None:
            other = self._otherwise.predict(job, profile, now_s)
            return Prediction(duration_s, source, other.share_score, other.share_source, duration_terms=terms)
        usage = usage_of(profile)
        score = int(self._share.predict([usage])[0])
        splits = tuple(self._share.path(usage))
        return Prediction(
            duration_s, source, score, self._sources["share"], duration_terms=terms, share_splits=splits
        )

    def _duration(
        self, job: Job, profile: JobProfile | None, now_s: float
    ) -> tuple[float, str, DurationTerms | None]:
        if self.duration is None:
            other = self._otherwise.predict(job, profile, now_s)
            if profile is None or not other.outlived(self._profiled_s):
                return other.duration_s, other.duration_source, other.duration_terms
            longer_s = self._profiled_s + other.remaining_s(self._profiled_s)
            return longer_s, f"{other.duration_source}; it outlived that while it was profiled", None
        table = _columns([job], self._epoch_s, [profile])
        ran_s = 0.0 if profile is None else self._profiled_s
        estimate_s, source, terms = self.duration.explain_facts(table, self.history.facts(table), ran_s)
        # An estimate of 0 s would cause a division by zero in callers that divide by it.
        return max(estimate_s, 1.0), f"{self._sources['duration']}: {source}", terms

    def pair_speed(self, a: JobProfile, b: JobProfile) -> PairSpeeds:
        """The speeds by the pair model, capped at full speed; else by the other predictor."""
        if self._pairs is None:
            return self._otherwise.pair_speed(a, b)
        known = self._speeds.get((a, b))
        if known is None:
            known = self._modelled(usage_of(a), usage_of(b))
            if len(self._speeds) >= _MOST_PAIRS:
                self._speeds.clear()
            self._speeds[a, b] = known
        return known

    def learn(self, ended: Sequence[Ended]) -> None:
        """Add the ended jobs to the history."""
        self.history.add(ended_table(ended, self._epoch_s))
        self._otherwise.learn(ended)

    def _modelled(self, a: Usage, b: Usage) -> tuple[float, float]:
        assert self._pairs is not None
        columns = pair_columns([(a, b), (b, a)])
        own, other = (self._pairs({name: values[side] for name, values in columns.items()}) for side in (0, 1))
        return min(max(own, 0.0), 1.0), min(max(other, 0.0), 1.0)


def usage_of(profile: JobProfile) -> Usage:
    """A profile as the packing models know it. A workload label ``model|dataset|batchsize|amp`` (as traces and
    tables of pairs have it) names family and configuration; any other label is both at once."""
    parts = profile.workload.split("|") if profile.workload else []
    return Usage(
        gpu_util=profile.gpu_util,
        gmem_util=profile.mem_util,
        gmem_mib=profile.gpu_mem_mib,
        amp=profile.amp,
        workload=parts[0] if parts else None,
        config="/".join(parts) if parts else None,
    )


def ended_table(ended: Sequence[Ended], epoch_s: float = 0.0) -> JobTable:
    """Jobs that ended as a table to learn from; `epoch_s` is added to their times."""
    return _columns([item.job for item in ended], epoch_s, [item.profile for item in ended], ended)


def _columns(
    jobs: Sequence[Job], epoch_s: float, profiles: Sequence[JobProfile | None], ended: Sequence[Ended] = ()
) -> JobTable:
    nan = float("nan")
    known = {
        "end_s": [item.end_s + epoch_s for item in ended],
        "duration_s": [item.ran_s for item in ended],
    }
    return JobTable.from_columns(
        {
            name: [nan if profile is None else getattr(profile, name) for profile in profiles]
            for name in PROFILE_COLUMNS
        },
        **(known if ended else {}),
        **request_columns(jobs, epoch_s),
    )


class RowScorer:
    """Scores rows given as a mapping of feature to value; text, number, or None (missing)."""

    def __init__(self, model: AdditiveModel) -> None:
        self._intercept = model.intercept
        axes: dict[int, int] = {}
        self._axes: list[Axis] = []
        self._terms: list[tuple[tuple[int, ...], Any]] = []
        for term in model.terms:
            for axis in term.axes:
                if id(axis) not in axes:
                    axes[id(axis)] = len(self._axes)
                    self._axes.append(axis)
            self._terms.append((tuple(axes[id(axis)] for axis in term.axes), term.scores.tolist()))
        self._last = [axis.size - 1 for axis in self._axes]

    def __call__(self, row: Mapping[str, Any]) -> float:
        """Intercept and addends together (link space)."""
        bins = [self._bin(axis, last, row[axis.feature]) for axis, last in zip(self._axes, self._last, strict=True)]
        return self._intercept + math.fsum(
            scores[bins[axes[0]]] if len(axes) == 1 else scores[bins[axes[0]]][bins[axes[1]]]
            for axes, scores in self._terms
        )

    @staticmethod
    def _bin(axis: Axis, last: int, value: Any) -> int:
        if value is None or value != value:
            return 0
        if axis.kind == "categorical":
            return axis.categories.get(value, last)
        return bisect_right(axis.cuts, value) + 1
