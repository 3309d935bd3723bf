"""Figures of a run (JCT, queueing delay, makespan, GPU use), and who gains or loses by a policy.

All times are in seconds. A job loses the difference of its JCT from that under the baseline. That is divided into
time spent waiting, time of a profiling run whose work was not kept, and time that the job took longer to run beside
another job."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from lucid.core.codec import to_json
from lucid.core.decision import DecisionRow
from lucid.core.reasons.queue import BehindHead, LargeShare, PlainOrder, Reserved
from lucid.simulator.cluster.state import JobOutcome
from lucid.simulator.engine import Run
from lucid.simulator.record import DecisionLog

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
    ``promise.Promise``, of each VC and of all. With events, ``windows`` has ``nodes.WindowFigures``."""
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
            "runs_left": 0,  # none is started to leave before a window any more; the schema has it
            "lost_gpu_h": run.windows.lost_gpu_s / 3600.0,
            "runs_failed": run.windows.failed,
        }
    if "" in run.promise:
        found["promise"] = to_json(run.promise[""])
    if run.kept is not None:
        found |= {
            "starvation_bound_s": run.kept.bound_s,
            "jobs_past_bound": run.kept.past,
            "worst_past_bound_s": run.kept.worst_s,
        }
    return found


def _lending(run: Run, vc: str) -> dict[str, Any]:
    """The figures of one VC of a pool: its quota, the GPU-hours that it lent and borrowed, and its jobs past their
    bound."""
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
        found["promise"] = to_json(run.promise[vc])
    return found


def _mean(values: Iterable[float]) -> float | None:
    listed = list(values)
    return sum(listed) / len(listed) if listed else None


def _grouped(outcomes: Iterable[JobOutcome]) -> dict[str, list[JobOutcome]]:
    groups: dict[str, list[JobOutcome]] = {}
    for outcome in outcomes:
        groups.setdefault(outcome.job.vc, []).append(outcome)
    return dict(sorted(groups.items()))


BASELINE = "backfill"
"""The baseline: plain Slurm, which a cluster does without Lucid. Where it is not replayed, the first policy is the
baseline."""
_RATIOS = (("avg_jct", "avg_jct_s"), ("avg_jct_large", "avg_jct_large_s"), ("p999_queue", "p999_queue_s"))
"""Figures given as a multiple of the baseline's: the average, large jobs, and the tail of waiting."""
LOSES_FROM = 1.05
"""A user or a VC loses if its mean JCT is more than this many times that of the baseline."""
LOSES_LEAST_S = 360.0
"""The least loss per job in reports on a site's own past: nobody would see less."""
_SAME = 1e-4
"""A mean JCT within this share of the baseline's is the same."""
_SEEN = 1e-3
"""The least share of GPU-hours that is worth a sentence."""
_LISTED = 10
_LEAST_S = 60.0
"""The least part of a loss that is mentioned."""

_OTHERS = "behind jobs with less work (estimate x GPUs)"


@dataclass(frozen=True, slots=True)
class Party:
    """A user, a VC, or everybody. ``jct_s``, ``baseline_s``: mean JCT of its jobs under the policy and under the
    baseline. ``later``: how many of its jobs end over a minute later."""

    name: str
    jobs: int
    jct_s: float
    baseline_s: float
    later: int

    @property
    def ratio(self) -> float:
        """Mean JCT over that of the baseline; above 1 the party loses."""
        return self.jct_s / self.baseline_s if self.baseline_s else 1.0


@dataclass(frozen=True, slots=True)
class Losing:
    """A job that ends later than under the baseline, by ``lost_s``. ``wait_s``: how much longer it waited; ``waits``:
    these seconds by what it waited for, as the decisions say. ``profiled_s``: profiling run that had to be done
    again. ``slower_s``: how much longer it ran beside other jobs; ``speed``: how fast it ran there."""

    job: str
    user: str
    vc: str
    gpus: int
    lost_s: float
    wait_s: float
    profiled_s: float
    slower_s: float
    speed: float | None
    waits: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Held:
    """GPU-hours that all jobs of a replay hold, under the policy and under the baseline; jobs on the same GPUs count
    once at a time. Two jobs on the same GPUs hold less than one after the other; a profiling run that is done again,
    and a slow pair, take a part of that back. ``gpus``: how many there are; ``days``: how long jobs are submitted."""

    gpu_h: float
    baseline_gpu_h: float
    gpus: int
    days: float


