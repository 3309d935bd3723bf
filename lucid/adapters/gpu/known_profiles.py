"""Which profile is known of a job: its own, or what earlier jobs of its user's same or similar program showed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import replace

from lucid.adapters.gpu.profiles import ProfileSource, labelled, says_more
from lucid.adapters.slurm.records.jobs_and_nodes import SlurmJob
from lucid.adapters.store.port import ProfileRow, Store
from lucid.core.job import JobProfile
from lucid.core.ports import Clock
from lucid.models.packing.likeness import LikeProfiles

__all__ = ["KnownProfiles"]


class KnownProfiles:
    """Takes readings in, and answers. A profile stays the same object as long as it does not change."""

    def __init__(self, store: Store, source: ProfileSource, clock: Clock, reuse_days: float) -> None:
        self._store = store
        self._source = source
        self._clock = clock
        self._reuse_s = reuse_days * 86400.0
        self._own: dict[str, JobProfile] = {}
        self._like = LikeProfiles(self._reuse_s)
        for row in sorted(store.profiles().values(), key=lambda row: row.at_s):
            self._own[row.job_id] = row.profile
            self._like.note(row.user, row.name, row.gpus, row.profile, row.at_s)

    def of(self, job: SlurmJob) -> JobProfile | None:
        """The job's profile, if anybody knows one."""
        own = self._own.get(job.id)
        if own is not None or not job.user or not self._reuse_s:
            return own
        return self._like.of(job.user, job.name, job.gpus, self._clock.now_s())

    def worked(self, job: SlurmJob) -> tuple[float, float] | None:
        """Seconds for which each GPU of a job has been measured, and in which any of them worked; ``None`` where no
        sampler tells it."""
        uses = self._source.uses(str(job.number)) or self._source.uses(job.id)
        return (min(use.measured_s for use in uses), sum(use.worked_s for use in uses)) if uses else None

    def take(self, jobs: Mapping[str, SlurmJob], among: Sequence[SlurmJob], now_s: float, token: int) -> None:
        """Read what is new; samplers know a job by its number."""
        readings = self._source.new()
        if not readings:
            return
        by_number = {str(job.number): job for job in among if not job.pending}
        for reading in readings:
            job = jobs.get(reading.job_id) or by_number.get(reading.job_id)
            if job is None:
                continue
            mark = job.tag or {}
            profile = labelled(reading.profile, job.user, job.name, True if mark.get("amp") == "1" else None)
            before = self._own.get(job.id)
            if not says_more(before, profile):
                continue
            if profile.shares is None and before is not None:  # of a sampler that has not seen enough of it yet
                profile = replace(profile, shares=before.shares)
            row = ProfileRow(job.id, job.user, job.name, job.gpus, profile, now_s)
            if self._store.put_profile(row, reading.source, token):
                self.set(job.id, profile)
                self._like.note(job.user, job.name, job.gpus, profile, now_s)

    @property
    def measured(self) -> Set[str]:
        """Jobs that have a profile of their own, as long as they are not forgotten."""
        return self._own.keys()

    def set(self, job_id: str, profile: JobProfile) -> None:
        """From now on this is the job's own."""
        self._own[job_id] = profile

    def forget(self, job_id: str) -> None:
        """The job has left."""
        self._own.pop(job_id, None)
