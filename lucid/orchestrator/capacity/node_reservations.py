"""Nodes kept for jobs, and which other jobs may start on them."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence, Set

from lucid.core.frozen import dataclass
from lucid.core.job import Job
from lucid.core.ledger import Ledger
from lucid.core.reason import Reserved
from lucid.orchestrator.capacity.timeline import Timeline

__all__ = ["KeptNodes", "NodeReservation", "NodeReservations", "keep"]


_LEAST_S = 1.0
"""The policy does not look for other nodes sooner."""


@dataclass(frozen=True, slots=True)
class NodeReservation:
    """Nodes, by index and by name, and the comparison that others must pass to start there: to be expected to take at
    most ``room.room_s``."""

    room: Reserved
    nodes: frozenset[int]
    names: frozenset[str]


@dataclass(frozen=True, slots=True)
class KeptNodes:
    """Nodes chosen for a job, by name, and when they were then expected to have room for it."""

    names: tuple[str, ...]
    until_s: float

    def fence(self, holder: Job, ledger: Ledger, now_s: float, patience_s: float) -> NodeReservation:
        """Close these nodes to other jobs, but for those that should end by ``until_s``.

        Estimates of single jobs are poor, and each guest that overstays makes the holder wait for longer. So the
        longer the holder has waited, the surer a guest must be to end in time: once the holder has waited for
        twice ``patience_s`` a guest must end in time even if it takes twice its estimate, and so on.
        """
        times = max((now_s - holder.submit_s) / patience_s, 1.0)
        room = Reserved(holder.id, self.until_s, max(self.until_s - now_s, 0.0) / times, len(self.names), times)
        return NodeReservation(room, frozenset(ledger.index[name] for name in self.names), frozenset(self.names))


class NodeReservations:
    """All nodes that are kept in one plan. The longer a job is expected to take, the more of them are closed
    to it: its ``level`` is the number of fences, from the tightest, that the job may not use."""

    def __init__(self, fences: Sequence[NodeReservation] = ()) -> None:
        self.fences = sorted(fences, key=lambda fence: fence.room.room_s)
        self.rooms_s = [fence.room.room_s for fence in self.fences]
        nodes: set[int] = set()
        names: set[str] = set()
        self.nodes: list[frozenset[int]] = [frozenset()]
        self.names: list[frozenset[str]] = [frozenset()]
        for fence in self.fences:
            nodes |= fence.nodes
            names |= fence.names
            self.nodes.append(frozenset(nodes))
            self.names.append(frozenset(names))

    def level(self, duration_s: float) -> int:
        """The level of a job of this estimate."""
        return bisect_left(self.rooms_s, duration_s)

    def why(self, level: int) -> Reserved:
        """The tightest of the comparisons that a job of this level, above 0, fails."""
        assert level
        return self.fences[0].room


def keep(job: Job, ledger: Ledger, now_s: float, room: Timeline, closed: Set[int]) -> KeptNodes | None:
    """The nodes on which the job is expected to find room first, none of them ``closed``; ``None`` where there
    are too few. A part of a node suffices where the job, or what is left of it beyond whole nodes, needs no more.
    ``room``: what is expected to be free when."""
    # what comes free stays free, as far as is expected: only where nodes close is it asked for how long
    limit_s = 0.0 if not ledger.closing else math.inf if job.time_limit_s is None else job.time_limit_s
    slot = room.find(job, limit_s, closed, earliest=True)
    if slot is None:
        return None
    return KeptNodes(tuple(ledger.nodes[i].name for i, _ in slot.parts), max(slot.start_s, now_s + _LEAST_S))
