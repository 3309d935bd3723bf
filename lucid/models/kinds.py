"""All kinds of model; the upkeep's tick over them (drift, decide, train); and which versions serve.

No memory is kept between ticks: what a crash interrupts, the next tick does again. Two ticks at once are harmless,
since training holds the library's lock and the second is skipped."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final, TypeVar

from msgspec import Struct

from lucid.errors import LucidError, ModelError
from lucid.models.duration.evaluate import DURATION
from lucid.models.kind import Kind, TooFew
from lucid.models.library import Library, StoredModel, Trained, TrainingRuns
from lucid.models.packing.kind import PAIRS, SHARE
from lucid.models.throughput.forecaster import THROUGHPUT
from lucid.models.training import Action, Decision, Evidence, Rules, due

KINDS: Final[tuple[Kind[Any, Any], ...]] = (DURATION, SHARE, PAIRS, THROUGHPUT)


def find_kind(name: str) -> Kind[Any, Any]:
    """The kind of that name.

    Raises:
        ModelError: no kind has it."""
    for kind in KINDS:
        if kind.name == name:
            return kind
    raise ModelError(f"no kind of model is called {name!r}; known are {', '.join(kind.name for kind in KINDS)}")


@dataclass(frozen=True)
class Source:
    """The source of one sort of data. ``read`` reads all of it anew; ``name`` is its name for the facts of versions.
    ``implied``: no option named it, so it is no error if it does not suffice."""

    read: Callable[[], Any]
    name: str = ""
    implied: bool = False


@dataclass(frozen=True)
class Outcome:
    """The outcome of one tick for one kind; `trouble` is why it could not be checked or trained."""

    kind: str
    evidence: Evidence | None
    decision: Decision | None
    trained: Trained | None = None
    trouble: str | None = None

    def to_json(self) -> dict[str, Any]:
        """The outcome as JSON, for logs and ``--json``."""
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
        """Names of the kinds that have data."""
        return tuple(self._kinds)

    @property
    def asked_for(self) -> tuple[str, ...]:
        """Names of the kinds whose data an option named."""
        return tuple(name for name, kind in self._kinds.items() if not self._sources[kind.data].implied)

    def status(self, now: datetime) -> list[Outcome]:
        """The decisions of a tick now, without training; a kind that cannot be checked says why."""
        self._read.clear()
        return [self._examined(kind, now) for kind in self._kinds.values()]

    def tick(self, now: datetime, kinds: Sequence[str] | None = None) -> list[Outcome]:
        """Check every kind; train, and suspend the version in service, where that is due.

        Trouble with one kind (data that cannot be read, a training that fails) is reported and leaves the others."""
        self._read.clear()
        return [self._tick(self._kinds[name], now) for name in (self.kinds if kinds is None else kinds)]

    def train(self, name: str) -> Trained:
        """Train one kind whether it is due or not.

        Raises:
            ModelError: there is no data for that kind, or too little of it.
            TrainingRuns: another training runs."""
        if name not in self._kinds:
            there = ", ".join(self.kinds) or "nothing"
            raise ModelError(f"no data to train {name} from; known sources are for {there}")
        self._read.clear()
        return self._train(self._kinds[name])

    def _tick(self, kind: Kind[Any, Any], now: datetime) -> Outcome:
        looked = self._examined(kind, now)
        decision = looked.decision
        if decision is None or decision.action is Action.NOTHING:
            return looked
        try:
            if decision.action is Action.FALL_BACK:
                self.library.suspend(kind.name, "; ".join(decision.reasons))
            return replace(looked, trained=self._train(kind))
        except TrainingRuns as error:  # which serves the same purpose
            return replace(looked, decision=replace(decision, reasons=(*decision.reasons, f"skipped: {error}")))
        except LucidError as error:
            return self._failed(looked, kind, error)

    def _examined(self, kind: Kind[Any, Any], now: datetime) -> Outcome:
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


M = TypeVar("M", bound=StoredModel)


class Serving(Struct, frozen=True):
    """What answers for one kind: a version (``v3``), or its replacement, and ``why``. ``trouble``: a version is in
    service but cannot be used."""

    version: str
    why: str
    trouble: bool = False


class Served:
    """The versions of a library that serve, read once. A version that does not check is passed over."""

    def __init__(self, library: Library, kinds: Sequence[Kind[Any, Any]] = KINDS) -> None:
        self._library = library
        self._models: dict[str, Any] = {}
        self.serving: Mapping[str, Serving] = {kind.name: self._load(kind) for kind in kinds}
        """What answers, by name of the kind."""

    def model(self, kind: Kind[M, Any]) -> M | None:
        """The model of the version in service; ``None`` where its replacement answers."""
        return self._models.get(kind.name)

    def version(self, kind: Kind[Any, Any]) -> str:
        """The name in explanations of what answers for a kind."""
        return self.serving[kind.name].version

    def _load(self, kind: Kind[Any, Any]) -> Serving:
        library = self._library
        try:
            number, suspended = library.serving(kind.name), library.suspended(kind.name)
            if number is None:
                return Serving(kind.stand_in, f"no version in {library.root}")
            if suspended is not None:
                return Serving(kind.stand_in, f"v{number} is suspended: {suspended}")
            self._models[kind.name] = kind.for_service(kind.read(library.show(kind.name)))
        except ModelError as error:
            return Serving(kind.stand_in, str(error), trouble=True)
        except Exception as error:  # a version that does not check, whatever is wrong with it
            return Serving(kind.stand_in, f"{type(error).__name__}: {error}", trouble=True)
        return Serving(f"v{number}", self._promoted(kind.name, number))

    def _promoted(self, name: str, number: int) -> str:
        """Why this version serves, from the library's audit trail."""
        try:
            trail = self._library.trail(name)
            return next(
                (
                    str(entry["why"])
                    for entry in reversed(trail)
                    if entry["version"] == number and entry["action"] in ("promote", "rollback")
                ),
                "",
            )
        except Exception as error:  # the trail explains, and no more
            return str(error)
