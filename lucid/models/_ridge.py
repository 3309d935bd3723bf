"""Penalised least squares with a block held non-positive, refitted fast when rows are left out.

Leaving a workload or a configuration out hundreds of times (nested cross-validation) must not cost hundreds
of passes over the data: the normal equations are summed once and the left-out rows subtracted.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["FallingRidge"]

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]

_SWEEPS = 1000
_TOLERANCE = 1e-10
_INTERCEPT_PENALTY = 1e-9  # keeps the system regular when every row is left out of some column


class FallingRidge:
    """min ||y - b0 - F b - X c||^2 + sum_j p_j b_j^2 + sum_k q_k c_k^2 subject to b <= 0.

    `falling` is F, shape (n, j); `free` is X, shape (n, k); `falling_penalty` (j,) and `free_penalty` (k,)
    are p and q. The intercept b0 is not penalised.
    """

    def __init__(
        self,
        falling: FloatArray,
        free: FloatArray,
        target: FloatArray,
        falling_penalty: FloatArray,
        free_penalty: FloatArray,
    ) -> None:
        self._falling = falling.shape[1]
        # Signs turned, so that the bound becomes the usual b >= 0.
        self._design = np.concatenate([-falling, free, np.ones((len(target), 1))], axis=1)
        self._target = target
        self._penalty = np.diag(np.concatenate([falling_penalty, free_penalty, [_INTERCEPT_PENALTY]]))
        self._gram = self._design.T @ self._design
        self._moment = self._design.T @ target

    def fit(self, left_out: BoolArray | None = None) -> FloatArray:
        """Coefficients (j + k + 1,): falling, free, intercept; marked rows (n,) do not count."""
        gram, moment = self._gram + self._penalty, self._moment
        if left_out is not None:
            rows = self._design[left_out]
            gram = gram - rows.T @ rows
            moment = moment - rows.T @ self._target[left_out]
        bound, free = slice(0, self._falling), slice(self._falling, None)
        # The free block is eliminated exactly (Schur complement); what remains is small and bounded.
        solved = np.linalg.solve(gram[free, free], np.column_stack([gram[free, bound], moment[free]]))
        reduced = gram[bound, bound] - gram[bound, free] @ solved[:, :-1]
        beta = _nonnegative(reduced, moment[bound] - gram[bound, free] @ solved[:, -1])
        return np.concatenate([-beta, solved[:, -1] - solved[:, :-1] @ beta])

    def predict(self, coefficients: FloatArray, rows: npt.NDArray[np.intp]) -> FloatArray:
        """Fitted values of some of the rows, shape (len(rows),)."""
        turned = coefficients.copy()
        turned[: self._falling] *= -1.0
        return np.asarray(self._design[rows] @ turned, dtype=np.float64)


def _nonnegative(gram: FloatArray, moment: FloatArray) -> FloatArray:
    """min b'Gb/2 - m'b with b >= 0 by coordinate descent (G is positive definite: it converges)."""
    beta = np.maximum(np.linalg.solve(gram, moment), 0.0)
    slope = gram @ beta - moment
    for _ in range(_SWEEPS):
        largest = 0.0
        for j in range(len(beta)):
            step = max(-slope[j] / gram[j, j], -beta[j])
            if step != 0.0:
                beta[j] += step
                slope += step * gram[:, j]
                largest = max(largest, abs(step))
        if largest < _TOLERANCE:
            break
    return np.asarray(beta, dtype=np.float64)
