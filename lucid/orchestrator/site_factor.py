"""Order mode: a job's place in the queue as a number that Slurm adds to its priority.

The number follows from the job alone (estimate x GPUs), not from its rank: a rank changes with every arrival, and
each change would be a command to Slurm. It is bounded, so that QOS, age and fair-share keep their say, and
comes in steps, so that a slightly different estimate changes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from lucid.core.prediction import Prediction
from lucid.core.snapshot import Partition

__all__ = ["STEPS", "factor_of", "site_factors"]

STEPS = 20
_LEAST_GPU_S = 1.0
_MOST_GPU_S = 100 * 86400.0


def factor_of(gpu_s: float, bound: int) -> int:
    """``bound`` for a second of one GPU or less, 0 for 100 GPU-days or more, in `STEPS` equal steps between, by the
    logarithm: durations span orders of magnitude."""
    clipped = min(max(gpu_s, _LEAST_GPU_S), _MOST_GPU_S)
    share = 1.0 - math.log(clipped / _LEAST_GPU_S) / math.log(_MOST_GPU_S / _LEAST_GPU_S)
    return round(bound * round(share * STEPS) / STEPS)


def site_factors(partition: Partition, predictions: Mapping[str, Prediction], bound: int) -> dict[str, int]:
    """The site factor of each pending job."""
    return {
        entry.job.id: factor_of(predictions[entry.job.id].duration_s * entry.job.gpus, bound)
        for entry in partition.pending
        if entry.job.id in predictions
    }
