"""How long an epoch takes on g GPUs: preset, then recorded, then fitted (E13)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

__all__ = ["EpochTimes"]

Floats = NDArray[np.float64]

_FIT_FROM = 3


class EpochTimes:
    """f_i(g) of one job: the time of one epoch on g GPUs, wherever they are.

    A recorded count is used as is (the mean of its records). An unrecorded one comes from the preset
    table until three different counts are recorded, then from the fit
    ``f(g) = a/g + b + c (g - 1)``, a, b, c >= 0 by least squares: work that divides, work that does
    not, and the cost of a ring of g. The document names least squares, not the form.

    Args:
        preset: (P,) time of one epoch on 1..P GPUs.

    Raises:
        ValueError: the preset is empty or holds a time that is not above 0.
    """

    def __init__(self, preset: Sequence[float]) -> None:
        self.preset: Floats = np.asarray(preset, dtype=np.float64)
        if self.preset.ndim != 1 or not len(self.preset) or not (self.preset > 0).all():
            raise ValueError("preset epoch times: need one time above 0 for each number of GPUs")
        self._records: dict[int, list[float]] = {}

    def record(self, gpus: int, epoch_s: float) -> None:
        """Note an epoch that took ``epoch_s`` on ``gpus`` GPUs.

        Raises:
            ValueError: the GPUs are not 1..P or the time is not above 0.
        """
        if not 1 <= gpus <= len(self.preset) or not epoch_s > 0:
            raise ValueError(f"an epoch of {epoch_s} on {gpus} GPUs; need 1..{len(self.preset)}, above 0")
        self._records.setdefault(gpus, []).append(epoch_s)

    def times(self) -> Floats:
        """(P,) time of one epoch on 1..P GPUs, as known now."""
        counts = np.array(sorted(self._records), dtype=np.float64)
        seen = np.array([np.mean(self._records[int(g)]) for g in counts])
        out = self.preset.copy()
        if len(counts) >= _FIT_FROM:
            # Relative errors, so that the slow small counts do not drown the fast large ones.
            from scipy.optimize import nnls

            weighted, _ = nnls(_terms(counts) / seen[:, None], np.ones(len(seen)))
            out = _terms(np.arange(1, len(out) + 1, dtype=np.float64)) @ weighted
        out[counts.astype(np.intp) - 1] = seen
        return out


def _terms(gpus: Floats) -> Floats:
    return np.stack([1 / gpus, np.ones_like(gpus), gpus - 1], axis=1)
