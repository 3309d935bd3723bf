"""``PairMemory``: measured speeds of pairs of like jobs, in a file, by which the next such pair is judged."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any, Final

from lucid.core.codec import from_others, to_json
from lucid.core.job import Ended, Job, JobProfile, Running, sound_profile
from lucid.core.ports import PairSpeeds, Predictor
from lucid.core.prediction import Prediction
from lucid.errors import StoreError
from lucid.files import write_atomic
from lucid.left_out import LeftOut, Reading
from lucid.text import clean

_PAIRS_KEPT: Final = 8
_WORKLOADS_KEPT: Final = 10_000
_LEAST_CHANGE: Final = 0.02
_SLOWEST: Final = 0.05
"""The least corrected speed."""


class PairMemory:
    """Measured speeds by the workload labels of both jobs (``JobProfile.workload``): of the newest 8 pairs of each
    two labels, the latest of each. ``newest``: the profiles of the newest pairs, labelled or not, as they were judged
    last; ``noted``: how many were ever added to them."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, str], dict[str, tuple[float, float]]] = {}
        self.newest: dict[str, tuple[JobProfile, JobProfile]] = {}
        self.noted = 0

    def __len__(self) -> int:
        """How many pairs of workloads are known."""
        return len(self._seen)

    def speeds(self, a: str, b: str) -> tuple[float, float] | None:
        """Mean measured speeds of workload *a* beside *b*, and of *b* beside *a*."""
        turned = a > b
        jobs = self._seen.get((b, a) if turned else (a, b))
        if not jobs:
            return None
        one = sum([x for x, _ in jobs.values()]) / len(jobs)
        other = sum([y for _, y in jobs.values()]) / len(jobs)
        return (other, one) if turned else (one, other)

    def observe(self, running: Iterable[Running]) -> bool:
        """Note the measured speeds of the running pairs; returns whether anything is new."""
        entries = {entry.job.id: entry for entry in running}
        changed = False
        for entry in entries.values():
            partner = entries.get(entry.partner or "")
            if partner is not None and entry.job.id < partner.job.id:
                changed = self.observe_pair(entry, partner) or changed
        return changed

    def observe_pair(self, first: Running, second: Running) -> bool:
        """Note the measured speeds of one pair, if both its jobs were judged beside each other; returns whether that
        is new."""
        a, b = first.profile, second.profile
        if a is None or b is None:
            return False
        if a.seen_beside != second.job.id or b.seen_beside != first.job.id:
            return False
        if a.seen_speed is None or b.seen_speed is None:
            return False
        jobs = f"{first.job.id}+{second.job.id}"
        new = self._note_profiles(jobs, a, b)
        if not a.workload or not b.workload:
            return new
        return self.note((a.workload, b.workload), (a.seen_speed, b.seen_speed), jobs) or new

    def _note_profiles(self, jobs: str, *pair: JobProfile) -> bool:
        before = self.newest.get(jobs)
        if before is not None and all(map(_alike, before, pair)):
            return False
        self.newest.pop(jobs, None)
        self.newest[jobs] = pair[0], pair[1]
        self.noted += 1
        if len(self.newest) > PAIRS_KEPT:
            del self.newest[next(iter(self.newest))]
        return True

    def note(self, workloads: tuple[str, str], speeds: tuple[float, float], jobs: str) -> bool:
        """Note the speeds of two jobs of these workloads; returns whether that is new. ``jobs`` names the pair, of
        which only the latest speeds count."""
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


def _alike(one: JobProfile, other: JobProfile) -> bool:
    return abs((one.seen_speed or 0.0) - (other.seen_speed or 0.0)) < _LEAST_CHANGE


class WithMemory:
    """Another predictor with a memory of pairs: the measured speed of such pairs replaces its guess. For other pairs
    its guess is corrected by the newest pairs (``_PairMisses``)."""

    def __init__(self, otherwise: Predictor, memory: PairMemory) -> None:
        self.name = otherwise.name
        self._otherwise = otherwise
        self._memory = memory
        self._misses, self._counted = _PairMisses(), 0

    def predict(self, job: Job, profile: JobProfile | None, now_s: float) -> Prediction:
        """The other predictor's prediction."""
        return self._otherwise.predict(job, profile, now_s)

    def pair_speed(self, a: JobProfile, b: JobProfile) -> PairSpeeds:
        """The measured speeds, else the other predictor's, corrected."""
        if a.workload and b.workload:
            seen = self._memory.speeds(a.workload, b.workload)
            if seen is not None:
                return seen
        found = self._otherwise.pair_speed(a, b)
        if not isinstance(found, tuple) or not self._memory.newest:
            return found
        if self._counted != self._memory.noted:
            self._catch_up()
        own, other = found[0] + self._misses.expected(a.workload), found[1] + self._misses.expected(b.workload)
        return min(max(own, _SLOWEST), 1.0), min(max(other, _SLOWEST), 1.0)

    def _catch_up(self) -> None:
        """Count the new pairs, with what this predictor expects of them."""
        newest, more = self._memory.newest, self._memory.noted - self._counted
        self._counted = self._memory.noted
        for jobs, pair in [*islice(reversed(newest.items()), more)][::-1]:
            found = self._otherwise.pair_speed(*pair)
            if isinstance(found, tuple):
                sides = zip(pair, found, strict=True)
                self._misses.note(jobs, [(p.workload, min(p.seen_speed or 0.0, 1.0) - speed) for p, speed in sides])

    def learn(self, ended: Sequence[Ended]) -> None:
        """Let the other predictor learn."""
        self._otherwise.learn(ended)


