"""Jobs that leave a GPU that is not well (only those whose users asked that they may be started over), and jobs that
were started until a time, and leave then."""

from __future__ import annotations

from dataclasses import replace

from lucid.core.decision import Action, Decision, PartitionPlan, Requeue
from lucid.core.gpu_health import GpuOut
from lucid.core.job import Running
from lucid.core.reason import GpusOut
from lucid.core.restart import may_restart
from lucid.core.snapshot import Partition

__all__ = ["bad_gpu_of", "off_bad_gpus"]


def bad_gpu_of(entry: Running, partition: Partition) -> GpuOut | None:
    """The GPU that this job may have to leave, the one that is out for longest."""
    nodes = {node.name: node for node in partition.nodes if node.left_out}
    found = [
        out
        for part in entry.placement
        if part.node in nodes
        for out in nodes[part.node].left_out
        if out.ends_jobs and part.mask >> out.bit & 1
    ]
    return min(found, key=lambda out: (out.since_s, out.name), default=None)


def off_bad_gpus(plan: PartitionPlan, partition: Partition) -> PartitionPlan:
    """The plan with those requeued that run on such a GPU and may be started over, whatever policy made it."""
    if not any(out.ends_jobs for node in partition.nodes for out in node.left_out):
        return plan
    decisions: dict[str, Decision] = dict(plan.decisions)
    actions = list(plan.actions)
    for entry in partition.running:
        out = bad_gpu_of(entry, partition)
        if out is None or entry.job.id in decisions or not may_restart(entry.job, "asked"):
            continue
        why = GpusOut(1, out.node, out.index, out.since_s, out.words, out.by)
        decisions[entry.job.id] = leaves = Requeue((why,))
        actions.append(Action(entry.job.id, partition.name, leaves))
    return replace(plan, decisions=decisions, actions=tuple(actions))
