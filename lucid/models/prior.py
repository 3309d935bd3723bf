"""Durations where little is known: what a job asks for, corrected by the jobs that have ended as they become more."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Sequence
from typing import Final

from lucid.core.job import Ended, Job, JobProfile
from lucid.core.prediction import JUMBO, Prediction
from lucid.models.duration.features import LOG_OFFSET_S
from lucid.models.history import Groups, jobs_alike

__all__ = ["PriorPredictor"]

_KEPT: Final = 1000
"""Newest jobs of a group that count."""
_OTHERS_WEIGHT: Final = 4.0
_OWN_WEIGHT: Final = 0.5
"""As many finished jobs the estimate before counts as, beside all jobs, and beside those of the user (0024)."""
_Key = tuple[str, ...]


class _Median:
    """The median of the newest values."""

    __slots__ = ("_order", "_sorted")

    def __init__(self) -> None:
        self._order: list[float] = []
        self._sorted: list[float] = []

    def __len__(self) -> int:
        return len(self._sorted)

    def add(self, value: float) -> None:
        if len(self._order) == _KEPT:
            del self._sorted[bisect_left(self._sorted, self._order.pop(0))]
        self._order.append(value)
        insort(self._sorted, value)

    def drawn_to(self, other: float, weight: float) -> float:
        """The median, drawn towards ``other`` as if that were ``weight`` more values."""
        size = len(self._sorted)
        median = 0.5 * (self._sorted[(size - 1) // 2] + self._sorted[size // 2])
        return (size * median + weight * other) / (size + weight)


class PriorPredictor:
    """Begins with the time limit (for a job without its own, Slurm tells its partition's DefaultTime, else its
    MaxTime), or with ``first_guess_s`` where there is none. How much of their limits all jobs used corrects it; then
    the estimate is drawn towards the durations of the same user, and of the same user and name. Each group counts by
    its finished jobs. No opinion on pairs; an unmodelled job counts as Jumbo.
    """

    name = "history"

    def __init__(self, first_guess_s: float = 3600.0) -> None:
        self._first_guess_s = first_guess_s
        self._known: Groups[_Median] = Groups()

    def predict(self, job: Job, profile: JobProfile | None, now_s: float) -> Prediction:  # noqa: ARG002
        """The source names the prior and the narrowest group that corrected it."""
        score = None if profile is None else JUMBO
        prior_s, words = self._prior(job)
        value = _log(prior_s)
        by = ""
        everybody, own = _groups(job)
        if (known := self._known.get(everybody)) is not None:
            value += known.drawn_to(0.0, _OTHERS_WEIGHT)
            by = jobs_alike(len(known), everybody[0])
        for key in own:
            if (known := self._known.get(key)) is not None:
                value, by = known.drawn_to(value, _OWN_WEIGHT), jobs_alike(len(known), key[0])
        if not by:
            return Prediction(prior_s, f"{self.name}: {words}; no job like it has ended yet", score, self.name)
        # An estimate of 0 s would make every value computed from it 0.
        duration_s = max(math.exp(value) - LOG_OFFSET_S, 1.0)
        return Prediction(duration_s, f"{self.name}: {words}, corrected by {by}", score, self.name)

    def pair_speed(self, a: JobProfile, b: JobProfile) -> tuple[float, float] | None:  # noqa: ARG002
        """No opinion."""
        return None

    def learn(self, ended: Sequence[Ended]) -> None:
        """Add finished jobs to every group that they belong to."""
        for item in ended:
            value = _log(item.ran_s)
            everybody, own = _groups(item.job)
            self._known.learning(everybody, _Median).add(value - _log(self._prior(item.job)[0]))
            for key in own:
                self._known.learning(key, _Median).add(value)

    def _prior(self, job: Job) -> tuple[float, str]:
        if job.time_limit_s:
            return job.time_limit_s, "the time limit"
        return self._first_guess_s, "a first guess, since it has no time limit"


def _groups(job: Job) -> tuple[_Key, list[_Key]]:
    """That of all users, whose jobs had such a prior, and the user's own, the broad one first."""
    own: list[_Key] = []
    if job.user:
        own.append(("user", job.user))
        if job.name:
            own.append(("user and name", job.user, job.name))
    return ("all jobs", "limit" if job.time_limit_s else "guess"), own


def _log(seconds: float) -> float:
    return math.log(seconds + LOG_OFFSET_S)
