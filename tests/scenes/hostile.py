"""Policies that plan what they are told, with every lie that a plan can tell, and what a cycle does of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lucid.core.decision import Action, Decision, Hold, PartitionPlan, Plan, Start
from lucid.core.ports import Applied, Capability
from lucid.core.reasons.queue import Borrows, FairOrder, PlainOrder
from lucid.core.reasons.sharing import ShareScores
from lucid.core.snapshot import Snapshot
from lucid.orchestrator.cycle import Cycle
from lucid.orchestrator.policy import PolicyRules
from scenes.jobs import at
from scenes.plans import ANYTHING, FixedPredictor, settings

NEEDS = frozenset(Capability) - {Capability.ADAPT, Capability.ORACLE}
WHY = (FairOrder(0.0),)
LIES = (FairOrder(0.0), PlainOrder(0.0, 9e9, 1.0, 2.0), Borrows(0.0), ShareScores(0, 0, 4))


class Says:
    """A policy that plans what it is told."""

    name = "says"

    def __init__(self, decisions: Mapping[str, Mapping[str, Decision]], rules: PolicyRules | None) -> None:
        self.decisions = decisions
        self.needs = NEEDS if rules not in (None, PolicyRules()) else frozenset[Capability]()
        self.profiled: Callable[..., bool] = lambda job: False
        if rules is not None:
            self.rules = rules

    def plan(self, snapshot: Snapshot) -> Plan:
        parts = {}
        for name, partition in snapshot.partitions.items():
            told = self.decisions.get(name, {})
            elsewhere = {job for other, made in self.decisions.items() if other != name for job in made}
            holds = {e.job.id: Hold(WHY) for e in partition.pending if e.job.id not in elsewhere}
            actions = tuple(Action(job, name, d) for job, d in told.items() if not isinstance(d, Hold))
            parts[name] = PartitionPlan({**holds, **told}, actions)
        return Plan(snapshot.now_s, parts)


@dataclass
class Still:
    """A cluster that shows one thing and does nothing."""

    snapshot: Snapshot
    capabilities: frozenset[Capability] = NEEDS

    def observe(self) -> Snapshot:
        return self.snapshot

    def apply(self, actions: Sequence[Action]) -> list[Applied]:
        return [Applied(action) for action in actions]


def done(
    seen: Snapshot,
    decisions: Mapping[str, Mapping[str, Decision]],
    rules: PolicyRules | None = ANYTHING,
    **sections: Any,
) -> dict[str, Decision]:
    """What a live cluster is told to do, by job, where a policy decides this."""
    predictor = FixedPredictor(
        {job: known.duration_s for job, known in seen.predictions.items()},
        {job: known.share_score for job, known in seen.predictions.items()},
    )
    cycle = Cycle(Still(seen), predictor, Says(decisions, rules), settings(**sections), tolerant=True)
    return {item.action.job_id: item.action.decision for item in cycle.run().applied}


def start(where: str, beside: str | None = None, **rest: Any) -> Start:
    return Start(at(where), LIES, beside, **rest)
