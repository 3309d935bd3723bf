"""Arrays of small trainings, alone on a cluster and among the jobs of others."""

from __future__ import annotations

import random
from collections.abc import Sequence

from lucid.core.job import JobProfile
from lucid.simulator.traces import Trace, TraceJob
from scenes.jobs import a_job
from scenes.replays import a_trace

__all__ = ["SIXTH", "a_sweep", "others", "sweep_trace"]

SIXTH = JobProfile(16.0, 8.0, 3000.0)
"""Of a GPU of 24 GiB and its time, about a sixth: with its fence (a tenth more, and 512 MiB) 3,812 MiB."""


FULL = JobProfile(95.0, 60.0, 15000.0)


def a_sweep(tasks: int, seed: int = 1, submit_s: float = 0.0, user: str = "ada") -> list[TraceJob]:
    """Tasks of one array, of 20 min each, a tenth more or less."""
    draw, made = random.Random(seed), []
    for number in range(tasks):
        job = a_job(f"s{seed}_{number}", 1, submit_s, rank=number, cpus=2, array=f"s{seed}", name="sweep", user=user)
        made.append(TraceJob(job, round(1200 * draw.uniform(0.9, 1.1)), profile=SIXTH))
    return made


def others(seed: int, count: int, within_s: float) -> list[TraceJob]:
    """Jobs of three other users, of 1 to 4 GPUs, which fill theirs."""
    draw, made = random.Random(seed), []
    for number in range(count):
        gpus, submit_s = draw.choice((1, 1, 2, 4)), round(draw.uniform(0, within_s))
        job = a_job(
            f"o{number}", gpus, submit_s, rank=10_000 + number, cpus=4 * gpus, user=f"u{number % 3}", name="big"
        )
        made.append(TraceJob(job, round(draw.uniform(600, 5400)), profile=FULL))
    return made


def sweep_trace(*parts: Sequence[TraceJob]) -> Trace:
    """All of them, by time of submission."""
    return a_trace(*sorted((one for part in parts for one in part), key=lambda one: (one.job.submit_s, one.job.rank)))
