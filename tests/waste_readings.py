"""Readings of jobs made up here: ordinary ones, and ones with waste planted in them.

A job is a list of phases (seconds, percent of GPU time, is there a process?) for each of its GPUs; ``samples`` makes
of it what the sampler reads every ``STEP_S``. The generator of ordinary jobs is stated in ``ordinary``.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import accumulate

from lucid.core.job import JobProfile
from lucid.profiler.samples import GpuSample, Sample
from lucid.profiler.use import UseMeter
from lucid.profiler.waste import JobUse

STEP_S = 10.0
H = 3600.0
GPU_MIB = 24576.0


@dataclass(frozen=True)
class Phase:
    seconds: float
    util: float
    process: bool = True
    known: bool = True


@dataclass
class MadeJob:
    job_id: str
    phases: list[list[Phase]]
    """Of each GPU."""
    time_limit_s: float | None = None
    wants_alone: bool = False
    mem_mib: float = 18000.0
    name: str = "train"
    user: str = "ada"
    state: str = "COMPLETED"
    unstable: bool = False

    @property
    def ran_s(self) -> float:
        return sum(phase.seconds for phase in self.phases[0])

    def job_use(self, begin_s: float = 1_000_000.0, step_s: float = STEP_S) -> JobUse:
        meter = UseMeter(step_s)
        gpus = [f"GPU-{number}" for number in range(len(self.phases))]
        work: list[float] = []
        for at, sample in enumerate(samples(self, begin_s, step_s)):
            meter.add(gpus, sample)
            work += [part.gpu_util or 0.0 for part in sample.gpus if at % 10 == 0 and (part.gpu_util or 0) > 1]
        mean = sum(work) / max(len(work), 1)
        profile = JobProfile(mean, 10.0, self.mem_mib, unstable=self.unstable) if work else None
        return JobUse(
            self.job_id, self.user, "lab", "vc", self.name, len(self.phases), begin_s, begin_s + self.ran_s,
            state=self.state, time_limit_s=self.time_limit_s, wants_alone=self.wants_alone, gpu_mem_mib=GPU_MIB,
            profile=profile, use=meter.uses,
        )  # fmt: skip


def samples(job: MadeJob, begin_s: float, step_s: float = STEP_S) -> Iterator[Sample]:
    """What the sampler reads; noise of a few percent goes over work."""
    noise = random.Random(job.job_id)
    clocks = [_at(phases) for phases in job.phases]
    for number in range(int(job.ran_s / step_s)):
        seconds = (number + 0.5) * step_s
        parts = []
        for clock in clocks:
            phase = clock(seconds)
            util = min(max(phase.util * noise.uniform(0.7, 1.3), 0.0), 100.0)
            mib = 4000.0 if phase.process else 0.0
            parts.append(GpuSample(util, util / 2, mib, own_mib=mib) if phase.known else GpuSample(lost=True))
        yield Sample(number, begin_s + (number + 1) * step_s, tuple(parts))


def _at(phases: list[Phase]) -> Callable[[float], Phase]:
    ends = list(accumulate(phase.seconds for phase in phases))
    return lambda seconds: phases[min(bisect_right(ends, seconds), len(phases) - 1)]


def ordinary(number: int, seed: int) -> MadeJob:
    """An ordinary job, nothing of which is waste.

    1, 2, 4 or 8 GPUs, 0.5 to 12 h (log-uniform). Start-up (1 to 20 min at 0 %, without a process for its first
    part), warm-up (1 to 10 min, 5 to 30 %), then epochs of 10 to 60 min at a level of the job's own: one in five
    jobs works at 3 to 10 %, the others at 10 to 98 %. Between epochs a pause at 0 %: loading of data (5 to 180 s),
    a checkpoint (10 to 600 s), or an evaluation on the CPU (1 to 25 min). At the end 0 to 15 min of writing. One job
    in ten loses readings for 10 s to 10 min now and then. All GPUs of a job pause together; each GPU's level differs
    by up to a third. A time limit of 1.1 to 8 times the run time; jobs that are light or do not fit beside others
    may share, the others ask not to in one case of four.
    """
    rng = random.Random(f"{seed}/{number}")
    gpus = rng.choice((1, 1, 1, 2, 4, 8))
    level = rng.uniform(3.0, 10.0) if rng.random() < 0.2 else rng.uniform(10.0, 98.0)
    left_s = H * 0.5 * 24.0 ** rng.random()
    first_s = rng.uniform(60.0, 1200.0)
    warm_up = Phase(rng.uniform(60.0, 600.0), rng.uniform(5.0, 30.0))
    shape = [Phase(first_s * 0.4, 0.0, process=False), Phase(first_s * 0.6, 0.0), warm_up]
    lossy = rng.random() < 0.1
    while left_s > 0:
        epoch_s = rng.uniform(600.0, 3600.0)
        shape.append(Phase(epoch_s, level))
        kind = rng.random()
        pause_s = rng.uniform(*((5, 180) if kind < 0.6 else (10, 600) if kind < 0.85 else (60, 1500)))
        shape.append(Phase(pause_s, 0.0))
        if lossy and rng.random() < 0.5:
            shape.append(Phase(rng.uniform(10.0, 600.0), level, known=False))
        left_s -= epoch_s + pause_s
    shape += [Phase(60.0, level), Phase(rng.uniform(0.0, 900.0), 0.0)]
    levels = [rng.uniform(0.67, 1.0) for _ in range(gpus)]
    phases = [[replace(phase, util=phase.util * factor) for phase in shape] for factor in levels]
    heavy = level * min(levels) > 40.0
    job = MadeJob(
        f"o{number}", phases, wants_alone=heavy and rng.random() < 0.25, mem_mib=rng.uniform(2000.0, 22000.0),
        name=f"train-{number % 40}", user=f"user-{number % 25}",
        state=rng.choice(("COMPLETED",) * 8 + ("FAILED",) * 2),
    )  # fmt: skip
    job.time_limit_s = job.ran_s * rng.uniform(1.1, 8.0)
    return job


def at_work(seconds: float, level: float = 80.0) -> list[Phase]:
    """Start-up of five minutes, then work with a pause every half hour."""
    shape = [Phase(300.0, 0.0)]
    while seconds > 0:
        shape += [Phase(min(seconds, 1800.0), level), Phase(60.0, 0.0)]
        seconds -= 1860.0
    return shape


def planted(kind: str, number: int) -> tuple[list[MadeJob], float]:
    """Jobs with this kind of waste, and how many GPU-hours of it are in each."""
    rng = random.Random(f"{kind}/{number}")
    gpus, hours = rng.choice((1, 2, 4)), rng.uniform(1.5, 6.0)
    name = f"{kind}-{number}"

    def other(seconds: float) -> list[Phase]:
        """Every other job of a kind works for so long, too: before it has no process, or after it idled."""
        return [] if number % 2 else at_work(seconds)

    idle = Phase(hours * H, 0.0, process=kind != "no_process")
    shapes = {
        "idle_from_start": [idle, *other(2 * H)[1:]],
        "idle_after_activity": [*at_work(2 * H), idle, *other(H)[1:]],
        "no_process": [*other(2 * H), idle],
    }
    if kind in shapes:
        return [MadeJob(name, [shapes[kind]] * gpus)], hours * gpus
    if kind == "larger_than_needed":
        busy = at_work(hours * H)
        unused, some = [replace(phase, util=0.0, process=False) for phase in busy], rng.randint(1, 3)
        return [MadeJob(name, [busy] + [unused] * some)], sum(p.seconds for p in busy) * some / H
    if kind == "could_have_shared":
        shape = at_work(hours * H, rng.uniform(5.0, 20.0))
        job = MadeJob(name, [shape for _ in range(gpus)], wants_alone=True, mem_mib=rng.uniform(1000.0, 8000.0))
        return [job], job.ran_s * gpus / H / 2
    assert kind == "time_limit_too_long"
    jobs = []
    for copy in range(3):
        shape = at_work(rng.uniform(0.2, 1.0) * H)
        jobs.append(MadeJob(f"{name}-{copy}", [shape] * gpus, time_limit_s=48 * H, name=name, user="limits"))
    return jobs, 47.4 * gpus
