"""Reasons for which Lucid itself lets a waiting job go, in words, and whether they have ended. They lie outside
of the job, which therefore queues again, at its old place. What Slurm had against a start: ``pending_reasons``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lucid.adapters.slurm.pending.pending_reasons import NO_NODE, QUOTA, UNPACKED, may_end
from lucid.adapters.slurm.records.jobs_and_nodes import SlurmJob
from lucid.adapters.slurm.snapshot.observation import Observation, gpus_taken
from lucid.adapters.store.port import GivenUp, JobNote
from lucid.config import Mode

if TYPE_CHECKING:
    from lucid.adapters.slurm.pending.ownership import Ownership

__all__ = ["LetGo"]


class LetGo:
    """Of one round of repair: nodes and quotas are those of one look."""

    def __init__(self, ownership: Ownership, facts: Observation) -> None:
        self._ownership, self._facts = ownership, facts
        self._sizes: dict[str, set[tuple[int, int, int]]] = {}
        """GPUs, CPUs and MiB of the nodes of each VC, where they differ."""

    def unpacked(self, record: SlurmJob, note: JobNote | None) -> str:
        """Nobody orders the jobs of its partition (any more)."""
        home = self._ownership.home(record, note)
        return "" if self._facts.modes.get(home) is Mode.PACK else f"partition {home!r} {UNPACKED}"

    def over_quota(self, record: SlurmJob, note: JobNote | None) -> str:
        """It would wait for ever, since no quota allows for it: whether it runs is Slurm's to say."""
        home, pool = self._ownership.home(record, note), self._facts.pool
        quota = None if pool is None else pool.quotas.get(home)
        if quota is None:
            return ""
        gpus = gpus_taken(record, home, self._facts)
        return f"it asks for {gpus} GPUs, and the quota of {home} is {quota} {QUOTA}" if gpus > quota else ""

    def no_node(self, record: SlurmJob, note: JobNote | None) -> str:
        """Lucid would look for one node for ever: it asks for few enough GPUs for one, and for more CPUs or memory
        than any has. Slurm may spread it."""
        if record.min_nodes > 1 or record.request.whole_nodes or "elastic" in (record.tag or {}):
            return ""
        home, facts = self._ownership.home(record, note), self._facts
        if home not in self._sizes:
            vcs = facts.pool.quotas.keys() if facts.pool is not None and home in facts.pool.quotas else {home}
            nodes = [node for node in facts.nodes if node.gpu_types and not node.partitions.isdisjoint(vcs)]
            self._sizes[home] = {(len(node.gpu_types), node.cpus, node.mem_mib) for node in nodes}
        large = [(cpus, mem) for gpus, cpus, mem in self._sizes[home] if gpus >= record.gpus]
        if not large or any(cpus >= record.cpus and mem >= record.mem_mib for cpus, mem in large):
            return ""
        return NO_NODE

    def ended(self, record: SlurmJob, note: JobNote) -> bool:
        """Has the reason ended for which Lucid itself let this job go, and no other taken its place?"""
        if note.given_up_for in (None, GivenUp.SLURM) or not may_end(note):
            return False
        return not (self.unpacked(record, note) or self.over_quota(record, note) or self.no_node(record, note))
