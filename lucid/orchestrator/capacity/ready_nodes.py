"""How many free nodes stay awake, where nodes sleep: as many as the submissions of the next minutes may need.

A job for which no node is awake waits for a boot. So GPUs are kept ready for what is forecast to be submitted
while a node would boot; all other free nodes may sleep at once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from lucid.config import SleepSettings
from lucid.core.snapshot import Partition

__all__ = ["Ready", "ready_nodes"]

_LUMP_GPUS = 4.0
"""Submissions come in lumps of about so many GPUs: a job, or a few at once."""


@dataclass(frozen=True, slots=True)
class Ready:
    """What was compared. ``nodes``: so many free nodes stay awake, or wake. ``needed_gpus``: to be ready for what
    is forecast. ``partly_gpus``: free on nodes that are awake for their jobs."""

    nodes: int
    needed_gpus: float
    partly_gpus: int


def ready_nodes(partition: Partition, gpus_per_hour: float, boot_s: float, settings: SleepSettings) -> Ready:
    """How many of the nodes that nobody uses stay awake. ``gpus_per_hour``: forecast for the partition's VCs
    (``snapshot.arrivals.of(*partition.vcs)``). ``boot_s``: how long a boot takes, or is taken to take."""
    needed = _LUMP_GPUS * _most(gpus_per_hour * boot_s / 3600.0 / _LUMP_GPUS, settings.ready_share)
    held: dict[str, int] = {}
    for entry in partition.running:
        for part in entry.placement:
            held[part.node] = held.get(part.node, 0) | part.mask
    partly = sum(
        node.gpus - held[node.name].bit_count() for node in partition.nodes if node.available and node.name in held
    )
    nodes, left = 0, needed - partly
    for node in partition.nodes:
        if left <= 0.0:
            break
        if node.available and node.name not in held:
            nodes += 1
            left -= node.gpus
    return Ready(nodes, needed, partly)


def _most(mean: float, share: float) -> int:
    """The number that a Poisson-distributed one with this mean does not exceed with this probability."""
    count, chance = 0, math.exp(-mean)
    total = chance
    while total < share and count < 10.0 * mean + 10.0:
        count += 1
        chance *= mean / count
        total += chance
    return count
