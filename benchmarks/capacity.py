"""How much more work the same cluster carries under Lucid with no job worse off on average than under plain Slurm.

More work is the same trace once more, two weeks later and from its end on from its beginning, thinned: at 1.2 times
the work every fifth of these jobs is there. Figures are of the jobs of the trace itself, which are the same at every
load. Loads are tried in steps, and the largest is reported at which Lucid's figures are no worse than plain Slurm's
at 1. A load above what is possible at most can hold: what was submitted last is worked off after the last submission,
and the jobs that were added do not count.
"""

from __future__ import annotations

import statistics
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from benchmarks.figure import Absent, Figure
from benchmarks.packs import in_pool, pack
from benchmarks.quality import ESTIMATES
from lucid.simulator.engine import Run
from lucid.simulator.metrics import LARGE_GPUS, group_metrics
from lucid.simulator.scenario import Scenario, simulate
from lucid.simulator.traces.record import Trace, TraceJob
from lucid.simulator.traces.synth import preset, synthesise, vc_layout

__all__ = ["carried", "figures", "scaled"]

_MONTH = "month-small"
_SEEDS = (41, 42, 43, 44, 45)
_FEWER = 0.5
"""On this share of its nodes a pack queues under plain Slurm."""
_STEP, _LEAST, _MOST = 0.1, 8, 20
"""Loads tried: multiples of the step, from 0.8 to 2.0."""
_ASKED = ("average", "average and large jobs", "average, large jobs and p99.9 of queueing")
_SHIFT_S = 14 * 86400.0


def scaled(trace: Trace, times: float) -> Trace:
    """The trace with so many times its work. A larger one has all jobs of a smaller one; a copy is ``ID+1``."""
    span_s = max(item.job.submit_s for item in trace.jobs) + 1.0
    found: list[TraceJob] = []
    for copy in range(int(times) + 1):
        for item in trace.jobs:
            if zlib.crc32(item.job.id.encode()) / 2**32 >= times - copy:
                continue
            name = f"{item.job.id}+{copy}" if copy else item.job.id
            at_s = (item.job.submit_s + copy * _SHIFT_S) % span_s
            found.append(replace(item, job=replace(item.job, id=name, submit_s=at_s)))
    found.sort(key=lambda item: (item.job.submit_s, item.job.rank, item.job.id))
    return replace(trace, jobs=tuple(replace(i, job=replace(i.job, rank=n)) for n, i in enumerate(found)))


def carried(base: tuple[float, ...], at: Callable[[float], tuple[float, ...]]) -> list[float | None]:
    """The largest load at which the first figure, the first two, and so on are no worse than ``base``; ``None`` where
    they are worse at the smallest that is tried. ``at``: the figures at a load."""
    known: dict[int, tuple[float, ...]] = {}

    def holds(step: int, count: int) -> bool:
        if step not in known:
            known[step] = at(step * _STEP)
        return all(here <= there for here, there in zip(known[step][:count], base, strict=False))

    found: list[float | None] = []
    most = _MOST
    for count in range(1, len(base) + 1):
        low, high = _LEAST - 1, most + 1  # holds at low, as far as is known, and not at high
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if holds(middle, count) else (low, middle)
        most = low
        found.append(round(low * _STEP, 2) if low >= _LEAST else None)
    return found


@dataclass(frozen=True, slots=True)
class _Case:
    name: str
    plain: Callable[[Scenario], Scenario]
    lucid: Callable[[Scenario], Scenario]


def _walls(scenario: Scenario) -> Scenario:
    return scenario


def _lends(scenario: Scenario) -> Scenario:
    return replace(scenario, lends=True)


_CASES = (
    _Case("walls, and Lucid lends", _walls, _lends),
    _Case("both in a pool", in_pool, in_pool),
    _Case("both between walls", _walls, _walls),
)


def figures(runs: int) -> Iterator[Figure]:  # noqa: ARG001 - deterministic
    """By case: what is possible at most, then how many times the work with one, two and all three figures as good."""
    layout = vc_layout(_MONTH)
    yield from _of("synthetic months", [Scenario(synthesise(preset(_MONTH), seed), layout) for seed in _SEEDS])
    with suppress(Absent):
        yield from _of(f"P1 on {_FEWER:.0%} of its nodes", [_fewer(pack("P1", ESTIMATES))])
    with suppress(Absent):
        yield from _of(f"P0 on {_FEWER:.0%} of its nodes", [_fewer(pack("P0"))])


def _of(name: str, scenes: Sequence[Scenario]) -> Iterator[Figure]:
    for case in _CASES:
        possible: list[float] = []
        by_count: list[list[float]] = [[] for _ in _ASKED]
        for scene in scenes:
            most, loads = _carried_in(scene, case)
            possible.append(most)
            for found, load in zip(by_count, loads, strict=True):
                found.append(0.0 if load is None else load)
        yield _figure(f"{name}, {case.name}: work possible at most, times", possible)
        for asked, loads in zip(_ASKED, by_count, strict=True):
            yield _figure(f"{name}, {case.name}: work carried at the same {asked}, times", loads)


def _carried_in(scene: Scenario, case: _Case) -> tuple[float, list[float | None]]:
    ids = frozenset(item.job.id for item in scene.trace.jobs)
    possible: list[float] = []

    def at(times: float) -> tuple[float, ...]:
        run = simulate(case.lucid(replace(scene, trace=scaled(scene.trace, times))), "lucid")
        if times == 1.0:
            possible.append(_possible(run, scene))
        return _three(run, ids)

    loads = carried(_three(simulate(case.plain(scene), "backfill"), ids), at)
    if not possible:
        at(1.0)
    return possible[0], loads


def _figure(what: str, values: list[float]) -> Figure:
    spread = ", ".join(f"{value:.2f}" if value else f"below {_LEAST * _STEP:g}" for value in values)
    return Figure(what, statistics.median(values), "x", len(values), note=spread, detail={"values": values})


def _three(run: Run, ids: frozenset[str]) -> tuple[float, ...]:
    """Average JCT, that of jobs above 8 GPUs, and p99.9 of queueing, s, of these jobs."""
    done = [o for o in run.outcomes if o.end_s >= 0 and o.job.id in ids]
    every, large = group_metrics(done), group_metrics([o for o in done if o.job.gpus > LARGE_GPUS])
    return every["avg_jct_s"], large.get("avg_jct_s", 0.0), every["p999_queue_s"]


def _possible(run: Run, scene: Scenario) -> float:
    """GPU-hours at hand while jobs are submitted, over those that are held for the trace where pairs share them: jobs
    ask for more than is held, by what pairs save."""
    span_s = max(item.job.submit_s for item in scene.trace.jobs)
    return run.total_gpus * span_s / run.series.busy_gpu_s


def _fewer(scenario: Scenario) -> Scenario:
    """On fewer nodes, yet enough in each VC for its largest job."""
    least: dict[str, int] = {}
    for item in scenario.trace.jobs:
        nodes = -(-item.job.gpus // scenario.shape.gpus)
        least[item.job.vc] = max(least.get(item.job.vc, 1), nodes)
    vcs = {vc: max(least.get(vc, 1), round(_FEWER * nodes)) for vc, nodes in (scenario.vcs or {}).items()}
    return replace(scenario, vcs=vcs)
