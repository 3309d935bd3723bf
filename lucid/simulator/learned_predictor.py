"""``--predictor learned``: the learned models in a replay, trained on the trace's own past only.

Walk forward: whatever has ended by now (as accounting shows it: what ran, for how long) is what there is to learn
from; nothing else of the trace is ever handed in. The duration model is fitted as soon as 200 jobs have ended and
refitted once a week; between fits the history of every user goes on growing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lucid.core.arrivals import ArrivalForecast
from lucid.core.job import Ended, Job, JobProfile
from lucid.core.ports import PairSpeeds, Predictor
from lucid.core.prediction import Prediction
from lucid.models.duration.history import DurationHistory
from lucid.models.duration.model import DurationModel
from lucid.models.history import HistoryPredictor
from lucid.models.packing.kind import labelled
from lucid.models.packing.measured import read_pairs, read_profiles
from lucid.models.packing.pair_speed import PairModel, fit_pairs
from lucid.models.packing.share_score import ShareTree, fit_share
from lucid.models.predictor import LearnedPredictor, ended_table
from lucid.models.throughput.arrivals import ArrivalForecaster
from lucid.models.throughput.fit import fit_throughput
from lucid.models.throughput.forecaster import LearnedForecaster
from lucid.models.upkeep.kind import TooFew

__all__ = ["PackingModels", "WalkForward", "WalkForwardForecaster", "packing_predictor", "train_packing"]

_DAY_S = 86400.0
_WEEK_S = 7 * _DAY_S
_FIRST_JOBS = 200


@dataclass(frozen=True, slots=True)
class PackingModels:
    """The share tree and the pair model, where there were measurements to train them on."""

    share: ShareTree | None = None
    pairs: PairModel | None = None


def train_packing(profiles: Path, pairs: Path) -> PackingModels:
    """Both models from the tables that an administrator measured.

    Raises:
        ModelError: a file cannot be read, or does not suffice.
    """
    usages = read_profiles(profiles)
    pairings = read_pairs(pairs, usages)
    known = labelled(usages, pairings)
    tree = fit_share([usage for usage, _ in known], [label for _, label in known]) if known else None
    return PackingModels(tree, fit_pairs(pairings))


def packing_predictor(models: PackingModels) -> Predictor:
    """Share scores and pair speeds by these models; of durations it knows nothing but means."""
    return LearnedPredictor(None, DurationHistory(), HistoryPredictor(), share=models.share, pairs=models.pairs)


class WalkForward:
    """A `Predictor` that learns as the replay goes on. `otherwise` answers for share scores and pair speeds where
    ``packing`` has no model."""

    name = LearnedPredictor.name

    def __init__(
        self,
        otherwise: Predictor,
        packing: PackingModels | None = None,
        *,
        epoch_s: float = 0.0,
        profiled_s: float = 0.0,
    ) -> None:
        packing = packing or PackingModels()
        self._epoch_s = epoch_s
        self._ended: list[Ended] = []
        self._due_s = 0.0
        self._model = LearnedPredictor(
            DurationModel.untrained(),
            DurationHistory(),
            otherwise,
            share=packing.share,
            pairs=packing.pairs,
            epoch_s=epoch_s,
            profiled_s=profiled_s,
        )

    def predict(self, job: Job, profile: JobProfile | None, now_s: float) -> Prediction:
        """By the model of the latest refit; refits first if that is due."""
        if now_s >= self._due_s and len(self._ended) >= _FIRST_JOBS:
            self._due_s = now_s + _WEEK_S
            self._model.take(DurationModel.fit(ended_table(self._ended, self._epoch_s)))
        return self._model.predict(job, profile, now_s)

    def pair_speed(self, a: JobProfile, b: JobProfile) -> PairSpeeds:
        """By the pair model, else by the other predictor."""
        return self._model.pair_speed(a, b)

    def learn(self, ended: Sequence[Ended]) -> None:
        """Jobs that ended: into the history at once, into the models at the next refit."""
        self._ended += ended
        self._model.learn(ended)


class WalkForwardForecaster:
    """A `Forecaster` that learns as the replay goes on: seasonal means until the past suffices for a throughput model
    (about 25 days), which is then fitted anew every week."""

    def __init__(self, means: ArrivalForecaster, *, epoch_s: float = 0.0) -> None:
        self._forecaster = LearnedForecaster(None, "learned in this replay", means, epoch_s)
        self._due_s = 0.0

    def saw(self, job: Job) -> None:
        """Take in a job when it is first seen."""
        self._forecaster.saw(job)

    def forecast(self, now_s: float) -> ArrivalForecast:
        """By the model of the latest fit; fits first if that is due."""
        if now_s >= self._due_s:
            past = self._forecaster.past(now_s)
            try:
                if past is not None:
                    self._forecaster.model = fit_throughput(past, 1)
                    self._due_s = now_s + _WEEK_S
            except TooFew:
                self._due_s = now_s + _DAY_S
        return self._forecaster.forecast(now_s)
