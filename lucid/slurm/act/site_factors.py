"""Order mode's site factors: written where they change, read back a poll later, and written again where undone.

Before 26.05, a backfill that yields its locks may set a job's priority to what it was before, and undo a site factor
that was written meanwhile. No answer of Slurm holds the factor itself, so the priority shows whether it is in
force."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from msgspec.structs import replace

from lucid.errors import ActionRefused
from lucid.slurm.act.write import JobWriter
from lucid.slurm.client import Changes
from lucid.slurm.records.job import SlurmJob
from lucid.store.port import JobNote

_MOST_AGAIN = 3
"""How often one factor of a job is written again: under a priority plugin without site factors it would never
show."""


@dataclass(frozen=True, slots=True)
class _Written:
    """A written factor to be checked at the next poll: the priority was ``priority`` while ``before`` was in
    force."""

    before: int
    factor: int
    priority: int

    def undone(self, priority: int) -> bool:
        """Whether the priority has moved by less than half of what was written. False where that cannot be told: the
        priority could not fall so far (it never falls below 1), or the job is held (0)."""
        step = self.factor - self.before
        if priority <= 0 or self.priority <= 0 or self.priority + step < 1:
            return False
        moved = priority - self.priority
        return (moved if step > 0 else -moved) < abs(step) / 2


class SiteFactors:
    """Writes the site factors, and counts those that were undone."""

    def __init__(self, writer: JobWriter) -> None:
        self._writer = writer
        self._written: dict[str, _Written] = {}
        self._again: dict[str, tuple[int, int]] = {}
        """By job, a factor that was undone, and how often."""
        self.undone = 0
        """How many factors were found undone."""

    def write(self, factors: Mapping[str, int], jobs: Mapping[str, SlurmJob]) -> int:
        """Write the factors that differ from those in force, within the cap on writes; returns how many. A job that
        has a factor and is not in *factors* gets 0. ``jobs``: those of this poll, by id."""
        self._read_back(jobs)
        wanted, notes = dict(factors), self._writer.notes
        for job_id, note in notes.items():
            if note.site_factor and job_id not in wanted:
                wanted[job_id] = 0
        written = 0
        for job_id, factor in wanted.items():
            record, known = jobs.get(job_id), notes.get(job_id)
            before = known.site_factor if known else 0
            if record is None or not record.pending or factor == before:
                continue
            if self._writer.full(1):
                break
            write = partial(self._writer.client.update, job_id, Changes(site_factor=factor))
            try:
                self._writer.do(job_id, "order", str(factor), write)
            except ActionRefused:
                continue
            self._writer.put(replace(known or JobNote(job_id), site_factor=factor))
            if not record.held:
                self._written[job_id] = _Written(before, factor, record.priority)
            written += 1
        return written

    def _read_back(self, jobs: Mapping[str, SlurmJob]) -> None:
        """Note which old factors are in force again, so that the new ones are written once more."""
        checked, self._written = self._written, {}
        for job_id, written in checked.items():
            record, note = jobs.get(job_id), self._writer.notes.get(job_id)
            if record is None or note is None or not record.pending or record.held:
                continue
            if note.site_factor != written.factor or not written.undone(record.priority):
                self._again.pop(job_id, None)
                continue
            factor, times = self._again.get(job_id, (written.factor, 0))
            times = times + 1 if factor == written.factor else 1
            self._again[job_id] = written.factor, times
            self.undone += 1
            if times <= _MOST_AGAIN:
                self._writer.put(replace(note, site_factor=written.before))
        self._again = {job_id: seen for job_id, seen in self._again.items() if job_id in jobs}
