"""Pollux's goodput model: how fast a job learns on an allocation, and with which batch (P1-P15, P21, P29)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = [
    "BatchChoice",
    "BatchLimits",
    "GoodputModel",
    "GradParams",
    "PerfParams",
    "best_batches",
    "log_step_time",
    "sync_time",
]

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]

_TINY = 1e-8  # stands for zero in times, as in the authors' code
_CANDIDATES = 50  # total batch sizes tried, in geometric space


class PerfParams(NamedTuple):
    """theta_sys, the seven parameters of the time model (P15).

    ``alpha_c + beta_c m`` is the time of one forward and backward pass on m samples (P11),
    ``alpha_n + beta_n (K-2)`` that of synchronising K replicas across nodes, ``alpha_r + beta_r (K-2)``
    within one node (P12); seconds, seconds a sample, seconds a replica. ``gamma`` in 1..10 says how far
    the two overlap (P13): 1 not at all, 10 almost wholly.
    """

    alpha_c: float
    beta_c: float
    alpha_n: float
    beta_n: float
    alpha_r: float
    beta_r: float
    gamma: float


class GradParams(NamedTuple):
    """Gradient statistics at the initial batch size: squared norm of the mean, and variance (P6, P7)."""

    sqr: float
    var: float


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """Between which batch sizes a job may choose (P3, P21, P29).

    Attributes:
        init: M0, the batch size that the user chose, samples.
        most: largest total batch size; ``init`` pins the batch (P29).
        atomic_min: fewest samples on one GPU in one pass.
        atomic_max: most samples that fit into a GPU's memory; None: any.
        accumulation: may several passes make one step?

    Raises:
        ValueError: ``most`` is below ``init``, or a limit is below 1.
    """

    init: int
    most: int
    atomic_min: int = 1
    atomic_max: int | None = None
    accumulation: bool = True

    def __post_init__(self) -> None:
        if not 1 <= self.init <= self.most or self.atomic_min < 1 or (self.atomic_max or 1) < 1:
            raise ValueError(f"batch limits {self}: need 1 <= init <= most and atomic sizes of at least 1")

    @property
    def max_replicas(self) -> int:
        """Most GPUs on which every one has ``atomic_min`` samples within ``most``."""
        return self.most // self.atomic_min


@dataclass(frozen=True, slots=True)
class BatchChoice:
    """m* and s* of an allocation, and the goodput that they reach (P21).

    Attributes:
        goodput: samples of the initial batch size's worth a second; 0 where nothing is feasible.
        atomic: samples a GPU a pass.
        accum: extra passes before a step.
    """

    goodput: Floats
    atomic: Ints
    accum: Ints


class GoodputModel(NamedTuple):
    """GOODPUT_t of one job or, with columns of shape (n, 1) or so, of many at once (P4, P15).

    Attributes:
        perf: theta_sys; each field a number or an array that broadcasts against the arguments.
        grad: gradient statistics at ``init``, likewise.
        init: M0, samples.
    """

    perf: PerfParams
    grad: GradParams
    init: float | Floats

    def throughput(self, nodes: ArrayLike, replicas: ArrayLike, atomic: ArrayLike, accum: ArrayLike) -> Floats:
        """Samples a second: M / T_iter (P1, P10-P14).

        Args:
            nodes: N, nodes that the replicas are on.
            replicas: K, GPUs.
            atomic: m, samples a GPU a pass.
            accum: s, extra passes before a step.
        """
        p = self.perf
        n, k, m, s = (np.asarray(x, dtype=np.float64) for x in (nodes, replicas, atomic, accum))
        compute = p.alpha_c + p.beta_c * m
        step = np.exp(log_step_time(compute, sync_time(p, n, k), p.gamma))
        return np.asarray(k * m * (s + 1) / (s * compute + step))

    def efficiency(self, batch: ArrayLike) -> Floats:
        """Progress of a sample in a batch of ``batch``, relative to one of M0 (P7, P8).

        (phi + M0) / (phi + M) with phi = M0 var / sqr, in the form (var + sqr) / (var + r sqr) with r = M / M0,
        which loses no digits to statistics next to nothing. 1 / r where both statistics are zero.
        """
        ratio = np.asarray(batch, dtype=np.float64) / self.init
        sqr, var = np.asarray(self.grad.sqr), np.asarray(self.grad.var)
        denominator = var + ratio * sqr
        some = denominator > 0
        return np.asarray(np.where(some, (var + sqr) / np.where(some, denominator, 1.0), 1.0 / ratio))

    def goodput(self, nodes: ArrayLike, replicas: ArrayLike, atomic: ArrayLike, accum: ArrayLike) -> Floats:
        """THROUGHPUT x EFFICIENCY, samples a second; NaN where the batch is below M0 (P3, P4)."""
        batch = np.asarray(replicas) * np.asarray(atomic) * (np.asarray(accum) + 1)
        value = self.throughput(nodes, replicas, atomic, accum) * self.efficiency(batch)
        return np.where(batch >= self.init, value, np.nan)

    def optimize(self, nodes: ArrayLike, replicas: ArrayLike, limits: BatchLimits) -> BatchChoice:
        """The batch with the best goodput on each allocation (P21).

        Args:
            nodes: nodes of each allocation, at least 1.
            replicas: GPUs of each allocation, at least as many as nodes; broadcast against ``nodes``.
            limits: the job's batch limits.

        Returns:
            The choices, in the shape of the broadcast arguments.

        Raises:
            ValueError: an allocation has no node, or fewer GPUs than nodes.
        """
        n, k = np.broadcast_arrays(np.asarray(nodes), np.asarray(replicas))
        if (n < 1).any() or (k < n).any():
            raise ValueError(f"allocations of {n.tolist()} nodes and {k.tolist()} GPUs; need 1 <= N <= K")
        flat = best_batches(
            self,
            n.ravel(),
            k.ravel(),
            np.full(n.size, limits.most),
            np.full(n.size, limits.atomic_min),
            np.full(n.size, limits.atomic_max or limits.most),
            np.full(n.size, limits.accumulation),
        )
        goodput, atomic, accum = flat
        return BatchChoice(goodput.reshape(n.shape), atomic.reshape(n.shape), accum.reshape(n.shape))


def sync_time(p: PerfParams, nodes: Floats, replicas: Floats) -> Floats:
    """T_sync (P12): the cost of the slowest link in use, growing with the replicas beyond two."""
    across, within = nodes > 1, replicas > 1
    alpha = np.where(across, p.alpha_n, np.where(within, p.alpha_r, _TINY))
    beta = np.where(across, p.beta_n, np.where(within, p.beta_r, _TINY))
    return np.asarray(alpha + beta * np.maximum(replicas - 2, _TINY))


def log_step_time(compute: Floats, sync: Floats, gamma: float | Floats) -> Floats:
    """log of (T_grad^gamma + T_sync^gamma)^(1/gamma), the last pass of a step (P13)."""
    # The larger one is taken out of the power, which then cannot overflow.
    high, low = np.maximum(compute, sync), np.minimum(compute, sync)
    return np.asarray(np.log(high) + np.log1p((low / high) ** gamma) / gamma)


def best_batches(
    model: GoodputModel, nodes: Ints, replicas: Ints, most: Ints, low: Ints, high: Ints, accum_ok: ArrayLike
) -> tuple[Floats, Ints, Ints]:
    """Goodput, atomic size and accumulation of n allocations, each with its own limits (P21).

    50 total batch sizes in geometric space between max(M0, low K) and ``most``; a size that exceeds
    ``high`` a GPU is split into equal passes. On one GPU a batch above M0 takes at least two passes, for
    the gradient's variance cannot be told from one; where passes may not be added up, one GPU keeps M0.
    """
    init = np.asarray(model.init)
    batch = np.geomspace(np.maximum(init, low * replicas), most, _CANDIDATES)  # (50, n)
    local = batch / replicas
    passes = np.ceil(local / high - _TINY) - 1
    alone = replicas == 1
    passes = np.where(alone & (local > init + _TINY), np.maximum(passes, 1), passes)
    accum = np.where(accum_ok, passes, 0).astype(np.intp)
    atomic = np.ceil(local / (accum + 1) - _TINY).astype(np.intp)
    atomic = np.where(alone & ~np.asarray(accum_ok), init, atomic).astype(np.intp)
    atomic = np.minimum(atomic, high)
    value = model.goodput(nodes, replicas, atomic, accum)
    value = np.where((low <= atomic) & (atomic <= high) & ~np.isnan(value), value, 0.0)
    best = value.argmax(axis=0), np.arange(value.shape[1])
    return value[best], atomic[best], accum[best]
