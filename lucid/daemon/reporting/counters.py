"""``Counters``: lucidd's counts for /metrics: cycles, actions, refusals, gains and costs of sharing.

All of it is part of lucidd's status; counts begin anew with each process, as Prometheus expects of counters."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from typing import Any, Final

from lucid.core.decision import EndProfiling, Requeue, Start, verb_of
from lucid.core.job import Running, Stage
from lucid.core.ports import Applied
from lucid.errors import Refusal
from lucid.orchestrator.cycle import CycleResult
from lucid.places import Mode

BUCKETS_S: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Upper bounds of the histograms of time."""
RESTARTS: Final = ("profiled", "parted", "preempted")
"""The reasons for which Lucid starts a running job over."""
SPEEDS: Final = ("measured", "promised", "unknown")
"""The sources of a pair's speed, best first."""
_MOST_STEP_S: Final = 60.0
"""The longest time between cycles over which pairs count as having stood together."""
_SOON_S: Final = 300.0
"""How long a promise to a started job is kept while the job does not run yet."""


def speeds_of(
    one: Running, other: Running, promises: Mapping[str, tuple[str, float, float]]
) -> tuple[str, tuple[float, float] | None]:
    """The speeds of a pair, and their source: measured where both are, else promised. ``promises``: by job, its
    partner, the speed that was expected beside that one, and when."""
    seen = [
        entry.profile.seen_speed
        for entry, beside in ((one, other), (other, one))
        if entry.profile is not None and entry.profile.seen_beside == beside.job.id
    ]
    if len(seen) == 2 and seen[0] is not None and seen[1] is not None:
        return "measured", (seen[0], seen[1])
    said = [promises.get(entry.job.id) for entry in (one, other)]
    if said[0] is not None and said[1] is not None and said[0][0] == other.job.id and said[1][0] == one.job.id:
        return "promised", (said[0][1], said[1][1])
    return "unknown", None


class _Times:
    def __init__(self) -> None:
        self.counts = [0] * (len(BUCKETS_S) + 1)
        self.sum_s = 0.0

    def add(self, took_s: float) -> None:
        self.counts[bisect_left(BUCKETS_S, took_s)] += 1
        self.sum_s += took_s

    def to_dict(self) -> dict[str, Any]:
        return {"counts": list(self.counts), "sum_s": round(self.sum_s, 6)}


