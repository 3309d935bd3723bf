"""The elastic data-sharing platform: GPUs of running jobs grow and shrink by dynamic programming."""

from lucid.systems.elastic.allocation import (
    EfRule,
    ElasticJob,
    Resize,
    ef_gpus,
    rescale,
)
from lucid.systems.elastic.dp import expand, reduce
from lucid.systems.elastic.placement import NotEnoughGpus, best_fit
from lucid.systems.elastic.speed import EpochTimes

__all__ = [
    "EfRule",
    "ElasticJob",
    "EpochTimes",
    "NotEnoughGpus",
    "Resize",
    "best_fit",
    "ef_gpus",
    "expand",
    "reduce",
    "rescale",
]
