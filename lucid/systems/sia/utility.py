"""What each bundle is worth to each job: normalised goodput to a power, less what a restart costs (section 3.3)."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["utilities"]

Floats = NDArray[np.float64]

_WORST = 1e3
"""Where a negative power would have no bound: no job is worth more than this to the sum."""


def utilities(goodput: ArrayLike, least: ArrayLike, present: ArrayLike, restart: ArrayLike, p: float) -> Floats:
    """(J, C) a job's part of the sum with each bundle; NaN where it cannot have the bundle.

    Args:
        goodput: (J, C) goodput on each bundle; 0 or NaN where the job cannot use it.
        least: (J,) fewest GPUs of each job: what the smallest goodput of a row counts.
        present: (J,) number of the bundle that the job has, -1 for none.
        restart: (J,) factor on all other bundles of a job that has one.
        p: fairness; with a negative power the sum is to be as small as possible.

    Raises:
        ValueError: ``p`` is 0, with which all bundles would be worth the same.
    """
    if p == 0:
        raise ValueError("p must not be 0: all bundles would be worth the same")
    raw = np.asarray(goodput, dtype=np.float64)
    usable = np.where(np.isfinite(raw) & (raw > 0), raw, np.nan)
    worst = np.where(np.isnan(usable), np.inf, usable).min(axis=1, initial=np.inf)
    worst = np.where(np.isfinite(worst), worst, 1.0)
    value = usable / worst[:, None] * np.asarray(least, dtype=np.float64)[:, None]
    held = np.asarray(present, dtype=np.intp)
    moves = (held >= 0)[:, None] & (np.arange(raw.shape[1])[None, :] != held[:, None])
    value = np.where(moves, value * np.asarray(restart, dtype=np.float64)[:, None], value)
    with np.errstate(divide="ignore"):
        return np.asarray(np.minimum(value**p, _WORST))
