"""By how much pairs missed what was expected of them: pairs that nobody has seen are expected to miss it likewise.

What is expected of a pair comes from measurements on some card, mostly another one than the site's.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Final

__all__ = ["PAIRS_KEPT", "PairMisses"]

PAIRS_KEPT: Final = 200
"""Newest pairs that count."""
_AS_EXPECTED: Final = 5
"""So many jobs that ran as expected count beside those seen, of all jobs and of each workload."""
_UNIT: Final = 1e-6
"""Misses are added up as whole numbers of this, so that the order in which pairs come and go leaves no trace."""

Side = tuple[str, float]
"""The workload of one job of a pair, and its speed less the expected one."""


class PairMisses:
    """The mean miss of all jobs, and of each workload beyond that."""

    def __init__(self) -> None:
        self._kept: dict[str, Sequence[Side]] = {}
        self._all = [0, 0]
        self._by: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0])

    def note(self, jobs: str, sides: Sequence[Side]) -> None:
        """Count a pair, which ``jobs`` names; of each the latest counts."""
        self._count(self._kept.pop(jobs, ()), -1)
        self._kept[jobs] = sides
        self._count(sides, 1)
        if len(self._kept) > PAIRS_KEPT:
            self._count(self._kept.pop(next(iter(self._kept))), -1)

    def expected(self, workload: str) -> float:
        """What to add to the expected speed of a job of this workload (empty: not known which)."""
        total, jobs = self._all
        miss = total / (jobs + _AS_EXPECTED)
        if workload in self._by:
            own, known = self._by[workload]
            miss += (own - known * miss) / (known + _AS_EXPECTED)
        return miss * _UNIT

    def _count(self, sides: Sequence[Side], sign: int) -> None:
        for workload, miss in sides:
            for sums in (self._all, self._by[workload]) if workload else (self._all,):
                sums[0] += sign * round(miss / _UNIT)
                sums[1] += sign
