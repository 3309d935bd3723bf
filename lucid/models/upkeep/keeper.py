"""One tick of the upkeep, for a timer in the daemon and for cron alike: measure drift, decide, train.

Nothing is kept in memory between ticks: what a crash interrupts, the next tick does again. Two ticks at once
are harmless, since training holds the library's lock and the second is skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from lucid.config import ModelSettings
from lucid.errors import LucidError, ModelError
from lucid.models.upkeep.kind import Kind, TooFew
from lucid.models.upkeep.kinds import KINDS
from lucid.models.upkeep.library import Library, Trained
from lucid.models.upkeep.update import Action, Decision, Evidence, Rules, due, run_due

__all__ = ["Keeper", "Outcome", "Source", "rules_from"]


@dataclass(frozen=True)
class Source:
    """Where data of one sort comes from. ``read`` reads all of it anew; ``name`` says where from, for the facts of
    versions. ``implied``: no option named it, so it is no error if it does not suffice."""

    read: Callable[[], Any]
    name: str = ""
    implied: bool = False


@dataclass(frozen=True)
class Outcome:
    """What one tick came to for one kind; `trouble` is why it could not be looked at or trained."""

    kind: str
    evidence: Evidence | None
    decision: Decision | None
    trained: Trained | None = None
    trouble: str | None = None

    def to_json(self) -> dict[str, Any]:
        """For logs and ``--json``."""
        data: dict[str, Any] = {"kind": self.kind, "trouble": self.trouble}
        if self.evidence is not None:
            data["new"] = self.evidence.new_jobs
            data["drift"] = self.evidence.drift.to_json()
        if self.decision is not None:
            data["action"] = self.decision.action.value
            data["reasons"] = list(self.decision.reasons)
        if self.trained is not None:
            data["version"] = self.trained.version
            data["loss"] = self.trained.loss
            data["loss_in_service"] = self.trained.loss_in_service
            data["promoted"] = self.trained.promoted
            data["why"] = self.trained.reason
        return data


class Keeper:
    """Keeps the models of one library. ``sources``: by sort of data (``Kind.data``)."""

    def __init__(self, library: Library, sources: Mapping[str, Source], rules: Rules | None = None) -> None:
        self.library = library
        self._sources = sources
        self._rules = rules or Rules()
        self._kinds = {kind.name: kind for kind in KINDS if kind.data in sources}
        self._read: dict[str, Any] = {}

    @property
    def kinds(self) -> tuple[str, ...]:
        """Names of the kinds that there is data for."""
        return tuple(self._kinds)

    @property
    def asked_for(self) -> tuple[str, ...]:
        """Names of those whose data somebody named."""
        return tuple(name for name, kind in self._kinds.items() if not self._sources[kind.data].implied)

    def status(self, now: datetime) -> list[Outcome]:
        """What a tick would decide now, without training; a kind that cannot be looked at says why."""
        self._read.clear()
        return [self._looked_at(kind, now) for kind in self._kinds.values()]

    def tick(self, now: datetime, kinds: Sequence[str] | None = None) -> list[Outcome]:
        """Look at every kind; train, and suspend the version in service, where that is due.

        Trouble with one kind (data that cannot be read, a training that fails) is reported and leaves the others.
        """
        self._read.clear()
        return [self._tick(self._kinds[name], now) for name in (self.kinds if kinds is None else kinds)]

    def train(self, name: str) -> Trained:
        """Train one kind whether it is due or not.

        Raises:
            ModelError: there is no data for that kind, or too little of it.
            TrainingRuns: another training runs.
        """
        if name not in self._kinds:
            there = ", ".join(self.kinds) or "nothing"
            raise ModelError(f"no data to train {name} from; known sources are for {there}")
        self._read.clear()
        return self._train(self._kinds[name])

    def _tick(self, kind: Kind[Any, Any], now: datetime) -> Outcome:
        looked = self._looked_at(kind, now)
        if looked.evidence is None:
            return looked
        try:
            decision, trained = run_due(
                self.library,
                looked.evidence,
                lambda _: self._train(kind),
                kind.rules(self._rules),
                lambda why: self.library.suspend(kind.name, "; ".join(why.reasons)),
            )
        except LucidError as error:
            return self._failed(looked, kind, error)
        return replace(looked, decision=decision, trained=trained)

    def _looked_at(self, kind: Kind[Any, Any], now: datetime) -> Outcome:
        unknown = Outcome(kind.name, None, None)
        try:
            evidence = kind.evidence(self.library, self._data(kind), now)
        except LucidError as error:
            return self._failed(unknown, kind, error)
        return replace(unknown, evidence=evidence, decision=due(evidence, kind.rules(self._rules)))

    def _failed(self, outcome: Outcome, kind: Kind[Any, Any], error: LucidError) -> Outcome:
        if isinstance(error, TooFew) and self._sources[kind.data].implied:
            return replace(outcome, decision=Decision(Action.NOTHING, (str(error),)))
        return replace(outcome, trouble=str(error))

    def _train(self, kind: Kind[Any, Any]) -> Trained:
        return kind.train(self.library, self._data(kind), self._sources[kind.data].name)

    def _data(self, kind: Kind[Any, Any]) -> Any:
        if kind.data not in self._read:
            self._read[kind.data] = self._sources[kind.data].read()
        return self._read[kind.data]


def rules_from(settings: ModelSettings) -> Rules:
    """The bounds that an administrator set."""
    return Rules(new_jobs=settings.new_jobs, most_age=timedelta(days=settings.most_age_days))
