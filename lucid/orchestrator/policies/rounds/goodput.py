"""Pollux's goodput: how fast a job learns on an allocation, and the fit to step times (P1-P21, P29)."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

if TYPE_CHECKING:
    from threadpoolctl import ThreadpoolController  # type: ignore[import-untyped]

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]

_TINY = 1e-8  # stands for zero in times, as in the authors' code
_CANDIDATES = 50  # total batch sizes tried, in geometric space


class PerfParams(NamedTuple):
    """theta_sys, the seven parameters of the time model (P15).

    ``alpha_c + beta_c m`` is the time of one forward and backward pass on m samples (P11),
    ``alpha_n + beta_n (K-2)`` that of synchronising K replicas across nodes, ``alpha_r + beta_r (K-2)``
    within one node (P12); seconds, seconds a sample, seconds a replica. ``gamma`` in 1..10 says how far
    the two overlap (P13): 1 not at all, 10 almost wholly."""

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


@cache
def _libraries() -> ThreadpoolController:
    from threadpoolctl import ThreadpoolController

    # Looking them up takes milliseconds, so once; by then numpy and scipy have loaded theirs.
    return ThreadpoolController()


def one_thread() -> AbstractContextManager[object]:
    """A context in which numeric libraries use one thread. A fit solves thousands of systems of three to seven
    unknowns, and handing each to a pool of threads takes 18 times as long on two busy cores."""
    context: AbstractContextManager[object] = _libraries().limit(limits=1)
    return context


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
        ValueError: ``most`` is below ``init``, or a limit is below 1."""

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
        accum: extra passes before a step."""

    goodput: Floats
    atomic: Ints
    accum: Ints


class GoodputModel(NamedTuple):
    """GOODPUT_t of one job or, with columns of shape (n, 1) or so, of many at once (P4, P15).

    Attributes:
        perf: theta_sys; each field a number or an array that broadcasts against the arguments.
        grad: gradient statistics at ``init``, likewise.
        init: M0, samples."""

    perf: PerfParams
    grad: GradParams
    init: float | Floats

    def throughput(self, nodes: ArrayLike, replicas: ArrayLike, atomic: ArrayLike, accum: ArrayLike) -> Floats:
        """Samples a second: M / T_iter (P1, P10-P14).

        Args:
            nodes: N, nodes that the replicas are on.
            replicas: K, GPUs.
            atomic: m, samples a GPU a pass.
            accum: s, extra passes before a step."""
        p = self.perf
        n, k, m, s = (np.asarray(x, dtype=np.float64) for x in (nodes, replicas, atomic, accum))
        compute = p.alpha_c + p.beta_c * m
        step = np.exp(log_step_time(compute, sync_time(p, n, k), p.gamma))
        return np.asarray(k * m * (s + 1) / (s * compute + step))

    def efficiency(self, batch: ArrayLike) -> Floats:
        """Progress of a sample in a batch of ``batch``, relative to one of M0 (P7, P8).

        (phi + M0) / (phi + M) with phi = M0 var / sqr, in the form (var + sqr) / (var + r sqr) with r = M / M0,
        which loses no digits to statistics next to nothing. 1 / r where both statistics are zero."""
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

        Returns:
            The choices, in the shape of the broadcast arguments.

        Raises:
            ValueError: an allocation has no node, or fewer GPUs than nodes."""
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
    the gradient's variance cannot be told from one; where passes may not be added up, one GPU keeps M0."""
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


_LEAST = 1e-8  # lower bound of each alpha and beta: zero, kept away from the logarithm
_GAMMA_WEIGHT = 1e-3
_RATIO_WEIGHT = 1e-2
_MOST_GAMMA = 10.0
_ACROSS = 1.1  # an untried network across nodes is this much slower than the one within
_PUBLISHED = {"ftol": 2.22e-9, "gtol": 1e-5, "maxiter": 15000}
_EXACT = {"ftol": 1e-12, "gtol": 1e-8, "maxiter": 150}


