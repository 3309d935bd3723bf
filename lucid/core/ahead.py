"""Windows of a partition as people are shown them: which lie ahead or have begun, and which jobs reach into them."""

from __future__ import annotations

import math
from dataclasses import dataclass

from lucid.core.job import Running
from lucid.core.node import Window
from lucid.core.snapshot import Partition

__all__ = ["Seen", "windows_of"]


@dataclass(frozen=True, slots=True)
class Seen:
    """One window, the nodes of the partition that it closes, and the running jobs on them that may last into it."""

    window: Window
    nodes: tuple[str, ...]
    reaching: tuple[str, ...]


def windows_of(partition: Partition) -> list[Seen]:
    """The earliest first."""
    nodes: dict[Window, list[str]] = {}
    for node in partition.nodes:
        for window in node.windows:
            nodes.setdefault(window, []).append(node.name)
    found = []
    for window in sorted(nodes, key=lambda w: (w.from_s, w.end_s, w.why)):
        here = set(nodes[window])
        on_them = (entry for entry in partition.running if any(part.node in here for part in entry.placement))
        reaching = tuple(entry.job.id for entry in on_them if _lasts_until_s(entry) > window.from_s)
        found.append(Seen(window, tuple(nodes[window]), reaching))
    return found


def _lasts_until_s(entry: Running) -> float:
    limit_s = entry.job.time_limit_s
    return math.inf if limit_s is None else entry.start_s + limit_s
