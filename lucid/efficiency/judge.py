"""Judges jobs by their readings: what they held, what they used, and what was wasted in which way.

Nobody is accused without readings: a job of whose GPU time too little was measured is "not measured", and stretches
without a reading count as neither work nor waste. Bounds are those of ``EfficiencySettings``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from math import ceil
from typing import TYPE_CHECKING, Final

from lucid.core.frozen import dataclass
from lucid.core.job import JobProfile
from lucid.efficiency.kinds import HELD, WasteKind
from lucid.places import ToldEfficiency
from lucid.profiler.use import GpuUse

if TYPE_CHECKING:
    from lucid.config import EfficiencySettings

__all__ = ["JobAccount", "JobUse", "Waste", "judge", "judged"]

_H: Final = 3600.0
_START_SLACK_S: Final = 5.0
"""The first readings may show the end of what ran on the GPU before."""
_LIGHT_UTIL = 30.0
"""A job whose GPUs computed for less of the time than this, %, could have shared them: two such jobs leave part of a
GPU free, and in 146 measured pairs of such jobs each kept 98 % of its speed on average."""
_LIGHT_MEM = 0.4
"""… and only if its memory took at most this share of the GPU's, so that a partner's fits beside it."""
_LIMIT_SHARE, _LIMIT_JOBS, _LIMIT_UNUSED_H = 0.1, 3, 4.0
"""A time limit is far too long where jobs of this user and name used less than this share of it, each time in at
least so many jobs that completed (one short run says nothing of the next), and at least so many hours of it were left
each time: shorter ones harm no other job's start."""
_UNUSED_SHARE: Final = 0.95
"""A GPU that stood idle for at least this share of its time was not used: making a context shows as work, too."""


@dataclass(frozen=True, slots=True)
class JobUse:
    """What is known of one run of a job that has ended (``running`` false, ``end_s`` its end) or goes on (``end_s``
    now). Times in Unix seconds, ``gpu_mem_mib`` of one GPU. ``wants_alone``: its user asked not to share.
    ``use``: of each GPU that was sampled, empty where none was."""

    job_id: str
    user: str
    account: str
    vc: str
    name: str
    gpus: int
    begin_s: float
    end_s: float
    running: bool = False
    state: str = ""
    time_limit_s: float | None = None
    wants_alone: bool = False
    nodes: int = 1
    gpu_mem_mib: float = 0.0
    profile: JobProfile | None = None
    use: tuple[GpuUse, ...] = ()
    asked_host_mib: float = 0.0
    """Memory of its nodes that it asked for, MiB over all of them; 0 where it did not say."""

    @property
    def energy_kwh(self) -> float | None:
        """What its GPUs took for it, an estimate where they were shared; ``None`` where no card counted."""
        told = [use.energy_j for use in self.use if use.energy_j is not None]
        return sum(told) / 3.6e6 if told else None

    @property
    def host_peak_mib(self) -> float | None:
        """The most that it was seen to hold of a node's memory, on that of its nodes where it was most; ``None``
        where nobody looked."""
        return max((use.host_mib for use in self.use if use.host_mib is not None), default=None)

    @property
    def ran_s(self) -> float:
        """Wall seconds of this run so far."""
        return max(self.end_s - self.begin_s, 0.0)


@dataclass(frozen=True, slots=True)
class Waste:
    """GPU-hours of one kind in one job, and what was seen, in words."""

    kind: WasteKind
    gpu_h: float
    words: str


@dataclass(frozen=True, slots=True)
class JobAccount:
    """One job's account in GPU-hours. ``asked_gpu_h``: GPUs by time limit, ``None`` without a limit. ``held_gpu_h``:
    GPUs by run time. ``worked_gpu_h``: time in which a GPU worked for it; ``None`` where the job was not measured."""

    job: JobUse
    asked_gpu_h: float | None
    held_gpu_h: float
    worked_gpu_h: float | None
    measured_share: float
    waste: tuple[Waste, ...] = ()

    @property
    def measured(self) -> bool:
        """Do its readings suffice to judge it?"""
        return self.worked_gpu_h is not None

    @property
    def wasted_gpu_h(self) -> float:
        """Of all kinds whose hours it held."""
        return sum(one.gpu_h for one in self.waste if one.kind in HELD)


def judged(jobs: Iterable[JobUse], settings: EfficiencySettings | ToldEfficiency) -> list[JobAccount]:
    """The account of each job, in order; time limits are judged over all jobs of a user and name."""
    found = [judge(job, settings) for job in jobs]
    groups: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
    for at, account in enumerate(found):
        job = account.job
        if job.state == "COMPLETED" and job.time_limit_s and job.name:
            groups[job.user, job.name].append(at)
    for members in groups.values():
        if not _limits_too_long([found[at].job for at in members]):
            continue
        longest_s = max(found[at].job.ran_s for at in members)
        words = f"each of {len(members)} jobs of this name used less than {_LIMIT_SHARE:.0%} of its limit; "
        words += f"the longest ran {_hours(longest_s)}: {ceil(2 * longest_s / _H)} h would be plenty"
        for at in members:
            job = found[at].job
            left_h = ((job.time_limit_s or 0.0) - job.ran_s) * job.gpus / _H
            found[at] = replace(found[at], waste=(*found[at].waste, Waste(WasteKind.LONG_LIMIT, left_h, words)))
    return found


