"""What lending costs the VCs that lend: how much longer each job waits than in the same replay between walls."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from lucid.simulator.state import JobOutcome

__all__ = ["LendingCost", "lending_costs"]

Outcomes = Mapping[str, JobOutcome]
"""By job id."""


@dataclass(frozen=True, slots=True)
class LendingCost:
    """Of the jobs of one VC, or of all.

    ``walls_avg_jct_s``: their mean JCT where each VC has its own nodes. ``jobs``: how many were submitted while their
    VC held no more than its quota. ``p999_s``, ``worst_s``: by how many seconds more these waited than between walls,
    the 99.9th percentile and the largest; 0 where none did, ``None`` where there are none.
    """

    walls_avg_jct_s: float
    jobs: int
    p999_s: float | None
    worst_s: float | None


def lending_costs(lends: Outcomes, walls: Outcomes) -> dict[str, LendingCost]:
    """By VC, and under "" of all jobs that ended in both replays. Empty if none did."""
    both = [(one, walls[job_id]) for job_id, one in lends.items() if one.end_s >= 0 and walls[job_id].end_s >= 0]
    by_vc: dict[str, list[tuple[JobOutcome, JobOutcome]]] = {"": both}
    for pair in both:
        by_vc.setdefault(pair[0].job.vc, []).append(pair)
    return {vc: _promise(pairs) for vc, pairs in by_vc.items() if pairs}


def _promise(pairs: list[tuple[JobOutcome, JobOutcome]]) -> LendingCost:
    longer_s = [max(one.queue_s - before.queue_s, 0.0) for one, before in pairs if one.within_quota]
    p999_s, worst_s = (float(np.percentile(longer_s, 99.9)), max(longer_s)) if longer_s else (None, None)
    return LendingCost(float(np.mean([before.jct_s for _, before in pairs])), len(longer_s), p999_s, worst_s)
