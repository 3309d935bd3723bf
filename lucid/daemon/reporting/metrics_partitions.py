"""Metric families of each partition: jobs that wait and are held, profiling, pairs with their speeds."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from lucid.core.decision import Hold
from lucid.daemon.reporting.counters import SPEEDS, speeds_of
from lucid.daemon.reporting.last_plan import StoredPlan
from lucid.text import shown

Labels = Mapping[Any, float | None]
"""A value by the tuple of its labels' values; ``None`` where it is not known, and there is no sample."""
MOST_GROUPS = 24
"""Most VCs or partitions with series of their own; the smaller ones go together as ``other``."""
_LONGEST = 200


def gauge(name: str, words: str, values: Labels, labels: Sequence[str] = ()) -> GaugeMetricFamily:
    """A gauge family."""
    family = GaugeMetricFamily(name, words, labels=labels)
    for key, value in _known(values).items():
        family.add_metric(key, value)
    return family


def counter(name: str, words: str, values: Labels, labels: Sequence[str] = ()) -> CounterMetricFamily:
    """A counter family; its samples are called ``<name>_total``."""
    family = CounterMetricFamily(name, words, labels=labels)
    for key, value in _known(values).items():
        family.add_metric(key, value)
    return family


def number(value: Any) -> float | None:
    """The value as a finite number, or ``None``: another version may have written anything."""
    if not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def few(sizes: Mapping[str, float]) -> dict[str, str]:
    """By VC or partition, the name of its series: its own for the largest, else ``other``."""
    if len(sizes) <= MOST_GROUPS:
        return {name: name for name in sizes}
    largest = sorted(sizes, key=lambda name: (-sizes[name], name))[: MOST_GROUPS - 1]
    return {name: name if name in largest else "other" for name in sizes}


def _known(values: Labels) -> dict[tuple[str, ...], float]:
    # names are data: whatever a site or a file calls something cannot end a line of the text
    return {
        tuple(shown(part)[:_LONGEST] for part in key): value for key, value in values.items() if value is not None
    }


MOST_PAIRED_JOBS = 100
"""Most jobs of pairs with series of their own: those furthest behind what was promised to them, then the slowest."""
_PARTITION = ("partition",)


def partition_families(
    seen: StoredPlan | None, promises: Mapping[str, tuple[str, float, float]], at_s: float | None
) -> Iterator[Metric]:
    """The families from lucidd's last plan; none where that cannot be read. ``promises``: what was promised to jobs
    of pairs. ``at_s``: Unix time of lucidd's last poll."""
    if seen is None:
        return
    rooms = _seen(seen, at_s)
    yield from _queues(rooms)
    yield from _profiling(rooms)
    yield from _pair_families(_pairs(seen, promises), few({name: one.gpus for name, one in rooms.items()}))


@dataclass(slots=True)
class _Seen:
    gpus: float
    profiling: bool
    pending: int
    running: int
    held: int
    barred: int
    held_since_s: float | None
    oldest_s: float | None


def _seen(seen: StoredPlan, at_s: float | None) -> dict[str, _Seen]:
    found: dict[str, _Seen] = {}
    snapshot = seen.snapshot
    now_s = snapshot.now_s if at_s is None else max(at_s, snapshot.now_s)
    for name, part in snapshot.partitions.items():
        plan = seen.plan.partitions.get(name)
        decided = {} if plan is None or not part.acting else plan.decisions
        waits = {entry.job.id: now_s - entry.since_s for entry in part.pending}
        held = [wait_s for job_id, wait_s in waits.items() if isinstance(decided.get(job_id), Hold)]
        found[name] = _Seen(
            part.gpus,
            part.profiling,
            len(waits),
            len(part.running),
            len(held),
            sum(bool(entry.barred) for entry in part.pending),
            max(held, default=None),
            max(waits.values(), default=None),
        )
    return found


def _queues(seen: Mapping[str, _Seen]) -> Iterator[Metric]:
    groups = few({name: one.gpus for name, one in seen.items()})

    def total(key: str) -> Labels:
        found: defaultdict[tuple[str, ...], float] = defaultdict(float)
        for name, one in seen.items():
            found[(groups[name],)] += getattr(one, key)
        return found

    yield gauge("lucid_gpus", "GPUs of a partition, available or not.", total("gpus"), _PARTITION)
    yield gauge("lucid_pending_jobs", "Jobs that wait for Lucid.", total("pending"), _PARTITION)
    yield gauge("lucid_running_jobs", "Jobs that run.", total("running"), _PARTITION)
    yield gauge("lucid_held_jobs", "Jobs that Lucid holds back, by its last plan.", total("held"), _PARTITION)
    yield gauge("lucid_barred_jobs", "Jobs that Slurm would not start at present.", total("barred"), _PARTITION)
    yield gauge(
        "lucid_oldest_hold_seconds",
        "How long the job that Lucid has held longest has waited by now; absent where it holds none.",
        _most({(groups[name],): [] for name in seen}, [(groups[n], one.held_since_s) for n, one in seen.items()]),
        _PARTITION,
    )


