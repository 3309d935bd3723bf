"""The ledger against counting by hand, over random histories."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from builders import a_job, part
from examples import tried
from lucid.core.gpu import GpuOut
from lucid.core.job import Running
from lucid.core.ledger import Ledger, host_share
from lucid.core.node import Node
from lucid.core.placement import NodeGpus, Placement


@pytest.mark.parametrize(
    ("total", "here", "of", "share"), [(0, 1, 4, 0), (8, 2, 4, 4), (7, 2, 4, 4), (1, 1, 4, 1), (9, 0, 0, 9)]
)
def test_a_job_needs_its_part_of_host_resources_rounded_up(total: int, here: int, of: int, share: int) -> None:
    assert host_share(total, here, of) == share


def free_by_hand(machines: list[Node], held: list[Running]) -> list[set[int]]:
    left = [set(range(m.gpus)) - {o.index for o in m.left_out} if m.available else set() for m in machines]
    index = {m.name: i for i, m in enumerate(machines)}
    for entry in held:
        for node, mask in entry.placement:
            left[index[node]] -= {g for g in range(m_gpus(machines, node)) if mask >> g & 1}
    return left


def m_gpus(machines: list[Node], name: str) -> int:
    return next(m.gpus for m in machines if m.name == name)


def same(ledger: Ledger, machines: list[Node], held: list[Running]) -> None:
    left = free_by_hand(machines, held)
    assert [{g for g in range(8) if m >> g & 1} for m in ledger.free_mask] == left
    assert ledger.free_count == [len(s) for s in left]
    assert ledger.free == sum(map(len, left))
    assert ledger.largest == max(map(len, left))
    for gpus in range(1, 9):
        fitting = [(len(s), i) for i, s in enumerate(left) if len(s) >= gpus]
        assert ledger.tightest(gpus) == (min(fitting)[1] if fitting else None)
        even = [(n, i) for n, i in fitting if i % 2 == 0]
        assert ledger.tightest(gpus, lambda i: i % 2 == 0) == (min(even)[1] if even else None)
    for i, machine in enumerate(machines):
        cpus = sum(
            host_share(e.job.cpus, mask.bit_count(), e.job.gpus)
            for e in held
            for node, mask in e.placement
            if node == machine.name
        )
        assert ledger.free_cpus[i] == machine.cpus - cpus or not ledger.host_limits


@tried(60)
def test_the_ledger_agrees_with_counting_by_hand(rng: random.Random) -> None:
    machines = [
        Node(f"n{i}", rng.randint(1, 8), cpus=rng.choice([0, 64]), available=rng.random() > 0.2)
        for i in range(rng.randint(1, 4))
    ]
    ledger = Ledger(part(machines))
    held: list[Running] = []
    for step in range(rng.randint(1, 12)):
        choice = rng.random()
        gpus = rng.randint(1, 8)
        job = a_job(f"j{step}", gpus, cpus=rng.choice([0, 8]))
        if choice < 0.5:
            node = ledger.tightest(gpus)
            if node is not None:
                placement: Placement = (ledger.lowest(node, gpus),)
                assert placement[0].mask & ~ledger.free_mask[node] == 0
                ledger.claim(job, placement)
                held.append(Running(job, 0.0, placement))
        elif choice < 0.7 and held:
            (beside,) = rng.choice(held).placement  # on all of another's GPUs, or on one of them
            first = beside.mask & -beside.mask
            placement = (NodeGpus(beside.node, rng.choice([beside.mask, first])),)
            ledger.claim(job, placement)
            held.append(Running(job, 0.0, placement))
        elif held:
            entry = held.pop(rng.randrange(len(held)))
            ledger.give_back([entry])
        same(ledger, machines, held)
    # one made from what runs now agrees with the one that saw it come about
    same(Ledger(part(machines, (), held)), machines, held)
    # GPUs that are no longer well are free at no time, whoever runs there
    bad = [tuple(GpuOut(m.name, i, 0.0, "x") for i in range(m.gpus) if rng.random() < 0.3) for m in machines]
    machines = [replace(m, left_out=outs) for m, outs in zip(machines, bad, strict=True)]
    ledger = Ledger(part(machines, (), held))
    same(ledger, machines, held)
    while held:
        ledger.give_back([held.pop(rng.randrange(len(held)))])
        same(ledger, machines, held)


def test_a_gpu_of_three_sharers_comes_free_when_the_last_one_goes() -> None:
    held = [Running(a_job(name), 0.0, (NodeGpus("n0", 1),)) for name in "abc"]
    ledger = Ledger(part([Node("n0", 1)], (), held))
    free = []
    for entry in held:
        ledger.give_back([entry])
        free.append(ledger.free)
    assert free == [0, 0, 1]
