"""A job that ended because its host's memory was full is started again with more, if its owner said so.

``lucid:oom=grow`` in the comment is the owner's word, ``daemon.oom_grow_gib`` the site's bound. Slurm keeps a job for
some minutes after its end (MinJobAge) and takes it back into the queue in that time. What was noted before says which
memory it is to have: a lucidd that dies between the two steps leaves a job that waits, and the next one writes it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from math import ceil
from typing import Final

from lucid.adapters.slurm.actions.job_writer import JobWriter
from lucid.adapters.slurm.clients.port import Changes
from lucid.adapters.slurm.records.field_parsers import says
from lucid.adapters.slurm.records.jobs_and_nodes import SlurmJob
from lucid.adapters.slurm.snapshot.observation import Observation
from lucid.adapters.store.port import JobNote
from lucid.config import Mode
from lucid.errors import ActionRefused

__all__ = ["MoreMemory", "complete"]

_MORE: Final = 1.5
_MOST_TIMES: Final = 2
_OOM: Final = "OUT_OF_MEMORY"
_WORD: Final = "oom=grow"
_ID = re.compile(r"\d+(?:_\d+)?")


class MoreMemory:
    """``bound_gib``: the most that a job is given on its node. ``may_have``: the names of the nodes that a job's user
    allows."""

    def __init__(
        self,
        writer: JobWriter,
        bound_gib: float,
        may_have: Callable[[SlurmJob, JobNote | None, Observation], frozenset[str]],
    ) -> None:
        self._writer = writer
        self._may_have = may_have
        self._bound_mib = bound_gib * 1024.0
        self._needed: set[str] = set()
        """Jobs and arrays on whose end others waited."""
        self._refused: set[str] = set()
        """Jobs that have ended for good."""
        self._alive: set[str] = set()
        """Jobs of such owners that were seen before their end. Of another nobody knows who waited for its end."""

    def saw(self, jobs: Sequence[SlurmJob]) -> None:
        """Note who waits for whom: once a job has ended, Slurm forgets the dependencies that its end fulfils."""
        there = {job.id for job in jobs} | {job.id.partition("_")[0] for job in jobs}
        self._needed &= there
        self._refused &= there
        self._alive &= there
        for job in jobs:
            if job.dependency:
                self._needed.update(_ID.findall(job.dependency))
            if not job.ended and says(job.comment, _WORD):
                self._alive.add(job.id)
                self._refused.discard(job.id)

    def over(self, job_id: str) -> None:
        """Its end was told: it is not started again."""
        self._refused.add(job_id)

    def wanted_mib(self, record: SlurmJob, note: JobNote | None, facts: Observation) -> int | None:
        """The memory with which an ended job is to be started again; ``None``: it is not."""
        if record.state != _OOM or not record.ended or record.id in self._refused:
            return None
        if not says(record.comment, _WORD) or not (record.requeue and record.batch):
            return None
        writer = self._writer
        if facts.modes.get(writer.ownership.home(record, note)) is not Mode.PACK or not writer.ownership.ours(record):
            return None
        # Slurm would be told another memory than it reckons with: by node, of one node, as its user asked for it
        if record.het or record.min_nodes > 1 or not record.request.exact_mem or record.request.mem_per_tres:
            return None
        if record.id not in self._alive and not self._noted(record, note):
            return None
        if self._needed & {record.id, record.id.partition("_")[0]}:
            return None
        if note is not None and note.grown >= _MOST_TIMES and not self._noted(record, note):
            return None
        asked, most = record.mem_mib, self._most_mib(record, note, facts)
        more = min(ceil(asked * _MORE), int(most))
        return more if asked > 0 and more > asked else None

    @staticmethod
    def _noted(record: SlurmJob, note: JobNote | None) -> bool:
        """Was this very end noted, and Slurm not told, or not known to have heard?"""
        return note is not None and note.grown_mib > 0 and note.requeued == record.restarts + 1

    def _most_mib(self, record: SlurmJob, note: JobNote | None, facts: Observation) -> float:
        """No more than the site allows, and than the largest node has on which the job may run: with more it would
        wait for ever."""
        home = self._writer.ownership.home(record, note)
        met = self._may_have(record, note, facts)
        nodes = [n for n in facts.nodes if n.name in met and home in n.partitions and n.available]
        return min(self._bound_mib, max((node.mem_mib for node in nodes), default=0))

    def grow(self, record: SlurmJob, note: JobNote | None, facts: Observation) -> str:
        """Put the job back into the queue with more memory; what was done, in words, empty where nothing was."""
        more_mib = self.wanted_mib(record, note, facts)
        if more_mib is None:
            return ""
        writer, now_s = self._writer, facts.now_s
        writer.listed(record.id)
        known = note or JobNote(record.id, user=record.user, name=record.name, submit_s=record.submit_s)
        again = known.grown if self._noted(record, known) else known.grown + 1
        writer.put(
            replace(
                known, where="", released=False, shards=False, wait_since_s=now_s, requeued=record.restarts + 1,
                ran_s=known.ran_s + max(record.end_s - record.start_s, 0.0), grown=again, grown_mib=more_mib,
            )
        )  # fmt: skip
        words = f"asked for {record.mem_mib} MiB, ended out of memory"
        words += f"; again with {more_mib} MiB ({again} of {_MOST_TIMES})"
        changes = Changes(mem_node_mib=more_mib)
        try:
            writer.do(record.id, "more memory", words, lambda: writer.client.requeue_ended(record.id))
        except ActionRefused:
            self._refused.add(record.id)
            writer.put(known)
            raise
        with suppress(ActionRefused):  # else `complete` does it
            writer.do(record.id, "more memory", "", lambda: writer.client.update(record.id, changes))
            writer.put(replace(writer.notes[record.id], grown_mib=0))
        return f"job {record.id}: {words}"


def complete(writer: JobWriter, record: SlurmJob, note: JobNote) -> str:
    """Give a job that waits the memory that was noted for it, without which it is not started; what was done, in
    words. Whether anybody is started again from now on does not matter."""
    mib = note.grown_mib
    if mib <= record.mem_mib or record.unread:
        return ""
    writer.put(replace(note, grown_mib=0))  # once: what its user changes then stays
    try:
        writer.do(
            record.id,
            "more memory",
            f"{mib} MiB",
            lambda: writer.client.update(record.id, Changes(mem_node_mib=mib)),
        )
    except ActionRefused as error:
        return f"job {record.id}: keeps its memory of {record.mem_mib} MiB ({error})"
    return f"job {record.id}: gets {mib} MiB"
