"""The one host of a policy in lucidd: timed, guarded, and with what each part of its plans was made from, so that it
can be made again elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from lucid.core.decision import PartitionPlan, Plan
from lucid.core.job import Ended, Job, JobProfile
from lucid.core.ports import Capability, PairSpeeds, Predictor
from lucid.core.prediction import Prediction
from lucid.core.snapshot import Snapshot
from lucid.orchestrator.by_partition import PoliciesByPartition
from lucid.orchestrator.isolation import Isolation
from lucid.orchestrator.policy import Policy
from lucid.orchestrator.rules import rules_of

__all__ = ["Answers", "Context", "PolicyHost", "RecordingPredictor"]

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


class PolicyHost:
    """Runs the policy that ``make`` makes: tells how long each plan took, keeps what is raised for one partition from
    the others (``Isolation``), and knows of each partition's plan what it was made from: of one that was kept, what
    there was when it was made.

    What earlier plans left (``Snapshot.memory``) outlives a restart of lucidd, so one wrong entry would fail every
    cycle of every later lucidd. Planning without it costs what it is for: a shadow of plain order, a round.
    """

    def __init__(
        self,
        make: Callable[[Predictor], Policy],
        predictor: Predictor,
        *,
        forgot: Callable[[Mapping[str, object], Exception], None] | None = None,
        failed: Callable[[str, Exception], None] = lambda _name, _error: None,
        took: Callable[[float], None] = lambda _: None,
        clock_s: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """``forgot`` is told of a memory that the policy failed with, and how, and ``failed`` of a partition that it
        could not plan; without ``forgot`` the plan raises what the policy raises. ``took`` is told how long each plan
        took, by ``clock_s``."""
        self._heard = heard = RecordingPredictor(predictor)
        self._inner = inner = make(heard)
        self._isolation = None if forgot is None else Isolation(lambda: make(heard), forgot, failed)
        self._took, self._clock_s = took, clock_s
        self.name = inner.name
        self.needs: frozenset[Capability] = inner.needs
        self.rules = rules_of(inner)
        self.own_names: Mapping[str, str] = inner.own_names if isinstance(inner, PoliciesByPartition) else {}
        self._made: dict[str, tuple[PartitionPlan, Context]] = {}

    def profiled(self, job: Job) -> bool:
        """As the policy has it."""
        return self._inner.profiled(job)

    def plan(self, snapshot: Snapshot) -> Plan:
        """The policy's plan.

        Raises:
            Exception: the policy raises it, and nobody is told (see ``forgot``).
        """
        began_s = self._clock_s()
        try:
            return self._plan(snapshot)
        finally:
            self._took(self._clock_s() - began_s)

    def _plan(self, snapshot: Snapshot) -> Plan:
        self._heard.answers = {}
        plan = (self._isolation or self._inner).plan(snapshot)
        now = Context(snapshot, self._heard.name, self._heard.answers)
        known, self._made = self._made, {}
        for name, part in plan.partitions.items():
            before = known.get(name)
            self._made[name] = before if before is not None and before[0] is part else (part, now)
        return plan

    def made_from(self) -> Mapping[str, Context]:
        """By partition, what its part of the last plan was made from."""
        return {name: context for name, (_, context) in self._made.items()}
