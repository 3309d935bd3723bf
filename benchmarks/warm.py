"""Timing a whole cycle of a steady daemon, in which little has changed since the one before.

A cycle is all that lucidd does with a snapshot: predictions, queue order, plan, safety check. What Slurm is asked and
told is not in it. The cold cycle beside it gets the same snapshot with nothing kept.
"""

from __future__ import annotations

import gc
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final, TypeVar

from benchmarks.busy import busy_snapshot, place, some_job
from lucid.config.policy import PolicySettings
from lucid.core.decision import Action, Plan
from lucid.core.job import Ended, Pending, Running
from lucid.core.ports import Applied, Capability
from lucid.core.snapshot import Partition, Snapshot
from lucid.errors import ConfigError
from lucid.models.history import HistoryPredictor
from lucid.orchestrator.cycle import Cycle
from lucid.orchestrator.policy import Policy
from lucid.orchestrator.registry import make_policy
from lucid.simulator.predictors import GivenPredictor
from lucid.simulator.traces.record import Trace

__all__ = ["WARM_SIZE", "Steady", "bench_warm"]

WARM_SIZE: Final = (10_000, 8_192)
"""(pending jobs, GPUs), of all VCs together."""

_NUMBERS: Final = 1_000_000
"""Job numbers from one VC to the next."""
_LOOK_S: Final = 2.0
"""From one cycle to the next."""
_MOST_TRIES: Final = 50
"""Changes tried until one has the effect that is to be timed."""

_Entry = TypeVar("_Entry", Pending, Running)


class _Timed:
    """A policy, and the CPU ms of its last plan."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self.made = Plan(0.0)
        self.cpu_ms = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._policy, name)

    def plan(self, snapshot: Snapshot) -> Plan:
        """The policy's."""
        began = time.process_time()
        self.made = self._policy.plan(snapshot)
        self.cpu_ms = 1000 * (time.process_time() - began)
        return self.made


