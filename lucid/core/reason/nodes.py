"""Reasons of nodes that sleep, and of jobs that are started until their nodes close."""

from __future__ import annotations

from lucid.core.frozen import dataclass
from lucid.core.reason.base import Reason
from lucid.core.rounding import reached

__all__ = ["Rests"]


@dataclass(frozen=True, slots=True)
class Rests(Reason):
    """Has the job, for which nodes that are awake have no room, waited for less than the ``share`` of its estimate
    after which a node is woken for it?"""

    waited_s: float
    estimate_s: float
    share: float

    @property
    def patience_s(self) -> float:
        """For how long it waits."""
        return self.share * self.estimate_s

    def __bool__(self) -> bool:
        return not reached(self.waited_s, self.patience_s)
