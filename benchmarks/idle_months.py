"""Months with sessions: of the time in which a session does nothing, how much has a guest, and why the rest has none.

``python -m benchmarks.idle_months SEED …``. The months are those of ``lucidctl trace synth month-small`` in one pool
that lends, with jobs of one GPU and four hours or more made sessions by lot: a user works for minutes and is away for
up to four hours (as in ``tests/scenes/idle.py``). Two in three of the other jobs may be started over. Causes are
asked in the order of the code; an hour counts for the first that holds.
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from lucid.binder.sharing import memory_limit_mib
from lucid.config import Settings
from lucid.core.decision import Plan, Start
from lucid.core.job import Pending, Running
from lucid.core.ports import Applied
from lucid.core.snapshot import Snapshot
from lucid.simulator.scenario import Scenario, simulate
from lucid.simulator.traces import Trace, TraceJob
from lucid.simulator.traces.synth import PRESETS, synthesise, vc_layout, with_workloads

__all__ = ["causes"]

_H = 3600.0
_SESSIONS = 0.3
"""Share of the jobs of one GPU and four hours or more."""
_GUEST = "a guest is there"


def _away(rng: random.Random, lasts_s: float) -> tuple[tuple[float, float], ...]:
    found, at_s = [], rng.uniform(0.0, _H)
    while at_s < lasts_s:
        until_s = min(at_s + rng.uniform(0.3 * _H, 4 * _H), lasts_s)
        found.append((at_s, until_s))
        at_s = until_s + rng.uniform(120.0, _H)
    return tuple(found)


def _month(seed: int) -> Trace:
    made, _ = with_workloads(synthesise(PRESETS["month-small"], seed), seed)
    rng, jobs = random.Random(seed), list[TraceJob]()
    for item in made.jobs:
        if item.job.gpus == 1 and item.duration_s >= 4 * _H and rng.random() < _SESSIONS:
            jobs.append(replace(item, idle=_away(rng, item.duration_s)))
        else:
            jobs.append(replace(item, job=replace(item.job, restart_asked=rng.random() < 0.67)))
    return replace(made, jobs=tuple(jobs))


class _Watch:
    """Adds up GPU-hours of idle sessions by why they have no guest, from each look to the next."""

    def __init__(self, own: bool) -> None:
        self.hours: Counter[str] = Counter()
        self._own, self._last_s, self._now = own, 0.0, Counter[str]()

    def record(self, snapshot: Snapshot, plan: Plan, applied: Sequence[Applied]) -> None:
        """One look."""
        del applied
        span_h, self._last_s = (snapshot.now_s - self._last_s) / _H, snapshot.now_s
        for why, gpus in self._now.items():
            self.hours[why] += gpus * span_h
        self._now = Counter()
        for name, part in snapshot.partitions.items():
            made = plan.partitions[name]
            starts = {a.job_id: a.decision for a in made.actions if isinstance(a.decision, Start)}
            hosts = {entry.visits for entry in part.running} | {d.beside for d in starts.values() if d.visits}
            waiting = [entry for entry in part.pending if entry.job.id not in starts]
            mem_mib = {node.name: node.gpu_mem_mib for node in part.nodes}
            for entry in part.running:
                if entry.idle is not None:
                    card_mib = mem_mib[entry.placement[0].node]
                    self._now[_GUEST if entry.job.id in hosts else self._why(entry, waiting, card_mib)] += entry.gpus

    def _why(self, host: Running, waiting: Sequence[Pending], card_mib: float) -> str:
        if not waiting:
            return "nobody waits"
        if host.partner is not None or host.alone:
            return "the session shares its GPU with an ordinary partner, or started on whole GPUs"
        line = [one for one in waiting if not self._own or one.job.user == host.job.user]
        if not line:
            return "only other users wait"
        line = [one for one in line if one.job.gpus == host.job.gpus]
        if not line:
            return "who waits has more GPUs"
        line = [one for one in line if one.job.restart_asked]
        if not line:
            return "who waits may not be started over"
        line = [one for one in line if one.profile is not None and not one.profile.unstable and not one.alone]
        if not line:
            return "who waits was not measured, is unstable, or has been a guest"
        assert host.idle is not None
        left_mib = 0.9 * card_mib - host.idle.mem_mib
        fences = (memory_limit_mib(one.profile, card_mib) or card_mib for one in line)
        return "memory" if min(fences) > left_mib else "another reason"


def causes(seed: int, guests: str) -> Counter[str]:
    """GPU-hours of idle sessions (idle for half an hour and more) of one month, by cause. ``guests``: as the setting
    of that name."""
    policy = {
        "idle": {"host": True, "guests": guests},
        "lending": {"mode": "borrow"},
        "profiling": {"restarts": "asked"},
    }
    watch = _Watch(own=guests == "own")
    settings = Settings.model_validate({"policy": policy})
    simulate(Scenario(_month(seed), vc_layout("month-small"), settings=settings, as_live=True), "lucid", watch)
    return watch.hours


def main(seeds: Sequence[str]) -> None:
    """Print a table for the seeds together."""
    for guests in ("own", "others"):
        found: Counter[str] = Counter()
        for seed in seeds or ("1", "2", "3"):
            found += causes(int(seed), guests)
        whole = sum(found.values())
        print(f"guests = {guests}: {whole:,.0f} GPU-hours of sessions that had done nothing for half an hour")
        for why, hours in found.most_common():
            print(f"  {hours / whole:6.1%}  {why}")


if __name__ == "__main__":
    main(sys.argv[1:])
