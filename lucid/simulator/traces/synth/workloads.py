"""A table of invented training workloads. Nothing in it was measured: a formula made it, given here in full.

A family has four numbers: compute demand per root of a sample ``c``, memory traffic relative to compute ``m``,
parameters ``p`` (MiB), activations per sample ``a`` (MiB). For a batch of *b* samples, with mixed precision
(AMP) doing the same arithmetic in 0.65 of the time, half the traffic, and 0.6 of the activation memory:

    gpu_util    = 100 (1 - exp(-c sqrt(b) k))                    k = 0.65 with AMP, else 1
    mem_util    = gpu_util * m * (1 - exp(-b / 48)) * t          t = 0.75 with AMP, else 1
    gpu_mem_mib = 900 + 4 p s + a b q                            s = 1.1, q = 0.6 with AMP; else s = q = 1

(900 MiB for the CUDA context, 4 p for weights, gradients and two moments.) Families marked unstable alternate
between phases, so that an average hides what a partner on the same GPU would meet.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from random import Random

from lucid.core.job import JobProfile
from lucid.simulator.traces.record import Trace, TraceJob

__all__ = ["WORKLOADS", "Family", "Workload", "with_workloads"]


@dataclass(frozen=True, slots=True)
class Family:
    """An invented kind of model; see the module's formula for the numbers."""

    name: str
    data: str
    compute: float
    traffic: float
    params_mib: float
    sample_mib: float
    batches: tuple[int, int]
    unstable: bool = False


@dataclass(frozen=True, slots=True)
class Workload:
    """One configuration: a family at a batch size, with or without mixed precision."""

    family: str
    profile: JobProfile


_FAMILIES = (
    Family("syn-mlp", "tabular", 0.010, 0.35, 25, 1.5, (128, 512)),
    Family("syn-convnet", "smallimages", 0.045, 0.40, 45, 9, (64, 128)),
    Family("syn-resnet", "images", 0.280, 0.62, 100, 95, (32, 64)),
    Family("syn-mobilenet", "images", 0.120, 0.48, 16, 62, (32, 64)),
    Family("syn-unet", "scans", 0.420, 0.66, 120, 620, (8, 16)),
    Family("syn-lstm", "text", 0.110, 0.75, 210, 14, (32, 128)),
    Family("syn-transformer", "text", 0.380, 0.70, 420, 210, (16, 32)),
    Family("syn-wav", "speech", 0.230, 0.58, 380, 260, (16, 32)),
    Family("syn-gnn", "graphs", 0.050, 0.80, 60, 22, (64, 256), unstable=True),
    Family("syn-rl", "episodes", 0.016, 0.20, 8, 2.5, (64, 256), unstable=True),
)


def _profile(family: Family, batch: int, amp: bool) -> JobProfile:
    util = 100.0 * (1.0 - math.exp(-family.compute * math.sqrt(batch) * (0.65 if amp else 1.0)))
    traffic = util * family.traffic * (1.0 - math.exp(-batch / 48.0)) * (0.75 if amp else 1.0)
    states, kept = (1.1, 0.6) if amp else (1.0, 1.0)
    mem_mib = 900.0 + 4.0 * family.params_mib * states + family.sample_mib * batch * kept
    label = f"{family.name}|{family.data}|{batch}|{int(amp)}"
    return JobProfile(round(util, 1), round(traffic, 1), float(round(mem_mib)), amp, family.unstable, label)


WORKLOADS: tuple[Workload, ...] = tuple(
    Workload(family.name, _profile(family, batch, amp))
    for family in _FAMILIES
    for batch in family.batches
    for amp in (False, True)
)
"""All 40 configurations."""


def with_workloads(trace: Trace, seed: int) -> tuple[Trace, int]:
    """The trace with a synthetic workload, drawn uniformly, for each job without GPU readings; and how many
    jobs that were. Says nothing of durations: readings drawn so are no help in predicting them."""
    rng = Random(f"workloads of {seed}")
    given = 0
    jobs: list[TraceJob] = []
    for item in trace.jobs:
        if item.profile is None:
            profile = rng.choice(WORKLOADS).profile
            jobs.append(replace(item, profile=profile, job=replace(item.job, amp=profile.amp)))
            given += 1
        else:
            jobs.append(item)
    return replace(trace, jobs=tuple(jobs)), given
