"""The ledgers of partitions, from plan to plan."""

from __future__ import annotations

from dataclasses import dataclass

from lucid.core.job import Running
from lucid.core.ledger import Ledger
from lucid.core.snapshot import Partition

__all__ = ["Ledgers"]


@dataclass(slots=True)
class _Base:
    """The ledger of a partition as it was handed out last."""

    partition: Partition
    ledger: Ledger


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
            changes = partition.since(base.partition)
            base.ledger.give_back(entry for entry in changes.went if isinstance(entry, Running))
            for entry in changes.came:
                if isinstance(entry, Running):
                    base.ledger.take(entry.job, entry.placement)
            if base.partition.fitting is not partition.fitting:
                base.ledger.fitting = base.ledger.fitting_of(partition)
            base.partition = base.ledger.partition = partition
        base.ledger.now_s = now_s
        return base.ledger.copy()
