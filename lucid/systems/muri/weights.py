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
        self._solo: list[float] = []
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
                self._solo.append(job.solo_s)
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

    def own(self, groups: Ints) -> Floats:
        """(n,) gamma of each group by itself."""
        out = np.empty(len(groups))
        members = [self._groups[g] for g in groups]
        sizes = np.array([len(m) for m in members])
        for size in np.unique(sizes):
            rows = np.flatnonzero(sizes == size)
            out[rows] = self._evaluate(np.array([members[r] for r in rows], dtype=np.intp))
        return out

    def merged(self, groups: Ints, limit: int) -> Floats:
        """(n, n) gamma of each two groups merged; 0 where they would hold more than ``limit`` jobs."""
        return self.between(groups, groups, limit)

    def between(self, rows: Ints, columns: Ints, limit: int) -> Floats:
        """(n, m) gamma of each row's group merged with each column's; 0 beyond ``limit`` jobs."""
        self._grow()
        gamma = self._gamma[np.ix_(rows, columns)]
        total = self._sizes(rows)[:, None] + self._sizes(columns)[None, :]
        missing = np.isnan(gamma) & (total <= limit)
        if missing.any():
            self._fill(rows, columns, missing)
            gamma = self._gamma[np.ix_(rows, columns)]
        return np.where(total <= limit, gamma, 0.0)

    def _sizes(self, groups: Ints) -> Ints:
        return np.array([len(self._groups[g]) for g in groups.tolist()], dtype=np.intp)

    def _fill(self, rows: Ints, columns: Ints, missing: NDArray[np.bool_]) -> None:
        r, c = np.nonzero(missing)
        low, high = np.minimum(rows[r], columns[c]), np.maximum(rows[r], columns[c])
        if rows is columns:  # each unordered pair once
            low, high = low[r <= c], high[r <= c]
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
        solo = np.array(self._solo)[members[:, 0]] if members.shape[1] == 1 else None
        rank = np.empty(len(profiles), dtype=np.intp)
        rank[np.lexsort(profiles.T)] = np.arange(len(profiles))
        members = np.take_along_axis(members, np.argsort(rank[members], axis=1, kind="stable"), axis=1)
        return efficiencies(profiles[members], self.k, ordering=self.ordering, overhead=self.overhead, solo_s=solo)

    def _grow(self) -> None:
        n, had = len(self._groups), len(self._gamma)
        if n > had:
            grown = np.full((max(n, 2 * had), max(n, 2 * had)), np.nan)
            grown[:had, :had] = self._gamma
            self._gamma = grown