@dataclass(frozen=True, slots=True)
class Observations:
    """What a job's agent has seen: one entry a configuration (P16).

    Attributes:
        nodes: N, nodes of the replicas.
        replicas: K, GPUs.
        atomic: m, samples a GPU a pass.
        accum_s: seconds of a pass that is not followed by a step (forward and backward only).
        step_s: seconds of the last pass, synchronisation included."""

    nodes: Floats
    replicas: Floats
    atomic: Floats
    accum_s: Floats
    step_s: Floats

    @classmethod
    def from_columns(
        cls, nodes: ArrayLike, replicas: ArrayLike, atomic: ArrayLike, accum_s: ArrayLike, step_s: ArrayLike
    ) -> Observations:
        """From any sequences of equal length.

        Raises:
            ValueError: lengths differ, there is none, or a time is not above 0."""
        columns = [np.asarray(x, dtype=np.float64) for x in (nodes, replicas, atomic, accum_s, step_s)]
        if len({c.shape for c in columns}) != 1 or columns[0].ndim != 1 or not len(columns[0]):
            raise ValueError(f"observations of shapes {[c.shape for c in columns]}; need equal (n,), n >= 1")
        if not (columns[3] > 0).all() or not (columns[4] > 0).all():
            raise ValueError("observations: times must be above 0 s")
        return cls(*columns)


@dataclass(frozen=True, slots=True)
class FitResult:
    """Fitted parameters and the objective that they reach."""

    params: PerfParams
    objective: float


class FitObjective:
    """The objective and its gradient (P16), with all that depends on the observations alone worked out once.

    RMSLE(pass time) + RMSLE(step time) + 1e-3 (gamma-1)^2 + 1e-2 ((beta_n/alpha_n)^2 +
    (beta_r/alpha_r)^2): the regularisers prefer little overlap and a small cost of more replicas."""

    def __init__(self, seen: Observations) -> None:
        self._atomic = seen.atomic
        self._log_accum, self._log_step = np.log(seen.accum_s), np.log(seen.step_s)
        across = seen.nodes > 1
        self._across = np.flatnonzero(across)
        self._within = np.flatnonzero(~across & (seen.replicas > 1))
        self._link = np.where(across, 0, np.where(seen.replicas > 1, 1, 2))
        self._extra = np.maximum(seen.replicas - 2, _LEAST)

    def __call__(self, params: Floats, smooth: float = 0.0) -> tuple[float, Floats]:
        """The value at (7,) parameters in the order of :class:`PerfParams`, and its derivatives. ``smooth``: added
        under the roots, squared: rounds off the corner that each root has at a perfect fit."""
        p = PerfParams(*params.tolist())
        compute = p.alpha_c + p.beta_c * self._atomic
        # as sync_time, of which link is in use is known
        alpha = np.array([p.alpha_n, p.alpha_r, _LEAST]).take(self._link)
        sync = alpha + np.array([p.beta_n, p.beta_r, _LEAST]).take(self._link) * self._extra
        log_c, log_s = np.log(compute), np.log(sync)
        log_step = log_step_time(compute, sync, p.gamma)
        miss_c, miss_s = log_c - self._log_accum, log_step - self._log_step
        n = len(miss_c)
        err_c, err_s = (math.sqrt(float(_sum(miss * miss)) / n + smooth**2) for miss in (miss_c, miss_s))
        # At a perfect fit the root has a corner; zero is then the right step.
        pull_c = miss_c / (n * err_c) if err_c > 0 else np.zeros(n)
        pull_s = miss_s / (n * err_s) if err_s > 0 else np.zeros(n)
        part_c = np.exp(p.gamma * (log_c - log_step))  # share of compute in the step, 0..1
        part_s = np.exp(p.gamma * (log_s - log_step))
        by_compute = (pull_c + pull_s * part_c) / compute
        by_sync = pull_s * part_s / sync
        by_extra = by_sync * self._extra
        ratio_n, ratio_r = p.beta_n / p.alpha_n, p.beta_r / p.alpha_r
        gradient = np.array(
            [
                _sum(by_compute),
                _sum(by_compute * self._atomic),
                _sum(by_sync[self._across]) - 2 * _RATIO_WEIGHT * ratio_n**2 / p.alpha_n,
                _sum(by_extra[self._across]) + 2 * _RATIO_WEIGHT * ratio_n / p.alpha_n,
                _sum(by_sync[self._within]) - 2 * _RATIO_WEIGHT * ratio_r**2 / p.alpha_r,
                _sum(by_extra[self._within]) + 2 * _RATIO_WEIGHT * ratio_r / p.alpha_r,
                _sum(pull_s * (part_c * log_c + part_s * log_s - log_step)) / p.gamma
                + 2 * _GAMMA_WEIGHT * (p.gamma - 1),
            ]
        )
        value = err_c + err_s + _GAMMA_WEIGHT * (p.gamma - 1) ** 2 + _RATIO_WEIGHT * (ratio_n**2 + ratio_r**2)
        return float(value), gradient


