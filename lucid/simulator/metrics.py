"""Figures of a run, in the field's terms: JCT, queueing delay, makespan, GPU use. All times in seconds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from lucid.simulator.cluster import JobOutcome
from lucid.simulator.engine import Run

__all__ = ["LARGE_GPUS", "SIZES", "group_metrics", "run_metrics"]

LARGE_GPUS = 8
"""Jobs above this many GPUs count as large."""

SIZES: tuple[tuple[str, Callable[[int], bool]], ...] = (
    ("1", lambda gpus: gpus <= 1),
    ("2-4", lambda gpus: 2 <= gpus <= 4),
    ("5-8", lambda gpus: 5 <= gpus <= 8),
    (">8", lambda gpus: gpus > 8),
)
"""Size classes of the tables."""


def group_metrics(outcomes: Sequence[JobOutcome]) -> dict[str, Any]:
    """Count, JCT and queueing delay (mean, median, 90th, 99.9th percentile) of some ended jobs."""
    if not outcomes:
        return {"jobs": 0}
    jct = np.array([o.jct_s for o in outcomes])
    queue = np.array([o.queue_s for o in outcomes])
    found: dict[str, Any] = {"jobs": len(outcomes)}
    for name, values in (("jct", jct), ("queue", queue)):
        found[f"avg_{name}_s"] = float(values.mean())
        for label, q in (("median", 50), ("p90", 90), ("p999", 99.9)):
            found[f"{label}_{name}_s"] = float(np.percentile(values, q))
    found["packed_jobs"] = sum(o.packed for o in outcomes)
    return found


def run_metrics(run: Run) -> dict[str, Any]:
    """Everything about one run that the table, the JSON and the report show.

    ``gpu_use``: GPU-seconds held over GPU-seconds there were until the last end; ``packed_share``: share of
    jobs that ever stood beside another. Jobs that could never run are left out and counted as ``impossible_jobs``.
    Where there was a starvation bound: ``starvation_bound_s``, ``jobs_past_bound`` and ``worst_past_bound_s``, the
    tally of the policy itself. With lending, ``by_vc`` says for each VC its quota, the GPU-hours that it lent and
    borrowed, and its jobs past their bound; where the same was replayed between walls, ``promise`` has the figures of
    ``promise.Promise``, of each VC and of all. With events, ``windows`` has ``nodes.WindowFigures``.
    """
    done = [o for o in run.outcomes if o.end_s >= 0]
    found = group_metrics(done)
    large = [o for o in done if o.job.gpus > LARGE_GPUS]
    makespan_s = max((o.end_s for o in done), default=0.0) - min((o.job.submit_s for o in done), default=0.0)
    there_s = run.total_gpus * makespan_s
    found |= {
        "large_jobs": len(large),
        "avg_jct_large_s": _mean(o.jct_s for o in large),
        "makespan_s": makespan_s,
        "gpu_use": run.series.busy_gpu_s / there_s if there_s else 0.0,
        "shared_gpu_use": run.series.shared_gpu_s / there_s if there_s else 0.0,
        "packed_share": found.get("packed_jobs", 0) / len(done) if done else 0.0,
        "preemptions": sum(o.preemptions for o in done),
        "resizes": sum(o.resizes for o in done),
        "ended_in_profiling": sum(o.ended_in_profiling for o in done),
        "impossible_jobs": len(run.outcomes) - len(done),
        "total_gpus": run.total_gpus,
        "predictor": run.predictor,
        "cycles": run.cycles,
        "wall_s": run.wall_s,
        "cpu_s": run.cpu_s,
        "by_vc": {vc: group_metrics(members) | _lending(run, vc) for vc, members in _grouped(done).items()},
        "by_size": {label: group_metrics([o for o in done if inside(o.job.gpus)]) for label, inside in SIZES},
    }
    if run.start_forecast is not None:
        found["start_forecast"] = dict(run.start_forecast)
    if run.windows is not None:
        found["windows"] = {
            "windows": run.windows.windows,
            "unused_before_gpu_h": run.windows.unused_gpu_s / 3600.0,
            "there_before_gpu_h": run.windows.there_gpu_s / 3600.0,
            "runs_cut": run.windows.cut,
            "runs_left": run.windows.left,
            "lost_gpu_h": run.windows.lost_gpu_s / 3600.0,
            "runs_failed": run.windows.failed,
        }
    if "" in run.promise:
        found["promise"] = asdict(run.promise[""])
    if run.kept is not None:
        found |= {
            "starvation_bound_s": run.kept.bound_s,
            "jobs_past_bound": run.kept.past,
            "worst_past_bound_s": run.kept.worst_s,
        }
    return found


def _lending(run: Run, vc: str) -> dict[str, Any]:
    """Of one VC of a pool: its quota, the GPU-hours that it lent and borrowed, and its jobs past their bound."""
    lent, kept = run.lent.get(vc), run.kept_by_vc.get(vc)
    if lent is None:
        return {}
    found: dict[str, Any] = {
        "quota_gpus": lent.quota,
        "lent_gpu_h": lent.lent_gpu_s / 3600.0,
        "borrowed_gpu_h": lent.borrowed_gpu_s / 3600.0,
    }
    if kept is not None:
        found |= {"jobs_past_bound": kept.past, "worst_past_bound_s": kept.worst_s}
    if vc in run.promise:
        found["promise"] = asdict(run.promise[vc])
    return found


def _mean(values: Iterable[float]) -> float | None:
    listed = list(values)
    return sum(listed) / len(listed) if listed else None


def _grouped(outcomes: Iterable[JobOutcome]) -> dict[str, list[JobOutcome]]:
    groups: dict[str, list[JobOutcome]] = {}
    for outcome in outcomes:
        groups.setdefault(outcome.job.vc, []).append(outcome)
    return dict(sorted(groups.items()))
