"""What the models say of a job. Knowledge, never truth: an oracle is a predictor too, and says so."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["JUMBO", "MEDIUM", "TINY", "Prediction", "StageTimes"]

TINY, MEDIUM, JUMBO = 0, 1, 2
"""Share scores (acceptance row L8)."""


@dataclass(frozen=True, slots=True)
class StageTimes:
    """What a dry run showed of one iteration of a job alone on its GPUs.

    ``times_s``: seconds on each resource, in the order in which an iteration passes them (storage, CPU, GPU,
    network; or data, GPU, network where loading was not taken apart). ``iteration_s``: seconds of the whole
    iteration. ``start_s``: seconds from a start, or a restart, to the first iteration.
    """

    times_s: tuple[float, ...]
    iteration_s: float
    start_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Prediction:
    """``duration_s``: expected run time alone on its GPUs, from start to end. ``share_score``: 0, 1, 2, or
    ``None`` as long as nobody has measured the job. The sources name the predictor, for explanations.
    ``stages``: what a dry run of the job's model showed, if there was one.

    Of an elastic job, where the predictor can say: ``epochs``, passes over its data in all, and ``epoch_s``,
    seconds for one of them on 1, 2, ... GPUs of as few nodes as possible, with the batch as submitted."""

    duration_s: float
    duration_source: str
    share_score: int | None = None
    share_source: str = ""
    epochs: float | None = None
    epoch_s: tuple[float, ...] = ()
    stages: StageTimes | None = None

    def remaining_s(self, ran_s: float) -> float:
        """Expected remaining seconds of a job that has already run ``ran_s``.

        Inside the estimate the rest of it; a job that has outlived its estimate is expected to go on for as
        long again as it has run (durations are heavy-tailed: for a Pareto tail with index 2 the mean residual
        life equals the age).
        """
        return max(self.duration_s - ran_s, ran_s if self.outlived(ran_s) else 0.0)

    def outlived(self, ran_s: float) -> bool:
        """Has a job that ran this long reached its estimate?"""
        # a look again at start + estimate may come out a rounding error early
        return ran_s >= self.duration_s - 1e-6
