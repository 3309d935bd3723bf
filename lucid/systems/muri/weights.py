"""Efficiencies of merged groups, each computed once: jobs of one model have one profile."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from lucid.systems.muri.interleave import Ordering, Overhead, efficiencies
from lucid.systems.muri.stages import MuriJob

__all__ = ["GammaTable"]

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]

_MOST_GROUPS = 2048  # kinds of groups from which the table, a square of this side, starts anew


class GammaTable:
    """Remembers gamma by the profiles of the jobs merged, whoever they are (M9).

    A group counts by the multiset of its members' profiles, for the best and the worst ordering do not
    depend on the order in which the members stand.

    Args:
        k: number of resources.
        ordering: "best" or "worst".
        overhead: factors on the period.

    Raises:
        ValueError: the ordering is "given", which does depend on the order.
    """

    def __init__(self, k: int, ordering: Ordering, overhead: Overhead) -> None:
        if ordering == "given":
            raise ValueError("weights need ordering 'best' or 'worst'")
        self.k, self.ordering, self.overhead = k, ordering, overhead
        self._clear()

    def _clear(self) -> None:
        self._profile_ids: dict[tuple[tuple[float, ...], float], int] = {}
        self._profiles: list[tuple[float, ...]] = []
        self._group_ids: dict[tuple[int, ...], int] = {}
        self._groups: list[tuple[int, ...]] = []
        self._gamma: Floats = np.full((0, 0), np.nan)

    def group_id(self, jobs: Sequence[MuriJob]) -> int:
        """A number for the multiset of the jobs' profiles."""
        key = []
        for job in jobs:
            profile = (job.stages, job.solo_s)
            number = self._profile_ids.get(profile)
            if number is None:
                number = self._profile_ids[profile] = len(self._profiles)
                self._profiles.append(job.stages)
            key.append(number)
        key.sort()
        known = tuple(key)
        group = self._group_ids.get(known)
        if group is None:
            group = self._group_ids[known] = len(self._groups)
            self._groups.append(known)
        return group

    def trim(self) -> None:
        """Forget everything if the table has grown large; ids given out before are void."""
        if len(self._groups) > _MOST_GROUPS:
            self._clear()

    def merged(self, groups: Ints, limit: int) -> Floats:
        """(n, n) gamma of each two groups merged; 0 where they would hold more than ``limit`` jobs."""
        self._grow()
        gamma = self._gamma[np.ix_(groups, groups)]
        sizes = self._sizes(groups)
        total = sizes[:, None] + sizes[None, :]
        missing = np.isnan(gamma) & (total <= limit)
        if missing.any():
            self._fill(groups, missing)
            gamma = self._gamma[np.ix_(groups, groups)]
        return np.where(total <= limit, gamma, 0.0)

    def _sizes(self, groups: Ints) -> Ints:
        return np.array([len(self._groups[g]) for g in groups.tolist()], dtype=np.intp)

    def _fill(self, groups: Ints, missing: NDArray[np.bool_]) -> None:
        r, c = np.nonzero(np.triu(missing))  # each unordered pair once
        low, high = np.minimum(groups[r], groups[c]), np.maximum(groups[r], groups[c])
        used = np.unique(np.concatenate([low, high]))
        size = np.zeros(len(self._groups), dtype=np.intp)
        size[used] = self._sizes(used)
        padded = np.full((len(size), int(size.max())), -1, dtype=np.intp)
        for number in used.tolist():
            group = self._groups[number]
            padded[number, : len(group)] = group
        sizes = size[low] * 16 + size[high]
        for both in np.unique(sizes).tolist():
            m, n = divmod(both, 16)
            i, j = low[sizes == both], high[sizes == both]
            gamma = self._evaluate(np.concatenate([padded[i, :m], padded[j, :n]], axis=1))
            self._gamma[i, j] = gamma
            self._gamma[j, i] = gamma

    def _evaluate(self, members: Ints) -> Floats:
        """Gamma of groups of one size, given as rows of profile numbers. Members stand by their times, so that the
        last digit does not depend on which profile the table saw first."""
        profiles = np.array(self._profiles, dtype=np.float64)
        rank = np.empty(len(profiles), dtype=np.intp)
        rank[np.lexsort(profiles.T)] = np.arange(len(profiles))
        members = np.take_along_axis(members, np.argsort(rank[members], axis=1, kind="stable"), axis=1)
        return efficiencies(profiles[members], self.k, ordering=self.ordering, overhead=self.overhead)

    def _grow(self) -> None:
        n, had = len(self._groups), len(self._gamma)
        if n > had:
            grown = np.full((max(n, 2 * had), max(n, 2 * had)), np.nan)
            grown[:had, :had] = self._gamma
            self._gamma = grown
