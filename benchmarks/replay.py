"""Time and memory of whole replays."""

from __future__ import annotations

import multiprocessing
import resource
import statistics
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor

from benchmarks.figure import Figure
from benchmarks.packs import pack, shared
from lucid.core.decision import Plan
from lucid.core.snapshot import Snapshot
from lucid.orchestrator.policy import PartitionPolicy
from lucid.simulator.layout import sized_vcs
from lucid.simulator.metrics import run_metrics
from lucid.simulator.scenario import Scenario, simulate
from lucid.simulator.traces.read import read_trace
from lucid.simulator.traces.synth import with_workloads

__all__ = ["kept", "p1", "philly"]


def p1(runs: int) -> Iterator[Figure]:
    """Lucid on P1, wall and CPU, against fifo; the two take turns in one process."""
    scenario = pack("P1", (("lucid", "P1_est_ebm.csv"),))
    took: dict[str, list[tuple[float, float]]] = {"fifo": [], "lucid": []}
    for _ in range(runs):
        for policy, times in took.items():
            run = simulate(scenario, policy)
            times.append((run.wall_s, run.cpu_s))
    jobs = len(scenario.trace.jobs)
    for at, what, bound in ((0, "wall", None), (1, "CPU", 8.0)):  # asked for: 8 s of one core
        lucid, fifo = (statistics.median(pair[at] for pair in took[policy]) for policy in ("lucid", "fifo"))
        yield Figure(f"lucid on P1 ({jobs:,} jobs), {what}", lucid, "s", runs, fifo, "fifo", at_most=bound)


def philly(runs: int) -> Iterator[Figure]:
    """The whole Philly log under lucid: each run in a process of its own, so that its peak is its own."""
    shared("philly.csv")
    for packed in (False, True):
        took: dict[str, list[tuple[float, float, float, int]]] = {"fifo": [], "lucid": []}
        for _ in range(runs):
            for policy, found in took.items():
                found.append(_alone(policy, packed))
        workloads = "synthetic workloads, so jobs are packed" if packed else "no GPU readings, so nothing is packed"
        for at, what, unit, bound in (
            (0, "wall", "s", 60.0),
            (1, "CPU", "s", 60.0),
            (2, "peak memory", "MiB", 1024.0),
        ):
            lucid, fifo = (statistics.median(row[at] for row in took[policy]) for policy in ("lucid", "fifo"))
            jobs = took["lucid"][0][3]
            yield Figure(
                f"lucid on philly.csv ({jobs:,} jobs), {what}",
                lucid,
                unit,
                runs,
                fifo,
                "fifo",
                at_most=bound,
                note=workloads,
            )


def _alone(policy: str, packed: bool) -> tuple[float, float, float, int]:
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(_philly, policy, packed).result()


def _philly(policy: str, packed: bool) -> tuple[float, float, float, int]:
    """Wall and CPU seconds of the replay, peak MiB of the process (reading included), and jobs."""
    trace = read_trace(shared("philly.csv"))
    if packed:
        trace, _ = with_workloads(trace, 1)
    run = simulate(Scenario(trace, sized_vcs(trace, 8)), policy)
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return run.wall_s, run.cpu_s, peak_mib, len(trace.jobs)


def kept(runs: int) -> Iterator[Figure]:
    """Lucid on P1 with every partition planned anew in every cycle, against keeping plans of unchanged ones."""
    scenario = pack("P1", (("lucid", "P1_est_ebm.csv"),))
    plan = PartitionPolicy.plan

    def forgetful(self: PartitionPolicy, snapshot: Snapshot) -> Plan:
        self._kept.clear()
        return plan(self, snapshot)

    took: dict[bool, list[float]] = {False: [], True: []}
    jct: set[float] = set()
    for _ in range(runs):
        for forgets, times in took.items():
            PartitionPolicy.plan = forgetful if forgets else plan  # type: ignore[method-assign]
            try:
                run = simulate(scenario, "lucid")
            finally:
                PartitionPolicy.plan = plan  # type: ignore[method-assign]
            times.append(run.cpu_s)
            jct.add(run_metrics(run)["avg_jct_s"])
    same = "same schedule" if len(jct) == 1 else "OTHER SCHEDULE"
    anew, ordinary = (statistics.median(took[forgets]) for forgets in (True, False))
    yield Figure(
        f"lucid on P1, no plans kept, CPU ({run.cycles:,} cycles)", anew, "s", runs, ordinary, "kept", note=same
    )
