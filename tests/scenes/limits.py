"""A cluster whose jobs ask for far more time than they take, its plans recorded."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from lucid.core.node import Window
from lucid.orchestrator.planner import PolicyHost
from lucid.simulator.cluster.nodes import Outages
from lucid.simulator.cluster.state import JobOutcome
from lucid.simulator.engine import run
from lucid.simulator.traces.record import Trace, TraceJob
from lucid.store.plan_records import PlanRecorder
from scenes.jobs import a_job, nodes
from scenes.plans import FixedPredictor, policy, settings
from scenes.replays import a_cluster, a_trace

ALONE: Mapping[str, Any] = {"profiling": {"enabled": False}, "packing": {"gss": 0}}
H = 3600.0
LAYOUT = {"vc": nodes(4, prefix="n")}
WINDOW = Outages(windows={f"n{i}": (Window(30 * H, 36 * H, "upgrade"),) for i in range(1, 5)}, downs={})


def crowded(seed: int) -> Trace:
    """Jobs of a few users, with limits far above what they take, for four nodes that close once."""
    rng, items, submit_s = random.Random(seed), [], 0.0
    for number in range(120):
        submit_s += rng.expovariate(1 / 900.0)
        user = rng.randrange(4)
        lasts_s = round((user + 1) * 1200 * rng.uniform(0.5, 1.5))
        limit_s = float(rng.choice([6, 12, 24]) * H)
        job = a_job(str(number), rng.choice([1, 2, 4, 8, 16]), round(submit_s), rank=number, time_limit_s=limit_s)
        items.append(TraceJob(replace(job, user=f"u{user}", name="train"), float(lasts_s)))
    return a_trace(*items)


def replayed(name: str, trace: Trace, folder: Path | None = None) -> dict[str, JobOutcome]:
    predictor = FixedPredictor({one.job.id: one.duration_s for one in trace.jobs})
    host = PolicyHost(lambda heard: policy(name, heard, **ALONE), predictor)
    cluster = a_cluster(trace, LAYOUT, profiled=lambda job: False, outages=WINDOW)
    recorder = None if folder is None else PlanRecorder(folder, host, settings(**ALONE), 0.0, 1000.0)
    made = run(cluster, policy(name, predictor, **ALONE) if folder is None else host, predictor, recorder)
    return {one.job.id: one for one in made.outcomes}
