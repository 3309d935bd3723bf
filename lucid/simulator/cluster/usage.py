"""Books of a replay: accounts' recent usage with the fair-share factors that follow, and what VCs lend and borrow.

Usage is GPU-seconds held, halved every half-life (PriorityDecayHalfLife). The factor of an account is 2^(-U/S) with U
its part of everybody's usage and S its part of the shares (Slurm's classic fair-share, undamped): 1 for one that has
used nothing, 1/2 for one that has used its share. Lending is counted in GPU-seconds; its cost is how much longer each
job waits than in the same replay between walls."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from lucid.core.job import Job
from lucid.core.placement import Placement, placement_gpus
from lucid.simulator.cluster.state import JobOutcome

_DIGITS = 3
"""Digits of a factor: a smaller change changes nothing."""
HALF_LIFE_S = 604800.0
"""Usage counts half after this long (PriorityDecayHalfLife)."""


def fair_shares(usage: Mapping[str, float], shares: Mapping[str, float]) -> dict[str, float]:
    """The factor of each account (0 to 1) from GPU-seconds used and shares held; an account without a share
    given has 1."""
    used = sum(usage.values())
    entitled = sum(shares.get(name, 1.0) for name in usage)
    if not used:
        return dict.fromkeys(usage, 1.0)
    factors: dict[str, float] = {}
    for name, gpu_s in usage.items():
        share = shares.get(name, 1.0) / entitled if entitled else 0.0
        factors[name] = round(2.0 ** -(gpu_s / used / share), _DIGITS) if share else 0.0
    return factors


class UsageBook:
    """Usage of each account, or of each user where jobs name no account; jobs that name neither have none.

    Args:
        half_life_s: after this long usage counts half.
        period_s: how often factors are worked out.
        shares: by account (or user); 1 where not given. ``None`` counts nothing: every account has the same
            factor."""

    def __init__(
        self, half_life_s: float = 1.0, period_s: float = math.inf, shares: Mapping[str, float] | None = None
    ) -> None:
        self._rate = math.log(2.0) / half_life_s
        self._period_s = period_s
        self._shares = shares
        self._books: dict[str, _Book] = {}
        self._owners: dict[tuple[str, str], str] = {}
        self._due_s = 0.0
        self._shown: dict[tuple[str, str], float] = {}

    def observe(self, job: Job) -> None:
        """Note that a job came: its account has a share from now on."""
        owner = job.account or job.user
        if self._shares is not None and owner and (job.account, job.user) not in self._owners:
            self._owners[job.account, job.user] = owner
            self._books.setdefault(owner, _Book())
            self._due_s = 0.0

    def holds(self, job: Job, gpus: int, now_s: float) -> None:
        """Note that the job holds so many GPUs more from now on (or fewer, if negative)."""
        book = self._books.get(job.account or job.user)
        if book is not None:
            book.bring_to(now_s, self._rate)
            book.gpus += gpus

    def factors(self, now_s: float) -> Mapping[tuple[str, str], float]:
        """The factors by account and user; the same object until they change."""
        if now_s >= self._due_s:
            self._due_s = (math.floor(now_s / self._period_s) + 1) * self._period_s
            for book in self._books.values():
                book.bring_to(now_s, self._rate)
            by_owner = fair_shares({owner: book.gpu_s for owner, book in self._books.items()}, self._shares or {})
            fresh = {who: by_owner[owner] for who, owner in self._owners.items()}
            if fresh != self._shown:
                self._shown = fresh
        return self._shown


class _Book:
    """Decayed GPU-seconds as of ``at_s``, and the GPUs held since."""

    __slots__ = ("at_s", "gpu_s", "gpus")

    def __init__(self) -> None:
        self.at_s = 0.0
        self.gpu_s = 0.0
        self.gpus = 0

    def bring_to(self, now_s: float, rate: float) -> None:
        """Decay the usage, and add what was held meanwhile, itself decaying from the second it is used."""
        kept = math.exp(-rate * (now_s - self.at_s))
        self.gpu_s = self.gpu_s * kept + self.gpus * (1.0 - kept) / rate
        self.at_s = now_s


@dataclass(frozen=True, slots=True)
class LentByVc:
    """GPU-seconds that a VC lent and borrowed, and its quota in GPUs."""

    quota: int
    lent_gpu_s: float
    borrowed_gpu_s: float


class LentBook:
    """Counts what is lent. A VC borrows what it holds beyond its quota; the others lend that in proportion to what
    they leave idle of theirs. A pair holds its GPUs once, for the VC of the job that was there first."""

    def __init__(self, quotas: Mapping[str, int]) -> None:
        self._quotas = quotas
        self._held = dict.fromkeys(quotas, 0)
        self._on: dict[Placement, list[str]] = {}
        self._lent_gpu_s = dict.fromkeys(quotas, 0.0)
        self._borrowed_gpu_s = dict.fromkeys(quotas, 0.0)

    def hold(self, placement: Placement, vc: str, by: int) -> None:
        """Count a job of the VC on these GPUs: one more (``by`` 1), or one less (-1)."""
        there, gpus = self._on.setdefault(placement, []), placement_gpus(placement)
        if there:
            self._held[there[0]] -= gpus
        if by > 0:
            there.append(vc)
        else:
            there.remove(vc)
        if there:
            self._held[there[0]] += gpus
        else:
            del self._on[placement]

    def wait(self, for_s: float) -> None:
        """Let so much time pass."""
        if not self._quotas:
            return
        beyond = {vc: self._held[vc] - quota for vc, quota in self._quotas.items()}
        borrowed = sum(gpus for gpus in beyond.values() if gpus > 0)
        if not borrowed:
            return
        idle = -sum(gpus for gpus in beyond.values() if gpus < 0)
        for vc, gpus in beyond.items():
            if gpus > 0:
                self._borrowed_gpu_s[vc] += gpus * for_s
            elif gpus < 0:
                self._lent_gpu_s[vc] += borrowed * -gpus / idle * for_s

    def within(self, vc: str) -> bool:
        """Whether the VC holds no more than its quota."""
        return self._held.get(vc, 0) <= self._quotas.get(vc, 0)

    def by_vc(self) -> dict[str, LentByVc]:
        """GPU-seconds lent and borrowed so far, by VC."""
        return {
            vc: LentByVc(quota, self._lent_gpu_s[vc], self._borrowed_gpu_s[vc]) for vc, quota in self._quotas.items()
        }


Outcomes = Mapping[str, JobOutcome]
"""The outcomes by job id."""


@dataclass(frozen=True, slots=True)
class LendingCost:
    """The cost of lending to the jobs of one VC, or to all.

    ``walls_avg_jct_s``: their mean JCT where each VC has its own nodes. ``jobs``: how many were submitted while their
    VC held no more than its quota. ``p999_s``, ``worst_s``: by how many seconds more these waited than between walls,
    the 99.9th percentile and the largest; 0 where none did, ``None`` where there are none."""

    walls_avg_jct_s: float
    jobs: int
    p999_s: float | None
    worst_s: float | None


def lending_costs(lends: Outcomes, walls: Outcomes) -> dict[str, LendingCost]:
    """The cost by VC, and under "" for all jobs that ended in both replays. Empty if none did."""
    both = [(one, walls[job_id]) for job_id, one in lends.items() if one.end_s >= 0 and walls[job_id].end_s >= 0]
    by_vc: dict[str, list[tuple[JobOutcome, JobOutcome]]] = {"": both}
    for pair in both:
        by_vc.setdefault(pair[0].job.vc, []).append(pair)
    return {vc: _promise(pairs) for vc, pairs in by_vc.items() if pairs}


def _promise(pairs: list[tuple[JobOutcome, JobOutcome]]) -> LendingCost:
    longer_s = [max(one.queue_s - before.queue_s, 0.0) for one, before in pairs if one.within_quota]
    p999_s, worst_s = (float(np.percentile(longer_s, 99.9)), max(longer_s)) if longer_s else (None, None)
    return LendingCost(float(np.mean([before.jct_s for _, before in pairs])), len(longer_s), p999_s, worst_s)
