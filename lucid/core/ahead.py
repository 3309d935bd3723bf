"""Windows of a partition as people are shown them: which lie ahead or have begun, and which jobs reach into them."""

from __future__ import annotations

import math

from lucid.core.frozen import dataclass
from lucid.core.job import Running
from lucid.core.node import Node, Window
from lucid.core.snapshot import Partition

__all__ = ["Seen", "opens_s", "windows_of"]


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


def opens_s(partition: Partition, limit_s: float | None, now_s: float) -> float:
    """When a job of this time limit could start at the earliest, were there no other jobs: now, unless every node is
    closed at some time until it would end. Infinite where nobody knows."""
    length_s = math.inf if limit_s is None else limit_s
    return min((_open_s(node, length_s, now_s) for node in partition.nodes), default=now_s)


def _open_s(node: Node, length_s: float, now_s: float) -> float:
    at_s = now_s
    for window in node.windows:
        if window.end_s > at_s and window.ends_by_s < at_s + length_s:
            at_s = window.end_s
    return at_s


def _lasts_until_s(entry: Running) -> float:
    limit_s = entry.job.time_limit_s
    return math.inf if limit_s is None else entry.start_s + limit_s
