"""Accounts' recent usage in a replay, and the fair-share factors that follow from it as in Slurm.

Usage is GPU-seconds held, halved every half-life (PriorityDecayHalfLife). The factor of an account is 2^(-U/S) with U
its part of everybody's usage and S its part of the shares (Slurm's classic fair-share, undamped): 1 for one that has
used nothing, 1/2 for one that has used its share."""

from __future__ import annotations

import math
from collections.abc import Mapping

from lucid.core.job import Job

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
        shares: by account (or user); 1 where not given."""

    def __init__(self, half_life_s: float, period_s: float, shares: Mapping[str, float]) -> None:
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
        if owner and (job.account, job.user) not in self._owners:
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
            by_owner = fair_shares({owner: book.gpu_s for owner, book in self._books.items()}, self._shares)
            fresh = {who: by_owner[owner] for who, owner in self._owners.items()}
            if fresh != self._shown:
                self._shown = fresh
        return self._shown


class NoUsage(UsageBook):
    """Counts nothing: every account has the same factor."""

    def __init__(self) -> None:
        super().__init__(1.0, math.inf, {})

    def observe(self, job: Job) -> None:
        """Give the job's account no share."""


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
