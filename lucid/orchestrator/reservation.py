"""Keeping nodes for a large job that would starve behind small ones, and filling them with jobs that end in time.

The rule is that of EASY backfilling: one reservation at a time, for the job that has waited longest; the nodes
are those expected to drain soonest; another job may start on them only if it is expected to be gone by then.
Estimates of single jobs are poor, so a job is held to ``safety`` times its estimate, and once the holder has
waited long enough nothing at all starts on its nodes any more: the wait is then bounded by what already runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lucid.config import ReservationSettings
from lucid.core.job import Pending
from lucid.core.ledger import Ledger
from lucid.core.prediction import Prediction
from lucid.core.reason import Reserved
from lucid.core.snapshot import Partition

__all__ = ["Reservation", "next_holder", "reserve"]


@dataclass(frozen=True, slots=True)
class Reservation:
    """Nodes (by index) kept for ``holder`` until about ``until_s``."""

    holder: Pending
    nodes: frozenset[int]
    names: frozenset[str]
    until_s: float
    strict: bool
    safety: float

    def room(self, now_s: float) -> Reserved:
        """How long a job may be expected to take that starts on these nodes now."""
        room_s = 0.0 if self.strict else max(self.until_s - now_s, 0.0) / self.safety
        return Reserved(self.holder.job.id, self.until_s, room_s, len(self.nodes), self.strict)


def next_holder(
    partition: Partition, gpus_per_node: int, now_s: float, settings: ReservationSettings
) -> tuple[Pending | None, float | None]:
    """The large job that has waited longest, once past the bound; else ``None`` and the time at which the
    next one will be."""
    if not settings.enabled:
        return None, None
    above = gpus_per_node if settings.above_gpus is None else settings.above_gpus
    most = partition.gpus
    large = [e for e in partition.pending if above < e.job.gpus <= most]
    if not large:
        return None, None
    oldest = min(large, key=lambda e: (e.job.submit_s, e.job.rank))
    due_s = oldest.job.submit_s + settings.after_wait_s
    return (oldest, None) if now_s >= due_s else (None, due_s)


def reserve(
    holder: Pending,
    partition: Partition,
    ledger: Ledger,
    predictions: Mapping[str, Prediction],
    now_s: float,
    settings: ReservationSettings,
) -> Reservation:
    """Choose the nodes that are expected to drain soonest."""
    ready_s = [now_s] * len(ledger.nodes)
    index = ledger.index
    for entry in partition.running:
        ends_s = now_s + predictions[entry.job.id].remaining_s(entry.elapsed_s(now_s))
        for part in entry.placement:
            i = index[part.node]
            if ends_s > ready_s[i]:
                ready_s[i] = ends_s
    whole, rest = divmod(holder.job.gpus, ledger.gpus_per_node)
    usable = [i for i, node in enumerate(ledger.nodes) if node.available and node.gpus == ledger.gpus_per_node]
    usable.sort(key=lambda i: (ready_s[i], i))
    chosen = usable[: whole + (1 if rest else 0)]
    until_s = max((ready_s[i] for i in chosen), default=now_s)
    strict = now_s - holder.job.submit_s >= settings.strict_after_s
    names = frozenset(ledger.nodes[i].name for i in chosen)
    return Reservation(holder, frozenset(chosen), names, until_s, strict, settings.safety)
