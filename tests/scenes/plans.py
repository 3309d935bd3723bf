"""A cluster at one instant in a line or two, and what a policy decides there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lucid.config.load import settings_from
from lucid.config.policy import PolicySettings
from lucid.core.decision import Decision, PartitionPlan
from lucid.core.job import Ended, Job, JobProfile, Pending, Running
from lucid.core.node import Node
from lucid.core.ports import Predictor
from lucid.core.prediction import Prediction
from lucid.core.snapshot import Partition, Snapshot
from lucid.orchestrator.policy import Policy, PolicyRules
from lucid.orchestrator.registry import make_policy
from lucid.orchestrator.safety.check import check_partition
from scenes.jobs import VC

ANYTHING = PolicyRules(
    pairs=True, profiles=True, preempts="anybody", claims=True, resizes=True, interleaves=True, group_limit=4,
    quotas=True, borrows=True,
)  # fmt: skip
"""A policy that states that it does everything there is to do."""


def part(
    machines: Iterable[Node],
    pending: Iterable[Pending] = (),
    running: Iterable[Running] = (),
    name: str = VC,
    profiling: bool = False,
    **rest: Any,
) -> Partition:
    return Partition(name, tuple(machines), tuple(pending), tuple(running), profiling, **rest)


def guess(duration_s: float, score: int | None = None) -> Prediction:
    return Prediction(duration_s, "test", score, "test")


def snap(now_s: float, *parts: Partition, predictions: Mapping[str, Prediction] | None = None) -> Snapshot:
    """A snapshot; jobs without a prediction of their own get 1000 s, and share score 0 once measured."""
    known = dict(predictions or {})
    for partition in parts:
        for entry in (*partition.pending, *partition.running):
            known.setdefault(entry.job.id, guess(1000.0, None if entry.profile is None else 0))
    return Snapshot(now_s, {p.name: p for p in parts}, (), known)


@dataclass
class FixedPredictor:
    """Says what the test told it."""

    durations_s: Mapping[str, float] = field(default_factory=dict)
    scores: Mapping[str, int] = field(default_factory=dict)
    speed: Callable[[JobProfile, JobProfile], tuple[float, float] | None] = lambda a, b: None
    otherwise_s: float = 1000.0
    learnt: list[Ended] = field(default_factory=list)
    asked: int = 0
    name: str = "fixed"

    def predict(self, job: Job, profile: JobProfile | None, now_s: float) -> Prediction:
        self.asked += 1
        score = None if profile is None else self.scores.get(job.id, 0)
        return Prediction(self.durations_s.get(job.id, self.otherwise_s), self.name, score, self.name)

    def pair_speed(self, a: JobProfile, b: JobProfile) -> tuple[float, float] | None:
        return self.speed(a, b)

    def learn(self, ended: Sequence[Ended]) -> None:
        self.learnt += ended


def settings(**sections: Mapping[str, Any] | Any) -> PolicySettings:
    """Policy settings from sections: ``settings(packing={"gss": 1})``."""
    return settings_from({"policy": sections}, "a test").policy


def policy(name: str, predictor: Predictor | None = None, **sections: Any) -> Policy:
    return make_policy(name, settings(**sections), predictor or FixedPredictor())


def decide(name: str, snapshot: Snapshot, predictor: Predictor | None = None, **sections: Any) -> PartitionPlan:
    return policy(name, predictor, **sections).plan(snapshot).partitions[VC]


def check_plan(
    partition: Partition,
    plan: PartitionPlan,
    rules: PolicyRules = ANYTHING,
    snapshot: Snapshot | None = None,
    **sections: Any,
) -> None:
    """The safety check of one partition's plan, which raises. ``rules``: what its policy states."""
    check_partition(partition, plan, rules, settings(**sections), snapshot or snap(0.0, partition))


def reason(decision: Decision | None, kind: type, made: type = object) -> Any:
    """The reason of one kind of a decision; and the decision is a ``made``."""
    assert decision is not None
    assert isinstance(decision, made)
    found = [item for item in decision.reasons if isinstance(item, kind)]
    assert found, f"no {kind.__name__} among {decision.reasons}"
    return found[0]


def decided(plan: PartitionPlan, job_id: str, kind: Any) -> Any:
    """What the plan decides for a job, which has to be of this kind."""
    decision = plan.decisions[job_id]
    assert isinstance(decision, kind), f"{job_id}: {decision}"
    return decision


def kinds(decision: Decision | None) -> list[str]:
    return [item.kind for item in decision.reasons]
