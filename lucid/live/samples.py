"""Samples from the nodes, taken in by the daemon: each exactly once, and made into profiles and speeds of pairs.

A sampler sees one node; the daemon sees all of a job's nodes, knows from Slurm who stands beside whom and since when,
and keeps what it took in with its cursors in one transaction. Killed before that, it reads the same again;
killed after it, the store's cursors pass over what is there already.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from lucid.adapters.gpu.profiles import ProfileReading, ProfileSource
from lucid.adapters.gpu.spool import JobSamples, read_spool, release
from lucid.adapters.store.port import Store
from lucid.core.job import JobProfile, Running
from lucid.core.ports import Clock
from lucid.errors import MetricsError
from lucid.profiler.series import Series, point_of
from lucid.profiler.summary import merged_profile, summarise
from lucid.profiler.watch import watched

__all__ = ["SampleIntake", "WithSamples"]

_MOST_AT_ONCE: Final = 50_000
"""Samples read in one go, a few seconds of work; after a long absence the rest follows at the next taking-in."""
_POINTS: Final = 512
"""Points of a job's series: with a thousand jobs about 100 MB."""
_OFTEN_S, _SELDOM_S, _YOUNG_S = 10.0, 60.0, 900.0
"""A profile is made anew this often, as samplers do: at first, and later."""
_MOST_PROFILES: Final = 64
"""Profiles made anew at one taking-in; those that have waited longest first."""
_BOUND_EVERY_S: Final = 600.0
_FORGET_S: Final = 3600.0
"""A series that nothing was added to for so long is of a job that is gone with its node."""
_LONGEST_STEP_S: Final = 10.0
_MOST_ALONE: Final = 20_000


@dataclass(slots=True)
class _Run:
    """One run of a job on one node."""

    job: str
    node: str
    series: Series
    gpus: tuple[str, ...] = ()
    taken: int = 0
    last_s: float = 0.0
    begun_s: float | None = None
    profiled_s: float = float("-inf")
    fresh: bool = False

    def add(self, part: JobSamples) -> None:
        self.gpus = part.gpus
        for sample in part.samples:
            step_s = sample.at_s - self.last_s if self.begun_s is not None else 1.0
            self.begun_s = sample.at_s if self.begun_s is None else self.begun_s
            point = point_of(sample, step_s if 0 < step_s <= _LONGEST_STEP_S else 1.0)
            if point is not None:
                self.series.add(point)
            self.last_s, self.taken = sample.at_s, sample.seq + 1
            self.fresh = True

    def due(self) -> bool:
        """Has enough come since its profile was last made?"""
        young = self.last_s - (self.begun_s or 0.0) < _YOUNG_S
        return self.fresh and self.last_s - self.profiled_s >= (_OFTEN_S if young else _SELDOM_S)


