"""What a job's agent does: noise scale, learning rate for a batch, report (P6, P9, P22, P23)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lucid.errors import ConfigError
from lucid.systems.pollux.goodput import GoodputModel, GradParams, PerfParams

__all__ = [
    "LR_RULES",
    "GradientMean",
    "gradient_statistics",
    "learning_rate_factor",
    "noise_scale",
    "read_hints",
]

Floats = NDArray[np.float64]

LR_RULES = ("adascale", "linear", "sqrt")
"""Rules by which the learning rate follows the batch size (P9)."""

_HINTS = (
    "initBatchSize",
    "maxBatchSize",
    "localBszBounds",
    "maxProfiledReplicas",
    "perfParams",
    "gradParams",
    "globalBatchSize",
    "gradientAccumulation",
)
"""The eight keys of AdaptDL's agent. The last two say what the job does now, which no decision needs."""


def noise_scale(grad: GradParams, init: float) -> float:
    """phi, in samples: M0 var / sqr (P6, P7); infinite where the mean gradient vanishes."""
    return math.inf if grad.sqr <= 0 else init * grad.var / grad.sqr


def learning_rate_factor(rule: str, init: float, batch: float, grad: GradParams | None = None) -> float:
    """lambda, by which the learning rate is multiplied for a batch of ``batch`` samples (P9, P22).

    Args:
        rule: "linear": M/M0; "sqrt": its root; "adascale": the gain
            (var + sqr) / (var M0/M + sqr), between 1 and M/M0.
        init: M0, samples.
        batch: M, samples.
        grad: gradient statistics at M0; only AdaScale needs them.

    Raises:
        ConfigError: the rule is not known, or AdaScale lacks its statistics.
    """
    ratio = batch / init
    if rule == "linear":
        return ratio
    if rule == "sqrt":
        return math.sqrt(ratio)
    if rule != "adascale" or grad is None:
        known = ", ".join(LR_RULES)
        raise ConfigError(f"learning-rate rule {rule!r}; known are {known} (adascale needs gradient statistics)")
    denominator = grad.var / ratio + grad.sqr
    return (grad.var + grad.sqr) / denominator if denominator > 0 else 1.0


def gradient_statistics(gradients: ArrayLike, scale: float) -> GradParams:
    """Unbiased squared norm and variance from the gradients of one step's parts (P6).

    Args:
        gradients: (parts, parameters), one row for each GPU and pass, at least two; preconditioned
            already if the optimiser preconditions.
        scale: the step's batch size over M0.

    Returns:
        The statistics at M0; the squared norm can be negative in a single step, so average over steps.

    Raises:
        ValueError: there are fewer than two rows: variance cannot be told from one.
    """
    rows = np.asarray(gradients, dtype=np.float64)
    if rows.ndim != 2 or len(rows) < 2:
        raise ValueError(f"gradients of shape {rows.shape}: need at least two rows")
    count = len(rows)
    local = float((rows**2).sum(axis=1).mean())
    total = float((rows.mean(axis=0) ** 2).sum())
    return GradParams((count * total - local) / (count - 1), (local - total) * scale / (count - 1))


class GradientMean(NamedTuple):
    """Running mean of gradient statistics, corrected for its start from zero.

    A step counts as much as its batch is large: the memory is 0.999 to the power of M/M0.
    """

    sqr: float = 0.0
    var: float = 0.0
    weight: float = 0.0

    def add(self, step: GradParams, scale: float) -> GradientMean:
        """The mean with one more step of ``scale`` = M/M0."""
        keep = 0.999**scale
        return GradientMean(
            keep * self.sqr + (1 - keep) * step.sqr,
            keep * self.var + (1 - keep) * step.var,
            keep * self.weight + (1 - keep),
        )

    def value(self) -> GradParams:
        """The mean so far; squared norm at least 0, variance at least 1e-6."""
        if self.weight == 0:
            return GradParams(1.0, 0.0)
        return GradParams(max(self.sqr / self.weight, 0.0), max(self.var / self.weight, 1e-6))


def read_hints(hints: Mapping[str, Any]) -> GoodputModel | None:
    """The goodput model in an agent's report (P23).

    Args:
        hints: keys as AdaptDL's agent sends them; all may be absent.

    Returns:
        The model, or None while parameters, statistics or the initial batch size are missing.

    Raises:
        ConfigError: a key is not known.
    """
    unknown = sorted(set(hints) - set(_HINTS))
    if unknown:
        raise ConfigError(f"hints: unknown {', '.join(unknown)}; known are {', '.join(_HINTS)}")
    perf, grad, init = (hints.get(k) for k in ("perfParams", "gradParams", "initBatchSize"))
    if not perf or not grad or not init:
        return None
    return GoodputModel(
        PerfParams(*(float(perf[name]) for name in PerfParams._fields)),
        GradParams(float(grad["norm"]), float(grad["var"])),
        int(init),
    )
