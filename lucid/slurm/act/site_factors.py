"""Order mode's site factors: written where they change, read back one look later, and written again where Slurm has
taken one back.

Backfill that yields its locks may set a job's priority to what it was before, and with it a site factor that was
written meanwhile (before 26.05). The factor itself is not in any answer, so the priority tells.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

from lucid.errors import ActionRefused
from lucid.slurm.act.write import JobWriter
from lucid.slurm.client import Changes
from lucid.slurm.records.job import SlurmJob
from lucid.store.port import JobNote

_MOST_AGAIN = 3
"""So often one factor of a job is written again: under a priority plugin that knows no site factor it would never
show."""


@dataclass(frozen=True, slots=True)
class _Written:
    """What is to be seen at the next look: the priority was ``priority`` while ``before`` was in force."""

    before: int
    factor: int
    priority: int

    def undone(self, priority: int) -> bool:
        """Has the priority moved by less than half of what was written? Where it could not fall so far (it never
        falls below 1), or the job is held (0), that is not known."""
        step = self.factor - self.before
        if priority <= 0 or self.priority <= 0 or self.priority + step < 1:
            return False
        moved = priority - self.priority
        return (moved if step > 0 else -moved) < abs(step) / 2


class SiteFactors:
    """Writes them, and counts those that were taken back."""

    def __init__(self, writer: JobWriter) -> None:
        self._writer = writer
        self._written: dict[str, _Written] = {}
        self._again: dict[str, tuple[int, int]] = {}
        """By job: a factor that was taken back, and how often."""
        self.undone = 0
        """How many were found to be taken back."""

    def write(self, factors: Mapping[str, int], jobs: Mapping[str, SlurmJob]) -> int:
        """Write those that differ from what is in force, within the cap on writes; returns how many. A job that has a
        factor and is not in *factors* gets 0. ``jobs``: of this look, by id."""
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
        """Note what is in force again, so that the factor is written once more."""
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
