"""Forecasts of starts in a replay, made as lucidd would have, against the starts that came true.

Whenever a job begins to wait (it is submitted, or comes back from a profiling node or by preemption), the start that
ends this wait is forecast: as ``lucidctl queue`` would have shown it, by the policy itself, with ranges learned from
the waits that were over by then. Jobs that the plan starts at once are forecast to start at once; that costs nothing,
and each is counted. Of the other waits, every first, second, fourth, ... is planned ahead: as many as a budget allows
for, so that the cost stays about a quarter of the replay's own; or all of them. Each stands for all those that were
passed over with it, so no kind of job counts for more than its number. The schedule does not depend on any of
this."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Any, Literal

from lucid.core.decision import Plan, Start
from lucid.core.job import Pending
from lucid.core.snapshot import Partition, Snapshot
from lucid.orchestrator.forecast.plan_ahead import PairSpeed, around, forecast
from lucid.orchestrator.forecast.ranges import SHORT_S, StartTimes, Wait
from lucid.orchestrator.forecast.run_times import RunTimes
from lucid.orchestrator.policy import Policy

Forecasts = Literal["off", "sampled", "all"]
"""The waits whose starts are forecast."""

_NEAR_S = 600.0
_TOGETHER_S = 30.0
"""Jobs that begin to wait within so many seconds share one planning ahead, made when the first of them has waited so
long; a job that starts before is not counted."""
_VISITS = 8_000
"""Planning ahead ends after so many jobs were looked at: enough for most jobs of a VC."""
_PER_CYCLE = 10.0
"""How many jobs may be looked at for forecasts, for each cycle of the replay so far: the budget
(docs/decisions/0051)."""
_FREE_VISITS = 40_000.0
"""The budget at the beginning, so that short traces are sampled whole."""


@dataclass(slots=True)
class _Counted:
    """One forecast that came true; it stands for ``weight`` waits."""

    weight: float
    real_s: float
    likely_s: float
    width_s: float
    inside: bool
    tells: bool = False


class StartForecasts:
    """Forecasts starts while a policy is replayed. ``policy``: another one like it, which plans ahead. ``every``:
    forecast every wait, whatever that costs."""

    def __init__(self, policy: Policy, pair_speed: PairSpeed | None = None, *, every: bool = False) -> None:
        self._every = every
        self._policy = policy
        self._pair_speed = pair_speed
        self._times = StartTimes()
        self._seen: dict[str, Partition] = {}
        self._run_times = RunTimes()
        self._estimates: dict[str, float] = {}
        self._waiting: dict[str, float] = {}
        """Since when each job waits."""
        self._weights: dict[str, float] = {}
        """Weights of the waiting jobs that were sampled."""
        self._at_once = 0
        self._new: dict[str, dict[str, float]] = {}
        """By partition, jobs that have begun to wait and have no forecast yet, and since when they wait."""
        self._stride, self._skipped, self._passed = 1, 0, 0
        self._visits = -_FREE_VISITS
        self._counted: list[_Counted] = []

    def observe(self, snapshot: Snapshot, plan: Plan, next_s: float) -> None:
        """Take in one cycle: which jobs begin to wait, and whose wait is over. ``next_s``: when the next cycle comes;
        it decides when to plan ahead, and no forecast."""
        now_s = snapshot.now_s
        self._visits -= _PER_CYCLE
        for ended in snapshot.ended:
            self._run_times.ended(ended.job.user, ended.ran_s, self._estimates.pop(ended.job.id, ended.ran_s))
        starting: set[str] = set()
        for part in plan.partitions.values():
            for action in part.actions:
                if isinstance(action.decision, Start):
                    starting.add(action.job_id)
        for name, partition in snapshot.partitions.items():
            if self._seen.get(name) is partition:
                continue
            self._seen[name] = partition
            for entry in reversed(partition.pending):
                if entry.since_s < now_s:
                    break
                if self._waiting.get(entry.job.id) != entry.since_s:
                    self._waiting[entry.job.id] = entry.since_s
                    self._estimates.setdefault(entry.job.id, snapshot.predictions[entry.job.id].duration_s)
                    self._weights.pop(entry.job.id, None)
                    self._times.left(entry.job.id)
                    if entry.job.id in starting:
                        self._at_once += 1
                    else:
                        self._new.setdefault(name, {})[entry.job.id] = entry.since_s
        for job_id in starting:
            self._starts(job_id, now_s)
        for name in [name for name, new in self._new.items() if next_s > min(new.values()) + _TOGETHER_S]:
            new = self._new.pop(name)
            partition = snapshot.partitions[name]
            waiting = [
                entry
                for entry in partition.pending
                if new.get(entry.job.id) == entry.since_s and entry.job.id not in starting
            ]
            if waiting:
                self._begin(snapshot, plan, partition, waiting)

    def _begin(self, snapshot: Snapshot, plan: Plan, partition: Partition, waiting: list[Pending]) -> None:
        """Plan ahead once for all jobs that have begun to wait in one partition."""
        self._passed += len(waiting)
        self._skipped += 1
        if self._skipped < self._stride:
            return
        weight, self._passed, self._skipped = self._passed / len(waiting), 0, 0
        if self._visits > 0 and not self._every:
            self._stride *= 2
        elif self._visits < -_FREE_VISITS / 2 and self._stride > 1:
            self._stride //= 2
        until = frozenset(entry.job.id for entry in waiting)
        kept = around(snapshot, plan, frozenset((partition.name,)))
        ahead = forecast(
            *kept,
            self._policy,
            _VISITS,
            pair_speed=self._pair_speed,
            until=until,
            run_times=self._run_times,
            most_paths=1 if partition.profiling else 3,
        )
        self._visits += ahead.visits
        for entry in waiting:
            job = entry.job
            planned_s = ahead.starts_s.get(job.id)
            reach_s = ahead.ahead_s if planned_s is None else planned_s
            spread = ahead.spreads.get(job.id)
            wait = Wait(partition.name, job.gpus, reach_s, planned_s is not None, partition.profiling, spread)
            self._weights[job.id] = weight
            if reach_s < inf:  # otherwise the job would never start as things are, and nothing is said of it
                self._times.waits(job.id, wait, snapshot.now_s)

    def _starts(self, job_id: str, now_s: float) -> None:
        since_s, weight = self._waiting.pop(job_id, None), self._weights.pop(job_id, None)
        if since_s is None or weight is None:
            return
        one = self._times.started(job_id, now_s)
        if one is None or one.real_s is None:
            self._counted.append(_Counted(weight, now_s - since_s, inf, inf, False))
            return
        width_s = one.said.late_s - one.said.early_s
        self._counted.append(_Counted(weight, one.real_s, one.said.likely_s, width_s, one.inside, one.said.tells))

    def figures(self) -> dict[str, Any]:
        """The figures of the forecasts. ``jobs``: waits that were sampled, those at once included. ``coverage_80``
        and ``width_ratio`` (median of the range's width over the real wait): of jobs that waited for more than a
        minute (``waited``). ``within_10min``: share of all whose likely start was at most ten minutes off. ``told``:
        share of the waited whose range is shown by more than its end (``StartRange.tells``); ``told_coverage_80`` and
        ``told_width_ratio``: of these. ``None`` where there are no such waits."""
        long = [one for one in self._counted if one.real_s > SHORT_S]
        near = sum(one.weight for one in self._counted if abs(one.likely_s - one.real_s) <= _NEAR_S)
        every = self._at_once + sum(one.weight for one in self._counted)
        told = [one for one in long if one.tells]
        return {
            "coverage_80": _share([one for one in long if one.inside], long),
            "within_10min": (self._at_once + near) / every if every else None,
            "width_ratio": _median([(one.width_s / one.real_s, one.weight) for one in long]),
            "told": _share(told, long),
            "told_coverage_80": _share([one for one in told if one.inside], told),
            "told_width_ratio": _median([(one.width_s / one.real_s, one.weight) for one in told]),
            "jobs": self._at_once + len(self._counted),
            "waited": len(long),
        }


def _share(some: list[_Counted], of: list[_Counted]) -> float | None:
    return sum(one.weight for one in some) / sum(one.weight for one in of) if of else None


def _median(values: list[tuple[float, float]]) -> float | None:
    """The weighted median; ``None`` for no values, and where it is not finite."""
    half, so_far = sum(weight for _, weight in values) / 2, 0.0
    for value, weight in sorted(values):
        so_far += weight
        if so_far >= half:
            return value if value < inf else None
    return None
