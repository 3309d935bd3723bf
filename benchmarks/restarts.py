"""What it costs that nobody is started over: replays as live by ``policy.profiling.restarts``.

Nobody in these histories says who may be started over, so ``asked`` is the same as ``never``. The packs name neither
users nor programs: as they are, no job is like one measured before, and none that has not run can be packed. So each
is replayed a second time with names as a real history has them: a VC is one user, and a job's name its program (the
pack's ``model``, whatever data set and batch size). What a job's like foretells is then often wrong in detail,
as it would be; pairs that really exceed a GPU's memory are counted.

Each history is replayed several times, with submissions up to a minute sooner or later: one says little.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

from benchmarks.figure import Absent, Figure
from benchmarks.packs import pack
from benchmarks.quality import ESTIMATES
from benchmarks.timeaware import shifted, synthetic
from lucid.config.load import settings_from
from lucid.core.decision import Plan, Start
from lucid.core.ports import Applied
from lucid.core.snapshot import Snapshot
from lucid.simulator.cluster.state import Semantics
from lucid.simulator.metrics import run_metrics
from lucid.simulator.scenario import Scenario, simulate
from lucid.simulator.traces.record import TraceJob

__all__ = ["figures", "named"]

_HOUR = 3600.0
_MOST = 1.03
"""What "asked" may cost: so many times the average JCT of "allowed"."""
_RULES = ("allowed", "asked")


def named(scenario: Scenario) -> Scenario:
    """The same jobs, with a user (their VC) and a name (their program)."""

    def one(item: TraceJob) -> TraceJob:
        program = "" if item.profile is None else item.profile.workload.split("|")[0]
        return replace(item, job=replace(item.job, user=item.job.vc, name=program))

    return replace(scenario, trace=replace(scenario.trace, jobs=tuple(map(one, scenario.trace.jobs))))


def _scenes() -> Iterator[tuple[str, Scenario]]:
    for name, estimates in (("P0", ()), ("P1", ESTIMATES)):
        with suppress(Absent):
            scenario = pack(name, estimates)
            yield f"{name} as it is, no names", scenario
            yield f"{name}, programs named", named(scenario)
    for seed in (1, 2, 3):
        yield f"synthetic month, seed {seed}", synthetic("month-small", seed)


class _Misfits:
    """A recorder that counts pairs whose true memory peaks exceed the GPU."""

    def __init__(self, scenario: Scenario) -> None:
        self._mib = {i.job.id: 0.0 if i.profile is None else i.profile.gpu_mem_mib for i in scenario.trace.jobs}
        self._card_mib = scenario.shape.gpu_mem_mib
        self.count = 0

    def record(self, snapshot: Snapshot, plan: Plan, applied: Sequence[Applied]) -> None:  # noqa: ARG002
        for action in plan.actions:
            start = action.decision
            if isinstance(start, Start) and start.beside is not None:
                self.count += self._mib[action.job_id] + self._mib[start.beside] > self._card_mib


def _avg_h(scenario: Scenario, policy: str) -> float:
    return float(run_metrics(simulate(scenario, policy))["avg_jct_s"]) / _HOUR


def figures(runs: int) -> Iterator[Figure]:
    """Average JCT by history and rule, "asked" beside "allowed"; fifo's and plain Slurm order's in the note."""
    for scene, history in _scenes():
        plain = ", ".join(f"{name} {_avg_h(history, name):.2f} h" for name in ("fifo", "backfill"))
        allowed_h = None
        for rule in _RULES:
            settings = settings_from({"policy": {"profiling": {"restarts": rule}}}, rule)
            hours, packed, large = [], [], []
            misfits = 0
            for seed in range(max(runs, 1)):
                chosen = replace(shifted(history, seed), settings=settings, semantics=Semantics.AS_LIVE)
                book = _Misfits(chosen)
                run = simulate(chosen, "lucid", book)
                metrics = run_metrics(run)
                hours.append(float(metrics["avg_jct_s"]) / _HOUR)
                large.append(float(metrics["avg_jct_large_s"]) / _HOUR)
                packed.append(sum(outcome.packed for outcome in run.outcomes))
                misfits += book.count
            mean_h = statistics.mean(hours)
            allowed_h = mean_h if allowed_h is None else allowed_h
            about = f"{statistics.mean(packed):.0f} packed, > 8 GPUs {statistics.mean(large):.1f} h"
            yield Figure(
                f"{scene}, {rule}: avg JCT",
                mean_h,
                "h",
                len(hours),
                allowed_h,
                "allowed",
                at_most=_MOST * allowed_h if rule == "asked" else None,
                note=f"{about}, {misfits} pairs too large for the GPU; {plain}" if rule == "asked" else about,
                detail={"hours": hours, "packed": packed, "misfits": misfits},
            )
