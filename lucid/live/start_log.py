"""Forecasts of starts against what came true, as lucidd keeps them: the ranges that people are shown rest on them.

Once a minute at most, and only where a job has begun to wait since, lucidd plans its queue ahead and notes what it
would tell of the new ones. When a job starts, the note becomes a sample (``orchestrator.start_times``); when
one ends, so does its run time (``orchestrator.run_times``). All of it is one view of the store, bounded, so that a
restart goes on where the daemon before it was.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from lucid.adapters.store.port import Store
from lucid.core.decision import Plan, Start
from lucid.core.snapshot import Snapshot
from lucid.live.expected import wait_of
from lucid.live.turns import behind_barrier
from lucid.orchestrator.forecast import PairSpeed, forecast
from lucid.orchestrator.policy import Policy
from lucid.orchestrator.run_times import RunTimes
from lucid.orchestrator.start_times import StartTimes

__all__ = ["START_TIMES", "StartLog", "run_times_of", "start_times_of"]

START_TIMES = "start_times"
"""Name of the view."""
_EVERY_S = 60.0
_COST = 50.0
"""A forecast is made at most once in so many times as long as it takes."""


def start_times_of(data: Any) -> StartTimes:
    """From the view; empty where there is none, or another version of Lucid wrote it."""
    try:
        return StartTimes.from_dict(data)
    except (KeyError, TypeError, ValueError):
        return StartTimes()


def run_times_of(data: Any) -> RunTimes:
    """From the same view; empty likewise."""
    try:
        return RunTimes.from_dict(data["run_times"])
    except (KeyError, TypeError, ValueError, AttributeError):
        return RunTimes()


class StartLog:
    """Notes forecasts, and what became of them. ``policy``: one like that of the plans, of its own."""

    def __init__(self, store: Store, policy: Policy, pair_speed: PairSpeed) -> None:
        self._store = store
        self._policy = policy
        self._pair_speed = pair_speed
        self._kept = store.view(START_TIMES)
        self._times, self._run_times = start_times_of(self._kept), run_times_of(self._kept)
        self._estimates: dict[str, float] = {}
        """Seconds, by job: as told when the job was first seen."""
        self._next_s, self._every_s = float("-inf"), _EVERY_S

    @property
    def kept(self) -> Any:
        """The view as it is kept now; ``None`` before there is one."""
        return self._kept

    def take(self, snapshot: Snapshot, plan: Plan) -> None:
        """One cycle. Trouble here is told, and costs no decision."""
        behind_barrier("start times not kept", lambda: self._take(snapshot, plan))

    def _take(self, snapshot: Snapshot, plan: Plan) -> None:
        now_s, times = snapshot.now_s, self._times
        waiting = {e.job.id: (part, e) for part in snapshot.partitions.values() for e in part.pending}
        running = {e.job.id: e for part in snapshot.partitions.values() for e in part.running}
        changed = self._learn(snapshot, (*waiting, *running))
        for job_id in [job_id for job_id in times.open if job_id not in waiting]:
            entry = running.get(job_id)
            if entry is not None and entry.start_s >= now_s:
                continue  # its node boots
            if entry is None:
                times.left(job_id)
            else:
                times.started(job_id, entry.start_s)
            changed = True
        if self._next_s - self._every_s <= now_s < self._next_s:  # outside where the clock was set back
            if changed:
                self._keep()
            return
        at_once = {action.job_id for action in plan.actions if isinstance(action.decision, Start)}
        new = [job_id for job_id in waiting if job_id not in times.open and job_id not in at_once]
        if new:
            began_s = time.perf_counter()
            ahead = forecast(snapshot, plan, self._policy, pair_speed=self._pair_speed, run_times=self._run_times)
            self._every_s = max(_EVERY_S, _COST * (time.perf_counter() - began_s))
            self._next_s = now_s + self._every_s
            for job_id in new:
                wait = wait_of(*waiting[job_id], ahead)
                if wait is not None:
                    times.waits(job_id, wait, now_s)
        if new or changed:
            self._keep()

    def _learn(self, snapshot: Snapshot, known: Sequence[str]) -> bool:
        """How long the jobs that ended ran for, beside their estimates. Were there any?"""
        before, learned = self._estimates, False
        for ended in snapshot.ended:
            estimate_s = before.get(ended.job.id)
            if estimate_s is not None and ended.ran_s > 0.0:
                self._run_times.ended(ended.job.user, ended.ran_s, estimate_s)
                learned = True
        told = snapshot.predictions
        self._estimates = {
            job_id: before[job_id] if job_id in before else told[job_id].duration_s
            for job_id in known
            if job_id in before or job_id in told
        }
        return learned

    def _keep(self) -> None:
        self._kept = {**self._times.to_dict(), "run_times": self._run_times.to_dict()}
        self._store.put_view(START_TIMES, self._kept)
