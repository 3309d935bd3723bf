"""Estimates that lie cost next to nothing: what is not earned by ranking the jobs that ended goes by plain order."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from builders import FixedPredictor, a_job, a_trace, nodes, replay
from lucid.core.node import Node
from lucid.simulator.traces import Trace, TraceJob

ALONE: Mapping[str, Any] = {"profiling": {"enabled": False}, "packing": {"gss": 0}}
"""Nothing but order."""
SEEDS = range(4)
LARGE = 8
Lie = Callable[[random.Random, float], float]
LIES: Mapping[str, Lie] = {
    "noise": lambda rng, true_s: rng.lognormvariate(7.5, 1.8),
    "inverted": lambda rng, true_s: 3.2e6 / max(true_s, 1.0),
    "constant": lambda rng, true_s: 3600.0,
}


def jammed(seed: int) -> tuple[Trace, dict[str, tuple[Node, ...]]]:
    """400 jobs, one in ten of several nodes, for six nodes that have more to do than they can while jobs come. All
    have limits, above what they take."""
    rng, items, submit_s = random.Random(seed), [], 0.0
    for at in range(400):
        submit_s += rng.expovariate(1 / 500.0)
        gpus = rng.choice([1, 1, 1, 2, 2, 4, 4, 8, 8, rng.choice([16, 24])])
        lasts_s = round(min(rng.lognormvariate(7.5, 1.8), 86400.0))
        limit_s = float(min(lasts_s * rng.choice([2, 5, 20]) + 600, 172800))
        job = a_job(f"j{at}", gpus, round(submit_s), rank=at, time_limit_s=limit_s)
        items.append(TraceJob(job, float(lasts_s)))
    return a_trace(*items), {"vc": nodes(6, 8)}


def measured(name: str, seed: int, lie: Lie | None) -> tuple[float, float]:
    """Average JCT of all jobs and of those larger than a node, s."""
    trace, layout = jammed(seed)
    rng = random.Random(seed)
    said = {one.job.id: one.duration_s if lie is None else lie(rng, one.duration_s) for one in trace.jobs}
    ended, _ = replay(name, trace, layout, predictor=FixedPredictor(said), **ALONE)
    every = [one.jct_s for one in ended.values()]
    large = [one.jct_s for one in ended.values() if one.job.gpus > LARGE]
    return sum(every) / len(every), sum(large) / len(large)


def ratios(lie: Lie | None, plain: list[tuple[float, float]]) -> tuple[list[float], list[float]]:
    """lucid's averages to backfill's, of all and of large jobs, by trace."""
    found = [measured("lucid", seed, lie) for seed in SEEDS]
    pairs = [(mine[0] / its[0], mine[1] / its[1]) for mine, its in zip(found, plain, strict=True)]
    return [every for every, _ in pairs], [large for _, large in pairs]


@pytest.fixture(scope="module")
def plain() -> list[tuple[float, float]]:
    return [measured("backfill", seed, None) for seed in SEEDS]


@pytest.mark.parametrize("lie", LIES)
def test_estimates_that_lie_cost_next_to_nothing(lie: str, plain: list[tuple[float, float]]) -> None:
    every, large = ratios(LIES[lie], plain)
    print(lie, [f"{a:.3f}/{b:.3f}" for a, b in zip(every, large, strict=True)])
    assert sum(every) / len(every) <= 1.02
    assert sum(large) / len(large) <= 1.05


def test_true_durations_are_made_use_of(plain: list[tuple[float, float]]) -> None:
    every, large = ratios(None, plain)
    assert max(every) <= 0.85
    assert max(large) <= 1.0
