"""``Kind``, the base of all kinds of model: what each learns from, how it is trained and judged, its stand-in."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final, Generic, NamedTuple, TypeVar

import numpy as np
from msgspec import Struct

from lucid.errors import ModelError
from lucid.models.additive import AdditiveModel
from lucid.models.library import Library, StoredModel, Trained, Version
from lucid.models.training import Evidence, Rules

M = TypeVar("M", bound=StoredModel)
D = TypeVar("D")

SAMPLE: Final = 500
"""How many values of each input are kept with a version, to measure later how far the inputs have moved."""
_FIRST_SHARE: Final = 0.8  # without a version in service: learned from, the rest judges
_LATER_SHARE: Final = 0.5  # of what is new since the version in service
_LEAST_JUDGED: Final = 20


class TooFew(ModelError):
    """There is not enough data yet; train when more has come."""


class Task(Struct, Generic[M], frozen=True):
    """One training: ``fit`` makes the model, ``loss`` judges it on data that ``fit`` does not see (lower is better),
    ``facts`` are kept with the version. A loss above ``most`` is never promoted. ``final``, where there is one, fits
    the model that is stored, on the judging data too."""

    fit: Callable[[], M]
    loss: Callable[[M], float]
    facts: Mapping[str, Any]
    most: float = math.inf
    final: Callable[[], M] | None = None


class Tables(NamedTuple):
    """One additive part of a model. ``unit``: of its terms' scores."""

    title: str
    unit: str
    model: AdditiveModel


class Kind(ABC, Generic[M, D]):
    """A kind of model ``M`` that learns from data ``D``.

    ``name``: its folder in the library. ``data``: which data it learns from (``jobs``, ``measured``, ``bins``).
    ``stand_in``: what answers while no version is in service."""

    name: str
    data: str
    stand_in: str
    model: type[M]

    @abstractmethod
    def task(self, library: Library, data: D) -> Task[M]:
        """How to train and judge the next version from this data.

        Raises:
            TooFew: too little of it is new since the version in service."""

    @abstractmethod
    def evidence(self, library: Library, data: D, now: datetime) -> Evidence:
        """The evidence for training again.

        Raises: ModelError: the version in service does not load. TooFew: there is no version in service, and not
        enough data for one."""

    def for_service(self, model: M) -> M:
        """The model, if lucidd has the inputs that it needs.

        Raises: ModelError: lucidd lacks one."""
        return model

    def words(self, model: M) -> list[str]:  # noqa: ARG002 - most kinds have nothing to say beside their tables
        """The lines that ``lucidctl models show`` prints before the tables."""
        return []

    def tables(self, model: M) -> list[Tables]:  # noqa: ARG002 - a tree has none
        """The model's additive parts."""
        return []

    def rules(self, rules: Rules) -> Rules:
        """The administrator's bounds, as they hold for this kind."""
        return rules

    def train(self, library: Library, data: D, source: str = "") -> Trained:
        """Fit, judge, store, and promote if not worse. ``source`` names the data among the facts.

        Raises:
            TooFew: too little data is new since the version in service.
            TrainingRuns: another training runs."""
        task = self.task(library, data)
        return library.train(
            self.name,
            task.fit,
            lambda model: model.to_json(),
            lambda stored: self.model.from_json(stored, source=self.name),
            task.loss,
            {**task.facts, "source": source},
            most=task.most,
            final=task.final,
        )

    def in_service(self, library: Library) -> Version | None:
        """The stored version in service, suspended or not; ``None`` where there is none.

        Raises:
            ModelError: its file does not check."""
        return None if library.serving(self.name) is None else library.show(self.name)

    def read(self, version: Version) -> M:
        """The model of a stored version.

        Raises:
            ModelError: it does not check."""
        return self.model.from_json(version.data, source=f"{self.name} v{version.number}")


def split(times: np.ndarray[Any, np.dtype[np.float64]], learned_until: float | None, what: str) -> float:
    """The moment up to which to learn; later data judges. ``times``, shape (n,), ascend.

    Raises: TooFew: too few (of ``what``) came after ``learned_until``."""
    new = times if learned_until is None else times[times > learned_until]
    share = _FIRST_SHARE if learned_until is None else _LATER_SHARE
    learns = max(0, min(int(len(new) * share), len(new) - _LEAST_JUDGED) - 1)
    until = float(new[learns]) if len(new) else -math.inf
    judged = int((times > until).sum())
    if len(new) < 2 * _LEAST_JUDGED or judged < _LEAST_JUDGED:
        since = "" if learned_until is None else " since the version in service learned"
        raise TooFew(
            f"{len(new)} {what} are new{since}, and {judged} of them came last, to judge by: at least "
            f"{2 * _LEAST_JUDGED} and {_LEAST_JUDGED} are needed; train when more have come"
        )
    return until
