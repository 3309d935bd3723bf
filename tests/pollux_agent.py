"""What a job's agent does, as published (P6, P9, P22): the reference for slurm/lucid_torch.py."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from lucid.orchestrator.policies.rounds.goodput import GradParams

RULES = ("adascale", "linear", "sqrt")


def learning_rate_factor(rule: str, init: float, batch: float, grad: GradParams | None = None) -> float:
    """lambda, by which the learning rate is multiplied for a batch of M samples, M0 being the first (P9, P22).
    AdaScale's is the gain (var + sqr) / (var M0/M + sqr) by the statistics at M0, between 1 and M/M0."""
    ratio = batch / init
    if rule == "linear":
        return ratio
    if rule == "sqrt":
        return math.sqrt(ratio)
    if rule != "adascale" or grad is None:
        raise ValueError(rule)
    denominator = grad.var / ratio + grad.sqr
    return (grad.var + grad.sqr) / denominator if denominator > 0 else 1.0


def gradient_statistics(gradients: ArrayLike, scale: float) -> GradParams:
    """Unbiased squared norm and variance at M0 from the gradients of one step's parts (P6): one row for each GPU and
    pass, preconditioned already if the optimiser preconditions. ``scale``: the step's batch size over M0. The squared
    norm can be negative in a single step, so average over steps."""
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
