"""The ledgers of partitions, from plan to plan."""

from __future__ import annotations

from dataclasses import dataclass

from lucid.core.job import Running
from lucid.core.ledger import Ledger
from lucid.core.snapshot import Partition

__all__ = ["Ledgers"]


@dataclass(slots=True)
class _Base:
    """The ledger of a partition as it was handed out last, and its running jobs by the ``id`` of their entries,
    where these were asked for. (While an entry is kept no other has its ``id``.)"""

    partition: Partition
    ledger: Ledger
    entries: dict[int, Running] | None = None


class Ledgers:
    """Makes the ledger of a partition from the one before it of the same name, by the jobs that came and went: few
    do between two plans, and hundreds run. The result is that of ``Ledger(partition)``."""

    def __init__(self) -> None:
        self._bases: dict[str, _Base] = {}

    def of(self, partition: Partition, now_s: float) -> Ledger:
        """A ledger of the partition, which the caller may write in."""
        if any(node.windows for node in partition.nodes):
            return Ledger(partition, now_s)
        base = self._bases.get(partition.name)
        if base is None or base.partition.nodes is not partition.nodes:
            base = self._bases[partition.name] = _Base(partition, Ledger(partition))
        elif base.partition is not partition:
            before = _by_id(base.partition) if base.entries is None else base.entries
            entries = _by_id(partition)
            base.ledger.give_back(before[gone] for gone in before.keys() - entries.keys())
            for came in entries.keys() - before.keys():
                base.ledger.take(entries[came].job, entries[came].placement)
            if base.partition.fitting is not partition.fitting:
                base.ledger.fitting = base.ledger.fitting_of(partition)
            base.partition, base.entries, base.ledger.partition = partition, entries, partition
        base.ledger.now_s = now_s
        return base.ledger.copy()


def _by_id(partition: Partition) -> dict[int, Running]:
    return dict(zip(map(id, partition.running), partition.running, strict=True))
