"""Which profile is known of a job, its own or an earlier like job's, as samplers' files come in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path

from lucid.core.job import JobProfile, TimeShares
from lucid.core.ports import Clock
from lucid.models.packing.like_profiles import LikeProfiles
from lucid.node.reports import ReportFiles, by_job, read_summary
from lucid.profiler.summary import Summary, merged_profile
from lucid.profiler.use import GpuUse
from lucid.slurm.records.job import SlurmJob
from lucid.store.port import ProfileRow
from lucid.store.sqlite import SqliteStore

_UTIL_POINTS = 5.0
_MEMORY_SHARE = 0.05
_SPEED = 0.05
_SHARE = 0.1


@dataclass(frozen=True, slots=True)
class ProfileReading:
    """One job's profile as read. ``source`` names what it was read from, with its version: the same reading never
    counts twice. ``job_id`` is Slurm's job number, or ``<array>_<task>``."""

    job_id: str
    profile: JobProfile
    source: str


class ProfileFolder:
    """Reads new files of the folder that samplers write to; there need not be one. ``bad``: by file name, what is
    wrong with files that could not be read."""

    def __init__(self, folder: Path) -> None:
        self._files = ReportFiles(folder, read_summary)
        self._parts: dict[str, tuple[Summary, ...]] = {}
        self.bad = self._files.bad

    def new(self) -> list[ProfileReading]:
        """A reading for every job of which a file is new or was replaced, once all its nodes are measured. (After a
        restart they come once more; the store knows them by ``source``.)"""
        files, changed = self._files, dict[str, int]()
        news = files.news()
        if news:
            self._parts = by_job(files.items.values())
        for name in news:
            if name in files.items:
                job = files.items[name].job
                changed[job] = max(files.versions[name], changed.get(job, 0))
        found = []
        for job, version in changed.items():
            try:
                profile = merged_profile(self._parts[job])
            except Exception as error:  # summaries of several nodes that do not fit each other
                self.bad[f"{job}.json"] = f"{type(error).__name__}: {error}"
                continue
            if profile is not None:
                found.append(ProfileReading(job, profile, f"{job}@{version}"))
        return found

    def uses(self, job: str) -> list[GpuUse]:
        """How long each GPU of the job worked, from all files of the job."""
        return [use for summary in self._parts.get(job, ()) for use in summary.use]


def labelled(profile: JobProfile, user: str, name: str, amp: bool | None = None) -> JobProfile:
    """The profile with what the daemon knows of the job and the sampler does not: a label that like jobs share, user
    and name, and whether it trains in mixed precision, where its user says so."""
    workload = profile.workload or (f"{user}/{name}" if user else "")
    return replace(profile, workload=workload, amp=amp if profile.amp is None else profile.amp)


def says_more(before: JobProfile | None, after: JobProfile) -> bool:
    """Whether a new profile is different enough to plan anew for. Samplers write every few seconds, and each change
    of a profile makes plans anew."""
    return (
        before is None
        or (before.unstable, before.amp, before.workload) != (after.unstable, after.amp, after.workload)
        or (before.mem_growing, before.seen_beside) != (after.mem_growing, after.seen_beside)
        or _differ(before.seen_speed, after.seen_speed)
        or _shares_differ(before.shares, after.shares)
        or abs(before.gpu_util - after.gpu_util) > _UTIL_POINTS
        or abs(before.mem_util - after.mem_util) > _UTIL_POINTS
        or abs(before.gpu_mem_mib - after.gpu_mem_mib) > _MEMORY_SHARE * max(before.gpu_mem_mib, 1.0)
    )


def _differ(before: float | None, after: float | None) -> bool:
    if before is None or after is None:
        return before is not after
    return abs(before - after) > _SPEED


def _shares_differ(before: TimeShares | None, after: TimeShares | None) -> bool:
    if before is None or after is None:
        return after is not None  # a new sampler does not know yet: what is known stays
    if (before.storage is None) is not (after.storage is None):
        return True
    pairs = (((before.storage or 0.0), (after.storage or 0.0)), (before.cpu, after.cpu), (before.gpu, after.gpu))
    return any(abs(one - other) > _SHARE for one, other in pairs)


class KnownProfiles:
    """Keeps the profiles of jobs. A profile stays the same object as long as it does not change."""

    def __init__(self, store: SqliteStore, source: ProfileFolder, clock: Clock, reuse_days: float) -> None:
        self._store = store
        self._source = source
        self._clock = clock
        self._reuse_s = reuse_days * 86400.0
        self._own: dict[str, JobProfile] = {}
        self._like = LikeProfiles(self._reuse_s)
        for row in sorted(store.profiles().values(), key=lambda row: row.at_s):
            self._own[row.job_id] = row.profile
            self._like.note(row.user, row.name, row.gpus, row.profile, row.at_s)

    def profile_of(self, job: SlurmJob) -> JobProfile | None:
        """The job's profile; ``None`` where none is known."""
        own = self._own.get(job.id)
        if own is not None or not job.user or not self._reuse_s:
            return own
        return self._like.profile_of(job.user, job.name, job.gpus, self._clock.now_s())

    def worked(self, job: SlurmJob) -> tuple[float, float] | None:
        """Seconds for which each GPU of a job has been measured, and in which any of them worked; ``None`` where no
        sampler reports it."""
        uses = self._source.uses(str(job.number)) or self._source.uses(job.id)
        return (min(use.measured_s for use in uses), sum(use.worked_s for use in uses)) if uses else None

    def update(self, jobs: Mapping[str, SlurmJob], among: Sequence[SlurmJob], now_s: float, token: int) -> None:
        """Read new profiles; samplers know a job by its number."""
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
        """Jobs that have a profile of their own, until they are forgotten."""
        return self._own.keys()

    def set(self, job_id: str, profile: JobProfile) -> None:
        """Make this the job's own profile from now on."""
        self._own[job_id] = profile

    def forget(self, job_id: str) -> None:
        """Forget a job that has left."""
        self._own.pop(job_id, None)
