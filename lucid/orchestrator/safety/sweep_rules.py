"""Safety rules of sweeps: which tasks of an array may share GPUs, and how many."""

from __future__ import annotations

from collections.abc import Sequence

from lucid.binder.sharing import memory_limit_mib
from lucid.config import PackingSettings
from lucid.core.job import Pending, Running, Stage
from lucid.core.node import Node
from lucid.errors import UnsafePlan

__all__ = ["check_sweep"]


def check_sweep(
    guest: Pending | Running, siblings: Sequence[Pending | Running], nodes: Sequence[Node], packing: PackingSettings
) -> None:
    """Check a task that would hold the same GPUs, which are on ``nodes``, as these tasks.

    Raises:
        UnsafePlan: naming the jobs and the rule.
    """
    job, every = guest.job, [guest, *siblings]
    names = f"job {job.id} beside {len(siblings)} others"
    most = min([packing.sweep_most, *(one.job.most_together for one in every if one.job.most_together)])
    if packing.mps is False:
        raise UnsafePlan(f"{names}: without MPS nothing fences their memory")
    if not packing.gss or packing.sweep_most < 3 or len(every) > most:
        raise UnsafePlan(f"{names}: at most {most} jobs share a GPU there (policy.packing.sweep_most, lucid:k)")
    if len(nodes) != 1:
        raise UnsafePlan(f"{names}: they would share GPUs on {len(nodes)} nodes; a sweep is on one")
    (node,) = nodes
    if 0 < node.slots < len(every):
        raise UnsafePlan(f"{names}: a GPU of {node.name!r} has {node.slots} slots")
    fenced_mib = 0.0
    for one in every:
        task, profile = one.job, one.profile
        if not job.array or task.array != job.array or task.user != job.user or task.gpus != job.gpus:
            raise UnsafePlan(f"{names}: job {task.id} is no task of the array of job {job.id}, of its user and size")
        if profile is None or profile.gpu_mem_mib <= 0 or profile.unstable:
            raise UnsafePlan(f"{names}: job {task.id} has not been measured, or is unstable")
        if not task.shareable or one.alone or task.elastic is not None or task.takes_turns:
            raise UnsafePlan(f"{names}: job {task.id} does not share its GPUs so")
        if isinstance(one, Running) and (one.visits or one.idle is not None or one.stage is not Stage.MAIN):
            raise UnsafePlan(f"{names}: job {task.id} is a guest, a host, or being profiled")
        fenced_mib += memory_limit_mib(profile, node.gpu_mem_mib) or node.gpu_mem_mib
    if fenced_mib > node.gpu_mem_mib:
        raise UnsafePlan(
            f"{names}: their fences of {fenced_mib:g} MiB in all do not fit on a GPU of {node.name!r}, which has "
            f"{node.gpu_mem_mib} MiB"
        )
