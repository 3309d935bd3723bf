"""Muri's grouping: jobs of one GPU count are merged by rounds of matching until the cluster holds them (M9-M19).

Efficiencies of merged groups are computed once each: jobs of one model have one profile."""

from __future__ import annotations

from collections.abc import Callable, Container, Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from lucid.orchestrator.policies.muri.interleave import (
    NO_OVERHEAD,
    MuriJob,
    Ordering,
    Overhead,
    best_ordering,
    efficiencies,
)
from lucid.orchestrator.policies.muri.matching import match_by_kind

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]

_MOST_GROUPS = 2048  # kinds of groups from which the table, a square of this side, starts anew


class GammaTable:
    """Remembers gamma by the profiles of the jobs merged, whoever they are (M9).

    A group counts by the multiset of its members' profiles, for the best and the worst ordering do not
    depend on the order in which the members stand.

    Args:
        ordering: "best" or "worst".

    Raises:
        ValueError: the ordering is "given", which does depend on the order."""

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


Matching = Literal["blossom", "by_priority"]


@dataclass(frozen=True, slots=True)
class Group:
    """Jobs that share the same GPUs by taking turns on each resource.

    Attributes:
        gpus: GPUs of the group, and of each of its jobs (M12).
        jobs: the members, at most k."""

    gpus: int
    jobs: tuple[MuriJob, ...]


@dataclass(frozen=True, slots=True)
class GroupingOptions:
    """How groups are made; the defaults are the published Muri.

    Attributes:
        group_size: most jobs in a group (M11); None means k.
        ordering: ordering used in the weights; "worst" is the ablation (M22).
        overhead: factors on the period (M8).
        matching: "by_priority" is the ablation without Blossom: consecutive jobs (M22).
        rel_gap: fraction by which a matching of more than 64 groups may fall short of the optimum; 0
            proves it optimal, which can take 15 s on 1,000 jobs of as many profiles."""

    k: int = 4
    group_size: int | None = None
    ordering: Ordering = "best"
    overhead: Overhead = NO_OVERHEAD
    matching: Matching = "blossom"
    rel_gap: float = 1e-3

    def __post_init__(self) -> None:
        if not 1 <= self.limit <= self.k:
            raise ValueError(f"group_size {self.group_size} with {self.k} resources; need 1..{self.k}")

    @property
    def limit(self) -> int:
        """Most jobs in a group."""
        return self.k if self.group_size is None else self.group_size


def choose_candidates(
    jobs: Sequence[MuriJob],
    fits: Callable[[MuriJob], bool],
    group_size: int,
    alone: Container[Hashable] = (),
) -> list[MuriJob]:
    """The jobs that the next round may run (M17).

    Goes through ``jobs`` by priority; each placement that still fits admits the next ``group_size`` jobs
    of that GPU count, the first of which holds the place.

    Args:
        jobs: by priority, first first.
        fits: takes a job, and if its GPUs can still be placed, places them and says so.
        group_size: most jobs in a group.
        alone: ids of jobs that share with nobody; each needs a place of its own.

    Returns:
        The admitted jobs, by priority."""
    waiting: dict[int, list[int]] = {}
    for index, job in enumerate(jobs):
        if job.job_id not in alone:
            waiting.setdefault(job.gpus, []).append(index)
    admitted: set[int] = set()
    taken = dict.fromkeys(waiting, 0)
    for index, job in enumerate(jobs):
        if index in admitted or not fits(job):
            continue
        if job.job_id in alone:
            admitted.add(index)
            continue
        start = taken[job.gpus]
        block = waiting[job.gpus][start : start + group_size]
        taken[job.gpus] = start + len(block)
        admitted.update(block)
    return [job for index, job in enumerate(jobs) if index in admitted]


