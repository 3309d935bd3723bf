"""When a job that Lucid holds and cannot order in detail may go: never before a held job of the same VC that was
held earlier and asks for no more GPUs.

A held job that could not start itself at present stops nobody: one that Slurm bars (a limit, a licence) or holds
itself (BadConstraints), that its user holds, or whose begin time or dependency lies ahead. Jobs that were held later
do not count, or nobody's turn would come.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from lucid.adapters.slurm.pending.job_state import TOLD, JobState
from lucid.adapters.slurm.pending.ownership import Ownership
from lucid.adapters.slurm.pending.pending_state import joined_late, left_to_slurm
from lucid.adapters.slurm.records.jobs_and_nodes import SlurmJob
from lucid.adapters.slurm.snapshot.observation import Observation, gpus_taken, submitted_s
from lucid.adapters.store.port import JobNote
from lucid.config import Mode

__all__ = ["HoldOrder", "not_yet"]


@dataclass(frozen=True, slots=True)
class _Ahead:
    """One job that waits in a VC."""

    since_s: float
    number: int
    gpus: int
    job_id: str
    group: int


class HoldOrder:
    """One look at the queue. Made anew for each look."""

    def __init__(self, ownership: Ownership, facts: Observation) -> None:
        self._ownership = ownership
        self._facts = facts
        self._parts: Mapping[int, list[SlurmJob]] = self._groups()
        self._waiting: dict[str, list[_Ahead]] = {}
        for record in facts.jobs:
            note = facts.notes.get(record.id)
            if self._counts(record, note):
                ahead = self._ahead(record, note)
                for home in self.homes(record, note):
                    self._waiting.setdefault(home, []).append(ahead)
        for found in self._waiting.values():
            found.sort(key=lambda one: (one.since_s, one.number))

    def homes(self, record: SlurmJob, note: JobNote | None) -> list[str]:
        """The packed VCs in which it waits."""
        named = record.partition.split(",")
        if len(named) == 1:
            named = [self._ownership.home(record, note)]
        return [name for name in named if self._facts.modes.get(name) is Mode.PACK]

    def before(self, record: SlurmJob, note: JobNote | None) -> str:
        """The job that must go before it; empty where its turn has come."""
        mine = self._ahead(record, note)
        for home in self.homes(record, note):
            for other in self._waiting.get(home, ()):
                if (other.since_s, other.number) >= (mine.since_s, mine.number):
                    break
                if other.gpus <= mine.gpus and other.group != mine.group:
                    return other.job_id
        return ""

    def _counts(self, record: SlurmJob, note: JobNote | None) -> bool:
        """Does it hold others back?"""
        ownership, facts = self._ownership, self._facts
        if not record.asks or not ownership.ours(record):
            return False
        state = ownership.state(record, note, facts.now_s)
        if state in TOLD:
            return not record.dependent
        if state is not JobState.QUEUED or ownership.waits_for(record, note, facts.now_s):
            return False
        if record.never_runs or ownership.barred(record, facts.now_s) is not None:
            return False
        queues = record.id in ownership.not_yet or ownership.decides(record, note, facts)
        return bool(left_to_slurm(record)) or queues

    def _ahead(self, record: SlurmJob, note: JobNote | None) -> _Ahead:
        since_s = submitted_s(record.submit_s, note)
        if note is not None and (left_to_slurm(record) or (joined_late(record) and not note.released)):
            since_s = max(since_s, note.wait_since_s)
        group = record.het or record.number
        parts = self._parts.get(record.het, [record]) if record.het else [record]
        return _Ahead(since_s, record.number, sum(map(self._gpus, parts)), record.id, group)

    def _gpus(self, record: SlurmJob) -> int:
        home = next(iter(self.homes(record, self._facts.notes.get(record.id))), record.partition)
        return gpus_taken(record, home, self._facts)

    def _groups(self) -> Mapping[int, list[SlurmJob]]:
        found: defaultdict[int, list[SlurmJob]] = defaultdict(list)
        for record in self._facts.jobs:
            if record.het and record.pending:
                found[record.het].append(record)
        return found


def not_yet(ownership: Ownership, facts: Observation) -> dict[str, str]:
    """Jobs that Lucid may order, and that are to wait behind others first (``joined_late``), each with one that goes
    before it. One that ran before keeps its place."""
    late = [job for job in facts.jobs if job.pending and job.held and not job.restarts and joined_late(job)]
    if not late:
        return {}
    hold_order = HoldOrder(ownership, facts)
    found = ((job.id, hold_order.before(job, facts.notes.get(job.id))) for job in late)
    return {job_id: before for job_id, before in found if before}
