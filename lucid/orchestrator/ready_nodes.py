"""How many free nodes stay awake, where nodes sleep: as many as the submissions of the next minutes may need.

A job for which no node is awake waits for a boot. So GPUs are kept ready for what is forecast to be submitted
while a node would boot; all other free nodes may sleep at once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from lucid.core.snapshot import Partition

__all__ = ["SETTLE_S", "Ready", "ReadyRules", "ready_nodes"]

SETTLE_S = 60.0
"""A node sleeps once it has been free for so long: where one job follows another, none sleeps between them."""


@dataclass(frozen=True, slots=True)
class ReadyRules:
    """``boot_s``: how long a boot takes, or is taken to take. ``spread``: so many standard deviations more than the
    mean of what is forecast is kept ready; jobs come in lumps of ``lump_gpus``."""

    boot_s: float
    spread: float = 1.0
    lump_gpus: float = 4.0


@dataclass(frozen=True, slots=True)
class Ready:
    """What was compared. ``nodes``: so many free nodes stay awake, or wake. ``needed_gpus``: to be ready for what
    is forecast. ``partly_gpus``: free on nodes that are awake for their jobs."""

    nodes: int
    needed_gpus: float
    partly_gpus: int


def ready_nodes(partition: Partition, gpus_per_hour: float, rules: ReadyRules) -> Ready:
    """How many of the nodes that nobody uses stay awake. ``gpus_per_hour``: forecast for the partition's VCs
    (``snapshot.arrivals.of(*partition.vcs)``)."""
    mean = gpus_per_hour * rules.boot_s / 3600.0
    needed = mean + rules.spread * math.sqrt(mean * rules.lump_gpus)
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
