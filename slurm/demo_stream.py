"""The jobs of the demonstration: three users submit the same few programs again and again, faster than they run."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from lucid.core.job import Job, JobProfile
from lucid.simulator.traces.record import Trace, TraceJob

VC = "vc-a"
NODES, GPUS_PER_NODE = 8, 2


@dataclass(frozen=True)
class Program:
    """What a user runs; ``weight``: its share of the user's submissions."""

    name: str
    gpus: int
    profile: JobProfile
    typical_s: float
    weight: int

    @property
    def limit_min(self) -> int:
        """What the user gives as time limit, in minutes: generous, as users are."""
        return math.ceil(2 * self.typical_s / 60) + 1


PROGRAMS = {
    "alice": (
        Program("bert", 2, JobProfile(85.0, 60.0, 14000.0), 60.0, 2),
        Program("probe", 1, JobProfile(12.0, 5.0, 2000.0), 7.0, 3),
        Program("lstm", 1, JobProfile(30.0, 15.0, 5000.0), 40.0, 3),
    ),
    "bob": (
        Program("resnet", 1, JobProfile(70.0, 45.0, 11000.0), 50.0, 3),
        Program("debug", 1, JobProfile(10.0, 4.0, 1500.0), 5.0, 3),
        Program("gan", 1, JobProfile(35.0, 20.0, 6000.0), 45.0, 3),
    ),
    "carol": (
        Program("gnn", 1, JobProfile(25.0, 12.0, 4000.0), 35.0, 4),
        Program("tabular", 1, JobProfile(15.0, 6.0, 2500.0), 20.0, 3),
        Program("vit", 4, JobProfile(90.0, 70.0, 16000.0), 35.0, 2),
    ),
}
GAP_S = 0.8
"""Mean seconds between two submissions: 60 jobs come in about 50 s, and are about 170 s of work for all GPUs."""
SPREAD = 0.3
"""Of a run time around its program's: standard deviation of the logarithm."""


@dataclass(frozen=True)
class Piece:
    """One job of the stream. ``work_s``: what it takes alone on its GPUs."""

    at_s: float
    user: str
    program: Program
    work_s: float


def stream(count: int, seed: int) -> list[Piece]:
    """The same jobs for the same seed."""
    dice = random.Random(seed)
    pieces, at_s = [], 0.0
    for _ in range(count):
        at_s += dice.expovariate(1 / GAP_S) if pieces else 0.0
        user = dice.choice(list(PROGRAMS))
        (program,) = dice.choices(PROGRAMS[user], [p.weight for p in PROGRAMS[user]])
        work_s = min(max(program.typical_s * dice.lognormvariate(0, SPREAD), 3.0), 110.0)
        pieces.append(Piece(round(at_s, 2), user, program, round(work_s, 1)))
    return pieces


def trace_of(pieces: list[Piece]) -> Trace:
    """The stream as the simulator takes it; jobs are numbered from 1 in order of submission."""
    jobs = tuple(
        TraceJob(
            Job(
                id=str(n),
                vc=VC,
                gpus=piece.program.gpus,
                submit_s=piece.at_s,
                rank=n,
                user=piece.user,
                name=piece.program.name,
                time_limit_s=60.0 * piece.program.limit_min,
            ),
            piece.work_s,
            "COMPLETED",
            piece.program.profile,
        )
        for n, piece in enumerate(pieces, start=1)
    )
    return Trace("demo-slurm", jobs)
