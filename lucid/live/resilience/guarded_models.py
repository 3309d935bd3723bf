"""Predictors and forecasters behind the barrier: a job that the models cannot take has a first guess, and the others
have theirs."""

from __future__ import annotations

from collections.abc import Sequence

from lucid.adapters.left_out import LeftOut
from lucid.core.arrivals import ArrivalForecast
from lucid.core.job import Ended, Job, JobProfile
from lucid.core.ports import Forecaster, PairSpeeds, Predictor
from lucid.core.prediction import Prediction

__all__ = ["GuardedForecaster", "GuardedPredictor"]

_SOURCE = "predictions of the models"
_SUBMISSIONS = "forecasts of submissions"


class GuardedPredictor:
    """Another predictor, of which no exception comes out. ``first_guess_s``: the duration in place of its answer."""

    def __init__(self, predictor: Predictor, left_out: LeftOut, first_guess_s: float) -> None:
        self._predictor = predictor
        self._left_out = left_out
        self._first_guess_s = first_guess_s

    @property
    def name(self) -> str:
        """The other's."""
        return self._predictor.name

    def predict(self, job: Job, profile: JobProfile | None, now_s: float) -> Prediction:
        """The other's answer, or the first guess."""
        try:
            return self._predictor.predict(job, profile, now_s)
        except Exception as error:
            self._left_out.one(_SOURCE, f"job {job.id}", error)
            return Prediction(self._first_guess_s, "first guess, because the models failed")

    def pair_speed(self, a: JobProfile, b: JobProfile) -> PairSpeeds:
        """The other's answer, or that it failed: the pair is not made."""
        try:
            return self._predictor.pair_speed(a, b)
        except Exception as error:
            self._left_out.one(_SOURCE, "a pair", error)
            return "failed"

    def learn(self, ended: Sequence[Ended]) -> None:
        """The other learns of all that ran at once, or where that fails of each by itself."""
        ended = [item for item in ended if item.ran]
        try:
            self._predictor.learn(ended)
        except Exception as error:
            if len(ended) <= 1:
                self._left_out.one(_SOURCE, f"job {ended[0].job.id}" if ended else "none", error)
                return
            for one in ended:
                self.learn([one])


class GuardedForecaster:
    """Another forecaster, of which no exception comes out. ``means`` answers in its place; the other feeds it."""

    def __init__(self, forecaster: Forecaster, means: Forecaster, left_out: LeftOut) -> None:
        self._forecaster = forecaster
        self._means = means
        self._left_out = left_out

    def saw(self, job: Job) -> None:
        """The other takes it in, or nobody does."""
        try:
            self._forecaster.saw(job)
        except Exception as error:
            self._left_out.one(_SUBMISSIONS, f"job {job.id}", error)

    def forecast(self, now_s: float) -> ArrivalForecast:
        """The other's answer, or the means'."""
        try:
            return self._forecaster.forecast(now_s)
        except Exception as error:
            self._left_out.one(_SUBMISSIONS, "the forecast", error)
            return self._means.forecast(now_s)
