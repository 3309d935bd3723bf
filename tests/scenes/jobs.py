"""Jobs and nodes of tests: every argument that a test does not care about has a plain value."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from lucid.core.job import Elastic, Job, JobProfile, Pending, Running
from lucid.core.node import Node
from lucid.core.placement import NodeGpus, Placement, mask_of
from lucid.simulator.cluster.training import EpochTable
from lucid.simulator.traces.record import TraceJob

HOME = f"u{os.geteuid()}"
"""Where what belongs to a job of this user lies, below a common folder."""
VC = "vc"
LIGHT = JobProfile(gpu_util=10.0, mem_util=5.0, gpu_mem_mib=4000.0)
"""Beside another of its kind it runs at more than 0.99 of its speed."""
HEAVY = JobProfile(gpu_util=100.0, mem_util=100.0, gpu_mem_mib=4000.0)
"""Beside another of its kind it runs at 0.59 of its speed."""


def nodes(count: int, gpus: int = 8, prefix: str = "n", **rest: Any) -> tuple[Node, ...]:
    """``count`` equal nodes n1, n2, ..."""
    return tuple(Node(f"{prefix}{i + 1}", gpus, **rest) for i in range(count))


def a_job(name: str, /, gpus: int = 1, submit_s: float = 0.0, vc: str = VC, **rest: Any) -> Job:
    return Job(name, vc, gpus, submit_s, **rest)


def waits(
    name: str,
    /,
    gpus: int = 1,
    submit_s: float = 0.0,
    *,
    since_s: float | None = None,
    profile: JobProfile | None = None,
    ran_s: float = 0.0,
    restarts: int = 0,
    alone: bool = False,
    **rest: Any,
) -> Pending:
    """A pending job, waiting since its submission."""
    since_s = submit_s if since_s is None else since_s
    return Pending(a_job(name, gpus, submit_s, **rest), since_s, profile, ran_s, restarts, alone)


def at(text: str) -> Placement:
    """A placement as administrators write it: ``n1:0,3 n2:0-7``."""
    parts = []
    for item in text.split():
        name, _, gpus = item.partition(":")
        ranges = [part.split("-") for part in gpus.split(",")]
        parts.append(NodeGpus(name, mask_of(i for r in ranges for i in range(int(r[0]), int(r[-1]) + 1))))
    return tuple(parts)


def runs(
    name: str,
    where: str,
    /,
    start_s: float = 0.0,
    *,
    submit_s: float = 0.0,
    profile: JobProfile | None = None,
    partner: str | None = None,
    job: Mapping[str, Any] | None = None,
    **rest: Any,
) -> Running:
    """A running job that holds exactly the GPUs it asked for."""
    placement = at(where)
    gpus = sum(part.mask.bit_count() for part in placement)
    made = a_job(name, gpus, submit_s, **(job or {}))
    return Running(made, start_s, placement, profile=profile, partner=partner, **rest)


def by(
    name: str,
    /,
    gpus: int = 1,
    duration_s: float = 100.0,
    submit_s: float = 0.0,
    *,
    profile: JobProfile | None = None,
    label: int | None = None,
    state: str = "",
    **rest: Any,
) -> TraceJob:
    """A job of a trace with the truth about it."""
    return TraceJob(a_job(name, gpus, submit_s, **rest), duration_s, state, profile, label)


def elastic(
    name: str,
    /,
    gpus: int = 1,
    submit_s: float = 0.0,
    *,
    epochs: float = 10.0,
    table: Sequence[float] = (100.0, 55.0, 40.0, 32.0),
    limits: Mapping[str, Any] | None = None,
    **rest: Any,
) -> TraceJob:
    """An elastic job of a trace: ``table[g - 1]`` seconds an epoch on g GPUs, from 1 to so many."""
    sizes = {"batch": 64, "init_batch": 64, "most_batch": 64, "atomic_max": 64}
    wanted = Elastic(**{"max_gpus": len(table), **sizes, **(limits or {})})
    truth = EpochTable(epochs, tuple(table))
    job = a_job(name, gpus, submit_s, elastic=wanted, **rest)
    return TraceJob(job, epochs * table[gpus - 1], learning=truth)