class Steady:
    """A busy cluster in memory, and the daemon's cycles on it. It hands out the same partition as long as nothing in
    it has changed."""

    capabilities = frozenset(Capability)

    def __init__(self, policy: str, pending: int, gpus: int, vcs: int) -> None:
        self._policy = policy
        self._now_s = 0.0
        self._ended: list[Ended] = []
        self._partitions: dict[str, Partition] = {}
        self._durations_s: dict[str, float] = {}
        self._rng = random.Random(vcs)
        self._number = vcs * _NUMBERS
        for i in range(vcs):
            name = f"vc{i:02d}"
            scene = busy_snapshot(policy, pending // vcs, gpus // vcs, name, i * _NUMBERS)
            self._partitions |= scene.partitions
            self._durations_s |= {job_id: found.duration_s for job_id, found in scene.predictions.items()}
        self._cycle, self._plan = self._fresh()
        self.settle()

    def _fresh(self) -> tuple[Cycle, _Timed]:
        predictor = GivenPredictor("bench", self._durations_s, Trace("bench", ()), HistoryPredictor())
        settings = PolicySettings()
        timed = _Timed(make_policy(self._policy, settings, predictor))
        return Cycle(self, predictor, timed, settings), timed

    def cold(self) -> tuple[float, float]:
        """CPU ms of a cycle with nothing kept, and of its plan; nothing comes of it."""
        cycle, timed = self._fresh()
        cycle.memory = self._cycle.memory
        return _timed(cycle), timed.cpu_ms

    def warm(self) -> tuple[float, float, int]:
        """CPU ms of the daemon's next cycle, and of its plan, and how many jobs it starts."""
        cpu_ms = _timed(self._cycle)
        return cpu_ms, self._plan.cpu_ms, len(self._plan.made.actions)

    # -- the cluster ---------------------------------------------------------------------------------------

    def observe(self) -> Snapshot:
        """The present state."""
        return Snapshot(self._now_s, dict(self._partitions), tuple(self._ended))

    def apply(self, actions: Sequence[Action]) -> list[Applied]:
        """Nothing is done yet: a cold cycle is to see the same."""
        return [Applied(action) for action in actions]

    # -- what happens --------------------------------------------------------------------------------------

    def settle(self) -> None:
        """What the last plan decided is done; and cycles that are not timed, until nothing more is started."""
        while True:
            self._carry_out(self._plan.made)
            self._ended.clear()
            self._now_s += _LOOK_S
            if not self._cycle.run().plan.actions:
                return

    def submit(self) -> None:
        """One of a VC's waiting jobs is cancelled, and seen to be gone; then a new one comes."""
        vc, entry = self._some(lambda part: part.pending)
        part = self._partitions[vc]
        self._partitions[vc] = replace(part, pending=tuple(e for e in part.pending if e is not entry))
        self.settle()
        self._number += 1
        fresh, found = some_job(self._number, self._rng, vc)
        self._durations_s[fresh.job.id] = found.duration_s
        fresh = replace(fresh, job=replace(fresh.job, submit_s=self._now_s), since_s=self._now_s)
        part = self._partitions[vc]
        self._partitions[vc] = replace(part, pending=(*part.pending, fresh))

    def end(self) -> None:
        """A running job ends."""
        vc, entry = self._some(lambda part: part.running)
        part = self._partitions[vc]
        left = (e for e in part.running if e is not entry)
        running = tuple(replace(e, partner=None) if e.partner == entry.job.id else e for e in left)
        self._partitions[vc] = replace(part, running=running)
        self._ended.append(Ended(entry.job, self._now_s, entry.elapsed_s(self._now_s), profile=entry.profile))

    def _some(self, of: Callable[[Partition], Sequence[_Entry]]) -> tuple[str, _Entry]:
        vc = self._rng.choice(sorted(self._partitions))
        return vc, self._rng.choice(of(self._partitions[vc]))

    def _carry_out(self, plan: Plan) -> None:
        for name, made in plan.partitions.items():
            if made.actions:
                part = self._partitions[name]
                waiting = {entry.job.id: entry for entry in part.pending}
                running = {entry.job.id: entry for entry in part.running}
                for action in made.actions:
                    place(running, waiting.pop(action.job_id), action.decision, self._now_s)
                both = tuple(waiting.values()), tuple(running.values())
                self._partitions[name] = replace(part, pending=both[0], running=both[1])


def _timed(cycle: Cycle) -> float:
    gc.collect()
    began = time.process_time()
    cycle.run()
    return 1000 * (time.process_time() - began)


def bench_warm(policy: str, pending: int, gpus: int, vcs: int, repeat: int) -> dict[str, Any]:
    """CPU ms of a cycle after one change, and of the same cycle with nothing kept, the least of ``repeat``.

    ``waits``: one job was submitted, and nothing is started. ``starts``: one job ended, and its GPUs are given to
    another. ``plan_ms`` is the part of the policy.

    Raises:
        ConfigError: the scene is so small that no such change comes about.
    """
    steady = Steady(policy, pending, gpus, vcs)
    found: dict[str, Any] = {"policy": policy, "pending": pending, "gpus": gpus, "vcs": vcs, "repeat": repeat}
    for name, change, starts in (("waits", steady.submit, False), ("starts", steady.end, True)):
        runs: list[tuple[float, float, float, float]] = []
        tries = 0
        while len(runs) < repeat:
            tries += 1
            if tries > _MOST_TRIES * repeat:
                raise ConfigError(f"{pending} jobs on {gpus} GPUs in {vcs} VCs: too few to time a change; take more")
            change()
            cold_ms, cold_plan_ms = steady.cold()
            warm_ms, warm_plan_ms, started = steady.warm()
            if (started > 0) is starts:
                runs.append((cold_ms, warm_ms, cold_plan_ms, warm_plan_ms))
            steady.settle()
        cold_ms, warm_ms, cold_plan_ms, warm_plan_ms = (min(times) for times in zip(*runs, strict=True))
        median_ms = statistics.median(run[1] for run in runs)
        found[name] = {
            "cold_ms": round(cold_ms, 3),
            "warm_ms": round(warm_ms, 3),
            "ratio": round(warm_ms / cold_ms, 4),
            "warm_median_ms": round(median_ms, 3),
            "cold_plan_ms": round(cold_plan_ms, 3),
            "warm_plan_ms": round(warm_plan_ms, 3),
        }
    return found
