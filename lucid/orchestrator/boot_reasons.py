"""Starts on nodes that sleep or boot say so, whatever the policy."""

from __future__ import annotations

from dataclasses import replace

from lucid.core.decision import Action, PartitionPlan, Start
from lucid.core.reason import Boots
from lucid.core.snapshot import Partition

__all__ = ["with_boots"]


def with_boots(partition: Partition, made: PartitionPlan, now_s: float) -> PartitionPlan:
    """The plan, with the boot among the reasons of each start that waits for one; the same object where none does."""
    wait = {node.name: node for node in partition.nodes if node.boot_s}
    told: dict[str, Start] = {}
    for action in made.actions if wait else ():
        if isinstance(action.decision, Start):
            mine = [wait[part.node] for part in action.decision.placement if part.node in wait]
            if mine:
                last = max(mine, key=lambda node: node.delay_s(now_s))
                boots = Boots(last.name, last.boots_since_s is None, last.delay_s(now_s), len(mine) - 1)
                told[action.job_id] = replace(action.decision, reasons=(*action.decision.reasons, boots))
    if not told:
        return made
    actions = tuple(Action(a.job_id, a.partition, told.get(a.job_id, a.decision)) for a in made.actions)
    return replace(made, decisions={**made.decisions, **told}, actions=actions)
