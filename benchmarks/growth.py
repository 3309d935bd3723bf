"""How the cost of a replay grows with one VC, and what plain order costs: CPU seconds of one process."""

from __future__ import annotations

import multiprocessing
import resource
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from typing import Any

from benchmarks.figure import Figure
from benchmarks.packs import pack
from lucid.config.load import settings_from
from lucid.simulator.scenario import Scenario, simulate
from lucid.simulator.traces.presets import preset, vc_layout
from lucid.simulator.traces.record import Trace
from lucid.simulator.traces.synth import synthesise

__all__ = ["beside", "figures", "merged", "million", "packs"]

_TIMES = 3
_AT_MOST = 3.6
"""Three times the jobs and nodes may cost so many times the CPU."""
_SHIFT_S = 97.0
"""The copies of a job are submitted so long after each other."""
_MONTH, _SEED = "month-small", 6
_BOUNDS_H = (None, 12.0)


def merged(scenario: Scenario, times: int) -> Scenario:
    """The trace with so many copies of each job, on so many times the nodes, all in one VC."""
    items = []
    for item in scenario.trace.jobs:
        for copy in range(times):
            job = replace(
                item.job, id=f"{item.job.id}.{copy}", vc="one", submit_s=item.job.submit_s + _SHIFT_S * copy
            )
            items.append(replace(item, job=job))
    items.sort(key=lambda item: (item.job.submit_s, item.job.rank, item.job.id))
    jobs = tuple(replace(item, job=replace(item.job, rank=rank)) for rank, item in enumerate(items))
    nodes = sum(map(len, scenario.layout().values()))
    given = {
        policy: {f"{job_id}.{copy}": s for job_id, s in durations_s.items() for copy in range(times)}
        for policy, durations_s in scenario.durations_s.items()
    }
    trace = Trace(f"{scenario.trace.name} x {times}", jobs)
    return replace(scenario, trace=trace, vcs={"one": nodes * times}, durations_s=given)


def figures(runs: int) -> Iterator[Figure]:  # noqa: ARG001 - ratios within one run: one is enough
    """A synthetic month in one VC, once and three times; with the starvation bound and without."""
    month = Scenario(synthesise(preset(_MONTH), _SEED), vc_layout(_MONTH))
    yield from _growth(f"{_MONTH} {_SEED}", month)


def packs(runs: int) -> Iterator[Figure]:  # noqa: ARG001
    """The same of P1; and plain order, and the starvation bound, on P1 as it is."""
    scenario = pack("P1", (("lucid", "P1_est_ebm.csv"),))
    yield from _growth("P1", scenario)
    plain_s = _cpu_s(scenario, "fifo", None)
    yield Figure("backfill on P1, CPU", _cpu_s(scenario, "backfill", None), "s", 1, plain_s, "fifo", at_most=20.0)
    without_s = _cpu_s(scenario, "lucid", None)
    yield Figure("lucid on P1, CPU", _cpu_s(scenario, "lucid", 12.0), "s", 1, without_s, "no starvation bound")


def million(runs: int) -> Iterator[Figure]:  # noqa: ARG001 - a quarter of an hour: once is enough
    """A million jobs on 9,600 nodes: the VCs of a synthetic month, again and again beside themselves. Each policy in
    a process of its own, so that the peak of memory is its own."""
    for policy in ("fifo", "lucid"):
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
            cpu_s, peak_mib, jobs, nodes = pool.submit(_replayed, policy, _MILLION, _MILLION_NODES).result()
        what = f"{policy} on {jobs:,} jobs and {nodes:,} nodes"
        yield Figure(f"{what}, CPU", cpu_s / 60, "min", 1, at_most=15.0)
        yield Figure(f"{what}, peak memory", peak_mib, "MiB", 1, at_most=2048.0)


_MILLION, _MILLION_NODES = 1_000_000, 9_600


def beside(jobs: int, nodes: int) -> Scenario:
    """So many jobs on about so many nodes: as many jobs a node as a synthetic month has, in many VCs."""
    month = synthesise(preset(_MONTH).resized(jobs * sum(vc_layout(_MONTH).values()) // nodes, None), _SEED)
    vcs: dict[str, int] = {}
    items = []
    for copy in range(-(-jobs // len(month.jobs))):
        vcs |= {f"{name}.{copy}": count for name, count in vc_layout(_MONTH).items()}
        for item in month.jobs:
            job = item.job
            at_s = job.submit_s + _SHIFT_S * copy
            items.append(replace(item, job=replace(job, id=f"{job.id}.{copy}", vc=f"{job.vc}.{copy}", submit_s=at_s)))
    items.sort(key=lambda item: (item.job.submit_s, item.job.rank, item.job.id))
    return Scenario(Trace("beside", tuple(items[:jobs])), vcs)


def _replayed(policy: str, jobs: int, nodes: int) -> tuple[float, float, int, int]:
    """CPU s of the replay, peak MiB, and how many jobs and nodes there were."""
    scenario = beside(jobs, nodes)
    run = simulate(scenario, policy)
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return run.cpu_s, peak_mib, len(run.outcomes), sum(map(len, scenario.layout().values()))


def _growth(name: str, scenario: Scenario) -> Iterator[Figure]:
    for bound_h in _BOUNDS_H:
        once_s, more_s = (_cpu_s(merged(scenario, times), "lucid", bound_h) for times in (1, _TIMES))
        yield Figure(
            f"lucid on {name} in one VC, {_TIMES} times the jobs and nodes, CPU",
            more_s,
            "s",
            1,
            once_s,
            "once",
            at_most=_AT_MOST * once_s,
            note="no starvation bound" if bound_h is None else f"starvation bound {bound_h:g} h",
        )


def _cpu_s(scenario: Scenario, policy: str, bound_h: float | None) -> float:
    fairness: dict[str, Any] = {"beyond_plain_s": None if bound_h is None else bound_h * 3600.0}
    chosen = replace(scenario, settings=settings_from({"policy": {"fairness": fairness}}, "growth"))
    return simulate(chosen, policy).cpu_s
