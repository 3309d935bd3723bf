"""Predictors without a trained model: means over like jobs, and time limits corrected by ended jobs (L20)."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from functools import partial
from math import exp, fsum, log
from typing import Final, Generic, TypeVar

from lucid.config.policy import PolicySettings
from lucid.core.job import Ended, Job, JobProfile
from lucid.core.prediction import JUMBO, Prediction
from lucid.models.duration.features import LOG_OFFSET_S

_Group = TypeVar("_Group")

NEWEST: Final = 20
"""How many of a group's newest jobs count: they say more of the next one than all that ever ended
(docs/decisions/0054)."""
GROUPS_KEPT: Final = 10_000
"""How many groups of jobs are remembered. A name may be of one job alone, so there may be as many groups as jobs."""
_FLOOR_S = 10.0
"""Added before logarithms are taken, so that seconds do not matter."""


class Groups(OrderedDict[tuple[str, ...], _Group], Generic[_Group]):
    """What was learned of groups of jobs, by group, in order of the last learning. Of more than ``GROUPS_KEPT`` the
    first are forgotten."""

    def learning(self, key: tuple[str, ...], make: Callable[[], _Group]) -> _Group:
        """The group, moved to the end since it learns now."""
        if key in self:
            self.move_to_end(key)
            return self[key]
        made = self[key] = make()
        if len(self) > GROUPS_KEPT:
            self.popitem(last=False)
        return made


class _Mean:
    """The mean of all values, or of the ``newest``."""

    __slots__ = ("_count", "_kept", "_total")

    def __init__(self, newest: int | None) -> None:
        self._count = 0
        self._total = 0.0
        self._kept = None if newest is None else deque[float](maxlen=newest)

    def add(self, value: float) -> None:
        if self._kept is not None:
            self._kept.append(value)
        else:
            self._count += 1
            self._total += value

    @property
    def count(self) -> int:
        return self._count if self._kept is None else len(self._kept)

    @property
    def value(self) -> float:
        return self._total / self._count if self._kept is None else fsum(self._kept) / len(self._kept)

    @property
    def last(self) -> str:
        return "the last " if self._kept is not None and len(self._kept) == self._kept.maxlen else ""


def jobs_alike(count: int, what: str) -> str:
    """``12 jobs with the same user and name``; ``what`` names a group of jobs, or is ``all jobs``."""
    jobs = f"{count} job{'' if count == 1 else 's'}"
    return jobs if what == "all jobs" else f"{jobs} with the same {what}"


class HistoryPredictor:
    """Mean run time of the finished jobs most like this one: same user and name, else same user and GPU demand, else
    same user, else same VC and GPU demand, else same GPU demand, else all; before any job has ended,
    ``first_guess_s``. Of each group all jobs count, or the ``newest``. It has no opinion on pairs or share scores: an
    unmodelled job counts as Jumbo."""

    name = "history"

    def __init__(self, first_guess_s: float = 3600.0, newest: int | None = None, *, geometric: bool = False) -> None:
        """``geometric``: means of logarithms, which rank jobs better, and expect too little of heavy tails: a single
        long job moves them by little."""
        self._first_guess_s = first_guess_s
        self._geometric = geometric
        self._group = partial(_Mean, newest)
        self._means: Groups[_Mean] = Groups()

    @staticmethod
    def _keys(job: Job) -> list[tuple[str, ...]]:
        gpus = str(job.gpus)
        keys: list[tuple[str, ...]] = []
        if job.user:
            if job.name:
                keys.append(("user and name", job.user, job.name))
            keys += [("user and GPUs", job.user, gpus), ("user", job.user)]
        return [*keys, ("VC and GPUs", job.vc, gpus), ("GPUs", gpus), ("all jobs",)]

    def predict(self, job: Job, profile: JobProfile | None, now_s: float) -> Prediction:  # noqa: ARG002
        """Mean over the most specific group that has a finished job."""
        score = None if profile is None else JUMBO
        for key in self._keys(job):
            if key in self._means:
                mean = self._means[key]
                kind, value = "mean", mean.value
                if self._geometric:
                    kind, value = "geometric mean", max(exp(value) - _FLOOR_S, 0.0)
                source = f"{self.name}: {kind} of {mean.last}{jobs_alike(mean.count, key[0])}"
                return Prediction(value, source, score, self.name)
        return Prediction(self._first_guess_s, f"{self.name}: no job has ended yet", score, self.name)

    def pair_speed(self, a: JobProfile, b: JobProfile) -> tuple[float, float] | None:  # noqa: ARG002
        """``None``: no opinion."""
        return None

    def learn(self, ended: Sequence[Ended]) -> None:
        """Add finished jobs to every group that they belong to."""
        for item in ended:
            value = log(item.ran_s + _FLOOR_S) if self._geometric else item.ran_s
            for key in self._keys(item.job):
                self._means.learning(key, self._group).add(value)


def naive_for(policy: str, settings: PolicySettings) -> HistoryPredictor | None:
    """The predictor that ``lucid`` falls back on before plain order, where its estimates do not rank jobs
    (docs/decisions/0053); ``None`` where the policy does not use how well they do."""
    measured = settings.fairness.estimates == "measured" and settings.lending.mode == "off"
    return HistoryPredictor(newest=NEWEST, geometric=True) if measured and policy == "lucid" else None


_KEPT: Final = 1000
"""How many of a group's newest jobs count."""
_OTHERS_WEIGHT: Final = 4.0
_OWN_WEIGHT: Final = 0.5
"""How many finished jobs the broader estimate counts as, beside all jobs, and beside those of the user (0024)."""
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
    """Estimates from the time limit (for a job without its own, Slurm reports its partition's DefaultTime, else its
    MaxTime), or from ``first_guess_s`` where there is none. The share of their limits that all jobs used corrects it;
    then the estimate is drawn towards the durations of the same user, and of the same user and name. Each group
    counts by its finished jobs. It has no opinion on pairs; an unmodelled job counts as Jumbo."""

    name = "history"

    def __init__(self, first_guess_s: float = 3600.0) -> None:
        self._first_guess_s = first_guess_s
        self._known: Groups[_Median] = Groups()

    def predict(self, job: Job, profile: JobProfile | None, now_s: float) -> Prediction:  # noqa: ARG002
        """The estimate; its source names the prior and the narrowest group that corrected it."""
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
        """``None``: no opinion."""
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
    """The group of all users' jobs with such a prior, and the user's own groups, the broad one first."""
    own: list[_Key] = []
    if job.user:
        own.append(("user", job.user))
        if job.name:
            own.append(("user and name", job.user, job.name))
    return ("all jobs", "limit" if job.time_limit_s else "guess"), own


def _log(seconds: float) -> float:
    return math.log(seconds + LOG_OFFSET_S)
