"""One tick of the upkeep, for a timer in the daemon and for cron alike: measure drift, decide, train.

Nothing is kept in memory between ticks: what a crash interrupts, the next tick does again. Two ticks at once
are harmless, since training holds the library's lock and the second is skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Final

from lucid.config import ModelSettings
from lucid.errors import LucidError, ModelError
from lucid.models.duration.jobtable import JobTable
from lucid.models.duration.model import FitSettings
from lucid.models.packing.measured import Pairing, Usage
from lucid.models.throughput.model import Bins
from lucid.models.upkeep.kinds import (
    duration_evidence,
    measured_evidence,
    throughput_evidence,
    train_duration,
    train_pairs,
    train_share,
    train_throughput,
)
from lucid.models.upkeep.library import Library, Trained
from lucid.models.upkeep.update import Decision, Evidence, Rules, due, run_due

__all__ = ["Keeper", "Outcome", "Sources", "rules_from"]

Measured = tuple[Sequence[Usage], Sequence[Pairing]]

# A bin is ten minutes in the usual case: a week of them calls for training, a day is worth it.
_WEEK_BINS: Final = 1008
_DAY_BINS: Final = 144
_MEASURED: Final = 10
_LEAST_MEASURED: Final = 3


@dataclass(frozen=True)
class Sources:
    """Where the data comes from, read anew at each tick; None where there is none. `names` are for the facts of
    the versions (a file, or what else the data is called)."""

    jobs: Callable[[], JobTable] | None = None
    measured: Callable[[], Measured] | None = None
    bins: Callable[[], Bins] | None = None
    names: Mapping[str, str] = field(default_factory=dict)

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of model that can be trained from these."""
        kinds: list[str] = []
        if self.jobs is not None:
            kinds.append("duration")
        if self.measured is not None:
            kinds += ["share", "pairs"]
        if self.bins is not None:
            kinds.append("throughput")
        return tuple(kinds)


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
    """Keeps the models of one library. `fit` says how durations are trained."""

    def __init__(
        self, library: Library, sources: Sources, rules: Rules | None = None, fit: FitSettings | None = None
    ) -> None:
        self.library = library
        self.sources = sources
        self._rules = rules or Rules()
        self._fit = fit
        self._read: dict[str, Any] = {}

    def status(self, now: datetime) -> list[Outcome]:
        """What a tick would decide now, without training; a kind that cannot be looked at says why."""
        self._read.clear()
        return [self._looked_at(kind, now) for kind in self.sources.kinds]

    def tick(self, now: datetime, kinds: Sequence[str] | None = None) -> list[Outcome]:
        """Look at every kind; train, and fall back to history means, where that is due.

        Trouble with one kind (data that cannot be read, a training that fails) is reported and leaves the others.
        """
        self._read.clear()
        outcomes = []
        for kind in self.sources.kinds if kinds is None else kinds:
            looked = self._looked_at(kind, now)
            if looked.evidence is None:
                outcomes.append(looked)
                continue
            try:
                decision, trained = run_due(
                    self.library,
                    looked.evidence,
                    lambda _, kind=kind: self._train(kind),  # type: ignore[misc]
                    self._rules_of(kind),
                    lambda why, kind=kind: self.library.suspend(kind, "; ".join(why.reasons)),  # type: ignore[misc]
                )
                outcomes.append(Outcome(kind, looked.evidence, decision, trained))
            except LucidError as error:
                outcomes.append(replace(looked, trouble=str(error)))
        return outcomes

    def train(self, kind: str) -> Trained:
        """Train one kind whether it is due or not.

        Raises:
            ModelError: there is no data for that kind, or too little of it.
            TrainingRuns: another training runs.
        """
        if kind not in self.sources.kinds:
            raise ModelError(
                f"no data to train {kind} from; known sources are for {', '.join(self.sources.kinds) or 'nothing'}"
            )
        self._read.clear()
        return self._train(kind)

    def _looked_at(self, kind: str, now: datetime) -> Outcome:
        try:
            evidence = self._evidence(kind, now)
        except LucidError as error:
            return Outcome(kind, None, None, trouble=str(error))
        return Outcome(kind, evidence, due(evidence, self._rules_of(kind)))

    def _evidence(self, kind: str, now: datetime) -> Evidence:
        data = self._data(kind)
        if kind == "duration":
            return duration_evidence(self.library, data, now)
        if kind == "throughput":
            return throughput_evidence(self.library, data, now)
        return measured_evidence(self.library, kind, data[0], data[1], now)

    def _train(self, kind: str) -> Trained:
        data, source = self._data(kind), self.sources.names.get(kind, "")
        if kind == "duration":
            return train_duration(self.library, data, self._fit, source)
        if kind == "throughput":
            return train_throughput(self.library, data, source=source)
        if kind == "pairs":
            return train_pairs(self.library, data[1], source)
        return train_share(self.library, data[0], data[1], source=source)

    def _data(self, kind: str) -> Any:
        source: Mapping[str, Callable[[], Any] | None] = {
            "duration": self.sources.jobs,
            "throughput": self.sources.bins,
            "share": self.sources.measured,
            "pairs": self.sources.measured,
        }
        read = source[kind]
        assert read is not None
        what = "measured" if kind in ("share", "pairs") else kind
        if what not in self._read:
            self._read[what] = read()
        return self._read[what]

    def _rules_of(self, kind: str) -> Rules:
        if kind == "duration":
            return self._rules
        if kind == "throughput":
            return replace(self._rules, new_jobs=_WEEK_BINS, least_jobs=_DAY_BINS, drift_jobs=_DAY_BINS)
        return replace(self._rules, new_jobs=_MEASURED, least_jobs=_LEAST_MEASURED)


def rules_from(settings: ModelSettings) -> Rules:
    """The bounds that an administrator set."""
    return Rules(
        new_jobs=settings.new_jobs,
        least_jobs=settings.least_jobs,
        most_age=timedelta(days=settings.most_age_days),
        drift_jobs=settings.drift_jobs,
        ratio_train=settings.ratio_train,
        ratio_fall_back=settings.ratio_fall_back,
        psi_train=settings.psi_train,
    )
