"""Random VCs in which most GPUs are taken and many jobs wait."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

from lucid.core.job import JobProfile, Pending, Running, Yields
from lucid.core.node import Node, Window
from lucid.core.placement import NodeGpus
from lucid.core.prediction import Prediction
from lucid.core.snapshot import Partition, Snapshot
from scenes.jobs import VC, a_job
from scenes.plans import guess

USERS = ("ann", "bob")
Traits = dict[str, Any]


def some_traits(rng: random.Random) -> Traits:
    """All that a plan may look at in a job."""
    mem_mib = rng.choice([3000.0, 9000.0, 14000.0])
    return {
        "gpus": rng.choice([1, 1, 2]), "cpus": rng.choice([0, 0, 2, 6]), "mem_mib": rng.choice([0, 0, 8000]),
        "user": rng.choice(USERS), "time_limit_s": rng.choice([None, 40.0, 480.0, 3600.0]),
        "account": rng.choice(USERS), "shareable": rng.random() > 0.2, "requeueable": rng.random() > 0.3,
        "restart_asked": rng.random() < 0.5, "min_nodes": rng.choice([1, 1, 2]), "alone": rng.random() < 0.3,
        "score": rng.choice([0, 1, 2]),
        "profile": JobProfile(20.0, 5.0, mem_mib, unstable=rng.random() < 0.2) if rng.random() > 0.2 else None,
        "duration_s": rng.choice([100.0, 600.0, 4000.0]),
    }  # fmt: skip


def some_waiting(rng: random.Random, number: int, usual: Traits) -> tuple[Pending, Prediction]:
    """A job like most others, but for one thing or two."""
    drawn, gpus = some_traits(rng), rng.choice([usual["gpus"]] * 4 + [1, 4, 6])
    said: Traits = {**usual, **{name: drawn[name] for name in rng.sample(sorted(drawn), rng.choice([0, 1, 1, 2]))}}
    del said["gpus"]
    alone, score, profile, duration_s = (said.pop(name) for name in ("alone", "score", "profile", "duration_s"))
    said |= {name: gpus * said[name] for name in ("cpus", "mem_mib")}
    said["min_nodes"] = min(gpus, said["min_nodes"])
    job = a_job(f"p{number}", gpus, 10.0 * number, rank=number, **said)
    return Pending(job, job.submit_s, profile, alone=alone), guess(duration_s, None if profile is None else score)


def some_windows(rng: random.Random, node: Node) -> Node:
    """The node as it is where reservations and sleep come in."""
    begins = sorted(rng.sample([900.0, 1050.0, 1500.0, 5000.0], rng.choice([0, 1, 1, 2])))
    windows = tuple(Window(at_s, rng.choice([at_s + 300.0, at_s + 600.0, None]), "maintenance") for at_s in begins)
    return replace(node, windows=windows, boot_s=rng.choice([0.0, 0.0, 120.0])).at(1000.0)


def some_give_way(rng: random.Random, snapshot: Snapshot) -> Snapshot:
    """The same, some of its running jobs being of another partition, whose jobs give way."""
    part = snapshot.partitions[VC]
    running = []
    for entry in part.running:
        if rng.random() < 0.6:
            yields = Yields(rng.choice([0.0, 0.0, 1050.0]), rng.choice([None, None, ("high",)]), rng.random() < 0.2)
            age_s = rng.choice([0.0, 10.0, 500.0, 990.0])
            entry = replace(entry, yields=yields, start_s=1000.0 - age_s)
            if yields.to is None or rng.random() < 0.5:  # by QOS jobs of the same partition give way, too
                entry = replace(entry, job=replace(entry.job, vc="scav"), alone=True)
        running.append(entry)
    pending = [replace(e, job=replace(e.job, qos=rng.choice(["", "high"]))) for e in part.pending]
    part = replace(part, running=tuple(running), pending=tuple(pending))
    return replace(snapshot, partitions={VC: part})


def some_crowded_vc(rng: random.Random) -> Snapshot:
    """A VC in which most GPUs are taken, some by jobs that may be joined, and many jobs of few shapes wait."""
    limits = {"cpus": 12, "mem_mib": 40000} if rng.random() < 0.4 else {}
    nodes = tuple(Node(f"n{i}", 4, 24576, available=rng.random() > 0.05, **limits) for i in range(rng.randint(1, 4)))
    if rng.random() < 0.3:
        nodes = tuple(some_windows(rng, node) for node in nodes)
    usual = {**some_traits(rng), "min_nodes": 1}
    predictions: dict[str, Prediction] = {}
    running: list[Running] = []
    for node in nodes:
        gpu = 0
        while node.available and gpu < node.gpus:
            gpus = min(rng.choice([usual["gpus"], usual["gpus"], 1, 2]), node.gpus - gpu)
            if rng.random() > 0.1:
                job = a_job(f"r{len(running)}", gpus, rank=len(running), user=rng.choice(USERS))
                job = replace(job, requeueable=rng.random() > 0.6)
                place = (NodeGpus(node.name, ((1 << gpus) - 1) << gpu),)
                profile = JobProfile(20.0, 5.0, rng.choice([3000.0, 9000.0]))
                running.append(Running(job, 0.0, place, profile=profile, alone=rng.random() < 0.2))
                predictions[job.id] = guess(rng.choice([1100.0, 9000.0]), rng.choice([0, 0, 1]))
            gpu += gpus
    pending: list[Pending] = []
    for number in range(rng.randint(4, 16)):
        entry, prediction = some_waiting(rng, number, usual)
        pending.append(entry)
        predictions[entry.job.id] = prediction
    factors = {(account, user): rng.random() for account in USERS for user in USERS}
    partition = Partition(VC, nodes, tuple(pending), tuple(running))
    snapshot = Snapshot(1000.0, {VC: partition}, predictions=predictions, fair_share=factors)
    return some_give_way(rng, snapshot) if rng.random() < 0.3 else snapshot