PAIRS_KEPT: Final = 200
"""How many of the newest pairs count."""
_AS_EXPECTED: Final = 5
"""How many jobs that ran as expected count beside the measured ones, for all jobs and for each workload."""
_UNIT: Final = 1e-6
"""Misses are added up as whole multiples of this, so that the order in which pairs come and go leaves no trace."""

Side = tuple[str, float]
"""The workload of one job of a pair, and its speed less the expected one."""


class _PairMisses:
    """The mean miss of all jobs, and of each workload beyond that."""

    def __init__(self) -> None:
        self._kept: dict[str, Sequence[Side]] = {}
        self._all = [0, 0]
        self._by: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0])

    def note(self, jobs: str, sides: Sequence[Side]) -> None:
        """Count a pair, which ``jobs`` names; its latest speeds count."""
        self._count(self._kept.pop(jobs, ()), -1)
        self._kept[jobs] = sides
        self._count(sides, 1)
        if len(self._kept) > PAIRS_KEPT:
            self._count(self._kept.pop(next(iter(self._kept))), -1)

    def expected(self, workload: str) -> float:
        """The correction of the expected speed of a job of this workload (empty: unknown workload)."""
        total, jobs = self._all
        miss = total / (jobs + _AS_EXPECTED)
        if workload in self._by:
            own, known = self._by[workload]
            miss += (own - known * miss) / (known + _AS_EXPECTED)
        return miss * _UNIT

    def _count(self, sides: Sequence[Side], sign: int) -> None:
        for workload, miss in sides:
            for sums in (self._all, self._by[workload]) if workload else (self._all,):
                sums[0] += sign * round(miss / _UNIT)
                sums[1] += sign
            if workload and not self._by[workload][1]:
                del self._by[workload]  # no pair of it is left


class PairMemoryFile(PairMemory):
    """A memory of pairs in a JSON file, which is replaced whole, and the profiles of the newest pairs in another
    beside it. Rows that cannot be read are left out and learned anew; a file that is no such memory at all is kept
    beside, as ``pairs.json.damaged``."""

    def __init__(self, path: Path, left_out: LeftOut | None = None, *, read_only: bool = False) -> None:
        """``read_only``: a damaged file, or one that this user may not read, stays where it is."""
        super().__init__()
        self._path, self._newest_path = path, path.with_name(f"{path.stem}-newest.json")
        found = left_out or LeftOut()
        with found.reading("pairs.json") as look:
            rows = _rows(path, look, read_only)
            self._seen.update(look.each(rows, _pair, lambda row: f"the pair {row[0]}, {row[1]}"))
        with found.reading(self._newest_path.name) as look:
            rows = _rows(self._newest_path, look, read_only)
            self.newest.update(look.each(rows, _profiles, lambda row: f"the jobs {row[0]}"))
        self.noted = len(self.newest)

    def observe(self, running: Iterable[Running]) -> bool:
        """Note the measured speeds of the running pairs, in the file too; returns whether anything is new.

        Raises: StoreError: the file cannot be written."""
        changed = super().observe(running)
        if changed:
            seen = [[a, b, jobs] for (a, b), jobs in self._seen.items()]
            newest = [[jobs, *map(to_json, pair)] for jobs, pair in self.newest.items()]
            for path, data in ((self._path, seen), (self._newest_path, newest)):
                try:
                    write_atomic(path, json.dumps(data).encode(), mode=0o600)
                except OSError as error:
                    raise StoreError(f"{path}: cannot be written ({error.strerror})") from None
        return changed


def _rows(path: Path, look: Reading, read_only: bool) -> list[Any]:
    """The rows of a file; none where it is missing or damaged."""
    try:
        rows = json.loads(path.read_bytes())
        if not isinstance(rows, list):
            raise TypeError("it is not a list")
    except FileNotFoundError:
        return []
    except Exception as error:
        look.add(str(path), error)
        if not read_only:
            with suppress(OSError):
                path.replace(path.with_name(f"{path.name}.damaged"))
        return []
    return rows


def _profiles(row: Any) -> tuple[str, tuple[JobProfile, JobProfile]]:
    jobs, one, other = row
    one, other = (sound_profile(from_others(JobProfile, each)) for each in (one, other))
    return clean(str(jobs)), (one, other)


def _pair(row: Any) -> tuple[tuple[str, str], dict[str, tuple[float, float]]]:
    one, other, jobs = row
    speeds = {clean(str(job)): (float(a), float(b)) for job, (a, b) in jobs.items()}
    if not all(math.isfinite(speed) and speed >= 0.0 for pair in speeds.values() for speed in pair):
        raise ValueError("a speed is not a number of at least 0")
    return (clean(str(one)), clean(str(other))), speeds
