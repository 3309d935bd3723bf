"""From a job's samples to its summary and profile, by which share scores, packing and the watch over pairs work.

This is only arithmetic on a ``Series`` (one point a moment, of bounded length): the sampler calls it on the node, and
anybody may call it again on recorded samples and get the same."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import inf
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from lucid.core.job import JobProfile, TimeShares
from lucid.profiler.samples import Sample
from lucid.profiler.shape import (
    HostUse,
    MemoryTrend,
    Steadiness,
    active_level,
    mean_shares,
    memory_trend,
    pauses,
    percentile,
    shares_in,
    steadiness,
    warm_up,
)
from lucid.profiler.use import GpuUse


class Point(Struct, frozen=True):
    """A job at one moment: means over its GPUs in percent, ``mem_mib`` the most on one GPU.

    ``gpu_util``, ``mem_util`` and ``mem_mib`` are the job's own where it shares its GPUs (``None`` where that
    cannot be told), the card's where it is alone; the fields named ``card`` and the two last are the cards'.
    ``step_s``: the time that the point stands for. ``shares``: what the job did with it, where it was alone and its
    node tells."""

    at_s: float
    step_s: float
    gpu_util: float | None
    mem_util: float | None
    mem_mib: float | None
    shared: bool
    card_util: float | None = None
    card_mem_util: float | None = None
    card_mib: float | None = None
    sm_active: float | None = None
    dram_active: float | None = None
    shares: TimeShares | None = None


def mean_of(values: Iterable[float | None]) -> float | None:
    """Mean of the known values; ``None`` if no value is known."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _most(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def point_of(sample: Sample, step_s: float = 1.0, host: HostUse | None = None) -> Point | None:
    """The point of one sample; ``None`` where no GPU of the job could be read. ``host``: the job's use of its node in
    the meantime, where known."""
    seen = [gpu for gpu in sample.gpus if not gpu.lost]
    if not seen:
        return None
    # the GPU that worked most: a pipeline is at work on its GPUs as long as it is on any
    most = _most(gpu.gpu_util for gpu in seen)
    shares = None
    if host is not None and most is not None and not any(gpu.shared for gpu in seen):
        shares = shares_in(host, most / 100.0)
    return Point(
        sample.at_s,
        step_s,
        mean_of(gpu.own_util if gpu.shared else gpu.gpu_util for gpu in seen),
        mean_of(gpu.own_mem_util if gpu.shared else gpu.mem_util for gpu in seen),
        # alone, the card's figure is the safer one: it has the context and what no process is charged with
        _most(gpu.own_mib if gpu.shared else gpu.mem_mib for gpu in seen),
        any(gpu.shared for gpu in seen),
        mean_of(gpu.gpu_util for gpu in seen),
        mean_of(gpu.mem_util for gpu in seen),
        _most(gpu.mem_mib for gpu in seen),
        mean_of(gpu.sm_active for gpu in seen),
        mean_of(gpu.dram_active for gpu in seen),
        shares,
    )


_MEANS: Final = ("gpu_util", "mem_util", "card_util", "card_mem_util", "sm_active", "dram_active")
"""The readings of points of which a stretch has the mean."""


def _means(points: Sequence[Point]) -> dict[str, Any]:
    return {name: mean_of(getattr(point, name) for point in points) for name in _MEANS}


def _joined(first: Point, second: Point) -> Point:
    pair = (first, second)
    return Point(
        at_s=first.at_s,
        step_s=first.step_s + second.step_s,
        mem_mib=_most(p.mem_mib for p in pair),
        shared=second.shared,
        card_mib=_most(p.card_mib for p in pair),
        shares=mean_shares([(p.step_s, p.shares) for p in pair]),
        **_means(pair),
    )


class Series:
    """The points of one job, at most ``limit`` of them: when full, neighbours are joined two by two (means;
    the most of memory), so a long job keeps its whole past at a coarser step. A point alone and one shared are
    never joined."""

    def __init__(self, limit: int = 2048) -> None:
        self._limit = limit
        self._points: list[Point] = []
        self._step_s = 0.0
        self._open: Point | None = None

    def __len__(self) -> int:
        return len(self._points) + (self._open is not None)

    def __iter__(self) -> Iterator[Point]:
        yield from self._points
        if self._open is not None:
            yield self._open

    @property
    def points(self) -> Sequence[Point]:
        """All points, oldest first."""
        return list(self)

    def add(self, point: Point) -> None:
        """Append a point; points come in order of time."""
        if self._open is not None and (
            self._open.shared != point.shared or self._open.step_s + point.step_s > self._step_s
        ):
            self._points.append(self._open)
            self._open = None
        self._open = point if self._open is None else _joined(self._open, point)
        if len(self._points) >= self._limit:
            self._halve()

    def _halve(self) -> None:
        kept: list[Point] = []
        widest = max(point.step_s for point in self._points)
        for point in self._points:
            last = kept[-1] if kept else None
            if last is not None and last.shared == point.shared and last.step_s + point.step_s <= 2 * widest:
                kept[-1] = _joined(last, point)
            else:
                kept.append(point)
        self._points = kept
        self._step_s = 2 * widest


