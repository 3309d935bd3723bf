"""What a duration model is asked for and answers: the choice made, estimates, explanations."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import field

from lucid.core.frozen import dataclass
from lucid.models.additive import TermScore
from lucid.models.duration.jobtable import FloatArray, TextArray

__all__ = ["Choice", "Estimates", "Explanation"]


@dataclass(frozen=True, slots=True)
class Choice:
    """Which additive model there is for users on whose jobs it has proved better, and how every candidate did.

    `weight` is that of the additive model (0: there is none). `scores` maps each candidate to its validation score
    relative to the running median: the mean of the ratios of log error and absolute error; below 1 is better.
    """

    name: str = "no model"
    weight: float = 0.0
    scores: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Estimates:
    """Per job, arrays of shape (n,): seconds, and where the estimate comes from (`source`).

    `scale`, shape (n, 2), is how far the user's jobs range below and above the estimate, in logs.
    """

    point_s: FloatArray
    low_s: FloatArray
    high_s: FloatArray
    source: TextArray
    scale: FloatArray
    limit_s: FloatArray


@dataclass(frozen=True, slots=True)
class Explanation:
    """`intercept` and the terms' scores sum to `score`, which is log(estimate + 10 s). `low_s` and `high_s` bound
    the 80 % interval."""

    score: float
    intercept: float
    terms: tuple[TermScore, ...]
    estimate_s: float
    source: str
    low_s: float
    high_s: float

    @property
    def factor(self) -> tuple[tuple[str, str, float], ...]:
        """Term, value and factor: exp(intercept) times all the factors is the estimate + 10 s."""
        return tuple((term.term, term.value, math.exp(term.score)) for term in self.terms)
