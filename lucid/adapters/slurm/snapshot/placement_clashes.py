"""Where jobs on whole GPUs stand that have yet to start: Slurm chooses the GPUs of a node for them. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from lucid.core.job import Running
from lucid.core.placement import NodeGpus

__all__ = ["without_clashes"]


def without_clashes(entries: Sequence[Running], coming: Collection[str], gpus: Mapping[str, int]) -> list[Running]:
    """The same, each job of ``coming`` on as many GPUs of the same nodes, but on none that a job has already. Slurm
    may have given the GPUs that were planned for one job to another; two on one GPU would look like a pair, and a
    GPU like a free one that is not. ``gpus``: how many each node has."""
    if not coming:
        return list(entries)
    used: dict[str, int] = defaultdict(int)
    for entry in entries:
        if entry.job.id not in coming:
            for part in entry.placement:
                used[part.node] |= part.mask
    found = []
    for entry in entries:
        if entry.job.id in coming:
            parts = tuple(_moved(part, used[part.node], gpus.get(part.node, 0)) for part in entry.placement)
            for part in parts:
                used[part.node] |= part.mask
            entry = entry if parts == entry.placement else replace(entry, placement=parts)
        found.append(entry)
    return found


def _moved(part: NodeGpus, used: int, gpus: int) -> NodeGpus:
    """Its own GPUs where they are free, then others; its own where there are too few others."""
    wanted = part.mask.bit_count()
    mask = part.mask & ~used
    free = ((1 << gpus) - 1) & ~used & ~mask
    while free and mask.bit_count() < wanted:
        mask |= free & -free
        free &= free - 1
    return NodeGpus(part.node, mask) if mask.bit_count() == wanted else part
