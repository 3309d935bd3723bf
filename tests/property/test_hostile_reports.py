"""Policies that resize, fed with whatever a report can say within its bounds: every plan is safe."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from builders import VC, check_plan, nodes, part, policy, runs, snap, waits
from lucid.core.job import Elastic, Progress, Running

SMALL = {"population": 20, "generations": 10}
"""A search of Pollux's that falls over as easily as one of a hundred generations."""


def progress_of(draw: random.Random) -> Progress:
    times = tuple((draw.choice([1, 2, 4, 4096]), 10 ** draw.uniform(-6, 7)) for _ in range(draw.randint(0, 4)))
    losses = tuple((draw.uniform(0, 1e9), draw.uniform(-1e12, 1e12)) for _ in range(draw.choice([0, 3, 50])))
    model = (*(draw.choice([1e-8, 10 ** draw.uniform(-8, 5), 1e5]) for _ in range(6)), draw.uniform(1, 10))
    return Progress(
        draw.choice([0, 1e9, draw.uniform(0, 50)]),
        times,
        losses,
        draw.choice([0, 32, 10**12]),
        model if draw.random() < 0.7 else (),
        draw.choice([None, (0.0, 0.0), (2.0**53, 0.0), (0.0, 2.0**53), (1e-300, 1e-300), (1.0, 20.0)]),
    )


def limits_of(draw: random.Random) -> Elastic:
    low = draw.choice([1, 32, 1 << 40])
    high = draw.choice([low, low * 8])
    least = draw.choice([1, min(8, high)])
    epochs = draw.choice([None, 30.0, 1e9, 1e-9])
    return Elastic(
        draw.choice([1, 8, 4096]), 1, low, low, high, least, draw.choice([max(least, high), least]), epochs=epochs
    )


def running(draw: random.Random, number: int) -> Running:
    entry = runs(f"j{number}", f"n{number + 1}:0", 100.0)
    return replace(
        entry,
        job=replace(entry.job, gpus=1, elastic=limits_of(draw)),
        progress=progress_of(draw),
        restart_s=draw.choice([None, 0.0, 3.0, 1e9]),
    )


@pytest.mark.parametrize("name", ["pollux", "optimus-fitted", "optimus-drf", "elastic"])
@pytest.mark.parametrize("seed", range(12))
def test_no_report_brings_a_plan_down_or_makes_it_unsafe(name: str, seed: int) -> None:
    draw = random.Random(seed)
    waiting = replace(waits("w", 1, elastic=limits_of(draw)), progress=progress_of(draw))
    partition = part(nodes(5, 4), [waiting], [running(draw, number) for number in range(4)])
    chosen = policy(name, pollux=SMALL)
    plan = chosen.plan(snap(6000.0, partition)).partitions[VC]
    check_plan(partition, plan, chosen.rules)