class SampleIntake:
    """Takes samples in from ``spool`` every so often, and hands out the profiles that they make (see
    ``ProfileSource``)."""

    def __init__(
        self,
        spool: Path,
        store: Store,
        clock: Clock,
        *,
        every_s: float = 10.0,
        keep_s: float = 6 * 3600.0,
        most_bytes: int = 256 << 20,
    ) -> None:
        self._spool = spool
        self._store = store
        self._clock = clock
        self._every_s = every_s
        self._keep_s = keep_s
        self._most_bytes = most_bytes
        self._token: int | None = None
        self._due_s = float("-inf")
        self._bound_s = float("-inf")
        self._runs: dict[str, _Run] = {}
        self._alone: dict[str, JobProfile] = {}
        """Profiles of jobs alone, of this run or an earlier one."""
        self._beside: dict[str, tuple[str, float]] = {}
        """By job, its partner, and since when they stand together."""
        self._readings: list[ProfileReading] = []
        self.taken = 0
        """Samples taken in since this daemon has the lease."""
        self.missing = 0
        """Given up by samplers before anybody took them in."""
        self.bad: dict[str, str] = {}
        """What could not be read, in words."""

    def watch(self, running: Iterable[Running]) -> None:
        """Who stands beside whom, as Slurm has it."""
        entries = {entry.job.id: entry for entry in running}
        self._beside = {
            job: (other.job.id, max(entry.start_s, other.start_s))
            for job, entry in entries.items()
            if (other := entries.get(entry.partner or "")) is not None
        }

    def take(self, token: int) -> None:
        """Take in what is new, if it is time.

        Raises:
            LeaseLost: another daemon acts.
            StoreError: it cannot be stored; nothing was released, the next taking-in tries again.
        """
        now_s = self._clock.now_s()
        if token != self._token:
            self._go_on(token, now_s)
        if 0 < self._due_s - now_s <= self._every_s:  # more, and the clock has been set back meanwhile
            return
        self._due_s = now_s + self._every_s
        try:
            batch = read_spool(self._spool, self._store.sample_cursors(), _MOST_AT_ONCE)
        except OSError as error:
            self.bad = {str(self._spool): f"{self._spool}: cannot be read ({error.strerror})"}
            return
        self.bad = {words.partition(":")[0]: words for words in batch.bad}
        fresh = self._store.put_samples(batch, now_s, token) if batch.cursors else []
        for part in fresh:
            self._run(part).add(part)
            self.taken += len(part.samples)
            self.missing += part.missing
        try:
            release(self._spool, batch)
        except (OSError, MetricsError) as error:  # they stay, and are passed over by their cursors
            self.bad[str(self._spool)] = f"{self._spool}: what was taken in cannot be deleted ({error})"
        self._make_profiles(batch.ended)
        for folder in batch.ended:
            self._runs.pop(folder, None)
        self._forget(now_s)
        if not 0 <= now_s - self._bound_s < _BOUND_EVERY_S:
            self._bound_s = now_s
            self._store.bound_samples(now_s - self._keep_s, self._most_bytes, token)

    def samples(self, job: str) -> bool:
        """Is this job known by its samples?"""
        return any(run.job == job for run in self._runs.values())

    def new(self) -> Sequence[ProfileReading]:
        """Profiles made since they were last asked for."""
        found, self._readings = self._readings, []
        return found

    def _go_on(self, token: int, now_s: float) -> None:
        """From the store: another daemon, or this one before it was killed, may have taken samples in."""
        self._token = token
        self._runs.clear()
        self.taken, self.missing = 0, self._store.samples_missing()
        self._alone = {
            job: replace(row.profile, seen_speed=None, seen_beside=None)
            for job, row in self._store.profiles().items()
        }
        for part in self._store.samples(now_s - self._keep_s, _MOST_AT_ONCE):
            self._run(part).add(part)

    def _run(self, part: JobSamples) -> _Run:
        run = self._runs.get(part.folder)
        if run is None:
            run = self._runs[part.folder] = _Run(part.job, part.node, Series(_POINTS))
        return run

    def _make_profiles(self, ended: Sequence[str]) -> None:
        due = [folder for folder, run in self._runs.items() if run.due() or (run.fresh and folder in ended)]
        due.sort(key=lambda folder: self._runs[folder].profiled_s)
        jobs: dict[str, str] = {}
        for folder in due[:_MOST_PROFILES]:
            run = self._runs[folder]
            run.profiled_s, run.fresh = run.last_s, False
            jobs[run.job] = f"{folder}@{run.taken}"
        for job, source in jobs.items():
            profile = self._profile(job)
            if profile is not None:
                self._readings.append(ProfileReading(job, profile, source))

    def _profile(self, job: str) -> JobProfile | None:
        """Of a job over all its nodes, with what was seen of it beside its partner."""
        partner, since_s = self._beside.get(job, (None, float("-inf")))
        other = self._alone.get(partner or "")
        summaries = []
        for run in [run for run in self._runs.values() if run.job == job]:
            found = summarise(
                run.series, job, run.node, run.gpus, run.taken, partner=partner, partner_since_s=since_s
            )
            if found.profile is not None:
                self._alone[job] = found.profile
            summaries.append(watched(found, self._alone.get(job), other))
        return merged_profile(summaries)

    def _forget(self, now_s: float) -> None:
        for folder in [folder for folder, run in self._runs.items() if now_s - run.last_s > _FORGET_S]:
            del self._runs[folder]
        if len(self._alone) > _MOST_ALONE:
            alive = {run.job for run in self._runs.values()}
            self._alone = {job: profile for job, profile in self._alone.items() if job in alive}


class WithSamples:
    """Summaries that samplers wrote, and profiles made of their samples; of a job with both the latter count."""

    def __init__(self, summaries: ProfileSource, samples: SampleIntake) -> None:
        self._summaries = summaries
        self._samples = samples

    @property
    def bad(self) -> Mapping[str, Any]:
        """What could not be read of either."""
        return {**getattr(self._summaries, "bad", {}), **self._samples.bad}

    def new(self) -> Sequence[ProfileReading]:
        """Both, summaries of sampled jobs left out."""
        made = self._samples.new()
        return [*(item for item in self._summaries.new() if not self._samples.samples(item.job_id)), *made]
