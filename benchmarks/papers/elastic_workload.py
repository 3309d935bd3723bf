"""The elastic platform's experiment: sets of 20 requests, four mixes, three arrival means (E17, E18).

The tables with the models' epoch times and the mixes' percentages are missing from the document. These
here follow its prose: five image models at 1-2 minutes an epoch on one GPU and three enlarged AlexNets
at 10 minutes and more; only the first mix has micro jobs, the second has many small ones, the fourth
many large ones. What a further GPU costs (12 GPUs on three servers with 10 Gbit Ethernet) is not given
either; here twelve are worth 4.6 to 6.7. The gain over EF rests on this: see ``docs/papers-peers.md``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lucid.errors import ConfigError

__all__ = ["CLASSES", "MIXES", "MODELS", "ElasticModel", "ElasticRequest", "draw_set"]

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class ElasticModel:
    """A model of the experiment.

    Attributes:
        name: its name.
        epoch_min: minutes of one epoch on one GPU.
        sync: part of that time that every further GPU adds ("time close to inverse in the number of
            like nodes").
    """

    name: str
    epoch_min: float
    sync: float

    def epoch_s(self, total_gpus: int) -> Floats:
        """(total_gpus,) seconds of one epoch on 1..total_gpus GPUs: (1/g + sync (g-1)) of the time on one."""
        g = np.arange(1, total_gpus + 1, dtype=np.float64)
        return 60.0 * self.epoch_min * (1 / g + self.sync * (g - 1))


MODELS = (
    ElasticModel("resnet18", 1.0, 0.006),
    ElasticModel("mobilenet", 1.2, 0.006),
    ElasticModel("googlenet", 1.5, 0.006),
    ElasticModel("resnet50", 1.8, 0.006),
    ElasticModel("vgg16", 2.0, 0.006),
    ElasticModel("alexnet-x4", 10.0, 0.012),
    ElasticModel("alexnet-x6", 12.5, 0.012),
    ElasticModel("alexnet-x8", 15.0, 0.012),
)

CLASSES = {"micro": (6.0, 10.0), "small": (11.0, 60.0), "medium": (61.0, 120.0), "large": (121.0, 480.0)}
"""Minutes of a whole training on one GPU; the upper end of "large" is not given and is taken as 8 hours."""

MIXES = {
    "workload1": {"micro": 0.25, "small": 0.25, "medium": 0.25, "large": 0.25},
    "workload2": {"small": 0.6, "medium": 0.25, "large": 0.15},
    "workload3": {"small": 0.34, "medium": 0.33, "large": 0.33},
    "workload4": {"small": 0.15, "medium": 0.25, "large": 0.6},
}
"""Part of the jobs in each class."""


@dataclass(frozen=True, slots=True)
class ElasticRequest:
    """One request: a model and a number of epochs, never GPUs (E21)."""

    arrival_s: float
    model: ElasticModel
    epochs: int
    size: str


def draw_set(
    mix: str,
    mean_min: float,
    seed: int,
    jobs: int = 20,
    *,
    models: Sequence[ElasticModel] = MODELS,
    classes: Mapping[str, tuple[float, float]] = CLASSES,
) -> list[ElasticRequest]:
    """A random set of requests (E18).

    A class is drawn from the mix, a model of which at least one whole number of epochs falls into the
    class's range, then such a number, all uniformly. Intervals are exponential: the document says
    "Poisson", read as a Poisson process. The first request arrives at 0.

    Args:
        mix: a name in :data:`MIXES`.
        mean_min: mean interval, minutes (the document: 10, 15, 20).
        seed: of the random draw.
        jobs: requests in the set.
        models: models to draw from.
        classes: minutes of a whole training on one GPU, by class.

    Returns:
        The requests by arrival.

    Raises:
        ConfigError: the mix is not known.
    """
    if mix not in MIXES:
        raise ConfigError(f"mix {mix!r} is not known; known are {', '.join(MIXES)}")
    rng = np.random.default_rng(seed)
    names = list(MIXES[mix])
    arrivals = np.concatenate([[0.0], np.cumsum(rng.exponential(60.0 * mean_min, jobs - 1))])
    out = []
    for arrival, name in zip(
        arrivals.tolist(), rng.choice(names, size=jobs, p=list(MIXES[mix].values())).tolist(), strict=True
    ):
        low, high = classes[name]
        ranges = [(model, int(np.ceil(low / model.epoch_min)), int(high // model.epoch_min)) for model in models]
        model, first, last = [r for r in ranges if r[1] <= r[2]][int(rng.integers(sum(r[1] <= r[2] for r in ranges)))]
        out.append(ElasticRequest(arrival, model, int(rng.integers(first, last + 1)), name))
    return out
