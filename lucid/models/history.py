"""Predictions from means over past jobs (acceptance row L20): no model, nothing to train, always available."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from math import exp, fsum, log
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from lucid.core.job import Ended, Job, JobProfile
from lucid.core.prediction import JUMBO, Prediction

if TYPE_CHECKING:
    from lucid.config import PolicySettings

__all__ = ["GROUPS_KEPT", "NEWEST", "Groups", "HistoryPredictor", "jobs_alike", "naive_for"]

_Group = TypeVar("_Group")

NEWEST: Final = 20
"""So many of a group's jobs say more of the next one than all that ever ended (docs/decisions/0054)."""
GROUPS_KEPT: Final = 10_000
"""Groups of jobs that are remembered. A name may be of one job alone: there are as many groups as jobs then."""
_FLOOR_S = 10.0
"""Added before logarithms are taken: seconds do not matter."""


class Groups(OrderedDict[tuple[str, ...], _Group], Generic[_Group]):
    """What was learned of groups of jobs, by group, those of which something was learned last at the end. Of more
    than ``GROUPS_KEPT`` the first are forgotten."""

    def learning(self, key: tuple[str, ...], make: Callable[[], _Group]) -> _Group:
        """The group, of which something is learned now."""
        found = self.get(key)
        if found is None:
            found = self[key] = make()
            if len(self) > GROUPS_KEPT:
                self.popitem(last=False)
        else:
            self.move_to_end(key)
        return found


class _Mean:
    """Of all values, or of the ``newest``."""

    __slots__ = ("count", "kept", "newest", "total")
    kind = "mean"

    def __init__(self, newest: int | None) -> None:
        self.count = 0
        self.total = 0.0
        self.newest = newest
        self.kept: list[float] = []

    def add(self, value: float) -> None:
        if self.newest is not None:
            self.kept.append(value)
            del self.kept[: -self.newest]
            self.count, self.total = len(self.kept), fsum(self.kept)
        else:
            self.count += 1
            self.total += value

    @property
    def value(self) -> float:
        return self.total / self.count

    @property
    def last(self) -> str:
        return "the last " if self.count == self.newest else ""


def jobs_alike(count: int, what: str) -> str:
    """``12 jobs with the same user and name``; ``what`` names a group of jobs, or is ``all jobs``."""
    jobs = f"{count} job{'' if count == 1 else 's'}"
    return jobs if what == "all jobs" else f"{jobs} with the same {what}"


class _GeometricMean(_Mean):
    """A single long job moves it by little."""

    __slots__ = ()
    kind = "geometric mean"

    def add(self, value: float) -> None:
        super().add(log(value + _FLOOR_S))

    @property
    def value(self) -> float:
        return max(exp(super().value) - _FLOOR_S, 0.0)


class HistoryPredictor:
    """Mean run time of the finished jobs most like this one: same user and name, else same user and GPU
    demand, else same user, else same VC and GPU demand, else same GPU demand, else all; before any job has
    ended, ``first_guess_s``. Of each group all jobs count, or the ``newest``. No opinion on pairs or share scores:
    an unmodelled job counts as Jumbo."""

    name = "history"

    def __init__(self, first_guess_s: float = 3600.0, newest: int | None = None, *, geometric: bool = False) -> None:
        """``geometric``: means of logarithms, which rank jobs better, and expect too little of heavy tails."""
        self._first_guess_s = first_guess_s
        self._group = _GeometricMean if geometric else _Mean
        self._newest = newest
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
            mean = self._means.get(key)
            if mean is not None:
                source = f"{self.name}: {mean.kind} of {mean.last}{jobs_alike(mean.count, key[0])}"
                return Prediction(mean.value, source, score, self.name)
        return Prediction(self._first_guess_s, f"{self.name}: no job has ended yet", score, self.name)

    def pair_speed(self, a: JobProfile, b: JobProfile) -> tuple[float, float] | None:  # noqa: ARG002
        """No opinion."""
        return None

    def learn(self, ended: Sequence[Ended]) -> None:
        """Add finished jobs to every group that they belong to."""
        for item in ended:
            for key in self._keys(item.job):
                self._means.learning(key, self._made).add(item.ran_s)

    def _made(self) -> _Mean:
        return self._group(self._newest)


def naive_for(policy: str, settings: PolicySettings) -> HistoryPredictor | None:
    """What ``lucid`` falls back on before plain order, where its estimates do not rank jobs (docs/decisions/0053);
    ``None`` where nothing is made of how well they do."""
    measured = settings.fairness.estimates == "measured" and settings.lending.mode == "off"
    return HistoryPredictor(newest=NEWEST, geometric=True) if measured and policy == "lucid" else None
