"""The predictor of a daemon that has no trained models: means over past jobs, and the contention model."""

from __future__ import annotations

from collections.abc import Sequence

from lucid.binder.contention import contention_score, contention_speeds
from lucid.core.job import Ended, Job, JobProfile
from lucid.core.ports import Predictor
from lucid.core.prediction import Prediction

__all__ = ["WithContention"]


class WithContention:
    """Durations of another predictor; share scores and pair speeds by the contention model."""

    def __init__(self, durations: Predictor) -> None:
        self.name = durations.name
        self._durations = durations

    def predict(self, job: Job, profile: JobProfile | None, now_s: float) -> Prediction:
        """The other's duration; a score once the job is measured."""
        found = self._durations.predict(job, profile, now_s)
        if profile is None:
            return Prediction(found.duration_s, found.duration_source)
        return Prediction(found.duration_s, found.duration_source, contention_score(profile), "contention model")

    def pair_speed(self, a: JobProfile, b: JobProfile) -> tuple[float, float] | None:
        """By the contention model, from both profiles."""
        return contention_speeds(a, b)

    def learn(self, ended: Sequence[Ended]) -> None:
        """The other learns."""
        self._durations.learn(ended)