LEAST_WORK_S: Final = 20.0
"""The least seconds of work for a profile; before that a job counts as not measured."""
FORETELL_S: Final = 3600.0
"""How far ahead a growing memory footprint is predicted for the profile."""
_RECENT_S: Final = 60.0
_SETTLE_S: Final = 3.0
"""Left out at the start of work: NVML's utilisation is itself a mean over up to a second, and autotuning of
kernels shows in the first steps."""


class Phase(Struct, frozen=True):
    """A stretch of a job's life: ``kind`` is ``warm-up``, ``work`` or ``pause``."""

    kind: str
    start_s: float
    end_s: float


class Spell(Struct, frozen=True):
    """Means over a stretch of time: the job's own (``gpu_util``, ``mem_util``; ``None`` where it cannot be told from
    its partner's) and the cards'. Percent; ``seconds`` of samples are in it."""

    seconds: float
    gpu_util: float | None = None
    mem_util: float | None = None
    card_util: float | None = None
    card_mem_util: float | None = None
    dram_active: float | None = None
    mem_mib: float | None = None
    sm_active: float | None = None


class Summary(Struct, frozen=True):
    """The sampler's summary of one job on one node.

    ``profile`` is ``None`` until the job has worked alone for `LEAST_WORK_S`. ``alone`` and ``together`` are means at
    work without and with a partner on its GPUs, ``recent`` those of the last minute."""

    job: str
    node: str
    gpus: tuple[str, ...]
    start_s: float
    end_s: float
    samples: int
    profile: JobProfile | None = None
    warm_up_s: float | None = None
    """How long start-up took; ``None`` while it goes on."""
    steadiness: Steadiness | None = None
    memory: MemoryTrend | None = None
    phases: tuple[Phase, ...] = ()
    recent: Spell | None = None
    alone: Spell | None = None
    together: Spell | None = None
    beside: Steadiness | None = None
    """Steadiness of the job's own utilisation beside its partner, where that can be told."""
    partner: str | None = None
    promised: float | None = None
    """Normalised speed that was expected beside the partner when the pair was made."""
    seen_by: str = ""
    """How ``profile.seen_speed`` was found (lucid.profiler.pair_watch)."""
    notes: tuple[str, ...] = ()
    """Trouble on the way, in words: a lost GPU, an Xid, samples dropped."""
    use: tuple[GpuUse, ...] = ()
    """How long each of the job's GPUs worked, and when they stood idle."""


def summarise(
    series: Series,
    job: str,
    node: str,
    gpus: Sequence[str],
    samples: int,
    *,
    partner: str | None = None,
    partner_since_s: float = -inf,
    promised: float | None = None,
    notes: Sequence[str] = (),
    amp: bool | None = None,
    workload: str = "",
) -> Summary:
    """The summary of one job on one node.

    ``samples``: how many were taken (the series may have joined neighbours). ``partner``: the job now on the same
    GPUs; only readings from ``partner_since_s`` on belong to this pair (or to the last one). ``promised``, ``amp``
    and ``workload`` go in as they are."""
    points = [point for point in series if point.gpu_util is not None or point.card_util is not None]
    if not points:
        return Summary(
            job, node, tuple(gpus), 0.0, 0.0, samples, partner=partner, promised=promised, notes=tuple(notes)
        )
    begin_s, end_s = points[0].at_s, points[-1].at_s
    together = [point for point in points if point.shared and point.at_s >= partner_since_s]
    alone = [point for point in points if not point.shared]
    now = points[-1].shared  # the last minute, or since a partner came or went
    recent = _spell([point for point in points if point.at_s > end_s - _RECENT_S and point.shared == now])
    found = Summary(
        job,
        node,
        tuple(gpus),
        begin_s,
        end_s,
        samples,
        recent=recent,
        together=_spell(_at_work(together)) if together else None,
        beside=_beside(together),
        partner=partner,
        promised=promised,
        notes=tuple(notes),
        **(_alone(alone, amp, workload) if alone else {}),
    )
    beside = [point.mem_mib for point in together if point.mem_mib is not None]
    if not (points[-1].shared and beside):
        return found
    # beside a partner, too, memory must be watched, and there it is the job's own that counts
    return replace(found, memory=memory_trend(beside, _step(together)))


