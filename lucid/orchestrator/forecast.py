"""When waiting jobs are expected to start: the policy plans ahead, as if jobs ran for their estimates and none came.

The first plan is the one that was made; the policy makes those that follow it. The forecast therefore never disagrees
with the plan, and it knows of nodes, pairs, profiling and reservations whatever the policy knows of them. A pair is
taken to run as fast as its jobs do alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf

from lucid.core.decision import Action, Keep, Plan, Release, Requeue, Start
from lucid.core.job import Ended, Pending, Running, Stage
from lucid.core.rounding import reached
from lucid.core.snapshot import Snapshot
from lucid.orchestrator.policy import Policy

__all__ = ["Forecast", "forecast"]

_FACTOR = 2.0
"""Estimates are taken to be off by this factor either way."""
_SETTLE_S = 1.0
"""After a job was moved the policy looks again this much later, as lucidd does."""
_MOST_LOOKS = 300_000
"""Planning ahead ends once so many jobs were looked at, all plans together: about two seconds."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """``starts_s``: seconds from now until each job's next start, which may be its profiling run. ``ahead_s``: how
    far the policy planned ahead, seconds: a job without a start is expected after that. Where it is infinite, such a
    job never starts as things are."""

    starts_s: Mapping[str, float]
    ahead_s: float

    def range_s(self, job_id: str) -> tuple[float, float, float] | None:
        """Seconds until the start if estimates are half as long, right, or twice as long; ``None`` where no start is
        foreseen."""
        likely_s = self.starts_s.get(job_id)
        return None if likely_s is None else (likely_s / _FACTOR, likely_s, likely_s * _FACTOR)


def forecast(snapshot: Snapshot, plan: Plan, policy: Policy, most_looks: int = _MOST_LOOKS) -> Forecast:
    """When the jobs that wait in ``snapshot`` are expected to start.

    Args:
        snapshot: what ``plan`` was made from, with a prediction for every job.
        plan: the plan in force.
        policy: as the one that made it.
        most_looks: how many jobs to look at, all plans together.
    """
    world = _World(snapshot)
    starts_s: dict[str, float] = {}
    left = most_looks
    while True:
        moved = False
        for action in plan.actions:
            if isinstance(action.decision, Start):
                starts_s.setdefault(action.job_id, world.now_s - snapshot.now_s)
            moved |= not isinstance(action.decision, Start | Keep)
            world.act(action)
        left -= world.jobs
        next_s = world.now_s + _SETTLE_S if moved else world.next_s(plan.wake_s)
        if next_s == inf or not world.waiting:
            return Forecast(starts_s, inf)
        if left <= 0:
            return Forecast(starts_s, next_s - snapshot.now_s)
        plan = policy.plan(world.advance(next_s, plan.memory))


class _World:
    """The cluster as it is expected to be at ``now_s``."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.now_s = snapshot.now_s
        self._seen = snapshot
        self._pending = {name: {e.job.id: e for e in part.pending} for name, part in snapshot.partitions.items()}
        self._running = {name: {e.job.id: e for e in part.running} for name, part in snapshot.partitions.items()}
        self._partitions = dict(snapshot.partitions)
        self._changed: set[str] = set()
        self._parted = {job_id for pending in self._pending.values() for job_id, e in pending.items() if e.alone}
        """Jobs that run alone for good. A running job may also be alone because it was not started in slots."""
        self._ends_s = {
            job_id: self.now_s + snapshot.predictions[job_id].remaining_s(entry.elapsed_s(self.now_s))
            for running in self._running.values()
            for job_id, entry in running.items()
        }

    @property
    def waiting(self) -> bool:
        """Does any job wait?"""
        return any(self._pending.values())

    @property
    def jobs(self) -> int:
        """How many jobs there are."""
        return len(self._ends_s) + sum(map(len, self._pending.values()))

    def next_s(self, wake_s: float | None) -> float:
        """When something next happens by itself, or the plan is due again; infinite where neither comes."""
        due_s = inf if wake_s is None else max(wake_s, self.now_s + _SETTLE_S)
        return min(min(self._ends_s.values(), default=inf), due_s)

    def act(self, action: Action) -> None:
        """Do what was decided. Jobs that are resized or regrouped stay where they are."""
        decision, name = action.decision, action.partition
        if isinstance(decision, Start):
            self._start(action.job_id, name, decision)
            return
        entry: Pending | Running | None = self._running[name].get(action.job_id)
        if isinstance(decision, Keep) and isinstance(entry, Running):
            self._running[name][action.job_id] = replace(entry, stage=Stage.MAIN)
            self._changed.add(name)
        elif isinstance(decision, Requeue | Release):
            entry = entry or self._pending[name].get(action.job_id)
            home = name if entry is None or isinstance(decision, Requeue) else self._home(entry.job.vc)
            if entry is not None and home in self._pending:
                self._leave(action.job_id, name)
                if isinstance(decision, Requeue) and decision.part:
                    self._parted.add(action.job_id)
                alone = action.job_id in self._parted
                again = Pending(entry.job, self.now_s, entry.profile, entry.ran_s, entry.restarts + 1, alone)
                self._pending[home][action.job_id] = again
                self._changed.add(home)

    def _home(self, vc: str) -> str:
        """The name of the partition where jobs of the VC run."""
        found = self._seen.home(vc)
        return vc if found is None else found.name

    def _start(self, job_id: str, name: str, start: Start) -> None:
        """In whichever partition the job waits: profiling nodes take in jobs of VCs."""
        for home, pending in self._pending.items():
            entry = pending.pop(job_id, None)
            if entry is None:
                continue
            running = self._running[name]
            stage = Stage.PROFILE if self._partitions[name].profiling else Stage.MAIN
            running[job_id] = Running(
                entry.job, self.now_s, start.placement, stage, entry.profile, entry.ran_s, entry.restarts,
                start.beside, not start.slots, group=start.group,
            )  # fmt: skip
            if start.beside in running:
                running[start.beside] = replace(running[start.beside], partner=job_id)
            self._ends_s[job_id] = self.now_s + self._seen.predictions[job_id].duration_s
            self._changed |= {home, name}
            return

    def _leave(self, job_id: str, name: str) -> None:
        self._pending[name].pop(job_id, None)
        self._ends_s.pop(job_id, None)
        gone = self._running[name].pop(job_id, None)
        if gone is not None and gone.partner in self._running[name]:
            self._running[name][gone.partner] = replace(self._running[name][gone.partner], partner=None)
        self._changed.add(name)

    def advance(self, to_s: float, memory: Mapping[str, object]) -> Snapshot:
        """Let jobs end, and look. ``memory``: what the plan before left."""
        self.now_s = to_s
        ended: list[Ended] = []
        for name, running in self._running.items():
            for entry in [entry for job_id, entry in running.items() if reached(to_s, self._ends_s[job_id])]:
                ended.append(Ended(entry.job, to_s, entry.ran_s + entry.elapsed_s(to_s)))
                self._leave(entry.job.id, name)
        for name in self._changed:
            pending = sorted(self._pending[name].values(), key=_waits)
            self._partitions[name] = replace(
                self._partitions[name], pending=tuple(pending), running=tuple(self._running[name].values())
            )
        self._changed.clear()
        return replace(self._seen, now_s=to_s, partitions=dict(self._partitions), ended=tuple(ended), memory=memory)


def _waits(entry: Pending) -> tuple[float, float, int]:
    return entry.since_s, entry.job.submit_s, entry.job.rank
