"""GPU-hours that each job held, used and wasted, by its readings; sums; and time limits that would fit.

Nobody is accused without readings: a job of whose GPU time too little was measured is "not measured", and stretches
without a reading count as neither work nor waste. Bounds are those of ``EfficiencySettings``."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from math import ceil, inf
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from lucid.config.live import EfficiencySettings
from lucid.core.job import JobProfile
from lucid.profiler.use import GpuUse


class WasteKind(StrEnum):
    """The kinds of waste. One GPU-hour is of at most one kind. The values are labels in /metrics and keys in JSON."""

    IDLE_START = "idle_from_start"
    IDLE_AFTER = "idle_after_activity"
    NO_PROCESS = "no_process"
    UNUSED_GPUS = "larger_than_needed"
    NOT_SHARED = "could_have_shared"
    LONG_LIMIT = "time_limit_too_long"


DAYS: Final = 7.0
"""How far back the report, /metrics and the page look, days: one week shows every weekday once."""
IDLE_START_S: Final = 1800.0
"""A GPU that did nothing from the start of its job for so long was idle from the start. Pulling a container, staging
a data set and compiling take up to a quarter of an hour; half an hour is twice that."""
EMPTY_S: Final = 1800.0
"""A GPU on which no process of its job stood for so long was allocated without a process."""
_LEAST_MEASURED: Final = 0.5
"""If less than this share of a job's GPU time was measured, the job counts as not measured: no waste is reported."""
LEAST_GPU_H: Final = 0.5
"""Less waste of one kind in one job is not reported, GPU-hours."""
HELD: Final = tuple(kind for kind in WasteKind if kind is not WasteKind.LONG_LIMIT)
"""Kinds whose hours were really held. Hours of a time limit that are left over went to others; a limit that is too
long costs the job itself a later start, because it fits into fewer gaps."""

TITLES: Final[Mapping[WasteKind, str]] = {
    WasteKind.IDLE_START: "idle from the start",
    WasteKind.IDLE_AFTER: "idle after activity",
    WasteKind.NO_PROCESS: "allocated without a process on the GPU",
    WasteKind.UNUSED_GPUS: "more GPUs than used",
    WasteKind.NOT_SHARED: "could have shared its GPUs",
    WasteKind.LONG_LIMIT: "time limit far too long",
}

ADVICE: Final[Mapping[WasteKind, str]] = {
    WasteKind.IDLE_START: (
        "Look at the first lines of the job's output. Does the program find the GPU, or does it wait for data? "
        "Prepare data in a job without GPUs."
    ),
    WasteKind.IDLE_AFTER: (
        "Let the job end when its work ends. Run evaluations and other CPU work in a job of its own; end notebooks "
        "that are not in use."
    ),
    WasteKind.NO_PROCESS: (
        "No program of the job used the GPU. Start the program in the job's script, or ask for no GPU; end "
        "interactive allocations that are not in use."
    ),
    WasteKind.UNUSED_GPUS: (
        "Ask for as many GPUs as the program uses, or start it on all of them (torchrun, accelerate, --gpus)."
    ),
    WasteKind.NOT_SHARED: (
        "The job does not share its GPUs and needs little of them. Leave out the wish not to share: it starts "
        "earlier, and its partner is chosen so that both keep their speed."
    ),
    WasteKind.LONG_LIMIT: "Ask for a time limit near the run time: a job with a short limit starts earlier.",
}


_H: Final = 3600.0
_START_SLACK_S: Final = 5.0
"""How long the first readings may show the end of what ran on the GPU before."""
_LIGHT_UTIL = 30.0
"""The utilisation, %, below which a job's GPUs could have been shared: two such jobs leave part of a GPU free, and in
146 measured pairs of such jobs each kept 98 % of its speed on average."""
_LIGHT_MEM = 0.4
"""The most of a GPU's memory, as a share, that such a job may take for a partner's to fit beside it."""
_LIMIT_SHARE, _LIMIT_JOBS, _LIMIT_UNUSED_H = 0.1, 3, 4.0
"""A time limit is far too long where jobs of this user and name used less than the first share of it, in at least so
many completed jobs (one short run says nothing of the next), each of which left at least so many hours of it: shorter
rests harm no other job's start."""
_UNUSED_SHARE: Final = 0.95
"""A GPU that stood idle for at least this share of its time was not used: making a context shows as work, too."""


class JobUse(Struct, frozen=True):
    """The facts about one run of a job that has ended (``running`` false, ``end_s`` its end) or goes on (``end_s``
    now). Times in Unix seconds, ``gpu_mem_mib`` of one GPU. ``wants_alone``: its user asked not to share. ``use``: of
    each GPU that was sampled, empty where none was."""

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
    """Memory of its nodes that the job asked for, MiB over all of them; 0 where it asked for none."""

    @property
    def energy_kwh(self) -> float | None:
        """The energy that its GPUs used for the job, an estimate where they were shared; ``None`` where no card
        counted."""
        told = [use.energy_j for use in self.use if use.energy_j is not None]
        return sum(told) / 3.6e6 if told else None

    @property
    def host_peak_mib(self) -> float | None:
        """The most that the job held of a node's memory, on the node where that was most; ``None`` where it was not
        measured."""
        return max((use.host_mib for use in self.use if use.host_mib is not None), default=None)

    @property
    def ran_s(self) -> float:
        """Wall seconds of this run so far."""
        return max(self.end_s - self.begin_s, 0.0)


