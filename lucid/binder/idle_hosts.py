"""Jobs that do nothing, as hosts: which of them a job that would wait may come beside.

The host loses nothing while it does nothing. When it wakes the guest leaves at once (``lucid.binder.unpack``), so a
guest is a job that may be started over. Its memory is fenced: what the host has held so far stays free for it.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import TYPE_CHECKING, Final

from lucid.binder.sharing import memory_limit_mib
from lucid.core.job import Idle, JobProfile, Pending, Running
from lucid.core.ledger import Ledger
from lucid.core.node import Node
from lucid.core.reason import GpuMemory, HostFits, HostIdle, Reason
from lucid.core.restart import may_restart
from lucid.core.snapshot import Partition

if TYPE_CHECKING:
    from lucid.config import PolicySettings

__all__ = ["VISITS", "IdleHosts", "fits_beside", "own_user_only"]

VISITS: Final = 3
"""A job that was started over so often is no guest any more when its host wakes: that bounds what anybody loses."""


def own_user_only(settings: PolicySettings) -> bool:
    """May only a job of the host's own user come beside it?"""
    return settings.packing.same_user_only or settings.idle.guests == "own"


def fits_beside(host: Running, idle: Idle, guest: JobProfile, node: Node, margin: float) -> GpuMemory:
    """Is there room for the guest's fence beside all that the host has held, and a ``margin`` (share of the GPU)?"""
    fence_mib = memory_limit_mib(guest, node.gpu_mem_mib) or guest.gpu_mem_mib
    return GpuMemory(host.job.id, fence_mib, idle.mem_mib + margin * node.gpu_mem_mib, node.gpu_mem_mib)


class IdleHosts:
    """Those of one plan of one partition, who has been idle for longest first."""

    def __init__(self, partition: Partition, ledger: Ledger, settings: PolicySettings, now_s: float) -> None:
        self._ledger, self._settings, self._now_s = ledger, settings, now_s
        self._restarts = settings.profiling.restarts
        # without MPS nothing fences the guest's memory
        on = settings.packing.gss > 0 and settings.packing.mps is not False
        found = [(e.idle, e) for e in partition.running if e.idle is not None and _joinable(e)] if on else []
        self._open = sorted(found, key=lambda one: (one[0].since_s, one[1].job.id))

    def __bool__(self) -> bool:
        return bool(self._open)

    def drop(self, gone: Container[str]) -> None:
        """Nobody comes beside these jobs any more."""
        self._open = [one for one in self._open if one[1].job.id not in gone]

    def find(self, entry: Pending, fenced: Container[str]) -> tuple[Running, tuple[Reason, ...]] | None:
        """The job to come beside, with the comparisons by which it was found; ``None``: there is none. ``fenced``
        names nodes that this job must keep off. Whether the job may share at all was asked before."""
        job, profile, ledger = entry.job, entry.profile, self._ledger
        may = may_restart(job, self._restarts)
        if profile is None or not may:
            return None
        own = own_user_only(self._settings)
        asks_host = ledger.host_limits and (job.cpus > 0 or job.mem_mib > 0)
        for idle, host in self._open:
            at = ledger.index[host.placement[0].node]
            node = ledger.nodes[at]
            if host.job.gpus != job.gpus or (own and host.job.user != job.user):
                continue
            if not node.available or node.name in fenced or (ledger.closing and not ledger.ends_before(at, job)):
                continue
            memory = fits_beside(host, idle, profile, node, self._settings.idle.memory_margin)
            if not memory or (asks_host and not ledger.host_fits(at, job, job.gpus)):
                continue
            said: Sequence[Reason] = (HostFits(job.cpus, job.mem_mib, True),) if asks_host else ()
            return host, (HostIdle(host.job.id, self._now_s - idle.since_s), memory, *said, may)
        return None


def _joinable(entry: Running) -> bool:
    """Does it run in slots, alone on its GPUs, on one node, and does its user let others share them?"""
    alone = entry.partner is None and not entry.group and len(entry.placement) == 1
    return alone and entry.job.shareable and not entry.alone