_sum = np.add.reduce


def _starts(seen: Observations) -> list[Floats]:
    """The authors' starting point, and one read off the data for each of two overlaps."""
    slope, offset = _LEAST, float(seen.accum_s.mean())
    if len(np.unique(seen.atomic)) > 1:
        slope, offset = np.polyfit(seen.atomic, seen.accum_s, 1)
    wait = np.maximum(seen.step_s - seen.accum_s, 1e-3 * seen.step_s)
    across, shared = seen.nodes > 1, seen.replicas > 1
    sync_n = float(wait[across].mean()) if across.any() else 0.1
    sync_r = float(wait[shared & ~across].mean()) if (shared & ~across).any() else 0.1
    read = [max(offset, 1e-4), max(slope, 1e-7), sync_n, 0.02 * sync_n, sync_r, 0.02 * sync_r]
    return [np.array([0.1, 0.01] * 3 + [1.001])] + [np.array([*read, gamma]) for gamma in (1.2, 3.0)]


def fit_perf_params(seen: Observations, *, multi_start: bool = True) -> FitResult:
    """theta_sys that explains the observations best (P16-P19).

    Bounded quasi-Newton search (L-BFGS-B) with the exact gradient. Parameters about which nothing was
    seen stay at their lower bound: those of the network across nodes without an allocation across
    nodes, those within a node without two GPUs of one node (P17, P18), both betas without more than two
    GPUs (P19). If one batch size was seen, half of the pass time counts as constant. Until a job was on
    several nodes, the network across nodes is then taken to be 1.1 times as slow as the one within (P18).

    Args:
        multi_start: start also from parameters read off the data, with a smoothed objective first, and
            keep the best; the authors start from one point, from where the search can get stuck in a
            corner of the objective.

    Returns:
        The parameters, and the objective that they reach."""
    lower = np.array([_LEAST] * 6 + [1.0])
    upper = np.array([np.inf] * 6 + [_MOST_GAMMA])
    fixed: dict[int, float] = {}
    across = bool((seen.nodes > 1).any())
    if len(np.unique(seen.atomic)) == 1:
        fixed[0] = float(seen.accum_s.mean()) / 2
    if not ((seen.nodes == 1) & (seen.replicas > 1)).any():
        fixed |= {4: _LEAST, 5: _LEAST}
    if not (seen.replicas > 2).any():
        fixed |= {3: _LEAST, 5: _LEAST}
    if not across:
        fixed |= {2: _LEAST, 3: _LEAST}
    free = np.array([i for i in range(7) if i not in fixed])
    objective = FitObjective(seen)
    whole = np.zeros(7)
    whole[list(fixed)] = list(fixed.values())

    def complete(x: Floats) -> Floats:
        at = whole.copy()
        at[free] = x
        return at

    def value(x: Floats, smooth: float) -> tuple[float, Floats]:
        result, gradient = objective(complete(x), smooth)
        return result, gradient[free]

    from scipy.optimize import minimize

    def search(x: Floats, smooth: float, options: dict[str, float]) -> Floats:
        bounds = list(zip(lower[free], upper[free], strict=True))
        x = np.clip(x, lower[free], upper[free])
        found = minimize(value, x, args=(smooth,), jac=True, method="L-BFGS-B", bounds=bounds, options=options)
        return np.asarray(found.x)

    candidates = []
    with one_thread():
        for number, start in enumerate(_starts(seen) if multi_start else _starts(seen)[:1]):
            x = start[free]
            if number == 0:
                x = search(x, 0.0, _PUBLISHED)  # with noiseless data, going on from there can do harm
                candidates.append(x)
            for smooth in (0.0,) if number == 0 else (3e-2, 1e-3, 0.0):
                x = search(x, smooth, _EXACT)
            candidates.append(x)
    results = []
    for x in candidates:
        whole_x = complete(x)
        if not across:
            whole_x[2:4] = np.maximum(whole_x[2:4], _ACROSS * whole_x[4:6])
        results.append(FitResult(PerfParams(*whole_x.tolist()), objective(whole_x)[0]))
    return min(results, key=lambda result: result.objective)