class Waste(Struct, frozen=True):
    """GPU-hours of one kind of waste in one job, and the evidence in words."""

    kind: WasteKind
    gpu_h: float
    words: str


class JobAccount(Struct, frozen=True):
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
        """Whether the job's readings suffice to judge it."""
        return self.worked_gpu_h is not None

    @property
    def wasted_gpu_h(self) -> float:
        """Wasted GPU-hours of all kinds whose hours the job held."""
        return sum(one.gpu_h for one in self.waste if one.kind in HELD)


def judged(jobs: Iterable[JobUse], settings: EfficiencySettings) -> list[JobAccount]:
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


def judge(job: JobUse, settings: EfficiencySettings) -> JobAccount:
    """The account of one job; its time limit is judged by ``judged``, with its likes."""
    held_h = job.gpus * job.ran_s / _H
    asked_h = None if job.time_limit_s is None else job.gpus * job.time_limit_s / _H
    measured_s = sum(use.measured_s for use in job.use)
    share = min(measured_s / (held_h * _H), 1.0) if held_h else 0.0
    if share < _LEAST_MEASURED:
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
        if sum(each) / _H >= LEAST_GPU_H
    ]
    left_h = held_h - sum(one.gpu_h for one in found)
    if _light(job) and left_h / 2 >= LEAST_GPU_H:
        assert job.profile is not None
        words = (
            f"used {job.profile.gpu_util:.0f} % of GPU time and {job.profile.gpu_mem_mib:,.0f} MiB, and asked not "
        )
        words += "to share; a partner could have had the other half"
        found.append(Waste(WasteKind.NOT_SHARED, left_h / 2, words))
    return JobAccount(job, asked_h, held_h, worked_h, share, tuple(found))


def _idle(use: GpuUse, job: JobUse, settings: EfficiencySettings) -> Iterator[tuple[WasteKind, float]]:
    """Stretches of one GPU that are waste, each with its seconds."""
    if _unused(use) and any(not _unused(other) for other in job.use):
        idle_s = sum(one.length_s for one in use.idle)
        if idle_s >= IDLE_START_S:
            yield WasteKind.UNUSED_GPUS, idle_s
        return
    for one in use.idle:
        left_s = one.length_s
        if one.empty_s >= EMPTY_S:
            yield WasteKind.NO_PROCESS, one.empty_s
            left_s -= one.empty_s
        at_start = one.begin_s - use.begin_s <= _START_SLACK_S
        if left_s >= (IDLE_START_S if at_start else settings.idle_after_s):
            yield (WasteKind.IDLE_START if at_start else WasteKind.IDLE_AFTER), left_s


def _unused(use: GpuUse) -> bool:
    return sum(one.length_s for one in use.idle) >= _UNUSED_SHARE * use.measured_s > 0


def _light(job: JobUse) -> bool:
    """Whether the job would have fitted beside a partner, and only its user's wish kept it from that."""
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


class Total(Struct, frozen=True):
    """GPU-hours of several jobs. ``asked_gpu_h``: of those with a time limit; ``no_limit_jobs`` have none.
    ``worked_gpu_h`` and ``wasted_gpu_h`` (by kind) are of measured jobs, ``not_measured_gpu_h`` of the others."""

    name: str
    jobs: int
    asked_gpu_h: float
    held_gpu_h: float
    worked_gpu_h: float
    wasted_gpu_h: Mapping[WasteKind, float]
    not_measured_jobs: int
    not_measured_gpu_h: float
    no_limit_jobs: int = 0
    energy_kwh: float | None = None
    """The energy of the jobs whose cards counted it; ``None``: there are none."""
    host_asked_gib: float = 0.0
    host_peak_gib: float = 0.0
    """Memory of nodes, asked for and held at most, summed over the jobs of one node of which both are known."""

    @property
    def all_wasted_gpu_h(self) -> float:
        """Wasted GPU-hours of all kinds whose hours were held."""
        return sum(self.wasted_gpu_h.get(kind, 0.0) for kind in HELD)

    @property
    def wasted_share(self) -> float | None:
        """The wasted share of what was held and measured; ``None`` where nothing was measured."""
        measured = self.held_gpu_h - self.not_measured_gpu_h
        return self.all_wasted_gpu_h / measured if measured > 0 else None


