"""Nodes kept for large jobs: for which job, on which nodes, and which other jobs may start on them meanwhile.

The rule is that of EASY backfilling. Nodes are kept for one job at a time: the large job that has waited longest for
its estimate, since a job of a day makes each job behind it wait for a day; but the oldest, once that has waited for
``OLDEST_AFTER_S`` (docs/decisions/0053). They are the nodes expected to drain soonest. Another job may start on them
only if it is expected to end by then; the longer the holder has waited, the surer that must be (``KeptNodes.fence``).
Large jobs that come one after the other would have the VC to themselves; ``large_share`` prevents that."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence, Set
from typing import TYPE_CHECKING

from msgspec import Struct

from lucid.core.job import Job, Pending
from lucid.core.ledger import Ledger
from lucid.core.prediction import Prediction
from lucid.core.reasons.queue import LargeShare, Reserved
from lucid.core.snapshot import Partition
from lucid.orchestrator.capacity.placement import Feasibility
from lucid.orchestrator.capacity.timeline import Timeline
from lucid.orchestrator.order.queue_order import in_precedence

if TYPE_CHECKING:
    from lucid.config.policy import ReservationSettings


OLDEST_AFTER_S = 172800.0
"""A large job that has waited this long goes before all other large jobs, the oldest first. Before that, the one
whose wait is the greatest multiple of its estimate goes first, outside pools. Where most jobs that wait are large,
any job that has waited this long goes first."""
PATIENCE_S = 43200.0
"""Another job may start on kept nodes if its estimate ends before they are needed; once the job that they are kept
for has waited for n times this long, if n times its estimate does. Where the other jobs of the VC have waited longer
on average, their wait counts instead."""
_LEAST_S = 1.0
"""The least time until the policy looks for other nodes."""


class NodeReservation(Struct, frozen=True):
    """The kept nodes, by index and by name, and the comparison that others must pass to start there: to be expected
    to take at most ``room.room_s``."""

    room: Reserved
    nodes: frozenset[int]
    names: frozenset[str]


class KeptNodes(Struct, frozen=True):
    """The nodes chosen for a job, by name, and when they were expected to have room for it."""

    names: tuple[str, ...]
    until_s: float

    def fence(self, holder: Job, ledger: Ledger, now_s: float, patience_s: float) -> NodeReservation:
        """The reservation of these nodes: other jobs may start there only if they should end by ``until_s``.

        Estimates of single jobs are poor, and each guest that overstays makes the holder wait for longer. So a guest
        must end in time even if it takes several times its estimate: twice once the holder has waited for twice
        ``patience_s``, and so on."""
        times = max((now_s - holder.submit_s) / patience_s, 1.0)
        room = Reserved(holder.id, self.until_s, max(self.until_s - now_s, 0.0) / times, len(self.names), times)
        return NodeReservation(room, frozenset(ledger.index[name] for name in self.names), frozenset(self.names))


class NodeReservations:
    """All nodes that are kept in one plan. The longer a job is expected to take, the more of them are closed to it:
    its ``level`` is the number of fences, from the tightest, that the job must keep off."""

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
        """The level of a job with this estimate."""
        return bisect_left(self.rooms_s, duration_s)

    def why(self, level: int) -> Reserved:
        """The tightest comparison that a job of this level, above 0, fails."""
        assert level
        return self.fences[0].room


def keep(job: Job, ledger: Ledger, now_s: float, room: Timeline, closed: Set[int]) -> KeptNodes | None:
    """The nodes on which the job is expected to find room first, none of them ``closed``; ``None`` where there are
    too few. A part of a node suffices where the job, or its remainder beyond whole nodes, needs no more. ``room``:
    what is expected to be free when."""
    # what comes free stays free, as far as is expected: only where nodes close is it asked for how long
    limit_s = 0.0 if not ledger.closing else math.inf if job.time_limit_s is None else job.time_limit_s
    slot = room.find(job, limit_s, closed, earliest=True)
    if slot is None:
        return None
    return KeptNodes(tuple(ledger.nodes[i].name for i, _ in slot.parts), max(slot.start_s, now_s + _LEAST_S))


_LEAST_ESTIMATE_S = 60.0
"""The least estimate that counts: the first seconds of a wait say nothing."""
PLAN_AGAIN_S = 300.0
"""How soon the plan is made anew while nodes are kept that another job might use: time alone moves what is expected
of these nodes (docs/decisions/0005)."""


def next_holder(
    partition: Partition,
    gpus_per_node: int,
    now_s: float,
    settings: ReservationSettings,
    predictions: Mapping[str, Prediction] | None = None,
) -> tuple[Pending | None, float | None]:
    """The large job (of more GPUs than a node has) to keep nodes for, or ``None``; and when the next one comes. It is
    the oldest if that has waited for ``OLDEST_AFTER_S`` or there are no ``predictions``; else the one that has waited
    longest for its estimate."""
    if not settings.enabled:
        return None, None
    large = [e for e in partition.pending if e.job.gpus > gpus_per_node]
    if not large:
        return None, None
    feasible = Feasibility(partition, up_only=True)  # nodes kept for a job that cannot come would stand idle
    large = [e for e in large if feasible.bar(e.job) is None]
    due = [e for e in large if now_s >= e.job.submit_s]
    if not due:
        return None, min((e.job.submit_s for e in large), default=None)

    def place(entry: Pending) -> tuple[int, float, float, int]:
        job, waited_s = entry.job, now_s - entry.job.submit_s
        times = math.inf
        if predictions is not None and waited_s < OLDEST_AFTER_S:
            times = waited_s / max(predictions[job.id].duration_s, _LEAST_ESTIMATE_S)
        return -job.tier, -times, job.submit_s, job.rank

    due.sort(key=place)
    return in_precedence(due, [e.job for e in due])[0], None


def large_share(
    holder: Pending,
    partition: Partition,
    gpus_per_node: int,
    now_s: float,
    settings: ReservationSettings,
    within_quotas: bool = True,
) -> tuple[LargeShare | None, float | None]:
    """The comparison that keeps large jobs to their share of the GPUs that are up while a smaller job waits, made
    with the smaller job that has waited longest; and when it will fail by itself. ``None`` where no job as large
    runs, where large jobs stay within their share, or where no smaller job waits. ``within_quotas``: in a pool only
    the GPUs of the quotas count."""
    held = sum([entry.gpus for entry in partition.running if entry.job.gpus > gpus_per_node])
    total = sum(node.gpus for node in partition.nodes if node.available)
    if partition.quotas and within_quotas:
        total = min(total, sum(partition.quotas.values()))
    if not held or held + holder.job.gpus <= settings.most_share * total or settings.most_share >= 1:
        return None, None
    feasible = Feasibility(partition, up_only=True)  # large jobs need not give way to a job that can never start
    smaller = [e for e in partition.pending if e.job.gpus <= gpus_per_node and feasible.bar(e.job) is None]
    if not smaller:
        return None, None
    first = min(smaller, key=lambda e: (e.job.submit_s, e.job.rank))
    since_s, holder_since_s = first.job.submit_s, holder.job.submit_s
    found = LargeShare(
        holder.job.gpus, held, total, settings.most_share, first.job.id, now_s - since_s, now_s - holder_since_s
    )
    return found, 2 * since_s - holder_since_s if found else None  # then it has waited half as long
