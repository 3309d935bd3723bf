"""How many random examples a property is tried with."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

_SHARE = float(os.environ.get("LUCID_EXAMPLES_SHARE", "1"))
_AS_FOUND = (Phase.explicit, Phase.reuse, Phase.generate)


def examples(count: int, least: int = 1) -> int:
    """``count``, or that share of it that the environment's LUCID_EXAMPLES_SHARE says: a tenth in ``make test``,
    more than all in ``make nightly``; and no fewer than ``least``."""
    return max(round(count * _SHARE), least)


class Dice(random.Random):
    """Chance from a number that a failure prints: ``Dice(7)`` draws the same scene again."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number

    def __repr__(self) -> str:
        return f"Dice({self.number})"


def tried(count: int, least: int = 20) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Tries a property of random scenes with so many ``rng``, as ``examples`` counts.

    hypothesis draws one number for a scene. Drawing each choice within a scene took more time than most properties
    themselves. A failure is not shrunk: it prints the number, which draws the same scene again.
    """

    def prepared(test: Callable[..., None]) -> Callable[..., None]:
        drawn: Any = given(rng=st.integers(0, 2**32 - 1).map(Dice))
        often = settings(
            max_examples=examples(count, min(count, least)),
            deadline=None,
            phases=_AS_FOUND,
            suppress_health_check=list(HealthCheck),
        )
        made: Callable[..., None] = often(drawn(test))
        return made

    return prepared