def totals(accounts: Iterable[JobAccount], key: Callable[[JobAccount], str]) -> list[Total]:
    """One sum for each value of ``key``, most wasted first."""
    groups: defaultdict[str, list[JobAccount]] = defaultdict(list)
    for account in accounts:
        groups[key(account)].append(account)
    found = [total_of(name, members) for name, members in groups.items()]
    return sorted(found, key=lambda one: (-one.all_wasted_gpu_h, -one.held_gpu_h, one.name))


def total_of(name: str, accounts: Iterable[JobAccount]) -> Total:
    """The sum of these accounts."""
    members = list(accounts)
    wasted: defaultdict[WasteKind, float] = defaultdict(float)
    for account in members:
        for one in account.waste:
            wasted[one.kind] += one.gpu_h
    unknown = [account for account in members if not account.measured]
    kwh = [one.job.energy_kwh for one in members if one.job.energy_kwh is not None]
    hosts = [
        (one.job.asked_host_mib / 1024.0, one.job.host_peak_mib / 1024.0)
        for one in members
        if one.job.nodes == 1 and one.job.asked_host_mib and one.job.host_peak_mib is not None
    ]
    return Total(
        name,
        len(members),
        sum(account.asked_gpu_h or 0.0 for account in members),
        sum(account.held_gpu_h for account in members),
        sum(account.worked_gpu_h or 0.0 for account in members),
        {kind: wasted[kind] for kind in WasteKind if kind in wasted},
        len(unknown),
        sum(account.held_gpu_h for account in unknown),
        sum(account.asked_gpu_h is None for account in members),
        sum(kwh) if kwh else None,
        sum(asked for asked, _ in hosts),
        sum(peak for _, peak in hosts),
    )


_FRESH_S = 120.0
"""The greatest age of the last reading."""
_LEAST_MEASURED_S = 3600.0
"""The least measured time of each GPU."""
_LEAST_IDLE_S = 3600.0
"""The least idle time: evaluations on the CPU and slow checkpoints take up to half of it."""


def idle_since(job: JobUse) -> float | None:
    """Since when no GPU of the running job has done anything, Unix s. ``None``: one worked within the last hour, the
    job has ended, or too little was measured to say."""
    if not job.running or not job.use or len(job.use) < job.gpus:
        return None
    since_s = [job.begin_s]
    for use in job.use:
        if use.measured_s < _LEAST_MEASURED_S or not use.idle or job.end_s - use.idle[-1].end_s > _FRESH_S:
            return None
        since_s.append(use.idle[-1].begin_s)
    return max(since_s) if job.end_s - max(since_s) >= _LEAST_IDLE_S else None


LEAST_JOBS: Final = 3
"""The least number of jobs: one short run says nothing of the next."""
_MARGIN: Final = 2.0
"""The proposed limit, as a multiple of the longest run."""
_LEAST_CUT: Final = 0.5
"""The most of the asked limit that a proposed one may be: a smaller cut is not worth anybody's attention."""
_STEPS: Final = ((7200.0, 900.0), (86400.0, 3600.0), (inf, 6 * 3600.0))
"""Up to so many seconds, a limit is a multiple of so many."""


class FittingLimit(Struct, frozen=True):
    """A job that ended, and a limit (``limit_s``) with which it would have ended as well."""

    job: JobUse
    limit_s: float


def round_limit_s(seconds: float) -> float:
    """The next limit that a person would write: quarters of an hour up to 2 h, hours up to a day, then six hours."""
    step_s = next(step_s for until_s, step_s in _STEPS if seconds <= until_s)
    return ceil(seconds / step_s) * step_s


def fitting_limits(jobs: Iterable[JobUse], limit_s: float | None = None) -> list[FittingLimit]:
    """The jobs that could have asked for a shorter limit, in order. The proposal is twice the longest run of the
    user's jobs of that name, of which there are three or more and none ended at its limit; ``limit_s``: this limit
    instead, for each job that ran within it and asked for more. A job without a limit asked for more than any."""
    groups: defaultdict[tuple[str, str], list[JobUse]] = defaultdict(list)
    ended = [job for job in jobs if not job.running and job.ran_s > 0]
    for job in ended:
        groups[job.user, job.name].append(job)
    proposed = {key: _proposed_s(members) if limit_s is None else limit_s for key, members in groups.items()}
    most = _LEAST_CUT if limit_s is None else 1.0
    found: list[FittingLimit] = []
    for job in ended:
        fits_s = proposed[job.user, job.name]
        asked_s = inf if job.time_limit_s is None else job.time_limit_s
        if fits_s is not None and job.ran_s <= fits_s <= most * asked_s and fits_s < asked_s:
            found.append(FittingLimit(job, fits_s))
    return found


def _proposed_s(likes: Sequence[JobUse]) -> float | None:
    if len(likes) < LEAST_JOBS or any(job.state in ("TIMEOUT", "DEADLINE") for job in likes):
        return None
    if not any(job.state == "COMPLETED" for job in likes):
        return None  # how long they would have taken is not known
    return round_limit_s(_MARGIN * max(job.ran_s for job in likes))
