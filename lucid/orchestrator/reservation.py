"""Keeping nodes for a large job that would starve behind small ones, and filling them with jobs that end in time.

The rule is that of EASY backfilling: one reservation at a time, for the job that has waited longest; the nodes
are those expected to drain soonest; another job may start on them only if it is expected to be gone by then.
Estimates of single jobs are poor, so a job is held to ``safety`` times its estimate, and once the holder has
waited long enough nothing at all starts on its nodes any more: the wait is then bounded by what already runs.
Large jobs that come without end would so have everything to themselves; ``large_share`` is what stops that.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from math import inf

from lucid.config import ReservationSettings
from lucid.core.job import Pending
from lucid.core.ledger import Ledger, gpus_by_node
from lucid.core.prediction import Prediction
from lucid.core.reason import LargeShare, Reserved
from lucid.core.snapshot import Partition
from lucid.orchestrator.placement import Feasibility

__all__ = ["Reservation", "large_share", "next_holder", "reserve"]


_LATER_S = 1e-3
"""A change that comes just after an instant is looked for so much later; also the least time between two looks."""


@dataclass(frozen=True, slots=True)
class Reservation:
    """Nodes (by index) kept for ``holder`` until about ``until_s``.

    The time itself moves a reservation while nothing happens. Jobs on its nodes that are within their estimates
    end at fixed times, the last at ``fixed_s``; those that have outlived theirs are expected to end at
    ``2 x now - start``, the last being the one that started at ``oldest_s``. ``others_s``: when the nodes may come
    to be others. Infinite where there is no such thing.
    """

    holder: Pending
    nodes: frozenset[int]
    names: frozenset[str]
    until_s: float
    strict: bool
    safety: float
    fixed_s: float = -inf
    oldest_s: float = inf
    others_s: float = inf

    def room(self, now_s: float) -> Reserved:
        """How long a job may be expected to take that starts on these nodes now."""
        room_s = 0.0 if self.strict else max(self.until_s - now_s, 0.0) / self.safety
        return Reserved(self.holder.job.id, self.until_s, room_s, len(self.nodes), self.strict)

    def stands_until_s(self, now_s: float, durations_s: Iterable[float]) -> float | None:
        """The first time after ``now_s`` at which a plan round this reservation may come out otherwise although
        nothing has happened: its nodes change, or the room on them has come to be too little, or to be enough,
        for a job of one of these estimated durations. ``None``: never."""
        found_s = self.others_s
        if not self.strict:
            room_s = self.room(now_s).room_s
            most_within_s, least_above_s = 0.0, inf
            for duration_s in durations_s:
                if duration_s <= room_s:
                    most_within_s = max(most_within_s, duration_s)
                else:
                    least_above_s = min(least_above_s, duration_s)
            too_little_s = self.fixed_s - most_within_s * self.safety
            # else it grows again before; past that time, the jobs that outlive their estimates have made it grow
            if most_within_s and 2 * too_little_s - self.oldest_s < self.fixed_s and too_little_s + _LATER_S > now_s:
                found_s = min(found_s, too_little_s + _LATER_S)
            found_s = min(found_s, self.oldest_s + least_above_s * self.safety)
        return None if found_s == inf else max(found_s, now_s + _LATER_S)


def next_holder(
    partition: Partition, gpus_per_node: int, now_s: float, settings: ReservationSettings
) -> tuple[Pending | None, float | None]:
    """The large job that has waited longest, once past the bound; else ``None`` and the time at which the
    next one will be."""
    if not settings.enabled:
        return None, None
    above = _above(gpus_per_node, settings)
    feasible = Feasibility(partition, up_only=True)  # nodes kept for a job that cannot come would stand idle
    large = [e for e in partition.pending if e.job.gpus > above and feasible.bar(e.job) is None]
    if not large:
        return None, None
    oldest = min(large, key=lambda e: (e.job.submit_s, e.job.rank))
    due_s = oldest.job.submit_s + settings.after_wait_s
    return (oldest, None) if now_s >= due_s else (None, due_s)


def _above(gpus_per_node: int, settings: ReservationSettings) -> int:
    """A job of more GPUs than this is large."""
    return gpus_per_node if settings.above_gpus is None else settings.above_gpus


def large_share(
    holder: Pending, partition: Partition, gpus_per_node: int, now_s: float, settings: ReservationSettings
) -> tuple[LargeShare | None, float | None]:
    """The comparison that keeps large jobs to their share of the GPUs that are up while a smaller job waits, made
    with the smaller job that has waited longest, and when it will fail by itself; ``None`` where there is nothing
    to compare, because no job as large runs, they would stay within their share, or no smaller one waits."""
    above = _above(gpus_per_node, settings)
    held = sum(entry.gpus for entry in partition.running if entry.job.gpus > above)
    total = sum(node.gpus for node in partition.nodes if node.available)
    if not held or held + holder.job.gpus <= settings.most_share * total or settings.most_share >= 1:
        return None, None  # before the queue is looked through
    feasible = Feasibility(partition, up_only=True)  # a job that can never start is helped by nobody's waiting
    smaller = [e for e in partition.pending if e.job.gpus <= above and feasible.bar(e.job) is None]
    if not smaller:
        return None, None
    first = min(smaller, key=lambda e: (e.job.submit_s, e.job.rank))
    since_s, holder_since_s = first.job.submit_s, holder.job.submit_s
    found = LargeShare(
        holder.job.gpus, held, total, settings.most_share, first.job.id, now_s - since_s, now_s - holder_since_s
    )
    return found, 2 * since_s - holder_since_s if found else None  # then it has waited half as long


def reserve(
    holder: Pending,
    partition: Partition,
    ledger: Ledger,
    predictions: Mapping[str, Prediction],
    now_s: float,
    settings: ReservationSettings,
    closed: Set[int] = frozenset(),
) -> Reservation:
    """Choose the nodes that are expected to drain soonest, none of them ``closed``."""
    expected = [_Drain() for _ in ledger.nodes]
    index = ledger.index
    for entry in partition.running:
        found, start_s = predictions[entry.job.id], entry.start_s
        outlived = found.outlived(now_s - start_s)
        # not now + what remains: that moves by a rounding error, and nodes that are equal would change places
        ends_s = start_s + found.duration_s
        for part in entry.placement:
            drain = expected[index[part.node]]
            if outlived:
                drain.oldest_s = min(drain.oldest_s, start_s)
            else:
                drain.first_s = min(drain.first_s, ends_s)
                drain.fixed_s = max(drain.fixed_s, ends_s)
    ready_s = [max(now_s, drain.fixed_s, 2 * now_s - drain.oldest_s) for drain in expected]
    usable = [
        i
        for i, node in enumerate(ledger.nodes)
        if node.available and node.gpus == ledger.gpus_per_node and i not in closed
    ]
    usable.sort(key=lambda i: (ready_s[i], i))
    count = sum(nodes for _, nodes in gpus_by_node(holder.job, ledger.gpus_per_node))
    chosen, others = usable[:count], [expected[i] for i in usable[count:]]
    drains = [expected[i] for i in chosen]
    strict = now_s - holder.job.submit_s >= settings.strict_after_s
    settled = strict and not others  # no node to change to, and no room to grow
    return Reservation(
        holder,
        frozenset(chosen),
        frozenset(ledger.nodes[i].name for i in chosen),
        max((ready_s[i] for i in chosen), default=now_s),
        strict,
        settings.safety,
        max((drain.fixed_s for drain in drains), default=-inf),
        min((drain.oldest_s for drain in drains), default=inf),
        inf if settled else min((_changes_s(drain, others, now_s) for drain in drains), default=inf),
    )


@dataclass(slots=True)
class _Drain:
    """When one node is expected to have drained: ``max(fixed_s, 2 x now - oldest_s)``, the former from jobs
    within their estimates, ``oldest_s`` being the earliest start of those that have outlived theirs. ``first_s``:
    when the first of the estimates is over."""

    fixed_s: float = -inf
    oldest_s: float = inf
    first_s: float = inf


def _changes_s(drain: _Drain, others: Iterable[_Drain], now_s: float) -> float:
    """When a chosen node may come to be expected later than one of the ``others``: they themselves only ever get
    later than they were expected, so it is what happens on the chosen node that counts."""
    found_s = drain.first_s
    if drain.oldest_s == inf:
        return found_s
    for other in others:  # the chosen node gets later by two seconds every second, past fixed times
        if other.oldest_s >= drain.oldest_s:
            overtakes_s = max((other.fixed_s + drain.oldest_s) / 2, drain.oldest_s)
            # two that get later side by side are equal from then on: once this is past, nothing changes any more
            if other.oldest_s > drain.oldest_s or overtakes_s > now_s - _LATER_S / 2:
                found_s = min(found_s, overtakes_s)
    return found_s
