"""Predictions of one job: its duration, share score and stage times, with the terms that they are made of.

A prediction is knowledge, never truth: an oracle is a predictor too, and its source says so."""

from __future__ import annotations

from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from lucid.core.codec import to_json
from lucid.core.names import Shown
from lucid.core.times import reached

TINY, MEDIUM, JUMBO = 0, 1, 2
"""Share scores (acceptance row L8)."""
TINY_ABOVE, MEDIUM_FROM = 0.95, 0.85
"""Average normalised speeds beside others that divide the scores (L9): above the first Tiny, from the second on
Medium. The first is the paper's. The paper does not print the second: here it is the speed from which the paper calls
a pair free of interference."""


def score_of(speed: float) -> int:
    """The share score of an average normalised speed beside others."""
    return TINY if speed > TINY_ABOVE else MEDIUM if speed >= MEDIUM_FROM else JUMBO


class StageTimes(Struct, frozen=True):
    """The stage times of one iteration of a job alone on its GPUs, from a dry run or measured.

    ``times_s``: seconds on each resource, in the order in which an iteration passes them (storage, CPU, GPU, network;
    or data, GPU, network where loading was not taken apart). ``iteration_s``: seconds of the whole iteration.
    ``start_s``: seconds from a start, or a restart, to the first iteration. ``outside``: the times are shares of an
    iteration of 1, as its node measured them; such a job calls nothing that would make it wait for its turn."""

    times_s: tuple[float, ...]
    iteration_s: float
    start_s: float = 0.0
    outside: bool = False


class Term(Struct, frozen=True):
    """One addend of an estimate: the feature, its value, and what that adds to the score."""

    name: str
    value: str
    score: float


class DurationTerms(Struct, frozen=True):
    """The terms of a duration: ``intercept`` and the terms' scores sum to ``score``, which is log(duration in s +
    ``offset_s``). In 8 of 10 cases the truth is expected between ``low_s`` and ``high_s`` (``None``: nothing is known
    of that yet)."""

    intercept: float
    terms: tuple[Term, ...]
    score: float
    offset_s: float
    low_s: float
    high_s: float | None


class Split(Struct, frozen=True):
    """One comparison on the way down a decision tree: ``value`` is at most ``threshold``, or above it."""

    feature: Shown
    value: float
    at_most: bool
    threshold: float


class MeasuredRun(Struct, frozen=True):
    """An earlier, measured run with the batch of an elastic job. ``left``: the passes over the data that it still
    took after 0, 1, ... epochs. ``epoch_s``: seconds of a pass on 1, 2, ... GPUs, whether or not they divide the
    batch."""

    left: tuple[float, ...]
    epoch_s: tuple[float, ...]


class Prediction(Struct, frozen=True):
    """What the models predict of one job. ``duration_s``: expected run time alone on its GPUs, from start to end.
    ``share_score``: 0, 1, 2, or ``None`` until the job is measured. The sources name the predictor, for explanations.
    The terms and splits are those that made the numbers, where the predictor is a sum or a tree. ``stages``: what a
    dry run of the job's model showed, if there was one.

    For an elastic job, where the predictor knows them: ``epochs``, passes over its data in all; ``epoch_s``, seconds
    of one pass on 1, 2, ... GPUs of as few nodes as possible, with the batch as submitted; ``measured``, what an
    earlier measured run says of both."""

    duration_s: float
    duration_source: Shown
    share_score: int | None = None
    share_source: Shown = ""
    epochs: float | None = None
    epoch_s: tuple[float, ...] = ()
    measured: MeasuredRun | None = None
    stages: StageTimes | None = None
    duration_terms: DurationTerms | None = None
    share_splits: tuple[Split, ...] = ()

    def within(self, limit_s: float | None) -> Prediction:
        """The prediction for a job that may run for ``limit_s`` at most, when Slurm ends it. The source says so where
        the limit is shorter than the estimate."""
        if limit_s is None or limit_s >= self.duration_s:
            return self
        return replace(self, duration_s=limit_s, duration_source=f"{self.duration_source}; capped at its time limit")

    def remaining_s(self, ran_s: float) -> float:
        """Expected remaining seconds of a job that has already run ``ran_s``.

        Inside the estimate this is the rest of it. A job that has outlived its estimate is expected to go on for as
        long again as it has run (durations are heavy-tailed: for a Pareto tail with index 2 the mean residual life
        equals the age)."""
        return max(self.duration_s - ran_s, ran_s if self.outlived(ran_s) else 0.0)

    def outlived(self, ran_s: float) -> bool:
        """Whether a job that ran this long has reached its estimate."""
        return reached(ran_s, self.duration_s)


def prediction_to_dict(prediction: Prediction) -> dict[str, Any]:
    """A prediction as JSON."""
    data: dict[str, Any] = to_json(prediction)
    if prediction.measured is None:
        del data["measured"]  # a replay's alone: no cluster tells it
    return data