def group_jobs(
    jobs: Iterable[MuriJob],
    cluster_gpus: int,
    options: GroupingOptions | None = None,
    table: GammaTable | None = None,
) -> list[Group]:
    """Merge jobs into groups until they need no more GPUs than there are (M9-M13, M18).

    Args:
        jobs: candidates by priority; jobs of the same GPU count form one bucket.
        cluster_gpus: GPUs of the cluster; merging stops as soon as they suffice. 0 merges as far as
            group size allows.
        table: efficiencies remembered between calls; must have been made with the same options.

    Returns:
        The groups, buckets in the order of their first job. All jobs are in exactly one group; the
        groups may still need more GPUs than there are.

    Raises:
        ValueError: stage times do not fit the number of resources."""
    chosen = options if options is not None else GroupingOptions()
    buckets: dict[int, list[Group]] = {}
    for job in jobs:
        buckets.setdefault(job.gpus, []).append(Group(job.gpus, (job,)))
    required = sum(gpus * len(groups) for gpus, groups in buckets.items())
    if chosen.matching == "by_priority":
        return _by_priority(buckets, required, cluster_gpus, chosen.limit)
    gammas = table if table is not None else GammaTable(chosen.k, chosen.ordering, chosen.overhead)
    gammas.trim()
    for _ in range(chosen.limit):
        if required <= cluster_gpus:
            break
        merged, required = _one_round(buckets, required, cluster_gpus, chosen, gammas)
        if not merged:
            break
    return [group for groups in buckets.values() for group in groups]


def _by_priority(buckets: dict[int, list[Group]], required: int, cluster_gpus: int, limit: int) -> list[Group]:
    out: list[Group] = []
    for gpus, singles in buckets.items():
        for start in range(0, len(singles), limit):
            members = list(singles[start].jobs)
            for single in singles[start + 1 : start + limit]:
                if required > cluster_gpus:
                    members += single.jobs
                    required -= gpus
                else:
                    out.append(single)
            out.append(Group(gpus, tuple(members)))
    return out


def _one_round(
    buckets: dict[int, list[Group]],
    required: int,
    cluster_gpus: int,
    options: GroupingOptions,
    table: GammaTable,
) -> tuple[int, int]:
    """Match once in every bucket and merge; returns merges made and GPUs now required."""
    ready: list[tuple[int, list[int]]] = []  # bucket, one or two groups
    for gpus, groups in buckets.items():
        least = min((len(g.jobs) for g in groups), default=0)
        able = [i for i, g in enumerate(groups) if len(g.jobs) + least <= options.limit]
        # Kinds by first appearance, not by the table's numbers: which of equally good matchings is found must not
        # depend on what the table has seen before.
        place: dict[int, int] = {}
        kind_of = np.array(
            [place.setdefault(table.group_id(groups[i].jobs), len(place)) for i in able], dtype=np.intp
        )
        weights = table.merged(np.array(list(place), dtype=np.intp), options.limit)
        partner = {}
        for a, b in match_by_kind(weights, kind_of, options.rel_gap):
            i, j = able[a], able[b]
            partner[i], partner[j] = j, i
        # As published: each pair stands where its later member stood.
        for index in range(len(groups)):
            mate = partner.get(index)
            if mate is None:
                ready.append((gpus, [index]))
            elif mate < index:
                ready.append((gpus, [mate, index]))
    old = {gpus: list(groups) for gpus, groups in buckets.items()}
    for groups in buckets.values():
        groups.clear()
    merges = 0
    for gpus, members in ready:
        parts = [old[gpus][m] for m in members]
        if len(parts) == 2 and required > cluster_gpus:
            buckets[gpus].append(Group(gpus, parts[0].jobs + parts[1].jobs))
            required -= gpus
            merges += 1
        else:
            buckets[gpus] += parts
    return merges, required


def unpack(groups: Iterable[Group], options: GroupingOptions) -> list[Group]:
    """Split the groups that would be slower together than one after the other (M19).

    A group is split if its period, with overhead, exceeds the sum of its members' solo iteration times.
    The authors' code takes the best ordering here even in the ablation with the worst; this takes the
    ordering that the group will run.

    Returns:
        The groups that stay, and a group of one for every freed member, in the order given. Who of them
        runs is decided by priority, as before."""
    out: list[Group] = []
    for group in groups:
        if len(group.jobs) > 1 and group_period(group, options) > sum(job.solo_s for job in group.jobs):
            out += [Group(group.gpus, (job,)) for job in group.jobs]
        else:
            out.append(group)
    return out


def group_period(group: Group, options: GroupingOptions) -> float:
    """Period of one group as it will run, with overhead, in the unit of its stage times (M4-M8)."""
    if len(group.jobs) == 1:
        return group.jobs[0].solo_s
    period = _period(tuple(job.stages for job in group.jobs), options.k, options.ordering)
    return period * options.overhead.factor(len(group.jobs))


@lru_cache(maxsize=65536)  # the same models meet again and again
def _period(stages: tuple[tuple[float, ...], ...], k: int, ordering: Ordering) -> float:
    return best_ordering(stages, k, ordering)[0]