def judge(job: JobUse, settings: EfficiencySettings | ToldEfficiency) -> JobAccount:
    """The account of one job; its time limit is judged by ``judged``, with its likes."""
    held_h = job.gpus * job.ran_s / _H
    asked_h = None if job.time_limit_s is None else job.gpus * job.time_limit_s / _H
    measured_s = sum(use.measured_s for use in job.use)
    share = min(measured_s / (held_h * _H), 1.0) if held_h else 0.0
    if share < settings.least_measured:
        return JobAccount(job, asked_h, held_h, None, share)
    worked_h = sum(use.worked_s for use in job.use) / _H
    by_kind: defaultdict[WasteKind, list[float]] = defaultdict(list)
    for use in job.use:
        per_gpu: defaultdict[WasteKind, float] = defaultdict(float)
        for kind, length_s in _idle(use, job, settings):
            per_gpu[kind] += length_s
        for kind, length_s in per_gpu.items():
            by_kind[kind].append(length_s)
    found = [
        Waste(kind, sum(each) / _H, _words(kind, each, job))
        for kind, each in sorted(by_kind.items())
        if sum(each) / _H >= settings.least_gpu_h
    ]
    left_h = held_h - sum(one.gpu_h for one in found)
    if _light(job) and left_h / 2 >= settings.least_gpu_h:
        assert job.profile is not None
        words = (
            f"used {job.profile.gpu_util:.0f} % of GPU time and {job.profile.gpu_mem_mib:,.0f} MiB, and asked not "
        )
        words += "to share; a partner could have had the other half"
        found.append(Waste(WasteKind.NOT_SHARED, left_h / 2, words))
    return JobAccount(job, asked_h, held_h, worked_h, share, tuple(found))


def _idle(
    use: GpuUse, job: JobUse, settings: EfficiencySettings | ToldEfficiency
) -> Iterator[tuple[WasteKind, float]]:
    """Stretches of one GPU that are waste, each with its seconds."""
    if _unused(use) and any(not _unused(other) for other in job.use):
        idle_s = sum(one.length_s for one in use.idle)
        if idle_s >= settings.idle_start_s:
            yield WasteKind.UNUSED_GPUS, idle_s
        return
    for one in use.idle:
        left_s = one.length_s
        if one.empty_s >= settings.empty_s:
            yield WasteKind.NO_PROCESS, one.empty_s
            left_s -= one.empty_s
        at_start = one.begin_s - use.begin_s <= _START_SLACK_S
        if left_s >= (settings.idle_start_s if at_start else settings.idle_after_s):
            yield (WasteKind.IDLE_START if at_start else WasteKind.IDLE_AFTER), left_s


def _unused(use: GpuUse) -> bool:
    return sum(one.length_s for one in use.idle) >= _UNUSED_SHARE * use.measured_s > 0


def _light(job: JobUse) -> bool:
    """Would it have fitted beside a partner, and only its user's wish kept it from that?"""
    profile = job.profile
    return (
        job.wants_alone
        and job.nodes == 1
        and profile is not None
        and not profile.unstable
        and profile.gpu_util < _LIGHT_UTIL
        and 0 < profile.gpu_mem_mib <= _LIGHT_MEM * job.gpu_mem_mib
    )


def _limits_too_long(jobs: Sequence[JobUse]) -> bool:
    return len(jobs) >= _LIMIT_JOBS and all(
        job.ran_s < _LIMIT_SHARE * (job.time_limit_s or 0.0)
        and (job.time_limit_s or 0.0) - job.ran_s >= _LIMIT_UNUSED_H * _H
        for job in jobs
    )


def _words(kind: WasteKind, each_s: Sequence[float], job: JobUse) -> str:
    gpus = f"{len(each_s)} of its {job.gpus} GPUs" if job.gpus > 1 else "its GPU"
    long = _hours(max(each_s)) if min(each_s) > 0.9 * max(each_s) else f"up to {_hours(max(each_s))}"
    return {
        WasteKind.IDLE_START: f"{gpus} did nothing for the first {long}",
        WasteKind.IDLE_AFTER: f"{gpus} worked, and then did nothing for {long}",
        WasteKind.NO_PROCESS: f"no process of the job was on {gpus} for {long}",
        WasteKind.UNUSED_GPUS: f"{gpus} did nothing for {long}, while the others worked",
    }[kind]


def _hours(seconds: float) -> str:
    return f"{seconds / _H:.1f} h" if seconds >= _H else f"{seconds / 60:.0f} min"
