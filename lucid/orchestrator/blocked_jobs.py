"""Jobs that Slurm does not let start at present (a limit of an account or QOS, licences, a reservation …).

They wait, each with Slurm's own words, and no policy plans anything for them: no GPUs are kept for a start that Slurm
would refuse. The cluster adapter says who they are (``Pending.barred``) and until when.
"""

from __future__ import annotations

from dataclasses import replace

from lucid.core.changes import changed_names, key_of
from lucid.core.decision import Decision, Hold, PartitionPlan
from lucid.core.job import Pending
from lucid.core.reason import SlurmBars
from lucid.core.snapshot import Partition, Snapshot

__all__ = ["BlockedJobs"]


class BlockedJobs:
    """Takes such jobs out of a snapshot before planning, and adds their decisions afterwards. The same objects come
    out as long as the same objects go in, so that kept plans stay kept."""

    def __init__(self) -> None:
        self._open: dict[str, tuple[Partition, Partition]] = {}
        self._some: set[str] = set()
        """Partitions with such jobs, of the snapshot looked at last."""
        self._seen: object | None = None
        self._joined: dict[str, tuple[Partition, PartitionPlan, PartitionPlan]] = {}

    def without(self, snapshot: Snapshot) -> Snapshot:
        """The snapshot without jobs that Slurm bars; the same one where there are none."""
        whole = snapshot.partitions
        names = changed_names(self._seen, whole)
        if len(names) == len(whole):
            self._some.clear()
        for name in names:
            (self._some.discard if self._without(whole[name]) is whole[name] else self._some.add)(name)
        self._seen = key_of(whole)
        if not self._some:
            return snapshot
        return replace(snapshot, partitions={name: self._without(partition) for name, partition in whole.items()})

    def _without(self, partition: Partition) -> Partition:
        known = self._open.get(partition.name)
        if known is None or known[0] is not partition:
            left, looked = partition, partition.listed()
            if known is not None and known[1] is known[0]:  # it had none
                looked = partition.since(known[0]).came
            if any(isinstance(entry, Pending) and entry.barred for entry in looked):
                left = replace(partition, pending=tuple(entry for entry in partition.pending if not entry.barred))
            known = self._open[partition.name] = (partition, left)
        return known[1]

    def joined(self, partition: Partition, plan: PartitionPlan) -> PartitionPlan:
        """The plan with a decision for each job of ``partition`` that was left out: it waits, for Slurm's reason."""
        if self._without(partition) is partition:
            return plan
        known = self._joined.get(partition.name)
        if known is not None and known[0] is partition and known[1] is plan:
            return known[2]
        holds: dict[str, Decision] = {
            entry.job.id: Hold((SlurmBars(entry.barred, entry.retry_s),))
            for entry in partition.pending
            if entry.barred
        }
        made = replace(plan, decisions={**plan.decisions, **holds})
        self._joined[partition.name] = (partition, plan, made)
        return made
