"""Whose idle hours have a guest, and why the others have none: synthetic months in which some jobs are sessions.

No public history tells when a session's user was away. So ``with_sessions`` makes sessions of one in four of the jobs
that hold one GPU for an hour or longer: they work for two minutes to an hour, then do nothing for 20 minutes to four
hours, and so on. Two in three of the other jobs may be started over.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from benchmarks.figure import Figure
from benchmarks.timeaware import synthetic
from lucid.binder.idle_hosts import fits_beside
from lucid.config import settings_from
from lucid.config.policy import PolicySettings
from lucid.core.decision import PartitionPlan, Plan, Start
from lucid.core.job import Pending, Running
from lucid.core.ports import Applied
from lucid.core.restart import may_restart
from lucid.core.snapshot import Partition, Snapshot
from lucid.simulator.scenario import Scenario, simulate
from lucid.simulator.traces.record import TraceJob

__all__ = ["CAUSES", "IdleHours", "figures", "with_sessions"]

_HOUR = 3600.0
_SEEDS = (1, 2, 3)
CAUSES = (
    "it has a guest",
    "it shares with an ordinary partner",
    "its user lets nobody share",
    "nobody waits",
    "nobody of its user waits",
    "who waits asks for another number of GPUs",
    "who waits may not be started over",
    "who waits was not measured",
    "who waits may share with nobody",
    "who waits was parted before, and runs alone",
    "no memory on the GPU",
    "it was parted itself, and runs alone",
    "it started on whole GPUs",
    "none of these",
)
"""Of an idle hour. Where several jobs wait, that of the one that came furthest down the list counts."""
_REACH = 9
"""From here on somebody waits whom the rules would let in: of these hours the share with a guest is judged."""


def with_sessions(scenario: Scenario, seed: int) -> Scenario:
    """The same jobs at the same times, some of them sessions."""
    rng = random.Random(f"sessions {seed}")

    def one(item: TraceJob) -> TraceJob:
        if item.job.gpus != 1 or item.duration_s < _HOUR or rng.random() >= 0.25:
            return replace(item, job=replace(item.job, restart_asked=rng.random() < 0.67))
        away, at_s = [], rng.uniform(120.0, _HOUR)
        while at_s < item.duration_s:
            until_s = min(at_s + rng.uniform(_HOUR / 3, 4 * _HOUR), item.duration_s)
            away.append((at_s, until_s))
            at_s = until_s + rng.uniform(120.0, _HOUR)
        return replace(item, idle=tuple(away))

    return replace(scenario, trace=replace(scenario.trace, jobs=tuple(map(one, scenario.trace.jobs))))


class IdleHours:
    """A recorder that adds up the GPU-hours of jobs that have been idle for long enough, by ``CAUSES``."""

    def __init__(self, settings: PolicySettings) -> None:
        self.hours: Counter[str] = Counter()
        self._settings = settings
        self._last_s = 0.0
        self._now: Counter[str] = Counter()
        self._whole: set[str] = set()

    def record(self, snapshot: Snapshot, plan: Plan, applied: Sequence[Applied]) -> None:  # noqa: ARG002
        """Count the time since the last cycle, and look at what holds from this one on."""
        span_h, self._last_s = (snapshot.now_s - self._last_s) / _HOUR, snapshot.now_s
        for cause, gpus in self._now.items():
            self.hours[cause] += gpus * span_h
        self._now = Counter()
        for name, part in snapshot.partitions.items():
            if name in plan.partitions:
                self._look(part, plan.partitions[name], snapshot)

    def _look(self, part: Partition, made: PartitionPlan, snapshot: Snapshot) -> None:
        starts = {i: d for i, d in made.decisions.items() if isinstance(d, Start)}
        self._whole = (self._whole - starts.keys()) | {i for i, d in starts.items() if not d.slots}
        idle = [entry for entry in part.running if entry.idle is not None]
        if not idle:
            return
        comes = {d.beside for d in starts.values() if d.visits} | {e.visits for e in part.running if e.visits}
        joins = {d.beside for d in starts.values()}
        waiting = [entry for entry in part.pending if entry.job.id not in starts]
        for host in idle:
            if host.job.id in comes:
                cause = CAUSES[0]
            elif host.partner is not None or host.job.id in joins:
                cause = CAUSES[1]
            elif not host.job.shareable:
                cause = CAUSES[2]
            else:
                cause = CAUSES[max((self._met(host, entry, part, snapshot) for entry in waiting), default=3)]
            self._now[cause] += host.gpus

    def _met(self, host: Running, entry: Pending, part: Partition, snapshot: Snapshot) -> int:
        """The place in ``CAUSES`` of what keeps this job from this host."""
        job, profile, policy = entry.job, entry.profile, self._settings
        if policy.idle.guests == "own" and job.user != host.job.user:
            return 4
        if job.gpus != host.gpus:
            return 5
        if not may_restart(job, policy.profiling.restarts):
            return 6
        if profile is None:
            return 7
        score = snapshot.predictions[job.id].share_score if job.id in snapshot.predictions else None
        if not job.shareable or profile.unstable or score is None or score > policy.packing.gss:
            return 8
        if entry.alone:
            return 9
        node = next(node for node in part.nodes if node.name == host.placement[0].node)
        assert host.idle is not None
        if not fits_beside(host, host.idle, profile, node, policy.idle.memory_margin):
            return 10
        if host.alone:
            return 11
        return 12 if host.job.id in self._whole else 13
