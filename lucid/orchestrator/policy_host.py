"""A policy under watch: what each part of its plans was made from, so that it can be made again elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from lucid.core.decision import PartitionPlan, Plan
from lucid.core.job import Ended, Job, JobProfile
from lucid.core.ports import Capability, PairSpeeds, Predictor
from lucid.core.prediction import Prediction
from lucid.core.snapshot import Snapshot
from lucid.orchestrator.policy import Policy
from lucid.orchestrator.rules import rules_of

__all__ = ["Answers", "Context", "RecordedPolicy", "RecordingPredictor"]

Answers = Mapping[tuple[JobProfile, JobProfile], PairSpeeds]
"""What the predictor said of pairs, by question."""


@dataclass(frozen=True, slots=True, eq=False)
class Context:
    """All that a policy looked at while it made a plan: the snapshot, and what its predictor, which was called
    ``predictor`` then, said of pairs."""

    snapshot: Snapshot
    predictor: str
    answers: Answers


class RecordingPredictor:
    """Passes every question on, and keeps the answers on pairs: predictions of jobs are in the snapshot anyway."""

    def __init__(self, inner: Predictor) -> None:
        self._inner = inner
        self.answers: dict[tuple[JobProfile, JobProfile], PairSpeeds] = {}

    @property
    def name(self) -> str:
        """As the one behind it is called now."""
        return self._inner.name

    def predict(self, job: Job, profile: JobProfile | None, now_s: float) -> Prediction:
        """Passed on."""
        return self._inner.predict(job, profile, now_s)

    def pair_speed(self, a: JobProfile, b: JobProfile) -> PairSpeeds:
        """Passed on, and kept."""
        found = self.answers[a, b] = self._inner.pair_speed(a, b)
        return found

    def learn(self, ended: Sequence[Ended]) -> None:
        """Passed on."""
        self._inner.learn(ended)


class RecordedPolicy:
    """Plans as the policy does that ``make`` makes, and knows of each partition's plan what it was made from: of one
    that was kept, what there was when it was made."""

    def __init__(self, make: Callable[[Predictor], Policy], predictor: Predictor) -> None:
        self._heard = RecordingPredictor(predictor)
        self._inner = make(self._heard)
        self.rules = rules_of(self._inner)
        self.own_names: Mapping[str, str] = getattr(self._inner, "own_names", {})
        self._made: dict[str, tuple[PartitionPlan, Context]] = {}

    @property
    def name(self) -> str:
        """As the policy is called."""
        return self._inner.name

    @property
    def needs(self) -> frozenset[Capability]:
        """As the policy needs."""
        return self._inner.needs

    def profiled(self, job: Job) -> bool:
        """As the policy has it."""
        return self._inner.profiled(job)

    def plan(self, snapshot: Snapshot) -> Plan:
        """The policy's plan."""
        self._heard.answers = {}
        plan = self._inner.plan(snapshot)
        now = Context(snapshot, self._heard.name, self._heard.answers)
        known, self._made = self._made, {}
        for name, part in plan.partitions.items():
            before = known.get(name)
            self._made[name] = before if before is not None and before[0] is part else (part, now)
        return plan

    def made_from(self) -> Mapping[str, Context]:
        """By partition, what its part of the last plan was made from."""
        return {name: context for name, (_, context) in self._made.items()}
