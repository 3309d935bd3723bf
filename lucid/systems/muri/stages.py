"""Muri's resource stages: what one iteration of a job asks of storage, CPU, GPU and network (M1-M3)."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["RESOURCES", "MuriJob", "check_stages"]

Floats = NDArray[np.float64]

RESOURCES = ("storage", "cpu", "gpu", "network")
"""The four resources, in the order in which an iteration passes them (M3)."""


@dataclass(frozen=True, slots=True)
class MuriJob:
    """What Muri knows of a job.

    Attributes:
        job_id: the job's name; only compared.
        gpus: GPUs that the job occupies; only jobs of the same count share a group (M12).
        stages: time per iteration on each resource, in one unit of time: k values, or the three values
            (data, GPU, network) of the published traces.
        iteration_s: time of one iteration alone, same unit; None takes the sum of ``stages``.
    """

    job_id: Hashable
    gpus: int
    stages: tuple[float, ...]
    iteration_s: float | None = None

    def __post_init__(self) -> None:
        check_stages(self.stages)
        if self.gpus < 1:
            raise ValueError(f"job {self.job_id!r}: gpus is {self.gpus}; a job needs at least one")

    @property
    def solo_s(self) -> float:
        """Time of one iteration when the job runs alone."""
        return sum(self.stages) if self.iteration_s is None else self.iteration_s


def check_stages(stages: Sequence[float]) -> None:
    """Refuse stage times that no profile can have.

    Raises:
        ValueError: a time is negative or not finite, or all are zero (the job would use nothing).
    """
    if not stages or any(not 0 <= t < float("inf") for t in stages) or not any(stages):
        raise ValueError(f"stage times {tuple(stages)}: need finite times >= 0, at least one above 0")
