"""The tuner: how long a search takes, and whether what it proposes holds on data that nobody looked at."""

from __future__ import annotations

import os
import resource
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from benchmarks.figure import Figure, timed
from lucid.config.load import Settings
from lucid.core.times import DAY_S
from lucid.simulator.layout import NodeShape
from lucid.simulator.scenario import Scenario, simulate
from lucid.simulator.traces.presets import SynthSettings, Vc, preset
from lucid.simulator.traces.synth import synthesise, with_workloads
from lucid.tuner.proposal import FOUND_SHARE, tune
from lucid.tuner.search import SPACE, Value, before, replay, split_time_s, with_values

__all__ = ["clusters", "search"]

_TRIALS = 200
_WORKERS = 2
_MOST_S = 600.0


def search(runs: int) -> Iterator[Figure]:
    """A whole tuning of a 10,000-job month: 200 trials on two processes, the change simplified and judged.

    The baseline is what the bare replays would take of the simplest policy: as many replays of the same earlier
    part under fifo, on as many processes.
    """
    settings = preset("month-10k")
    scenario = _scenario(settings, 1)
    earlier = replace(scenario, trace=before(scenario.trace, split_time_s(scenario.trace, FOUND_SHARE)))
    fifo = timed(lambda: simulate(earlier, "fifo"), runs)
    began, began_cpu = time.perf_counter(), _cpu_s()
    with tempfile.TemporaryDirectory() as folder:
        tune(scenario, SPACE, Path(folder), _TRIALS, 1, _WORKERS)
    wall_s, cpu_s = time.perf_counter() - began, _cpu_s() - began_cpu
    searched = len(earlier.trace.jobs)
    name = f"{_TRIALS} trials of synthetic month-10k ({searched:,} jobs searched, {_WORKERS} processes)"
    least_s = _TRIALS * fifo.cpu_s / _WORKERS
    yield Figure(f"{name}, wall", wall_s, "s", 1, least_s, "as many replays under fifo, CPU", at_most=_MOST_S)
    yield Figure(
        f"{name}, CPU of all processes by their number", cpu_s / _WORKERS, "s", 1, least_s,
        "as many replays under fifo, CPU", at_most=_MOST_S, note="the least wall time that idle cores could take",
    )  # fmt: skip


def _cpu_s() -> float:
    """CPU seconds of this process and of its children that have ended."""
    both = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(used.ru_utime + used.ru_stime for used in both)


def _scenario(settings: SynthSettings, seed: int) -> Scenario:
    trace, _ = with_workloads(synthesise(settings, seed), seed)
    return Scenario(trace, {vc.name: vc.nodes for vc in settings.vcs}, NodeShape(settings.gpus_per_node))


# -- twenty clusters ---------------------------------------------------------------------------------------------

_CLUSTERS = 20
_CLUSTER_TRIALS = 30
_DAYS = 49.0
_KNOWN_DAYS = 21.0
"""What the tuner sees; the four weeks after it are nobody's before the proposal stands."""
_MOST_LOST = 1

_MISSET: tuple[dict[str, Value], ...] = (
    {},
    {"policy.packing.gss": 0},
    {"policy.profiling.t_prof_s": 400.0, "policy.profiling.n_prof": 8},
    {"policy.packing.least_pair_speed": 0.5, "policy.packing.partner": "first"},
)
"""Present settings that clusters take in turn: Lucid's own, and three that somebody might have set."""


@dataclass(frozen=True, slots=True)
class _Outcome:
    """Of one cluster: was a change found, was it proposed, and what the average JCT became in the last four weeks
    (relative change; 0 without a change)."""

    changed: bool
    proposed: bool
    gain: float
    days: int
    cpu_s: float


def clusters(runs: int) -> Iterator[Figure]:  # noqa: ARG001 - deterministic
    """Tunes 20 synthetic clusters of different shape, load and present settings on three weeks each, and applies what
    it proposes to the four weeks after, which neither the search nor the judgement has seen."""
    with ProcessPoolExecutor(min(_WORKERS, os.cpu_count() or 1), get_context("spawn")) as pool:
        found = list(pool.map(_outcome, range(_CLUSTERS)))
    proposed = [o for o in found if o.proposed]
    changed = [o for o in found if o.changed]
    what = f"of {_CLUSTERS} synthetic clusters"
    yield Figure(f"{what}, with a proposal", len(proposed), "", 1, len(changed), "a better setting found")
    yield Figure(
        f"{what}, whose proposal loses in the four weeks after", sum(o.gain > 0 for o in proposed), "",
        1, sum(o.gain > 0 for o in changed), "the best found, applied without a judgement", at_most=_MOST_LOST,
    )  # fmt: skip
    if proposed:
        worst = max(o.gain for o in proposed)
        mean = float(np.mean([o.gain for o in proposed]))
        yield Figure("avg JCT in the four weeks after, change by a proposal, mean", 100 * mean, "%")
        yield Figure("avg JCT in the four weeks after, change by a proposal, worst", 100 * worst, "%")
    yield Figure("CPU for one cluster, mean", float(np.mean([o.cpu_s for o in found])), "s")


def cluster(index: int) -> tuple[Scenario, Scenario, float]:
    """The scenario of one cluster as the tuner sees it and as it went on, and where the second takes over (s)."""
    rng = np.random.default_rng(index)
    vcs = tuple(
        Vc(f"vc{i}", int(rng.integers(2, 6)), int(rng.integers(3, 14)), float(rng.uniform(0.5, 0.8)))
        for i in range(int(rng.integers(2, 5)))
    )
    nodes = sum(vc.nodes for vc in vcs)
    settings = SynthSettings(
        name=f"cluster {index}",
        jobs=int(nodes * _DAYS * rng.uniform(4, 6)),
        days=_DAYS,
        vcs=vcs,
        gpus_per_node=int(rng.choice([4, 8])),
        weekend=float(rng.uniform(0.3, 0.9)),
        debug=float(rng.uniform(0.2, 0.5)),
        most_s=3 * DAY_S,
    )
    whole = _scenario(settings, 100 + index)
    whole = replace(whole, settings=with_values(Settings(), _MISSET[index % len(_MISSET)]))
    until_s = _KNOWN_DAYS * DAY_S
    return replace(whole, trace=before(whole.trace, until_s)), whole, until_s


def _outcome(index: int) -> _Outcome:
    known, whole, until_s = cluster(index)
    began = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        proposal = tune(known, SPACE, Path(folder), _CLUSTER_TRIALS, 1, 1)
    cpu_s = time.process_time() - began
    gain = 0.0
    if proposal.changes:
        old = replay(whole, whole.settings).since(until_s)
        new = replay(whole, with_values(whole.settings, proposal.changes)).since(until_s)
        gain = float(new.jct_s.mean() / old.jct_s.mean()) - 1.0
    days = proposal.evidence.days if proposal.evidence else 0
    return _Outcome(bool(proposal.changes), proposal.worth_it, gain, days, cpu_s)
