"""Safety rules of pairs: who may share GPUs, by the settings and by what was measured."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from lucid.config import PackingSettings
from lucid.core.job import Pending, Running
from lucid.core.node import Node
from lucid.core.prediction import Prediction
from lucid.errors import UnsafePlan

__all__ = ["check_pair"]


def check_pair(
    guest: Pending | Running,
    host: Pending | Running,
    nodes: Iterable[Node],
    packing: PackingSettings,
    predictions: Mapping[str, Prediction],
) -> None:
    """Check two jobs that would hold the same GPUs, which are on ``nodes``.

    Raises:
        UnsafePlan: naming the jobs and the rule.
    """
    names = f"jobs {guest.job.id} and {host.job.id}"
    peaks_mib, scores = 0.0, 0
    for entry in (guest, host):
        job, profile = entry.job, entry.profile
        if profile is None:
            raise UnsafePlan(f"job {job.id}: it would share GPUs, but its GPU memory has not been measured")
        found = predictions.get(job.id)
        if found is None or found.share_score is None:
            raise UnsafePlan(f"job {job.id}: it would share GPUs, but it has no share score")
        if not job.shareable or entry.alone or profile.unstable:
            why = "its user forbids" if not job.shareable else "was parted before" if entry.alone else "is unstable"
            raise UnsafePlan(f"job {job.id}: it would share GPUs, which {why}")
        peaks_mib += profile.gpu_mem_mib
        scores += found.share_score
    if not packing.gss or scores > packing.gss:
        raise UnsafePlan(f"{names}: their share scores add up to {scores}, and policy.packing.gss is {packing.gss}")
    if packing.same_user_only and guest.job.user != host.job.user:
        raise UnsafePlan(f"{names}: they would share GPUs, and are not of the same user")
    used = list(nodes)
    if len(used) != 1:
        raise UnsafePlan(f"{names}: they would share GPUs on {len(used)} nodes; pairs are on one")
    (node,) = used
    if peaks_mib > node.gpu_mem_mib:
        raise UnsafePlan(
            f"{names}: their peaks of {peaks_mib:g} MiB do not fit on a GPU of {node.name!r}, "
            f"which has {node.gpu_mem_mib} MiB"
        )
    if node.slots == 1:
        raise UnsafePlan(f"{names}: a GPU of {node.name!r} has one slot")