def _most(found: dict[tuple[str, ...], list[float]], values: Sequence[tuple[str, float | None]]) -> Labels:
    for name, value in values:
        if value is not None:
            found[(name,)].append(value)
    return {key: max(each, default=None) for key, each in found.items()}


def _profiling(seen: Mapping[str, _Seen]) -> Iterator[Metric]:
    rooms = {name: one for name, one in seen.items() if one.profiling}
    yield gauge(
        "lucid_profiling_queue_jobs",
        "Jobs that wait for a profiling run.",
        {(name,): float(one.pending) for name, one in rooms.items()},
        _PARTITION,
    )
    yield gauge(
        "lucid_profiling_running_jobs",
        "Jobs on profiling nodes.",
        {(name,): float(one.running) for name, one in rooms.items()},
        _PARTITION,
    )
    yield gauge(
        "lucid_profiling_oldest_wait_seconds",
        "The longest wait for a profiling run by now; absent where no job waits.",
        {(name,): one.oldest_s for name, one in rooms.items()},
        _PARTITION,
    )


@dataclass(frozen=True, slots=True)
class _PairedJob:
    partition: str
    job: str
    partner: str
    promised: float | None
    measured: float | None
    by: str


def _pairs(seen: StoredPlan, promises: Mapping[str, tuple[str, float, float]]) -> list[_PairedJob]:
    """The jobs of pairs, each with its speeds; two in a row are a pair."""
    found: list[_PairedJob] = []
    for name, part in seen.snapshot.partitions.items():
        running = {entry.job.id: entry for entry in part.running if entry.partner}
        for job_id, entry in running.items():
            other = running.get(entry.partner or "")
            if other is None or job_id > other.job.id:
                continue
            by, _ = speeds_of(entry, other, promises)
            for one, beside in ((entry, other), (other, entry)):
                said, profile = promises.get(one.job.id), one.profile
                shown = profile.seen_speed if profile and profile.seen_beside == beside.job.id else None
                promised = said[1] if said is not None and said[0] == beside.job.id else None
                found.append(_PairedJob(name, one.job.id, beside.job.id, promised, shown, by))
    return found


def _pair_families(jobs: Sequence[_PairedJob], groups: Mapping[str, str]) -> Iterator[Metric]:
    counts: defaultdict[tuple[str, ...], float] = defaultdict(float)
    speeds: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
    for name in groups.values():
        for by in SPEEDS:
            counts[name, by] += 0.0
    for one in jobs:
        name = groups[one.partition]
        counts[name, one.by] += 0.5
        for by, value in (("promised", one.promised), ("measured", one.measured)):
            if value is not None:
                speeds[name, by].append(value)
    yield gauge(
        "lucid_pairs",
        "Pairs of jobs on the same GPUs, by what is known of their speeds.",
        counts,
        ("partition", "speed"),
    )
    yield gauge(
        "lucid_pair_speed_mean_ratio",
        "Mean speed of jobs in pairs, 1 being as fast as alone: as expected when the pair was made, and as measured.",
        {key: fmean(each) for key, each in speeds.items()},
        ("partition", "speed"),
    )
    yield gauge(
        "lucid_pair_speed_lowest_ratio",
        "The lowest of these speeds.",
        {key: min(each) for key, each in speeds.items()},
        ("partition", "speed"),
    )
    shown = sorted((one for one in jobs if one.promised is not None or one.measured is not None), key=_urgency)
    some = shown[:MOST_PAIRED_JOBS]
    yield gauge(
        "lucid_pair_job_promised_speed_ratio",
        f"Speed expected of a job with its partner; of the {MOST_PAIRED_JOBS} jobs furthest below what was expected.",
        {(groups[one.partition], one.job, one.partner): one.promised for one in some},
        ("partition", "job", "partner"),
    )
    yield gauge(
        "lucid_pair_job_measured_speed_ratio",
        f"Speed measured of a job with its partner; of the {MOST_PAIRED_JOBS} jobs furthest below what was expected.",
        {(groups[one.partition], one.job, one.partner): one.measured for one in some},
        ("partition", "job", "partner"),
    )


def _urgency(one: _PairedJob) -> tuple[float, float, str]:
    behind = 0.0 if one.promised is None or one.measured is None else one.measured - one.promised
    known = [value for value in (one.promised, one.measured) if value is not None]
    return behind, min(known), one.job