@dataclass(frozen=True, slots=True)
class Gains:
    """Who gains and who loses. ``users``, ``vcs``: all of them, those that lose most first. ``latest_s``: how much
    longer the unluckiest job waited than under the baseline. ``losing``: the jobs that lose most."""

    policy: str
    baseline: str
    everybody: Party
    vcs: tuple[Party, ...]
    users: tuple[Party, ...]
    latest_s: float
    losing: tuple[Losing, ...]
    held: Held

    @property
    def users_losing(self) -> int:
        """Users whose mean JCT is over 5 % above the baseline's."""
        return sum(party.ratio > LOSES_FROM for party in self.users)

    @property
    def vcs_losing(self) -> int:
        """VCs whose mean JCT is above the baseline's."""
        return sum(party.ratio > 1 + _SAME for party in self.vcs)


def loses(jct_s: float, before_s: float) -> bool:
    """Whether a party with a mean JCT of ``before_s`` loses: more than 5 %, and at least 0.1 h."""
    return jct_s > LOSES_FROM * before_s and jct_s - before_s >= LOSES_LEAST_S


def baseline_of(runs: Sequence[Run]) -> Run | None:
    """The run that the others are compared with: plain Slurm, else the first; ``None`` for a single run."""
    if len(runs) < 2:
        return None
    return next((run for run in runs if run.policy == BASELINE), runs[0])


