"""``Candidates``: running jobs that others may join, in order of start; and whether a VC is calm.

Calm (acceptance row L17): while next to no job of a VC waits, its jobs share GPUs only to start at once. Two jobs on
the same GPUs each run slower. The GPUs that they leave free are worth that only if a job comes, before they end, that
would wait without them. Where no job has had to wait for a time, none is expected to for as long again. Less than a
day says nothing, since load follows the hours of the day, and estimates of single jobs are poor."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from itertools import islice
from math import inf
from typing import TYPE_CHECKING

from msgspec import Struct

from lucid.core.job import Running
from lucid.core.reasons.sharing import Calm
from lucid.core.times import DAY_S, past

if TYPE_CHECKING:
    from lucid.config.policy import PackingSettings


SCAN_LIMIT = 256
"""Most candidates examined for one job, oldest first, which bounds a plan on a cluster of thousands of GPUs. By the
time hundreds of partners qualify, the best of them is hardly better than the best of these."""


@dataclass(slots=True)
class Candidate:
    """A running job that may be joined."""

    number: int
    """The candidate's place in the order of start."""
    entry: Running
    score: int
    mem_mib: float
    capacity_mib: float
    remaining_s: float
    value: float
    node: str
    index: int
    """The index of the candidate's node in the ledger."""
    outlived_s: float
    """When the candidate will have outlived its estimate, and is expected to go on for long
    (``Prediction.remaining_s``)."""


class Candidates:
    """Candidates of one GPU count, and of one user where only jobs of one user share.

    ``lasting``: by id, those with enough time left to be joined. ``ending``: the others. Most candidates of a full
    cluster are nearly done, whichever job asks, so no job compares itself with each of them."""

    __slots__ = ("ending", "lasting", "soonest_s")

    def __init__(self) -> None:
        self.lasting: dict[str, Candidate] = {}
        self.ending: dict[str, Candidate] = {}
        self.soonest_s = inf
        """No job of ``ending`` will have outlived its estimate before this time."""

    def __len__(self) -> int:
        return len(self.lasting) + len(self.ending)

    def add(self, candidate: Candidate, lasts: bool) -> None:
        """Add a candidate that started after all others."""
        if lasts:
            self.lasting[candidate.entry.job.id] = candidate
        else:
            self.ending[candidate.entry.job.id] = candidate
            self.soonest_s = min(self.soonest_s, candidate.outlived_s)

    def drop(self, job_id: str) -> None:
        """Remove a job that cannot be joined any more, if it is among these."""
        self.lasting.pop(job_id, None)
        self.ending.pop(job_id, None)

    def last(self, room: int) -> float:
        """The number of the last candidate that a job with so much ``room`` for share scores may examine."""
        if len(self.lasting) + len(self.ending) <= SCAN_LIMIT:
            return inf
        numbers: list[int] = []
        for others in (self.lasting, self.ending):
            fitting = (other.number for other in others.values() if other.score <= room)
            numbers += islice(fitting, SCAN_LIMIT)
        return inf if len(numbers) <= SCAN_LIMIT else sorted(numbers)[SCAN_LIMIT - 1]

    def heavy(self, room: int, closed: Container[str]) -> Candidate | None:
        """The first candidate to start that has a share score above ``room``, on nodes that are not ``closed``."""
        found: Candidate | None = None
        for others in (self.lasting, self.ending):
            for other in others.values():
                if found is not None and other.number > found.number:
                    break
                if other.score > room and other.node not in closed:
                    found = other
                    break
        return found


_FEW = 0.01
"""A VC is calm while at most this share of its jobs waits. By Little's law waiting is then at most such a part of its
jobs' completion times."""


class CalmSince(Struct, frozen=True):
    """Since when a VC has been calm (``at_s``), handed from plan to plan; ``None`` while it is not. The first plan
    counts as the beginning."""

    at_s: float | None


def depends_on_calm(settings: PackingSettings) -> bool:
    """Whether sharing depends on how calm a VC is."""
    return bool(settings.gss) and not settings.when_calm


def calm_since(before: CalmSince | None, waiting: int, jobs: int, now_s: float) -> CalmSince:
    """Since when the VC is calm after a plan that lets ``waiting`` of its ``jobs`` wait. ``before``: what the
    previous plan left."""
    if past(waiting, _FEW * jobs):
        return CalmSince(None)
    return before if before is not None and before.at_s is not None else CalmSince(now_s)


def calm_for(before: CalmSince | None, vc: str, estimate_s: float, now_s: float) -> Calm:
    """The comparison that says whether the VC has been calm for a day, and for as long as a job is expected to run.
    The time before the first plan is unknown, and counts as busy."""
    at_s = now_s if before is None or before.at_s is None else before.at_s
    # less than a day of calm may be a night or a weekend's hour, after which everybody comes
    return Calm(vc, now_s - at_s, max(estimate_s, DAY_S))
