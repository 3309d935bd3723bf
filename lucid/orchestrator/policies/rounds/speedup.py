"""Pollux's speedups: what an allocation is worth to a job, relative to a fair share (P20, P24-P26)."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lucid.orchestrator.policies.rounds.goodput import (
    BatchLimits,
    GoodputModel,
    GradParams,
    PerfParams,
    best_batches,
)

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]
Base = Literal["fair", "one"]
Goodputs = Mapping[tuple[GoodputModel | None, BatchLimits | None], Floats]

RESTART_S = 30.0
"""Seconds that a restart is taken to cost (P26: 15-120 s were observed)."""

_CHUNK = 8192  # allocations optimised at once: 50 batch sizes each


@dataclass(frozen=True, slots=True)
class PolluxJob:
    """A job as the search sees it.

    Attributes:
        model: its goodput model; None before the first fit, when speed is taken to grow with the GPUs.
        limits: its batch limits; needed with a model.
        max_replicas: most GPUs that it may get now, see :func:`growth_cap`."""

    job_id: Hashable
    model: GoodputModel | None
    limits: BatchLimits | None
    max_replicas: int
    age_s: float = 0.0
    restarts: int = 0


def growth_cap(largest_ever: int, limits: BatchLimits | None = None) -> int:
    """Most GPUs of a job: twice the most that it ever had, one for a new job (P20).

    Also no more than its batch limits can feed."""
    cap = max(2 * largest_ever, 1)
    return cap if limits is None else min(cap, max(limits.max_replicas, 1))


def restart_factors(age_s: ArrayLike, restarts: ArrayLike, delay_s: ArrayLike = RESTART_S) -> Floats:
    """Factor on the speedup of a job whose allocation changes: (T - R d) / (T + d), at least 0 (P26).

    Args:
        age_s: T, (J,) seconds since submission.
        restarts: R, (J,) restarts so far.
        delay_s: d, seconds that one restart takes; of all jobs, or (J,) of each."""
    age = np.asarray(age_s, dtype=np.float64)
    delay = np.asarray(delay_s, dtype=np.float64)
    kept = np.maximum(age - np.asarray(restarts) * delay, 0.0)
    # a job of this very moment whose restart costs nothing loses nothing by one
    return np.divide(kept, age + delay, out=np.ones(np.broadcast(kept, delay).shape), where=age + delay > 0)


class SpeedupTable:
    """SPEEDUP_j for every job, filled in as allocations are asked for (P25).

    Goodput depends on an allocation only through its GPUs and whether they are on one node (P12), so the
    table has two rows a job.

    Args:
        base: what counts as 1: "fair" is ceil(G/J) GPUs on one node, as in the published simulator;
            "one" is one GPU, as in the later code.
        known: goodputs that an earlier table has worked out: its ``known``."""

    def __init__(
        self, jobs: Sequence[PolluxJob], total_gpus: int, base: Base = "fair", known: Goodputs | None = None
    ) -> None:
        self.jobs = list(jobs)
        self.most = np.array([max(0, min(j.max_replicas, total_gpus)) for j in jobs], dtype=np.intp)
        fair = max(1, -(-total_gpus // max(1, len(jobs)))) if base == "fair" else 1
        widest = int(self.most.max(initial=1))
        self._value: Floats = np.full((len(self.jobs), 2, widest + 1), np.nan)
        self._value[:, :, 0] = 0.0
        self._modelled = np.array([j.model is not None and j.limits is not None for j in jobs], dtype=bool)
        self._columns()
        everyone = np.arange(len(self.jobs))
        self._base = np.ones(len(self.jobs))
        one = np.ones(len(self.jobs), dtype=np.intp)
        base_goodput = self._goodput(everyone, one, one * fair)
        # A fair share that the job cannot use at all must not make other allocations infinitely good.
        self._base = np.where(base_goodput > 0, base_goodput, self._goodput(everyone, one, one))
        self._found = np.full_like(self._value, np.nan)
        for row, job in zip(self._found, self.jobs, strict=True):
            earlier = None if known is None else known.get((job.model, job.limits))
            if earlier is not None:
                most = min(earlier.shape[1], row.shape[1])
                row[:, :most] = earlier[:, :most]
        self._value[:, :, 1:] = (self._found / self._base[:, None, None])[:, :, 1:]

    @property
    def base(self) -> Floats:
        """(J,) the goodput that counts as 1."""
        return self._base

    @property
    def known(self) -> Goodputs:
        """The goodputs worked out so far, by model and limits, for the next table: jobs seldom report something
        new."""
        rows = zip(self._found, self.jobs, strict=True)
        return {(job.model, job.limits): row for row, job in rows if job.model is not None}

    def _columns(self) -> None:
        rows: list[tuple[float, ...]] = []
        for job in self.jobs:
            m, b = job.model, job.limits
            if m is None or b is None:
                rows.append((1.0,) * 14)
                continue
            most_atomic = b.atomic_max or b.most
            limits = (b.init, b.most, b.atomic_min, most_atomic, b.accumulation)
            rows.append((*m.perf, m.grad.sqr, m.grad.var, *limits))
        self._table = np.array(rows, dtype=np.float64).reshape(len(rows), 14).T

    def _goodput(self, job: Ints, nodes: Ints, replicas: Ints) -> Floats:
        """(n,) best goodput of each (job, nodes, replicas); GPUs for jobs without a model."""
        out = replicas.astype(np.float64)
        known = np.flatnonzero(self._modelled[job])
        for start in range(0, len(known), _CHUNK):
            part = known[start : start + _CHUNK]
            c = self._table[:, job[part]]
            model = GoodputModel(PerfParams(*c[:7]), GradParams(c[7], c[8]), c[9])
            most, low, high = (c[i].astype(np.intp) for i in (10, 11, 12))
            out[part] = best_batches(model, nodes[part], replicas[part], most, low, high, c[13].astype(bool))[0]
        return out

    def __call__(self, job: Ints, across: Ints, replicas: Ints) -> Floats:
        """Speedups.

        Args:
            across: 1 where the GPUs are on several nodes, else 0.
            replicas: GPUs, at most the job's ``max_replicas``.

        Returns:
            Array in the shape of the broadcast arguments; 0 for no GPU."""
        _, rows, widest = self._value.shape
        cell = (job * rows + across) * widest + replicas
        value = self._value.take(cell)
        missing = np.isnan(value)
        if missing.any():
            code = np.unique(cell[missing])
            j, a, r = np.unravel_index(code, self._value.shape)
            self._found[j, a, r] = self._goodput(j, a + 1, r)
            self._value[j, a, r] = self._found[j, a, r] / self._base[j]
            value = self._value.take(cell)
        return np.asarray(value)
