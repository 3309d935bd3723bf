"""``--predictor learned``: the learned models in a replay, trained on the trace's own past only.

Walk forward: whatever has ended by now (as accounting shows it: what ran, for how long) is what there is to learn
from; nothing else of the trace is ever handed in. The duration model is fitted as soon as 200 jobs have ended and
refitted once a week; between fits the history of every user goes on growing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lucid.core.job import Ended, Job, JobProfile
from lucid.core.ports import Predictor
from lucid.core.prediction import Prediction
from lucid.models.duration.estimate import FitSettings
from lucid.models.duration.features import DurationHistory
from lucid.models.duration.model import DurationModel
from lucid.models.history import HistoryPredictor
from lucid.models.packing.measured import read_pairs, read_profiles
from lucid.models.packing.pair_speed import PairModel, fit_pairs
from lucid.models.packing.share_score import ShareTree, fit_share, share_labels
from lucid.models.predictor import LearnedPredictor, ended_table

__all__ = ["PackingModels", "WalkForward", "packing_predictor", "train_packing"]

_WEEK_S = 7 * 86400.0
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
    labels = [
        given.label if given.label is not None else computed
        for given, computed in zip(usages, share_labels(usages, pairings), strict=True)
    ]
    known = [(usage, label) for usage, label in zip(usages, labels, strict=True) if label is not None]
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
        settings: FitSettings | None = None,
        refit_s: float = _WEEK_S,
    ) -> None:
        packing = packing or PackingModels()
        self._settings = settings or FitSettings()
        self._refit_s = refit_s
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
            self._due_s = now_s + self._refit_s
            self._model.duration = DurationModel.fit(ended_table(self._ended, self._epoch_s), self._settings)
        return self._model.predict(job, profile, now_s)

    def pair_speed(self, a: JobProfile, b: JobProfile) -> tuple[float, float] | None:
        """By the pair model, else by the other predictor."""
        return self._model.pair_speed(a, b)

    def learn(self, ended: Sequence[Ended]) -> None:
        """Jobs that ended: into the history at once, into the models at the next refit."""
        self._ended += ended
        self._model.learn(ended)
