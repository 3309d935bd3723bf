"""Timing one ``plan()`` on a busy cluster of a given size."""

from __future__ import annotations

import gc
import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import replace

from lucid.binder.contention import contention_score
from lucid.config.policy import PolicySettings
from lucid.core.decision import Start
from lucid.core.job import Job, Pending, Running
from lucid.core.node import Node
from lucid.core.prediction import Prediction
from lucid.core.snapshot import Partition, Snapshot
from lucid.errors import ConfigError
from lucid.models.history import HistoryPredictor
from lucid.orchestrator.registry import make_policy
from lucid.simulator.predictors import GivenPredictor
from lucid.simulator.traces.record import Trace
from lucid.simulator.traces.synth import WORKLOADS

__all__ = ["PLAN_SIZES", "bench_plan", "busy_snapshot", "place", "some_job"]

PLAN_SIZES: Sequence[tuple[int, int]] = (
    (1_000, 1_024),
    (2_048, 1_024),
    (5_000, 8_192),
    (10_000, 8_192),
    (20_000, 8_192),
    (50_000, 8_192),
)
"""(pending jobs, GPUs)."""

_GPUS_PER_NODE = 8
_FREED = 0.01
_DEMANDS = (1,) * 12 + (2,) * 3 + (4,) * 3 + (8,) * 2
_LARGE_EVERY = 500
_SETTLED = 0.002
_SEED = 20231


def some_job(number: int, rng: random.Random, vc: str = "vc") -> tuple[Pending, Prediction]:
    """A waiting job, drawn; every 500th is larger than a node."""
    demand = 16 if number % _LARGE_EVERY == 0 else rng.choice(_DEMANDS)
    job = Job(str(number), vc, demand, -86400.0 * rng.random(), number)
    profile = rng.choice(WORKLOADS).profile
    found = Prediction(rng.lognormvariate(7.5, 1.8), "bench", contention_score(profile), "bench")
    return Pending(job, job.submit_s, replace(profile, unstable=False)), found


def busy_snapshot(policy: str, pending: int, gpus: int, vc: str = "vc", first: int = 0) -> Snapshot:
    """The state of one VC at an ordinary decision of a loaded cluster, made with the policy itself: it has placed
    what it could of a long queue, ``pending`` jobs of which are left, and then 1 % of the running jobs have ended.
    Seeded by ``first``, the number of the first job.

    Raises:
        ConfigError: that is less than a node.
    """
    if gpus < _GPUS_PER_NODE:
        raise ConfigError(
            f"a VC needs a node of {_GPUS_PER_NODE} GPUs, and gets {gpus}; take more GPUs, or fewer VCs"
        )
    rng = random.Random(_SEED + first)
    nodes = tuple(Node(f"{vc}-n{i:05d}", _GPUS_PER_NODE) for i in range(gpus // _GPUS_PER_NODE))
    predictions: dict[str, Prediction] = {}
    waiting: dict[str, Pending] = {}
    running: dict[str, Running] = {}
    made = make_policy(policy, PolicySettings(), _predictor())
    number = first
    while True:
        while len(waiting) < pending:
            entry, found = some_job(number, rng, vc)
            waiting[entry.job.id], predictions[entry.job.id] = entry, found
            number += 1
        partition = Partition(vc, nodes, tuple(waiting.values()), tuple(running.values()))
        starts = made.plan(Snapshot(0.0, {vc: partition}, predictions=predictions)).actions
        if len(starts) <= _SETTLED * len(running):
            break
        for action in starts:
            place(running, waiting.pop(action.job_id), action.decision, -3600.0 * rng.random())
    for job_id in rng.sample(sorted(running), max(1, int(_FREED * len(running)))):
        partner = running.pop(job_id).partner
        if partner in running:
            running[partner] = replace(running[partner], partner=None)
    return Snapshot(
        0.0,
        {vc: Partition(vc, nodes, tuple(waiting.values()), tuple(running.values()))},
        predictions=predictions,
    )


def place(running: dict[str, Running], entry: Pending, start: object, began_s: float) -> None:
    """Let a job run as it was decided, from ``began_s`` on. ``running``: by id; brought up to date."""
    assert isinstance(start, Start)
    if start.beside is not None:
        running[start.beside] = replace(running[start.beside], partner=entry.job.id)
    running[entry.job.id] = Running(entry.job, began_s, start.placement, profile=entry.profile, partner=start.beside)


def _predictor() -> GivenPredictor:
    return GivenPredictor("bench", {}, Trace("bench", ()), HistoryPredictor())


def bench_plan(policy: str, pending: int, gpus: int, repeat: int) -> dict[str, float | int | str]:
    """Median and 99th percentile of ``repeat`` plans, each by a fresh policy with nothing kept (ms, wall;
    ``median_cpu_ms`` is what they come to where the machine is not shared)."""
    snapshot = busy_snapshot(policy, pending, gpus)
    times: list[float] = []
    cpu_times: list[float] = []
    starts = 0
    for _ in range(repeat):
        made = make_policy(policy, PolicySettings(), _predictor())
        gc.collect()
        began, began_cpu = time.perf_counter(), time.process_time()
        plan = made.plan(snapshot)
        times.append(1000 * (time.perf_counter() - began))
        cpu_times.append(1000 * (time.process_time() - began_cpu))
        starts = len(plan.actions)
    times.sort()
    return {
        "policy": policy,
        "pending": pending,
        "gpus": gpus,
        "running": len(snapshot.partitions["vc"].running),
        "starts": starts,
        "median_ms": round(statistics.median(times), 3),
        "p99_ms": round(times[min(len(times) - 1, int(0.99 * len(times)))], 3),
        "median_cpu_ms": round(statistics.median(cpu_times), 3),
        "repeat": repeat,
    }
