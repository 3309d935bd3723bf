"""What pairs of like jobs were seen to do, kept over restarts: the next such pair is judged by it, not by a guess."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from lucid.adapters.atomic import write_atomic
from lucid.core.job import Ended, Job, JobProfile, Running
from lucid.core.ports import Predictor
from lucid.core.prediction import Prediction
from lucid.errors import StoreError

__all__ = ["PairMemory", "WithMemory"]

_PAIRS_KEPT: Final = 8
_WORKLOADS_KEPT: Final = 10_000
_LEAST_CHANGE: Final = 0.02


class PairMemory:
    """Speeds seen, by the workload labels of both jobs (``JobProfile.workload``): of the newest 8 pairs of each two
    labels, the latest of each. ``path``: a JSON file, replaced whole; ``None`` keeps it in memory only.

    Raises:
        StoreError: the file is there and is no such memory.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._seen: dict[tuple[str, str], dict[str, tuple[float, float]]] = {}
        if path is None or not path.exists():
            return
        try:
            for one, other, jobs in json.loads(path.read_bytes()):
                self._seen[str(one), str(other)] = {str(k): (float(a), float(b)) for k, (a, b) in jobs.items()}
        except (OSError, ValueError, TypeError, AttributeError) as error:
            raise StoreError(f"{path}: no memory of pairs ({error}); move it away, it is learned anew") from None

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

    def take(self, running: Iterable[Running]) -> None:
        """Note what is seen of the pairs that run now.

        Raises:
            StoreError: the file cannot be written.
        """
        entries = {entry.job.id: entry for entry in running}
        changed = False
        for entry in entries.values():
            partner = entries.get(entry.partner or "")
            if partner is not None and entry.job.id < partner.job.id:
                changed = self._note(entry, partner) or changed
        if changed and self._path is not None:
            data = [[a, b, jobs] for (a, b), jobs in self._seen.items()]
            try:
                write_atomic(self._path, json.dumps(data).encode())
            except OSError as error:
                raise StoreError(f"{self._path}: cannot be written ({error.strerror})") from None

    def _note(self, first: Running, second: Running) -> bool:
        a, b = first.profile, second.profile
        if a is None or b is None or not a.workload or not b.workload:
            return False
        if a.seen_beside != second.job.id or b.seen_beside != first.job.id:
            return False
        if a.seen_speed is None or b.seen_speed is None:
            return False
        turned = a.workload > b.workload
        key = (b.workload, a.workload) if turned else (a.workload, b.workload)
        speeds = (b.seen_speed, a.seen_speed) if turned else (a.seen_speed, b.seen_speed)
        jobs = self._seen.pop(key, {})
        self._seen[key] = jobs  # newest last
        name = f"{first.job.id}+{second.job.id}"
        before = jobs.get(name)
        if before is not None and max(abs(x - y) for x, y in zip(before, speeds, strict=True)) < _LEAST_CHANGE:
            return False
        jobs[name] = speeds
        if len(jobs) > _PAIRS_KEPT:
            del jobs[next(iter(jobs))]
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

    def pair_speed(self, a: JobProfile, b: JobProfile) -> tuple[float, float] | None:
        """As seen, else the other's."""
        if a.workload and b.workload:
            seen = self._memory.speeds(a.workload, b.workload)
            if seen is not None:
                return seen
        return self._otherwise.pair_speed(a, b)

    def learn(self, ended: Sequence[Ended]) -> None:
        """The other learns."""
        self._otherwise.learn(ended)
