"""What pairs of like jobs were seen to do: the next such pair is judged by it, not by a guess."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from lucid.core.job import Ended, Job, JobProfile, Running
from lucid.core.ports import Predictor
from lucid.core.prediction import Prediction
from lucid.models.packing.pair_belief import PairBelief

__all__ = ["PairMemory", "WithMemory"]

Guess = Callable[[JobProfile, JobProfile], tuple[float, float] | None]
"""Speeds expected of two jobs by their profiles alone."""

_PAIRS_KEPT: Final = 8
_WORKLOADS_KEPT: Final = 10_000
_LEAST_CHANGE: Final = 0.02


class PairMemory:
    """Speeds seen, by the workload labels of both jobs (``JobProfile.workload``): of the newest 8 pairs of each two
    labels, the latest of each."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, str], dict[str, tuple[float, float]]] = {}
        self._belief = PairBelief()
        self._guess: Guess = _no_guess

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
        new = self.note((a.workload, b.workload), (a.seen_speed, b.seen_speed), jobs)
        if new:
            self._compare(a, b)
        return new

    def correct(self, guess: Guess) -> None:
        """From now on these guesses are corrected."""
        self._guess, self._belief = guess, PairBelief()

    def _compare(self, a: JobProfile, b: JobProfile) -> None:
        """Learn by how much the guess of a pair missed what was seen of it."""
        seen, guess = self.speeds(a.workload, b.workload), self._guess(a, b)
        if seen is not None and guess is not None:
            self._belief.note(a.workload, b.workload, seen[0] - guess[0])
            self._belief.note(b.workload, a.workload, seen[1] - guess[1])

    def expected(self, a: JobProfile, b: JobProfile) -> tuple[float, float] | None:
        """As seen of such pairs; else the guess, corrected by what the pairs that were seen say of it."""
        if not (a.workload and b.workload):
            return self._guess(a, b)
        seen = self.speeds(a.workload, b.workload)
        if seen is not None:
            if not self._belief.knows(a.workload, b.workload):  # it was read from a file
                self._compare(a, b)
            return seen
        guess = self._guess(a, b)
        return None if guess is None else self._belief.corrected(a.workload, b.workload, guess)

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
    """Another predictor, whose guess of a pair's speed gives way to what was seen of such pairs, and is corrected by
    what was seen of others."""

    def __init__(self, otherwise: Predictor, memory: PairMemory) -> None:
        self.name = otherwise.name
        self._otherwise = otherwise
        self._memory = memory
        memory.correct(otherwise.pair_speed)

    def predict(self, job: Job, profile: JobProfile | None, now_s: float) -> Prediction:
        """The other's."""
        return self._otherwise.predict(job, profile, now_s)

    def pair_speed(self, a: JobProfile, b: JobProfile) -> tuple[float, float] | None:
        """As seen, else the other's guess, corrected."""
        return self._memory.expected(a, b)

    def learn(self, ended: Sequence[Ended]) -> None:
        """The other learns."""
        self._otherwise.learn(ended)


def _no_guess(a: JobProfile, b: JobProfile) -> tuple[float, float] | None:  # noqa: ARG001
    return None
