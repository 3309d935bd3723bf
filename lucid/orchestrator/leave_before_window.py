"""Jobs that were started until a time, and leave then."""

from __future__ import annotations

from lucid.core.decision import Action, Decision, PartitionPlan, Requeue, Start, earliest
from lucid.core.reason import MustLeave
from lucid.core.rounding import reached
from lucid.core.snapshot import Partition

__all__ = ["with_leaving"]


def with_leaving(plan: PartitionPlan, partition: Partition, now_s: float) -> PartitionPlan:
    """The plan with those requeued whose time is up, whatever policy made it; it is made anew when the next one's
    is."""
    until = {entry.job.id: entry.until_s for entry in partition.running if entry.until_s is not None}
    begun = [a.decision.until_s for a in plan.actions if isinstance(a.decision, Start)]
    ahead = [at_s for at_s in (*until.values(), *begun) if at_s is not None and not reached(now_s, at_s)]
    if not until and not ahead:
        return plan
    decisions: dict[str, Decision] = dict(plan.decisions)
    actions = list(plan.actions)
    for job_id, at_s in until.items():
        if reached(now_s, at_s) and job_id not in decisions:
            decisions[job_id] = leaves = Requeue((MustLeave(at_s),))
            actions.append(Action(job_id, partition.name, leaves))
    return PartitionPlan(decisions, tuple(actions), earliest(plan.wake_s, *ahead), plan.memory)
