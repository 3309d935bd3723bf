"""Safety rules of pairs: who may share GPUs, by the settings and by what was measured."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from lucid.config import PackingSettings, PolicySettings
from lucid.core.job import Pending, Running
from lucid.core.node import Node
from lucid.core.prediction import Prediction
from lucid.core.restart import may_restart
from lucid.errors import UnsafePlan

__all__ = ["check_pair", "check_visit"]


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


def check_visit(
    guest: Pending | Running, host: Pending | Running, nodes: Iterable[Node], settings: PolicySettings
) -> None:
    """Check a job that would start beside one that does nothing, on ``nodes``.

    Raises:
        UnsafePlan: naming the jobs and the rule.
    """
    names = f"job {guest.job.id} beside job {host.job.id}, which would be its host"
    profile, used = guest.profile, list(nodes)
    if not settings.idle.host or not settings.packing.gss or settings.packing.mps is False:
        raise UnsafePlan(f"{names}: the settings let no job be a host")
    if not isinstance(host, Running) or host.idle is None:
        raise UnsafePlan(f"{names}: the host is not known to do nothing")
    own = settings.packing.same_user_only or settings.idle.guests == "own"
    if own and guest.job.user != host.job.user:
        raise UnsafePlan(f"{names}: they are not of the same user")
    if profile is None or profile.unstable:
        raise UnsafePlan(f"{names}: the guest was not measured, or is unstable")
    if not (guest.job.shareable and host.job.shareable) or guest.alone or host.alone:
        raise UnsafePlan(f"{names}: one of them does not share its GPUs")
    if not may_restart(guest.job, settings.profiling.restarts):
        raise UnsafePlan(f"{names}: the guest may not be started over")
    if len(used) != 1 or used[0].slots == 1:
        raise UnsafePlan(f"{names}: they would not be on one node with two slots a GPU")
    if profile.gpu_mem_mib + host.idle.mem_mib > used[0].gpu_mem_mib:
        raise UnsafePlan(f"{names}: the guest's memory does not fit on a GPU of {used[0].name!r}")
