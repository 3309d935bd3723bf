"""The running jobs that others may join, in order of start, with what the rules between two jobs compare."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Container, Iterator
from dataclasses import dataclass
from heapq import merge
from itertools import islice
from math import inf
from operator import attrgetter

from lucid.core.job import Running

__all__ = ["SCAN_LIMIT", "Candidate", "Candidates"]

SCAN_LIMIT = 256
"""Candidates looked at for one job, oldest first: what bounds a plan on a cluster of thousands of GPUs. By the
time hundreds of partners qualify, the best of them is hardly better than the best of these."""

_NUMBER = attrgetter("number")


@dataclass(slots=True)
class Candidate:
    """A running job that may be joined."""

    number: int
    """Its place in the order of start."""
    entry: Running
    score: int
    mem_mib: float
    capacity_mib: float
    remaining_s: float
    value: float
    node: str
    index: int
    """Its node's in the ledger."""
    outlived_s: float
    """When it will have outlived its estimate, and is expected to go on for long (``Prediction.remaining_s``)."""


class Candidates:
    """Those of one GPU count, and of one user where only jobs of one user share.

    ``lasting``: by id, those with enough time left to be joined. ``ending``: the others. Most candidates of a full
    cluster are nearly done, which no job changes: no job compares itself with each of them.
    """

    __slots__ = ("_numbers", "ending", "lasting", "soonest_s")

    def __init__(self) -> None:
        self.lasting: dict[str, Candidate] = {}
        self.ending: dict[str, Candidate] = {}
        self.soonest_s = inf
        """No job of ``ending`` will have outlived its estimate before then."""
        self._numbers: dict[int, list[int]] = {}
        """By share score, the numbers of those that have it, ascending."""

    def __len__(self) -> int:
        return len(self.lasting) + len(self.ending)

    def add(self, candidate: Candidate, lasts: bool) -> None:
        """One more, that started after all others."""
        if lasts:
            self.lasting[candidate.entry.job.id] = candidate
        else:
            self.ending[candidate.entry.job.id] = candidate
            self.soonest_s = min(self.soonest_s, candidate.outlived_s)
        self._numbers.setdefault(candidate.score, []).append(candidate.number)

    def drop(self, job_id: str) -> None:
        """Nobody joins this job any more; no matter if it is none of these."""
        gone = self.lasting.pop(job_id, None) or self.ending.pop(job_id, None)
        if gone is not None:
            numbers = self._numbers[gone.score]
            del numbers[bisect_left(numbers, gone.number)]

    def last(self, room: int) -> float:
        """The number of the last candidate that a job may look at which has so much ``room`` for share scores."""
        fitting = [numbers for score, numbers in self._numbers.items() if score <= room]
        if sum(map(len, fitting)) <= SCAN_LIMIT:
            return inf
        return sorted(number for numbers in fitting for number in numbers[:SCAN_LIMIT])[SCAN_LIMIT - 1]

    def heavy(self, room: int, closed: Container[str]) -> Candidate | None:
        """The first to start of those with a share score above ``room``, on nodes that are not ``closed``."""
        if not any(score > room and numbers for score, numbers in self._numbers.items()):
            return None
        found = islice((other for other in self._in_order() if other.score > room), SCAN_LIMIT)
        return next((other for other in found if other.node not in closed), None)

    def _in_order(self) -> Iterator[Candidate]:
        return merge(self.lasting.values(), self.ending.values(), key=_NUMBER)
