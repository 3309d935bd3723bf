"""A plan is a function of its snapshot: the order in which jobs are listed does not matter where keys differ."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from builders import LIGHT, FixedPredictor, guess, policy, snap
from examples import tried
from lucid.core.job import Job, Pending
from lucid.core.node import Node
from lucid.core.snapshot import Partition
from lucid.orchestrator.registry import BUILT_IN
from safety_rules import outline


def some_queue(rng: random.Random) -> list[Pending]:
    """Jobs of which no two have the same submit time, estimate or estimate x GPUs."""
    return [
        Pending(
            Job(f"j{i}", "vc", rng.choice([1, 1, 2, 4, 9]), float(i), rank=i),
            float(i),
            rng.choice([None, LIGHT, replace(LIGHT, gpu_mem_mib=15000.0)]),
        )
        for i in range(rng.randint(2, 10))
    ]


@pytest.mark.parametrize("name", BUILT_IN)
@tried(25)
def test_the_order_of_the_input_does_not_matter(name: str, rng: random.Random) -> None:
    queue = some_queue(rng)
    machines = tuple(Node(f"n{i}", rng.choice([1, 4])) for i in range(rng.randint(1, 3)))
    primes = rng.sample([101.0, 211.0, 307.0, 401.0, 503.0, 601.0, 701.0, 809.0, 907.0, 1009.0], len(queue))
    scores = [None if e.profile is None else rng.choice([0, 1, 2]) for e in queue]
    predictions = {e.job.id: guess(p, s) for e, p, s in zip(queue, primes, scores, strict=True)}
    plans = []
    for _ in range(2):
        partition = Partition("vc", machines, tuple(queue))
        plans.append(outline(policy(name, FixedPredictor()).plan(snap(60.0, partition, predictions=predictions))))
        rng.shuffle(queue)
    assert plans[0] == plans[1]
