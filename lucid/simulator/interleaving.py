"""How fast the members of an interleaved group really run: what only a replay knows."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from lucid.core.prediction import StageTimes
from lucid.systems.muri import PUBLISHED, Ordering, Overhead, best_ordering

__all__ = ["Interleaving"]


class Interleaving:
    """An executor that lets the members of a group take turns: in each round every member does one iteration.

    Args:
        resources: k, over which a round is laid out.
        ordering: in which order members enter a round; "worst" is an ablation.
        overhead: factors on the round by the number of members.
    """

    def __init__(self, resources: int = 4, ordering: Ordering = "best", overhead: Overhead = PUBLISHED) -> None:
        self._resources = resources
        self._ordering = ordering
        self._overhead = overhead

    def speeds(self, members: Sequence[StageTimes]) -> list[float]:
        """Speed of each member, 1.0 being as fast as alone: its iteration alone over the period of a round, which no
        member beats."""
        if len(members) == 1:
            return [1.0]
        # which of two equal groups is listed first must not matter, nor be computed twice
        times = tuple(sorted(member.times_s for member in members))
        period_s = _period_s(times, self._resources, self._ordering) * self._overhead.factor(len(members))
        return [min(member.iteration_s / period_s, 1.0) for member in members]


@lru_cache(maxsize=65536)
def _period_s(times: tuple[tuple[float, ...], ...], resources: int, ordering: Ordering) -> float:
    return best_ordering(times, resources, ordering)[0]
