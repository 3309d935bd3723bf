"""The elastic data-sharing platform: GPUs of running jobs grow and shrink by dynamic programming."""

from lucid.systems.elastic.allocation import (
    DEFAULT_RESCALE_S,
    EfRule,
    ElasticJob,
    Resize,
    ef_gpus,
    rescale,
)
from lucid.systems.elastic.dp import expand, reduce
from lucid.systems.elastic.placement import NotEnoughGpus, best_fit
from lucid.systems.elastic.replay import Outcome, Rule, replay
from lucid.systems.elastic.speed import EpochTimes
from lucid.systems.elastic.workload import CLASSES, MIXES, MODELS, ElasticModel, ElasticRequest, draw_set

__all__ = [
    "CLASSES",
    "DEFAULT_RESCALE_S",
    "MIXES",
    "MODELS",
    "EfRule",
    "ElasticJob",
    "ElasticModel",
    "ElasticRequest",
    "EpochTimes",
    "NotEnoughGpus",
    "Outcome",
    "Resize",
    "Rule",
    "best_fit",
    "draw_set",
    "ef_gpus",
    "expand",
    "reduce",
    "replay",
    "rescale",
]
