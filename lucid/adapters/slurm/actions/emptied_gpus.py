"""Lets jobs to GPUs that Lucid has emptied for them: they are told what they get, and held until the jobs in slots
there have left. Released sooner they would have Slurm preempt whoever comes first on the node."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace

from lucid.adapters.slurm.actions.job_writer import ONE_JOB, JobWriter
from lucid.adapters.slurm.actions.preempting_starts import ClaimWatch
from lucid.adapters.slurm.pending.job_state import JobState
from lucid.adapters.slurm.pending.pending_state import left_to_slurm
from lucid.adapters.slurm.records.jobs_and_nodes import SlurmJob
from lucid.adapters.slurm.snapshot.observation import Observation
from lucid.adapters.store.port import JobNote
from lucid.config import Mode
from lucid.errors import ActionRefused

__all__ = ["Emptied"]


class Emptied:
    """The last step of such a start. ``take_back``: gives a job back the request that its user wrote."""

    def __init__(self, writer: JobWriter, claims: ClaimWatch, take_back: Callable[[SlurmJob, JobNote], None]) -> None:
        self._writer = writer
        self._claims = claims
        self._take_back = take_back

    def let_all_in(self, facts: Observation) -> None:
        """Release those whose GPUs are empty by now."""
        writer, jobs = self._writer, dict[str, SlurmJob]()
        for note in [note for note in writer.notes.values() if note.claims and not note.released]:
            jobs = jobs or {job.id: job for job in facts.jobs}
            record = jobs.get(note.job_id)
            if record is None or writer.full(ONE_JOB, start=True):
                continue
            if writer.ownership.state(record, note, facts.now_s) is not JobState.EMPTYING:
                continue
            packs = facts.modes.get(writer.ownership.home(record, note)) is Mode.PACK
            if packs and self._claims.emptied(record, note, jobs, facts):
                with suppress(ActionRefused):
                    self.let_in(record, note, jobs, facts)

    def let_in(self, record: SlurmJob, note: JobNote, jobs: Mapping[str, SlurmJob], facts: Observation) -> str:
        """The next step of one of them, in words; empty where it has only to wait."""
        writer, ownership = self._writer, self._writer.ownership
        changed = ownership.leaves(record) or ownership.waits_for(record, note, facts.now_s)
        if changed or left_to_slurm(record):
            self._take_back(record, note)
            return f"job {record.id}: is not let to its GPUs, its user has changed it"
        if self._claims.emptied(record, note, jobs, facts):
            others = (job for job in facts.jobs if job.running and job.id not in note.claims.split())
            if any(self._claims.on_gpus(note, job) for job in others):
                self._take_back(record, note)
                return f"job {record.id}: another job has come to the GPUs that were emptied for it"
            return self._released(record, note)
        if self._claims.waits(note, jobs, facts):
            return ""
        self._take_back(record, note)
        return writer.not_started(record, "those in slots have not left its GPUs")

    def _released(self, record: SlurmJob, note: JobNote) -> str:
        writer = self._writer
        try:
            writer.do(record.id, "let in", note.where, lambda: writer.client.release(record.id))
        except ActionRefused as error:
            return writer.start_refused(record, error)
        writer.put(replace(note, released=True, asked_s=writer.clock.now_s()))
        return ""