def times_baseline(metrics: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Figures of ``run_metrics`` as multiples of the baseline's: ``policy`` names it, ``by_policy`` has ``avg_jct``,
    ``avg_jct_large`` and ``p999_queue`` of each policy (``None`` where one of the two has no such jobs, or the
    baseline's is 0). Empty for a single policy."""
    if len(metrics) < 2:
        return {}
    baseline = BASELINE if BASELINE in metrics else next(iter(metrics))

    def ratio(figures: Mapping[str, Any], key: str) -> float | None:
        value, of = figures.get(key), metrics[baseline].get(key)
        return None if value is None or not of else value / of

    by_policy = {name: {what: ratio(m, key) for what, key in _RATIOS} for name, m in metrics.items()}
    return {"policy": baseline, "by_policy": by_policy}


def gains(run: Run, baseline: Run, log: DecisionLog | None = None) -> Gains | None:
    """Compare two runs of the same trace; ``None`` where they have no ended job in common.

    ``log``: the decisions of ``run``; without it a loss does not say what the job waited for."""
    before = {o.job.id: o for o in baseline.outcomes if o.end_s >= 0}
    both = [(o, before[o.job.id]) for o in run.outcomes if o.end_s >= 0 and o.job.id in before]
    if not both:
        return None
    worst = sorted(both, key=lambda pair: (pair[1].jct_s - pair[0].jct_s, pair[0].job.rank))[:_LISTED]
    losing = [_losing(o, was, log) for o, was in worst if o.jct_s - was.jct_s >= _LEAST_S]
    return Gains(
        run.policy,
        baseline.policy,
        _party("all jobs", both),
        _parties((o.job.vc, (o, was)) for o, was in both),
        _parties((o.job.user, (o, was)) for o, was in both),
        max(o.queue_s - was.queue_s for o, was in both),
        tuple(losing),
        held_by(run, baseline),
    )


def held_by(run: Run, baseline: Run) -> Held:
    """The GPU-hours that the jobs of a trace hold in two replays of it."""
    times_s = [o.job.submit_s for o in run.outcomes]
    days = (max(times_s) - min(times_s)) / 86400.0 if times_s else 0.0
    return Held(run.series.busy_gpu_s / 3600.0, baseline.series.busy_gpu_s / 3600.0, run.total_gpus, days)


def held_text(held: Held, policy: str, baseline: str) -> str:
    """The GPU-hours held less as GPUs that work day and night, in one sentence; empty where there is no difference
    that anybody would see."""
    less = held.baseline_gpu_h - held.gpu_h
    if abs(less) < _SEEN * held.baseline_gpu_h or not held.days or not held.baseline_gpu_h:
        return ""
    gpus = f"{abs(less) / 24.0 / held.days:,.1f}".removesuffix(".0")
    return (
        f"All jobs hold {held.gpu_h:,.0f} GPU-hours under {policy} and {held.baseline_gpu_h:,.0f} under {baseline}: "
        f"as if the cluster of {held.gpus:,} GPUs had {gpus} {'more' if less > 0 else 'fewer'}, day and night."
    )


def gains_of_runs(runs: Sequence[Run], logs: Mapping[str, DecisionLog]) -> list[Gains]:
    """The gains of every run against the baseline, in order; the ``logs`` are by policy, where there are any."""
    baseline = baseline_of(runs)
    if baseline is None:
        return []
    found = (gains(run, baseline, logs.get(run.policy)) for run in runs if run is not baseline)
    return [one for one in found if one is not None]


def gains_headline(found: Gains) -> str:
    """Sentences on who loses, and on what is held less."""
    most = f"{LOSES_FROM - 1:.0%}"
    held = held_text(found.held, found.policy, found.baseline)
    said = (
        f"Mean JCT under {found.policy} is {found.everybody.ratio:.3f} times that under {found.baseline}. "
        f"{found.users_losing} of {len(found.users)} users lose more than {most} of their mean JCT, "
        f"and {found.vcs_losing} of {len(found.vcs)} VCs lose."
    )
    return f"{said} {held}" if held else said


def gains_to_dict(found: Gains) -> dict[str, Any]:
    """The gains as JSON, with the counts."""
    return {**to_json(found), "users_losing": found.users_losing, "vcs_losing": found.vcs_losing}


_Pair = tuple[JobOutcome, JobOutcome]


def _party(name: str, pairs: Sequence[_Pair]) -> Party:
    jct_s, baseline_s = (sum(pair[i].jct_s for pair in pairs) / len(pairs) for i in (0, 1))
    later = sum(o.jct_s - was.jct_s > _LEAST_S for o, was in pairs)
    return Party(name, len(pairs), jct_s, baseline_s, later)


def _parties(named: Iterable[tuple[str, _Pair]]) -> tuple[Party, ...]:
    groups: dict[str, list[_Pair]] = {}
    for name, pair in named:
        groups.setdefault(name, []).append(pair)
    found = [_party(name, pairs) for name, pairs in groups.items()]
    return tuple(sorted(found, key=lambda party: (-party.ratio, party.name)))


def _losing(outcome: JobOutcome, was: JobOutcome, log: DecisionLog | None) -> Losing:
    job = outcome.job
    run_s, was_run_s = outcome.jct_s - outcome.queue_s, was.jct_s - was.queue_s
    again_s = outcome.profiled_s if outcome.preemptions == 0 and not outcome.ended_in_profiling else 0.0
    slower_s = max(run_s - was_run_s - again_s, 0.0)
    shared_s = outcome.packed_s
    speed = 1 - slower_s / shared_s if shared_s > slower_s > 0 else None
    waits = () if log is None else _waits(log.decisions_of(job.id))
    wait_s = outcome.queue_s - was.queue_s
    lost_s = outcome.jct_s - was.jct_s
    return Losing(job.id, job.user, job.vc, job.gpus, lost_s, wait_s, again_s, slower_s, speed, waits)


def _waits(rows: Sequence[DecisionRow]) -> tuple[tuple[str, float], ...]:
    """Seconds of waiting by reason, longest first. A hold counts until the next decision on the job."""
    spent: dict[str, float] = {}
    for row, after in pairwise(rows):
        if row.verb == "hold":
            what = _what(row, rows[-1].partition)
            spent[what] = spent.get(what, 0.0) + after.at_s - row.at_s
    found = [(what, s) for what, s in spent.items() if s >= _LEAST_S]
    return tuple(sorted(found, key=lambda item: (-item[1], item[0])))


def _what(row: DecisionRow, home: str) -> str:
    for reason in row.reasons:
        if isinstance(reason, PlainOrder) and reason:
            return "first in line, for nodes that drain"
        if isinstance(reason, Reserved):
            own = reason.holder == row.job_id
            return "for nodes that drain" if own else f"nodes are reserved for job {reason.holder}"
        if isinstance(reason, LargeShare):
            return "large jobs give way to smaller ones"
    if row.partition != home or any(isinstance(reason, BehindHead) for reason in row.reasons):
        return "for a profiling node"
    return _OTHERS


def loss_text(found: Losing, show: Callable[[float], str]) -> str:
    """One loss in words; ``show`` writes a duration."""
    parts: list[str] = []
    if found.wait_s >= _LEAST_S:
        waits = "; ".join(f"{show(s)} {what}" for what, s in found.waits[:3])
        parts.append(f"waited {show(found.wait_s)} longer" + (f" ({waits})" if waits else ""))
    if found.profiled_s > 0:
        parts.append(f"started over after a profiling run of {show(found.profiled_s)}")
    if found.slower_s >= _LEAST_S:
        speed = "" if found.speed is None else f" at {found.speed:.0%} of its speed"
        parts.append(f"ran {show(found.slower_s)} longer, sharing its GPUs{speed}")
    return "; ".join(parts) or "ended later"
