"""``StartLog``: forecasts of starts and what came true; the ranges that people are shown rest on them.

Where jobs or plans have changed, and once a minute while jobs wait, lucidd plans its queue ahead, for a fiftieth of
its time at most. The result is a view of the store, so that commands need not plan to say when a job starts
(``reporting.starts``). At most once a minute lucidd notes its forecasts for jobs that have begun to wait. When a job
starts, the note becomes a sample (``forecast.ranges``); when one ends, so does its run time (``RunTimes``). All of
that is another bounded view, so that a restart goes on where the previous daemon was."""

from __future__ import annotations

import time
from collections.abc import Sequence
from operator import is_not
from typing import Any

from lucid.core.codec import to_json
from lucid.core.decision import Plan, Start
from lucid.core.snapshot import Snapshot
from lucid.daemon.barrier import behind_barrier
from lucid.daemon.reporting.starts import START_TIMES, STARTS, run_times_of, start_times_of, starts_ahead, wait_of
from lucid.orchestrator.forecast.plan_ahead import PairSpeed, forecast
from lucid.orchestrator.policy import Policy
from lucid.store.recorder import QUIET_S
from lucid.store.sqlite import SqliteStore

_EVERY_S = 60.0
"""The least time between two notes."""
_REPORTED_EVERY_S = 2.0
"""The least time between two forecasts, as between two stored snapshots."""
_COST = 50.0
"""A forecast is made at most once in so many times as long as it takes."""


class StartLog:
    """Notes forecasts, and what became of them. ``policy``: a separate one like that of the plans."""

    def __init__(self, store: SqliteStore, policy: Policy, pair_speed: PairSpeed) -> None:
        self._store = store
        self._policy = policy
        self._pair_speed = pair_speed
        self.kept = store.view(START_TIMES)
        """The view of samples as it is stored now; ``None`` before there is one."""
        self._times, self._run_times = start_times_of(self.kept), run_times_of(self.kept)
        self._estimates: dict[str, float] = {}
        """Each job's estimate when it was first seen, seconds."""
        self._noted, self._reported, self._quiet = _Due(_EVERY_S), _Due(_REPORTED_EVERY_S), _Due(QUIET_S)
        self._reported_of: list[object] = []
        """The partitions and plans that were planned ahead last."""
        self.starts: Any = None
        """The last forecast of the waiting jobs' starts; ``None`` before the first."""

    def observe(self, snapshot: Snapshot, plan: Plan) -> None:
        """Take in one cycle. Trouble here is logged, and costs no decision."""
        behind_barrier("start times not kept", lambda: self._observe(snapshot, plan))

    def _observe(self, snapshot: Snapshot, plan: Plan) -> None:
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
        seen: list[object] = [*snapshot.partitions.values(), *plan.partitions.values()]
        moved = len(seen) != len(self._reported_of) or any(map(is_not, seen, self._reported_of))
        moved = moved or (bool(waiting) and self._quiet.at(now_s))  # what was foreseen an hour ago has passed by now
        at_once = {action.job_id for action in plan.actions if isinstance(action.decision, Start)}
        new = [job_id for job_id in waiting if job_id not in times.open and job_id not in at_once]
        note, tell = bool(new) and self._noted.at(now_s), moved and self._reported.at(now_s)
        if note or tell:
            began_s = time.perf_counter()
            ahead = forecast(snapshot, plan, self._policy, pair_speed=self._pair_speed, run_times=self._run_times)
            for job_id in new if note else ():
                wait = wait_of(*waiting[job_id], ahead)
                if wait is not None:
                    times.waits(job_id, wait, now_s)
            self.starts = to_json(starts_ahead(snapshot, ahead, self._times))
            self._store.put_view(STARTS, self.starts)
            self._reported_of, took_s = seen, time.perf_counter() - began_s
            self._reported.done(now_s, _COST * took_s)
            self._quiet.done(now_s, _COST * took_s)
            if note:
                self._noted.done(now_s, _COST * took_s)
        if note or changed:
            self.kept = {**times.to_dict(), "run_times": self._run_times.to_dict()}
            self._store.put_view(START_TIMES, self.kept)

    def _learn(self, snapshot: Snapshot, known: Sequence[str]) -> bool:
        """Learn how long the ended jobs ran, beside their estimates; returns whether there were any."""
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


class _Due:
    """Something that is done every so often. If the clock was set back it is due at once."""

    def __init__(self, least_s: float) -> None:
        self._least_s = self._every_s = least_s
        self._next_s = float("-inf")

    def at(self, now_s: float) -> bool:
        return not self._next_s - self._every_s <= now_s < self._next_s

    def done(self, now_s: float, every_s: float) -> None:
        """Note that it was done, and is next due no sooner than so much later."""
        self._every_s = max(self._least_s, every_s)
        self._next_s = now_s + self._every_s