class Counters:
    """The counts of one process."""

    def __init__(self, before: Any = None) -> None:
        """``before``: what the previous process left; its promises to pairs go on."""
        self._cycle, self._plan = _Times(), _Times()
        self._done: dict[str, int] = {}
        self._refused = dict.fromkeys(map(str, Refusal), 0)
        self._restarts = dict.fromkeys(RESTARTS, 0)
        self._shared, self._saved, self._lost = (dict.fromkeys(SPEEDS, 0.0) for _ in range(3))
        self._failed = 0
        self.undone = 0
        """Site factors that Slurm undid."""
        self._promises: dict[str, tuple[str, float, float]] = promises_of(before)
        self._starvation: dict[str, dict[str, float]] = {}
        self._at_s: float | None = None

    def planned(self, took_s: float) -> None:
        """Count a plan."""
        self._plan.add(took_s)

    def failed(self) -> None:
        """Count a turn that was not completed."""
        self._failed += 1

    def cycle(
        self, result: CycleResult, memory: Mapping[str, object], modes: Mapping[str, Mode], took_s: float
    ) -> None:
        """Count one cycle. ``memory``: what its plan left for the next."""
        self._cycle.add(took_s)
        snapshot = result.snapshot
        running = {entry.job.id: entry for part in snapshot.partitions.values() for entry in part.running}
        for item in result.applied:
            if modes.get(item.action.partition, Mode.PACK) is Mode.PACK:
                self._count(item, running, snapshot.now_s)
        self._refused[Refusal.SAFETY_CHECK] += len(result.unsafe)
        self._share(snapshot.now_s, running)
        self._starvation = dict(_margins(memory, snapshot.now_s))

    def _count(self, item: Applied, running: Mapping[str, Running], now_s: float) -> None:
        job_id, decision = item.action.job_id, item.action.decision
        if item.refused is not None:
            self._refused[item.cause] += 1
            return
        verb = verb_of(decision)
        self._done[verb] = self._done.get(verb, 0) + 1
        if job_id in running and isinstance(decision, Requeue | EndProfiling):
            why = "profiled" if isinstance(decision, EndProfiling) else "parted" if decision.part else "preempted"
            self._restarts[why] += 1
        if isinstance(decision, Start) and decision.beside is not None and decision.speeds is not None:
            own, other = decision.speeds
            self._promises[job_id] = decision.beside, own, now_s
            self._promises[decision.beside] = job_id, other, now_s

    def _share(self, now_s: float, running: Mapping[str, Running]) -> None:
        step_s = 0.0 if self._at_s is None else min(max(now_s - self._at_s, 0.0), _MOST_STEP_S)
        self._at_s = now_s
        for job_id in [
            job for job, said in self._promises.items() if job not in running and said[2] < now_s - _SOON_S
        ]:
            del self._promises[job_id]
        for entry in running.values():
            other = running.get(entry.partner or "")
            if other is None or entry.job.id > other.job.id or entry.stage is Stage.PROFILE:
                continue
            by, speeds = speeds_of(entry, other, self._promises)
            spent_s = step_s * entry.gpus
            self._shared[by] += spent_s
            if speeds is not None:
                self._saved[by] += spent_s * max(sum(speeds) - 1.0, 0.0)
                self._lost[by] += spent_s * sum(max(1.0 - speed, 0.0) for speed in speeds)

    def to_dict(self) -> dict[str, Any]:
        """The counts for lucidd's status."""
        return {
            "cycle_s": self._cycle.to_dict(),
            "plan_s": self._plan.to_dict(),
            "failed": self._failed,
            "factors_undone": self.undone,
            "done": dict(self._done),
            "refused": dict(self._refused),
            "restarts": dict(self._restarts),
            "shared_gpu_s": _rounded(self._shared),
            "saved_gpu_s": _rounded(self._saved),
            "lost_gpu_s": _rounded(self._lost),
            "promises": {job: list(said) for job, said in self._promises.items()},
            "starvation": self._starvation,
        }


def _margins(memory: Mapping[str, object], now_s: float) -> Mapping[str, dict[str, float]]:
    """By VC with a starvation bound: the bound, how its promises were kept so far, and the least time that a waiting
    job has left until its own (the whole bound where plain order would have started none of them yet)."""
    from lucid.orchestrator.policies.lucid.plan import LucidMemory  # with all policies: names and sums need none

    found: dict[str, dict[str, float]] = {}
    for name, item in memory.items():
        if not isinstance(item, LucidMemory):
            continue
        for vc, shadow in (item.by_vc or {name: item.shadow}).items():
            kept = shadow.kept
            first_s = min(shadow.starts_s.values(), default=now_s)
            found[vc] = {
                "bound_s": kept.bound_s,
                "margin_s": round(min(first_s, now_s) + kept.bound_s - now_s, 3),
                "started": kept.jobs,
                "past": kept.past,
                "worst_s": round(kept.worst_s, 3),
            }
    return found


def promises_of(before: Any) -> dict[str, tuple[str, float, float]]:
    """The promises to jobs of pairs in what a process left: partner, speed, and when, by job."""
    try:
        return {str(job): (str(said[0]), float(said[1]), float(said[2])) for job, said in before["promises"].items()}
    except (TypeError, KeyError, ValueError, AttributeError, IndexError):
        return {}  # another version wrote it, or none did


def _rounded(of: Mapping[str, float]) -> dict[str, float]:
    return {name: round(value, 3) for name, value in of.items()}
