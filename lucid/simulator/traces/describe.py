"""Figures that describe a trace: jobs, load, sizes, durations, rhythms, ready for JSON."""

from __future__ import annotations

from collections import Counter
from typing import Any

from lucid.profiler.shape import percentile
from lucid.simulator.traces.record import Trace

SHORT_S = 80.0
"""Jobs up to this long count as short: they end within a profiling run of the published length."""
_QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9, 0.99, 0.999)


def describe(trace: Trace) -> dict[str, Any]:
    """Figures about a trace, ready for JSON. Times in seconds (``_s``), load in GPU-hours (``_gpu_h``).

    The span goes from the first to the last submission. ``by_hour_of_day`` and ``by_weekday`` (Monday first) are
    mean submissions per hour; they are ``None`` without calendar dates, and follow the trace's own clock."""
    jobs = trace.jobs
    span_s = jobs[-1].job.submit_s - jobs[0].job.submit_s if jobs else 0.0
    durations = sorted(item.duration_s for item in jobs)
    load_s = sum(item.job.gpus * item.duration_s for item in jobs)
    users = Counter(item.job.user for item in jobs if item.job.user)
    return {
        "name": trace.name,
        "jobs": len(jobs),
        "skipped": dict(trace.skipped),
        "epoch_s": trace.epoch_s,
        "span_s": span_s,
        "gpus": {str(gpus): count for gpus, count in sorted(Counter(item.job.gpus for item in jobs).items())},
        "single_gpu_share": _share(sum(item.job.gpus == 1 for item in jobs), len(jobs)),
        "duration_s": {
            "mean": _share(sum(durations), len(durations)),
            "min": durations[0] if durations else 0.0,
            **{f"p{share * 100:g}": percentile(durations, share) if jobs else 0.0 for share in _QUANTILES},
            "max": durations[-1] if durations else 0.0,
        },
        "short_share": _share(sum(duration <= SHORT_S for duration in durations), len(durations)),
        "arrivals": _arrivals(trace, span_s),
        "users": {
            "count": len(users),
            "busiest_share": _share(max(users.values(), default=0), len(jobs)),
            "same_name_share": _same_name_share(trace),
        },
        "states": dict(sorted(Counter(item.state or "unknown" for item in jobs).items())),
        "with_profile": sum(item.profile is not None for item in jobs),
        "with_time_limit": sum(item.job.time_limit_s is not None for item in jobs),
        "offered_gpu_h": load_s / 3600,
        "mean_gpus_in_use": _share(load_s, span_s),
        "vcs": {vc: _of_vc(trace, vc, load_s, span_s) for vc in trace.vcs},
    }


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def _of_vc(trace: Trace, vc: str, load_s: float, span_s: float) -> dict[str, Any]:
    items = [item for item in trace.jobs if item.job.vc == vc]
    own_s = sum(item.job.gpus * item.duration_s for item in items)
    return {
        "jobs": len(items),
        "users": len({item.job.user for item in items if item.job.user}),
        "max_gpus": max(item.job.gpus for item in items),
        "offered_gpu_h": own_s / 3600,
        "load_share": _share(own_s, load_s),
        "mean_gpus_in_use": _share(own_s, span_s),
        "median_duration_s": percentile([item.duration_s for item in items], 0.5),
    }


def _same_name_share(trace: Trace) -> float:
    """The share of jobs whose user had submitted one before with the same name up to its last dash."""
    seen: set[tuple[str, str]] = set()
    again = 0
    for item in trace.jobs:
        if item.job.name:
            key = (item.job.user, item.job.name.rpartition("-")[0] or item.job.name)
            again += key in seen
            seen.add(key)
    return _share(again, len(trace.jobs))


def _arrivals(trace: Trace, span_s: float) -> dict[str, Any]:
    per_hour = Counter(int(item.job.submit_s // 3600) for item in trace.jobs)
    hours = int(span_s // 3600) + 1
    counts = [float(per_hour.get(hour, 0)) for hour in range(hours)]
    peak = max(per_hour, key=lambda hour: (per_hour[hour], -hour), default=0)
    return {
        "per_hour_mean": _share(len(trace.jobs), span_s / 3600),
        "per_hour_p99": percentile(counts, 0.99),
        "per_hour_peak": per_hour.get(peak, 0),
        "peak_at_s": peak * 3600.0,
        "by_hour_of_day": _rhythm(trace, span_s, 3600, 24, 0),
        # second 0 of Unix time was a Thursday
        "by_weekday": _rhythm(trace, span_s, 86400, 7, 3),
    }


def _rhythm(trace: Trace, span_s: float, unit_s: int, slots: int, offset: int) -> list[float] | None:
    if trace.epoch_s is None:
        return None
    jobs = [0] * slots
    for item in trace.jobs:
        jobs[(int((trace.epoch_s + item.job.submit_s) // unit_s) + offset) % slots] += 1
    first_s, last_s = trace.epoch_s, trace.epoch_s + span_s
    hours = [0.0] * slots
    for unit in range(int(first_s // unit_s), int(last_s // unit_s) + 1):
        inside_s = min(last_s, (unit + 1) * unit_s) - max(first_s, unit * unit_s)
        hours[(unit + offset) % slots] += inside_s / 3600
    return [_share(count, time) for count, time in zip(jobs, hours, strict=True)]
