"""Consolidated placement (acceptance rows L4, L19): as few nodes as possible, the tightest that fit."""

from __future__ import annotations

from collections.abc import Callable

from lucid.core.job import Job
from lucid.core.ledger import Ledger
from lucid.core.placement import NodeGpus, Placement

__all__ = ["consolidated"]


def consolidated(
    ledger: Ledger,
    job: Job,
    allowed: Callable[[int], bool] | None = None,
    remainder_on_emptiest: bool = False,
) -> Placement | None:
    """Free GPUs for a job, or ``None``.

    A job that fits on one node gets the node with the fewest free GPUs that has enough (lowest index among
    equals). A larger one gets whole free nodes in index order, and one more node for the remainder: the
    tightest fit, or with ``remainder_on_emptiest`` the one with the most free GPUs, as the published
    simulator does. ``allowed`` rules nodes out by index. CPUs and host memory must fit as well, in
    proportion to the GPUs on each node.
    """
    gpus = job.gpus
    if gpus > ledger.free:
        return None
    needs_host = ledger.host_limits and (job.cpus > 0 or job.mem_mib > 0)

    def fits(i: int, here: int) -> bool:
        return (allowed is None or allowed(i)) and (not needs_host or ledger.host_fits(i, job, here))

    per_node = ledger.gpus_per_node
    if gpus <= per_node:
        if allowed is None and not needs_host:
            i = ledger.tightest(gpus)
        else:
            i = ledger.tightest(gpus, lambda n: fits(n, gpus))
        return None if i is None else (ledger.lowest(i, gpus),)
    whole, rest = divmod(gpus, per_node)
    chosen: list[int] = []
    for i in ledger.buckets[per_node]:
        if fits(i, per_node):
            chosen.append(i)
            if len(chosen) == whole:
                break
    else:
        return None
    parts: list[NodeGpus] = [ledger.lowest(i, per_node) for i in chosen]
    if rest:
        taken = set(chosen)
        i = _remainder(ledger, rest, lambda n: n not in taken and fits(n, rest), remainder_on_emptiest)
        if i is None:
            return None
        parts.append(ledger.lowest(i, rest))
    return tuple(parts)


def _remainder(ledger: Ledger, gpus: int, allowed: Callable[[int], bool], on_emptiest: bool) -> int | None:
    if not on_emptiest:
        return ledger.tightest(gpus, allowed)
    for count in range(ledger.gpus_per_node, gpus - 1, -1):
        for i in ledger.buckets[count]:
            if allowed(i):
                return i
    return None
