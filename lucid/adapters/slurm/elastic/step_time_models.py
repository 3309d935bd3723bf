"""Models of step times, fitted to what jobs report (``profile``), for jobs whose agent does not fit them itself."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass

from lucid.adapters.slurm.elastic.training_reports import Profile

__all__ = ["StepModels"]

_ROUND_S = 1.0
"""Seconds of a look that fits may take: the one that passes this is the last. The others have their turn later."""


@dataclass(frozen=True, slots=True)
class _Fitted:
    rows: Profile
    model: tuple[float, ...]


class StepModels:
    """By job, the model that was fitted last. A job's rows are fitted again only once they have changed."""

    def __init__(self, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self._monotonic_s = monotonic_s
        self._fitted: dict[str, _Fitted] = {}
        self._look_s = float("-inf")
        self._spent_s = 0.0

    def of(self, job_id: str, rows: Profile, now_s: float) -> tuple[float, ...]:
        """Pollux's seven parameters for a job that reports these rows; empty where there are none, or none yet.

        ``now_s``: of the look, which all its jobs have in common."""
        if now_s != self._look_s:
            self._look_s, self._spent_s = now_s, 0.0
        before = self._fitted.get(job_id)
        if not rows:
            return ()
        if before is not None and before.rows == rows:
            return before.model
        if self._spent_s >= _ROUND_S:
            return () if before is None else before.model
        began_s = self._monotonic_s()
        model = _fit(rows)
        self._spent_s += self._monotonic_s() - began_s
        self._fitted[job_id] = _Fitted(rows, model)
        return model

    def forget_all_but(self, alive: Collection[str]) -> None:
        """Jobs that have left need nothing kept."""
        for job_id in [job_id for job_id in self._fitted if job_id not in alive]:
            del self._fitted[job_id]


def _fit(rows: Profile) -> tuple[float, ...]:
    """Empty where the rows lead to no model."""
    import numpy as np  # not before a job reports rows: commands that read no reports start without scipy

    from lucid.systems.pollux import Observations, fit_perf_params

    try:
        with np.errstate(all="ignore"):
            seen = Observations.of(*zip(*rows, strict=True))
            found = fit_perf_params(seen).params
    except (ValueError, ArithmeticError, np.linalg.LinAlgError):
        return ()
    whole = all(np.isfinite(value) and value >= 0 for value in found)
    return tuple(float(value) for value in found) if whole else ()
