"""Time that jobs spend on GPUs before their program begins: nodes boot, prologs run (Slurm's flag CONFIGURING)."""

from __future__ import annotations

from collections.abc import Iterable

from lucid.adapters.slurm.records.jobs_and_nodes import SlurmJob

__all__ = ["Boots"]


class Boots:
    """Remembers, from look to look, until when jobs were seen to be set up. What is not seen counts as run time."""

    def __init__(self) -> None:
        self._until_s: dict[str, float] = {}
        self._began: set[str] = set()

    def saw(self, jobs: Iterable[SlurmJob], now_s: float) -> None:
        """Take in one look. Jobs that it does not show are forgotten."""
        jobs = list(jobs)
        here = {job.id for job in jobs if not job.pending}
        self._until_s = {job_id: at_s for job_id, at_s in self._until_s.items() if job_id in here}
        self._began &= self._until_s.keys()
        for job in jobs:
            if job.configuring:
                self._until_s[job.id] = now_s
                self._began.discard(job.id)
            elif job.running and job.id in self._until_s:
                self._began.add(job.id)

    def ran_s(self, job: SlurmJob) -> float:
        """Seconds that an ended job ran; 0 for one that was being set up when last seen, unless it completed."""
        until_s = self._until_s.get(job.id)
        if until_s is not None and job.id not in self._began and job.state != "COMPLETED":
            return 0.0
        return max(job.end_s - max(job.start_s, until_s or 0.0), 0.0)
