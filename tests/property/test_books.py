"""Ledgers that are carried from plan to plan, against those made anew; and what a plan books, against
what it starts."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest

from examples import examples, tried
from lucid.binder.parting import Partings
from lucid.config.policy import PolicySettings
from lucid.core.decision import Action, Start
from lucid.core.gpu import GpuOut
from lucid.core.job import Job, JobProfile, Running
from lucid.core.ledger import Ledger, Ledgers, host_share
from lucid.core.node import Node
from lucid.core.placement import NodeGpus, Placement
from lucid.core.snapshot import Partition
from lucid.orchestrator.registry import make_policy
from scenes.crowded import some_crowded_vc
from scenes.jobs import VC, a_job
from scenes.plans import FixedPredictor, part
from scenes.plans import settings as rules_of

_STEPS = 60
_NODES = (*(Node(f"n{i}", 4, 24576, cpus=32, mem_mib=64000) for i in range(4)), Node("down", 4, available=False))


def _contents(ledger: Ledger) -> tuple[object, ...]:
    return (
        ledger.free_mask, ledger.free_count, ledger.free, ledger.free_cpus, ledger.free_mem_mib,
        ledger.buckets, ledger.beyond(), ledger.out(), ledger.largest,
    )  # fmt: skip


def _job(rng: random.Random, n: int, gpus: int) -> Job:
    cpus, asked = rng.choice((0, gpus)), rng.random() < 0.5
    return Job(f"j{n}", "vc", gpus, 0.0, cpus=cpus, mem_mib=gpus * 500, restart_asked=asked)


def _profile(rng: random.Random, beside: str) -> JobProfile:
    speed, mem_mib = rng.choice((None, 0.2, 0.9)), rng.choice((3000.0, 20000.0))
    made = JobProfile(30.0, 20.0, mem_mib, unstable=rng.random() < 0.2, mem_growing=rng.random() < 0.2)
    return made if speed is None else replace(made, seen_speed=speed, seen_beside=beside)


def _step(rng: random.Random, running: list[Running], n: int, odd: bool) -> list[Running]:
    """Some jobs end, one is seen anew, one starts: alone, beside another, or (``odd``) over part of another."""
    kept = [entry for entry in running if rng.random() < 0.8]
    ids = {entry.job.id for entry in kept}
    kept = [e if e.partner is None or e.partner in ids else replace(e, partner=None) for e in kept]
    if kept and rng.random() < 0.5:
        at = rng.randrange(len(kept))
        kept[at] = replace(kept[at], profile=_profile(rng, kept[at].partner or ""))
    single = [entry for entry in kept if entry.partner is None]
    if single and rng.random() < 0.5:
        host = rng.choice(single)
        guest = Running(_job(rng, n, host.job.gpus), float(n), host.placement, _profile(rng, host.job.id))
        kept[kept.index(host)] = replace(host, partner=guest.job.id)
        kept.append(replace(guest, partner=host.job.id))
    ledger = Ledger(Partition("vc", _NODES, running=tuple(kept)))
    gpus = rng.randint(1, 4)
    node = ledger.tightest(gpus)
    if node is not None:
        kept.append(Running(_job(rng, n + 1000, gpus), float(n), (ledger.lowest(node, gpus),)))
    if rng.random() < 0.1:
        kept.append(Running(_job(rng, n + 2000, 1), float(n), (NodeGpus("down", 1 << rng.randrange(4)),)))
    if odd and rng.random() < 0.2:
        kept.append(Running(_job(rng, n + 3000, 2), float(n), (NodeGpus("n0", 0b11 << rng.randrange(3)),)))
    return kept


def test_what_is_carried_from_plan_to_plan_is_what_is_made_anew() -> None:
    """Ledgers and partings, whatever came and went, sets of GPUs that overlap in part included: what a plan writes
    stays its own, also where the jobs are the same and GPUs are seen to have other memory."""
    pairs = parted = 0
    for seed in range(examples(60)):
        rng, odd = random.Random(seed), seed % 3 == 0
        ledgers, watch, running, nodes = Ledgers(), Partings("asked"), [], _NODES
        for n in range(_STEPS):
            if n % 5:
                running = _step(rng, running, n, odd)
            else:
                nodes = tuple(replace(node, gpu_mem_mib=rng.choice((24576, 49152))) for node in nodes)
            if rng.random() < 0.05:
                nodes = (replace(nodes[0], available=not nodes[0].available), *nodes[1:])
            partition = Partition("vc", nodes, running=tuple(running))
            found, anew = ledgers.ledger_of(partition, 0.0), Ledger(partition)
            assert _contents(found) == _contents(anew)
            pairs += len(anew.beyond())
            leave = watch(partition)
            assert leave == Partings("asked")(partition) == watch(partition), "also where a plan asks twice"
            parted += len(leave)
            if running and rng.random() < 0.5:
                found.give_back(running[:2])
                assert _contents(ledgers.ledger_of(partition, 0.0)) == _contents(anew)
    assert pairs
    assert parted > 5


def _rules(rng: random.Random) -> PolicySettings:
    """Settings under which jobs are started in each way that there is."""
    return rules_of(
        profiling={"enabled": False},
        packing={"gss": rng.choice([0, 2, 4]), "when_calm": rng.random() < 0.5},
        fairness={"estimates": rng.choice(["always", "never"])},
        reservation={"enabled": rng.random() < 0.7, "most_share": 0.9},
    )


def _booked(partition: Partition, actions: Sequence[Action]) -> Ledger:
    """The book of a partition after these starts: who starts holds what it asked for; who is preempted for it holds
    its CPUs and memory no more."""
    jobs = {entry.job.id: entry.job for entry in partition.pending}
    runs, gone = {entry.job.id: entry for entry in partition.running}, set[str]()
    book = Ledger(partition, 1000.0)
    for action in actions:
        if isinstance(action.decision, Start):
            for victim in set(action.decision.preempts) - gone:
                book.give_back_host(runs[victim])
            gone |= set(action.decision.preempts)
            book.claim(jobs[action.job_id], action.decision.placement)
    return book


@pytest.mark.parametrize("name", ["lucid", "backfill", "fifo"])
def test_what_a_plan_has_booked_is_what_its_starts_ask_for(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """GPUs, CPUs and memory, whichever way each job starts. A job that is booked twice keeps others waiting, and one
    that is not booked has others started on what it holds."""
    ledger_of, books, ways = Ledgers.ledger_of, list[Ledger](), Counter[str]()

    def handed(_: Ledgers, partition: Partition, now_s: float) -> Ledger:
        books.append(ledger_of(Ledgers(), partition, now_s))
        return books[-1]

    monkeypatch.setattr(Ledgers, "ledger_of", handed)
    for seed in range(examples(1500, 150)):
        rng = random.Random(seed)
        snapshot, rules = some_crowded_vc(rng), _rules(rng)
        books.clear()
        made = make_policy(name, rules, FixedPredictor(speed=lambda *_: (0.95, 0.95))).plan(snapshot)
        actions = made.partitions[VC].actions
        expected = _contents(_booked(snapshot.partitions[VC], actions))
        assert all(_contents(book) == expected for book in books), f"seed {seed}: {actions}"
        for start in (action.decision for action in actions if isinstance(action.decision, Start)):
            ways["beside" if start.beside is not None else "preempts" if start.preempts else "alone"] += 1
    assert ways.keys() >= {"alone", "preempts", *["beside"] * (name == "lucid")}, ways


def test_a_job_needs_its_part_of_host_resources_rounded_up() -> None:
    shares = {(0, 1, 4): 0, (8, 2, 4): 4, (7, 2, 4): 4, (1, 1, 4): 1, (9, 0, 0): 9}  # total, here, of
    assert {asked: host_share(*asked) for asked in shares} == shares


def same(ledger: Ledger, machines: list[Node], held: list[Running]) -> None:
    parts = [(entry.job, part) for entry in held for part in entry.placement]
    left = [set(range(m.gpus)) - {o.index for o in m.left_out} if m.available else set() for m in machines]
    for gpus, machine in zip(left, machines, strict=True):
        gpus.difference_update(*(part.gpus for _, part in parts if part.node == machine.name))
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
        here = [(job, part.mask.bit_count()) for job, part in parts if part.node == machine.name]
        cpus = sum(host_share(job.cpus, gpus, job.gpus) for job, gpus in here)
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
