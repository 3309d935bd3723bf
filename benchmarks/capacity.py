"""How much more work the same cluster carries under Lucid with no job worse off on average than under plain Slurm.

Work arrives for one and a half times the length of a trace: the trace, and its first half once more. More work is the
same stream laid over itself, two weeks later and from its end on from its beginning, thinned: at 1.2 times the work
every fifth of these jobs is there. Figures are of the jobs of the trace itself, each once and the same at every load,
which come in the middle, after a quarter and before the last quarter of a trace's length: what waits before them and
after them is there, too. Loads are tried in steps, and the largest is reported at which Lucid's figures are no worse
than plain Slurm's at 1.

No load above what is possible is tried: what comes would then be more than is ever worked off, and a few long jobs
that wait until the end of the stream would pay for it. Possible are the GPU-hours at hand over those held under Lucid
for the trace's work, where pairs hold them once; as they are at 1.4 times the work, for the more jobs there are the
more find a partner.
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
from lucid.simulator.traces.presets import preset, vc_layout
from lucid.simulator.traces.record import Trace, TraceJob
from lucid.simulator.traces.synth import synthesise

__all__ = ["carried", "counted", "figures", "loaded", "scaled"]

_MONTH = "month-small"
_SEEDS = (41, 42, 43, 44, 45)
_FEWER = 0.5
"""On this share of its nodes a pack queues under plain Slurm."""
_STEP, _LEAST = 0.1, 8
"""Loads tried: multiples of the step, from 0.8 to what is possible."""
_ASKED_LOAD = 1.15
_MUCH = 1.4
"""The load at which it is looked how many GPU-hours pairs save."""
_ASKED = ("average", "average and large jobs", "average, large jobs and p99.9 of queueing")
_SHIFT_S = 14 * 86400.0


def scaled(trace: Trace, times: float) -> Trace:
    """The stream with so many times the trace's work. A larger one has all jobs of a smaller one. A copy is ``ID+1``,
    and what comes again after the end of the trace ``ID~``."""
    span_s = _span_s(trace)
    found: list[TraceJob] = []
    for copy in range(int(times) + 1):
        for item in trace.jobs:
            if zlib.crc32(item.job.id.encode()) / 2**32 >= times - copy:
                continue
            name = f"{item.job.id}+{copy}" if copy else item.job.id
            at_s = (item.job.submit_s + copy * _SHIFT_S) % span_s
            found.append(replace(item, job=replace(item.job, id=name, submit_s=at_s)))
            if at_s < span_s / 2:
                found.append(replace(item, job=replace(item.job, id=f"{name}~", submit_s=at_s + span_s)))
    found.sort(key=lambda item: (item.job.submit_s, item.job.rank, item.job.id))
    return replace(trace, jobs=tuple(replace(i, job=replace(i.job, rank=n)) for n, i in enumerate(found)))


def counted(trace: Trace) -> frozenset[str]:
    """The jobs of the stream that figures are of: those of the trace, in the middle of the stream."""
    quarter_s = _span_s(trace) / 4
    return frozenset(item.job.id if item.job.submit_s >= quarter_s else f"{item.job.id}~" for item in trace.jobs)


def _span_s(trace: Trace) -> float:
    return max(item.job.submit_s for item in trace.jobs) + 1.0


def carried(base: tuple[float, ...], at: Callable[[float], tuple[float, ...]], possible: float) -> list[float | None]:
    """The largest load, up to what is ``possible``, at which the first figure, the first two, and so on are no worse
    than ``base``; ``None`` where they are worse at the smallest that is tried. ``at``: the figures at a load."""
    known: dict[int, tuple[float, ...]] = {}

    def holds(step: int, count: int) -> bool:
        if step not in known:
            known[step] = at(step * _STEP)
        return all(here <= there for here, there in zip(known[step][:count], base, strict=False))

    found: list[float | None] = []
    most = int(possible / _STEP)
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


def loaded(runs: int) -> Iterator[Figure]:  # noqa: ARG001 - deterministic
    """At the load asked for, Lucid in a pool as a multiple of plain Slurm in the same pool at its own load."""
    layout = vc_layout(_MONTH)
    ratios: list[list[float]] = []
    for seed in _SEEDS:
        scene = in_pool(Scenario(synthesise(preset(_MONTH), seed), layout))
        ids = counted(scene.trace)
        plain, here = (
            _three(simulate(replace(scene, trace=scaled(scene.trace, times)), policy), ids)
            for policy, times in (("backfill", 1.0), ("lucid", _ASKED_LOAD))
        )
        ratios.append([one / other for one, other in zip(here, plain, strict=True)])
    for name, values in zip(
        ("average JCT", "JCT of jobs > 8 GPUs", "p99.9 of queueing"), zip(*ratios, strict=True), strict=True
    ):
        yield _figure(f"{_ASKED_LOAD:g} times the work in a pool, {name}, times plain Slurm's at 1", [*values])


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
    ids = counted(scene.trace)

    def run(policy: str, case_of: Callable[[Scenario], Scenario], times: float) -> Run:
        return simulate(case_of(replace(scene, trace=scaled(scene.trace, times))), policy)

    much = run("lucid", case.lucid, _MUCH)
    possible = _MUCH * _possible(much, scene)

    def at(times: float) -> tuple[float, ...]:
        return _three(much if abs(times - _MUCH) < _STEP / 2 else run("lucid", case.lucid, times), ids)

    return possible, carried(_three(run("backfill", case.plain, 1.0), ids), at, possible)


def _figure(what: str, values: list[float]) -> Figure:
    spread = ", ".join(f"{value:.2f}" if value else f"below {_LEAST * _STEP:g}" for value in values)
    return Figure(what, statistics.median(values), "x", len(values), note=spread, detail={"values": values})


def _three(run: Run, ids: frozenset[str]) -> tuple[float, ...]:
    """Average JCT, that of jobs above 8 GPUs, and p99.9 of queueing, s, of these jobs."""
    done = [o for o in run.outcomes if o.end_s >= 0 and o.job.id in ids]
    every, large = group_metrics(done), group_metrics([o for o in done if o.job.gpus > LARGE_GPUS])
    return every["avg_jct_s"], large.get("avg_jct_s", 0.0), every["p999_queue_s"]


def _possible(run: Run, scene: Scenario) -> float:
    """GPU-hours at hand while jobs are submitted, over those that are held for them where pairs share them: jobs ask
    for more than is held, by what pairs save."""
    return run.total_gpus * 1.5 * _span_s(scene.trace) / run.series.busy_gpu_s


def _fewer(scenario: Scenario) -> Scenario:
    """On fewer nodes, yet enough in each VC for its largest job."""
    least: dict[str, int] = {}
    for item in scenario.trace.jobs:
        nodes = -(-item.job.gpus // scenario.shape.gpus)
        least[item.job.vc] = max(least.get(item.job.vc, 1), nodes)
    vcs = {vc: max(least.get(vc, 1), round(_FEWER * nodes)) for vc, nodes in (scenario.vcs or {}).items()}
    return replace(scenario, vcs=vcs)
