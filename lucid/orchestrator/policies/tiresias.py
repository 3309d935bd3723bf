"""Tiresias: discretised two-dimensional least attained service (2D-LAS), two queues, preemptive."""

from __future__ import annotations

import math

from lucid.config import TiresiasSettings
from lucid.core.decision import PartitionPlan
from lucid.core.job import Job, Pending, Running
from lucid.core.ledger import Ledger
from lucid.core.placement import Placement
from lucid.core.ports import Capability
from lucid.core.reason import Priority, Reason
from lucid.core.rounding import ROUNDING
from lucid.core.snapshot import Partition, Snapshot
from lucid.orchestrator.capacity.placement import emptiest
from lucid.orchestrator.order.precedence import in_precedence
from lucid.orchestrator.policies.queue import attained_s, fill_quota
from lucid.orchestrator.rounds import RoundPolicy, after_round_s
from lucid.orchestrator.rules import PolicyRules

__all__ = ["TiresiasPolicy"]


def _anywhere(ledger: Ledger, job: Job) -> Placement | None:
    return emptiest(ledger, job, job.gpus)


class TiresiasPolicy(RoundPolicy):
    """Jobs that have had at most ``threshold_gpu_s`` GPU-seconds come before the rest; by submission within
    each queue. Needs no estimate."""

    name = "tiresias"
    needs = frozenset({Capability.PREEMPT})
    rules = PolicyRules(preempts="anybody", quotas=True)

    def __init__(self, settings: TiresiasSettings) -> None:
        super().__init__(settings.interval_s)
        self._threshold = settings.threshold_gpu_s
        self._anywhere = settings.placement == "emptiest"

    def idle_plan(self, partition: Partition, memory: object) -> PartitionPlan | None:  # noqa: ARG002
        """Nothing is decided while nobody waits."""
        return None if partition.pending else PartitionPlan({})

    def plan_round(self, partition: Partition, snapshot: Snapshot, memory: object) -> PartitionPlan:  # noqa: ARG002
        """Fill the quota of GPUs."""
        now_s = snapshot.now_s
        both: list[Running | Pending] = [*partition.running, *partition.pending]
        keyed = [(attained_s(entry, now_s) * entry.job.gpus, entry) for entry in both]
        keyed.sort(key=lambda item: (item[0] > self._threshold, item[1].job.submit_s))
        keyed = in_precedence(keyed, [entry.job for _, entry in keyed])
        order: list[tuple[Pending | Running, Reason]] = [
            (entry, Priority("attained GPU-seconds", value, 0.0, entry.job.gpus, "attained service"))
            for value, entry in keyed
        ]
        decided, actions = fill_quota(partition, now_s, order, *([_anywhere] if self._anywhere else []))
        return PartitionPlan(decided, tuple(actions), self._next_s(partition, now_s, bool(actions)))

    def _next_s(self, partition: Partition, now_s: float, acted: bool) -> float | None:
        """The next round that could decide otherwise: the very next after an action, else the first at which
        a running job has crossed the threshold (arrivals and ends change the partition by themselves)."""
        if acted:
            return after_round_s(now_s, self.interval_s)
        crossings = [
            now_s + (self._threshold / e.job.gpus - attained_s(e, now_s))
            for e in partition.running
            if e.job.gpus and attained_s(e, now_s) * e.job.gpus <= self._threshold
        ]
        if not crossings:
            return None
        # strictly past the threshold: at the crossing itself the job still counts as low
        return (math.floor(min(crossings) / self.interval_s + ROUNDING) + 1) * self.interval_s
