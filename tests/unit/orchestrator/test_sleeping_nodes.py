"""Nodes that sleep: jobs share before one is woken, and one is woken at once for a job that finds nothing else."""

from __future__ import annotations

import pytest

from builders import HEAVY, LIGHT, VC
from lucid.core.decision import Start
from lucid.core.job import Pending, Running
from lucid.core.node import Node
from lucid.core.placement import NodeGpus
from scenes.jobs import a_job, runs, waits
from scenes.plans import FixedPredictor, guess, part, policy, snap


def test_a_node_is_woken_at_once_for_a_job_that_finds_nothing_else() -> None:
    full = Running(a_job("full", 4), 0.0, (NodeGpus("a", 0b1111),))
    partition = part([Node("a", 4), Node("s", 4, boot_s=240.0)], [Pending(a_job("waits", 1, 900.0), 900.0)], [full])
    predictions = {"full": guess(5000.0), "waits": guess(1000.0)}
    made = policy("lucid", FixedPredictor()).plan(snap(900.0, partition, predictions=predictions))
    start = made.partitions[VC].decisions["waits"]
    assert isinstance(start, Start)
    assert start.placement[0].node == "s"


@pytest.mark.parametrize("boot_s", [0.0, 240.0])
def test_a_job_shares_before_a_node_is_woken_for_it(boot_s: float) -> None:
    """A pair too slow for one that finds free GPUs, and fast enough for one that would wait otherwise."""
    machines = [Node("a", 4, 24000), Node("s", 4, 24000, boot_s=boot_s)]
    first = runs("first", "a:0-3", profile=HEAVY)
    partition = part(machines, [waits("second", 4, profile=LIGHT)], [first])
    lucid = policy(
        "lucid", FixedPredictor(speed=lambda a, b: (0.8, 0.8)), packing={"gss": 4, "waiting_pair_speed": 0.7}
    )
    predictions = {"first": guess(90000.0, 1), "second": guess(9000.0, 1)}
    start = lucid.plan(snap(900.0, partition, predictions=predictions)).partitions[VC].decisions["second"]
    assert isinstance(start, Start)
    assert start.beside == ("first" if boot_s else None)
