"""Users and their projects: why a job's user and name say something, not everything, of how long it runs."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import accumulate
from random import Random

from lucid.simulator.traces.synth.settings import SynthSettings, Vc
from lucid.simulator.traces.synth.workloads import WORKLOADS, Workload

__all__ = ["LIMITS_S", "Template", "User", "people_of"]

LIMITS_S = tuple(hours * 3600.0 for hours in (0.25, 0.5, 1, 2, 4, 8, 12, 24, 48, 72, 120, 168, 240, 336))
"""Time limits that people ask for."""

_KNOBS = (
    *("lr0.1", "lr0.01", "lr3e-4", "lr1e-4", "bs64", "bs256"),
    *("wd1e-4", "drop0.2", "seed1", "seed2", "aug", "ema"),
)


@dataclass(frozen=True, slots=True)
class _Kind:
    """A kind of work: median run time (seconds, before the load is fitted), how often, and its usual GPUs."""

    verb: str
    weight: float
    median_s: float
    spread: float
    most_gpus: int


_KINDS = (
    _Kind("eval", 0.24, 420.0, 0.5, 2),
    _Kind("prep", 0.08, 900.0, 0.7, 1),
    _Kind("tune", 0.26, 3000.0, 0.8, 8),
    _Kind("train", 0.32, 15000.0, 1.0, 32),
    _Kind("pretrain", 0.10, 70000.0, 0.9, 32),
)
"""Medians of projects are spread log-normally (sigma ``spread``) round that of their kind."""


@dataclass(slots=True)
class Template:
    """A project that its user submits again and again: ``median_s`` and ``sigma`` make its log-normal run time.

    ``center_s`` and ``width_s`` say when in the history it is worked on; ``version`` counts submissions.
    """

    name: str
    gpus: int
    workload: Workload
    median_s: float
    sigma: float
    crash: float
    generous: float | None
    cpus: int
    mem_mib: int
    weight: float
    center_s: float
    width_s: float
    version: int = 0
    knobs: tuple[str, ...] = ()

    def interest(self, at_s: float) -> float:
        """How likely its user works on it at that time, relative to the user's other projects."""
        return self.weight * (0.03 + math.exp(-(((at_s - self.center_s) / self.width_s) ** 2)))


@dataclass(slots=True)
class User:
    """Somebody with projects. ``name`` and ``vc`` as jobs show them."""

    name: str
    vc: str
    account: str
    templates: list[Template] = field(default_factory=list)
    debugs: float = 1.0
    """How often debugging runs come first, as a multiple of what is usual."""

    def pick(self, at_s: float, rng: Random) -> Template:
        """The project worked on at that time."""
        weights = [template.interest(at_s) for template in self.templates]
        return rng.choices(self.templates, weights)[0]


def people_of(vc: Vc, settings: SynthSettings, first: int, rng: Random) -> tuple[list[User], list[float]]:
    """Users of one VC, numbered from ``first``, and their running sums of activity (for ``random.choices``)."""
    counts = [rng.randint(*settings.templates) for _ in range(vc.users)]
    deck = _deck(
        settings, settings.gpus_per_node * max(1, int(vc.nodes * settings.largest)), sum(counts) - vc.users, rng
    )
    users = []
    for number, count in enumerate(counts):
        user = User(f"user{first + number:03d}", vc.name, f"{vc.name}-{'ab'[number % 2]}")
        # somebody's main project asks for one GPU: most jobs do, though most GPU time is not theirs
        user.templates = [_template(settings, deck.pop() if k else 1, k, rng) for k in range(count)]
        if settings.user_spread:
            slower, user.debugs = rng.lognormvariate(0.0, settings.user_spread), rng.choice((0.1, 0.5, 1.2, 2.0))
            for template in user.templates:
                template.median_s *= slower
        users.append(user)
    weights = [(k + 1) ** -settings.user_zipf for k in range(vc.users)]
    return users, list(accumulate(weights))


def _deck(settings: SynthSettings, most_gpus: int, count: int, rng: Random) -> list[int]:
    """GPU counts for so many projects: in the wanted shares as exactly as whole numbers can be, then shuffled.
    Dealt, not drawn, since a VC has few large projects and one more or less would be a different cluster."""
    sizes = [(gpus, share) for gpus, share in settings.gpu_shares if gpus <= most_gpus] or [(1, 1.0)]
    whole = sum(share for _, share in sizes)
    deck: list[int] = []
    reached = 0.0
    for gpus, share in sizes:
        reached += share / whole
        deck.extend([gpus] * (round(reached * count) - len(deck)))
    rng.shuffle(deck)
    return deck


def _template(settings: SynthSettings, gpus: int, k: int, rng: Random) -> Template:
    kinds = [kind for kind in _KINDS if gpus <= kind.most_gpus] or [_KINDS[-1]]
    kind = rng.choices(kinds, [kind.weight for kind in kinds])[0]
    workload = rng.choice(WORKLOADS)
    median_s = kind.median_s * rng.lognormvariate(0.0, kind.spread) * gpus**settings.large_longer
    return Template(
        name=f"{kind.verb}-{workload.family.removeprefix('syn-')}",
        gpus=gpus,
        workload=workload,
        median_s=median_s,
        sigma=rng.uniform(0.2, 0.8),
        crash=rng.uniform(0.5, 1.5),
        generous=None if rng.random() < 0.15 else rng.uniform(2.0, 8.0),
        cpus=gpus * rng.choice((4, 6, 8, 8, 10, 12)),
        mem_mib=gpus * 1024 * rng.choice((16, 24, 32, 48, 60)),
        weight=1.0 / (k + 1),
        center_s=rng.uniform(0.0, settings.days * 86400.0),
        width_s=rng.uniform(0.15, 0.6) * settings.days * 86400.0,
        knobs=tuple(rng.sample(_KNOBS, 4)),
    )
