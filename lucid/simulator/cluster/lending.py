"""What the VCs of a pool lend and borrow in a replay, in GPU-seconds, and what that costs the VCs that lend.

The cost is how much longer each job waits than in the same replay between walls."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from lucid.core.placement import Placement, placement_gpus
from lucid.simulator.cluster.state import JobOutcome


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