def _alone(points: Sequence[Point], amp: bool | None, workload: str) -> dict[str, Any]:
    """What a summary has of the time in which the job was alone."""
    util = [point.gpu_util or 0.0 for point in points]
    step_s = _step(points)
    begin_s, end_s = points[0].at_s, points[-1].at_s + step_s
    start = warm_up(util, step_s)
    if start is None:
        return {"phases": (Phase("warm-up", begin_s, end_s),)}
    warm_up_s = points[start].at_s - begin_s
    first = start + round(_SETTLE_S / step_s) if start else start
    level = active_level(util[start:])
    breaks = [(a + start, b + start) for a, b in pauses(util[start:], step_s, level)]
    phases = _phases(points, start, breaks, end_s)
    idle = {i for a, b in breaks for i in range(a, b)}
    kept = [i for i in range(first, len(points)) if i not in idle]
    if len(kept) * step_s < LEAST_WORK_S:
        return {"warm_up_s": warm_up_s, "phases": phases}
    work = [points[i] for i in kept]
    working = [util[i] for i in kept]
    steady = steadiness(working, step_s)
    memory = [point.mem_mib for point in points[start:] if point.mem_mib is not None]
    trend = memory_trend(memory, step_s) if memory else None
    spell = _spell(work)
    later = util[first:]
    profile = JobProfile(
        gpu_util=sum(working) / len(working),
        mem_util=(spell.mem_util or 0.0) if spell else 0.0,
        gpu_mem_mib=trend.after(FORETELL_S) if trend else 0.0,
        amp=amp,
        unstable=steady.unstable,
        workload=workload,
        gpu_util_p95=percentile(working, 0.95),
        active_share=sum(value >= level for value in later) / len(later),
        sm_active=mean_of(point.sm_active for point in work),
        dram_active=mean_of(point.dram_active for point in work),
        mem_growing=bool(trend and trend.growing),
        shares=mean_shares([(point.step_s, point.shares) for point in work], LEAST_WORK_S),
    )
    return {
        "profile": profile,
        "warm_up_s": warm_up_s,
        "steadiness": steady,
        "memory": trend,
        "phases": phases,
        "alone": spell,
    }


def _phases(
    points: Sequence[Point], start: int, breaks: Sequence[tuple[int, int]], end_s: float
) -> tuple[Phase, ...]:
    found = [Phase("warm-up", points[0].at_s, points[start].at_s)] if start else []
    at_s = points[start].at_s
    for first, end in breaks:
        pause_end_s = points[end].at_s if end < len(points) else end_s
        found += [Phase("work", at_s, points[first].at_s), Phase("pause", points[first].at_s, pause_end_s)]
        at_s = pause_end_s
    if at_s < end_s:
        found.append(Phase("work", at_s, end_s))
    return tuple(found)


def _at_work(points: Sequence[Point]) -> Sequence[Point]:
    """Points of a shared stretch without rare pauses of the cards."""
    util = [point.card_util or 0.0 for point in points]
    idle = {i for a, b in pauses(util, _step(points), active_level(util)) for i in range(a, b)}
    return [point for i, point in enumerate(points) if i not in idle] or points


def _beside(points: Sequence[Point]) -> Steadiness | None:
    known = [point for point in points if point.gpu_util is not None]
    if not known or len(known) < len(points):
        return None
    util = [point.gpu_util or 0.0 for point in _at_work(known)]
    return steadiness(util, _step(known))


def _step(points: Sequence[Point]) -> float:
    return percentile([point.step_s for point in points], 0.5)


def _spell(points: Sequence[Point]) -> Spell | None:
    if not points:
        return None
    mem_mib = _most(point.mem_mib for point in points)
    return Spell(sum(point.step_s for point in points), mem_mib=mem_mib, **_means(points))


def merged_profile(summaries: Sequence[Summary]) -> JobProfile | None:
    """One profile of a job over its nodes: means weighted by GPUs, the most of memory; unstable or growing if it is
    so anywhere. ``None`` until every node that reported has a profile."""
    profiles = [(summary.profile, len(summary.gpus)) for summary in summaries]
    known = [(profile, gpus) for profile, gpus in profiles if profile is not None]
    if not known or len(known) < len(profiles):
        return None
    if len(known) == 1:
        return known[0][0]
    total = sum(gpus for _, gpus in known) or 1

    def mean(values: Sequence[float | None]) -> float | None:
        weighed = [(value, gpus) for value, (_, gpus) in zip(values, known, strict=True) if value is not None]
        weight = sum(gpus for _, gpus in weighed)
        return sum(value * gpus for value, gpus in weighed) / weight if weight else None

    first = known[0][0]
    p95 = [p.gpu_util_p95 for p, _ in known if p.gpu_util_p95 is not None]
    return JobProfile(
        gpu_util=sum(p.gpu_util * gpus for p, gpus in known) / total,
        mem_util=sum(p.mem_util * gpus for p, gpus in known) / total,
        gpu_mem_mib=max(p.gpu_mem_mib for p, _ in known),
        amp=first.amp,
        unstable=any(p.unstable for p, _ in known),
        workload=first.workload,
        gpu_util_p95=max(p95, default=None),
        active_share=mean([p.active_share for p, _ in known]),
        sm_active=mean([p.sm_active for p, _ in known]),
        dram_active=mean([p.dram_active for p, _ in known]),
        mem_growing=any(p.mem_growing for p, _ in known),
        seen_speed=min((p.seen_speed for p, _ in known if p.seen_speed is not None), default=None),
        seen_beside=next((p.seen_beside for p, _ in known if p.seen_beside is not None), None),
    )
