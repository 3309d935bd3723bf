"""What pairs of like jobs were seen to do: the next such pair is judged by it, not by a guess."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from lucid.core.job import Ended, Job, JobProfile, Running
from lucid.core.ports import PairSpeeds, Predictor
from lucid.core.prediction import Prediction

__all__ = ["PairMemory", "WithMemory"]

_PAIRS_KEPT: Final = 8
_WORKLOADS_KEPT: Final = 10_000
_LEAST_CHANGE: Final = 0.02


class PairMemory:
    """Speeds seen, by the workload labels of both jobs (``JobProfile.workload``): of the newest 8 pairs of each two
    labels, the latest of each."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, str], dict[str, tuple[float, float]]] = {}

    def __len__(self) -> int:
        """How many pairs of workloads are known."""
        return len(self._seen)

    def speeds(self, a: str, b: str) -> tuple[float, float] | None:
        """Mean speeds seen of workload *a* beside *b*, and of *b* beside *a*."""
        turned = a > b
        jobs = self._seen.get((b, a) if turned else (a, b))
        if not jobs:
            return None
        one = sum(x for x, _ in jobs.values()) / len(jobs)
        other = sum(y for _, y in jobs.values()) / len(jobs)
        return (other, one) if turned else (one, other)

    def take(self, running: Iterable[Running]) -> bool:
        """Note what is seen of the pairs that run now. Is anything new?"""
        entries = {entry.job.id: entry for entry in running}
        changed = False
        for entry in entries.values():
            partner = entries.get(entry.partner or "")
            if partner is not None and entry.job.id < partner.job.id:
                changed = self.look(entry, partner) or changed
        return changed

    def look(self, first: Running, second: Running) -> bool:
        """Note what is seen of one pair, if both its jobs were judged beside each other. Is it new?"""
        a, b = first.profile, second.profile
        if a is None or b is None or not a.workload or not b.workload:
            return False
        if a.seen_beside != second.job.id or b.seen_beside != first.job.id:
            return False
        if a.seen_speed is None or b.seen_speed is None:
            return False
        jobs = f"{first.job.id}+{second.job.id}"
        return self.note((a.workload, b.workload), (a.seen_speed, b.seen_speed), jobs)

    def note(self, workloads: tuple[str, str], speeds: tuple[float, float], jobs: str) -> bool:
        """Note the speeds of two jobs of these workloads; ``jobs`` names the pair, of which only the latest speeds
        count. Is that anything new?"""
        turned = workloads[0] > workloads[1]
        key = workloads[::-1] if turned else workloads
        speeds = speeds[::-1] if turned else speeds
        known = self._seen.pop(key, {})
        self._seen[key] = known  # newest last
        before = known.get(jobs)
        if before is not None and max(abs(x - y) for x, y in zip(before, speeds, strict=True)) < _LEAST_CHANGE:
            return False
        known[jobs] = speeds
        if len(known) > _PAIRS_KEPT:
            del known[next(iter(known))]
        if len(self._seen) > _WORKLOADS_KEPT:
            del self._seen[next(iter(self._seen))]
        return True


class WithMemory:
    """Another predictor, whose guess of a pair's speed gives way to what was seen of such pairs."""

    def __init__(self, otherwise: Predictor, memory: PairMemory) -> None:
        self.name = otherwise.name
        self._otherwise = otherwise
        self._memory = memory

    def predict(self, job: Job, profile: JobProfile | None, now_s: float) -> Prediction:
        """The other's."""
        return self._otherwise.predict(job, profile, now_s)

    def pair_speed(self, a: JobProfile, b: JobProfile) -> PairSpeeds:
        """As seen, else the other's."""
        if a.workload and b.workload:
            seen = self._memory.speeds(a.workload, b.workload)
            if seen is not None:
                return seen
        return self._otherwise.pair_speed(a, b)

    def learn(self, ended: Sequence[Ended]) -> None:
        """The other learns."""
        self._otherwise.learn(ended)
