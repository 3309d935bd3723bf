"""The queue of plain order, carried from plan to plan: thousands of jobs wait, and few come and go in between."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from operator import attrgetter

from lucid.core.decision import Hold
from lucid.core.job import Job, Pending
from lucid.core.reason import Reason
from lucid.core.reasons.queue import FairOrder
from lucid.core.snapshot import Partition
from lucid.orchestrator.order.queue_order import in_precedence

SUBMITTED = attrgetter("job.submit_s", "job.rank")
_TIER, _NICE = attrgetter("tier"), attrgetter("nice")
_MOST_SHAPES = 4096
"""Beyond so many, shapes are made anew; equal ones may then be separate objects for a while."""


class Shape:
    """All that decides whether a job finds room, but for its time limit. Two jobs are of one shape if they have the
    same object."""

    __slots__ = ("keeps",)

    def __init__(self) -> None:
        self.keeps: tuple[Reason, ...] = ()
        """What kept jobs of this shape waiting in the last plan that looked."""


class Shapes(dict[tuple[object, ...], Shape]):
    """The shapes, by what jobs ask for."""

    def shape_of(self, job: Job) -> Shape:
        """The shape of a job."""
        return self[job.gpus, job.min_nodes, job.cpus, job.mem_mib, job.constraint, job.vc]

    def __missing__(self, asked: tuple[object, ...]) -> Shape:
        if len(self) >= _MOST_SHAPES:
            self.clear()
        made = self[asked] = Shape()
        return made


_NOT_REPORTED = Hold(())


class WaitingJob:
    """A job of the queue. ``order``: why it has its place there. ``reported``: the reasons that were last given for
    its wait, and ``hold``, the decision with them: most jobs wait for the same reasons in plan after plan."""

    __slots__ = ("entry", "gpus", "hold", "id", "order", "reported", "shape")

    def __init__(self, entry: Pending, order: Reason, shape: Shape) -> None:
        self.entry = entry
        self.id = entry.job.id
        self.gpus = entry.job.gpus
        self.order = order
        self.shape = shape
        self.reported: object = None
        self.hold = _NOT_REPORTED


def in_submission(pending: Sequence[Pending], most: int | None) -> list[WaitingJob]:
    """The jobs in order of submission, after the places that the site and users have set. ``most``: how many of them
    at most."""
    entries, shapes = sorted(pending, key=SUBMITTED), Shapes()
    return [_waiting(entry, shapes) for entry in in_precedence(entries, [e.job for e in entries])[:most]]


def _waiting(entry: Pending, shapes: Shapes) -> WaitingJob:
    return WaitingJob(entry, FairOrder(entry.job.submit_s), shapes.shape_of(entry.job))


class PlainQueue:
    """The queue of one partition in order of submission. All that it keeps follows from the entries, which are
    frozen."""

    def __init__(self) -> None:
        self._shapes = Shapes()
        self._partition: Partition | None = None
        self._because: tuple[Reason, ...] = ()
        self._entries: list[Pending] = []
        self._ids: list[str] = []
        self._rows: list[WaitingJob] | None = None
        """The queue as ``WaitingJob``, where it was asked for in that form."""
        self._said = 0
        """How many jobs have a place that the site or a user has set."""

    def entries(self, partition: Partition) -> Sequence[Pending]:
        """The waiting jobs, in order."""
        before, self._partition = self._partition, None
        if before is None or not self._follows(partition, before):
            self._entries, self._rows = sorted(partition.pending, key=SUBMITTED), None
            self._ids = [entry.job.id for entry in self._entries]
            jobs = [entry.job for entry in partition.pending]
            # whole lists at a time: in most queues of thousands nobody has said anything
            said = any(map(_TIER, jobs)) or any(map(_NICE, jobs))
            self._said = sum(map(_is_said, jobs)) if said else 0
        self._partition = partition
        return in_precedence(self._entries, [e.job for e in self._entries]) if self._said else self._entries

    def ids(self, queue: Sequence[Pending], at: int) -> list[str]:
        """The ids of the jobs in ``queue``, as ``entries`` gave it, from this place on."""
        return self._ids[at:] if queue is self._entries else [entry.job.id for entry in queue[at:]]

    def waiting_jobs(self, partition: Partition, because: tuple[Reason, ...]) -> Sequence[WaitingJob]:
        """The waiting jobs, in order. ``because``: the first reasons of each job that waits."""
        self.entries(partition)
        if self._rows is None or because != self._because:
            self._because, self._rows = because, [_waiting(entry, self._shapes) for entry in self._entries]
        return in_precedence(self._rows, [row.entry.job for row in self._rows]) if self._said else self._rows

    def _follows(self, partition: Partition, before: Partition) -> bool:
        """Make the queue from the previous one, and return whether that was possible. It is not where two jobs have
        the same place: then the order in which they are handed out decides."""
        if partition is before:
            return True
        entries, rows, changes = self._entries, self._rows, partition.since(before)
        for entry in changes.went:
            if isinstance(entry, Pending):
                at = bisect_left(entries, SUBMITTED(entry), key=SUBMITTED)
                if at == len(entries) or entries[at] is not entry:
                    return False
                del entries[at], self._ids[at]
                if rows is not None:
                    del rows[at]
                self._said -= _is_said(entry.job)
        for entry in changes.came:
            if isinstance(entry, Pending):
                place = SUBMITTED(entry)
                at = bisect_left(entries, place, key=SUBMITTED)
                if at < len(entries) and SUBMITTED(entries[at]) == place:
                    return False
                entries.insert(at, entry)
                self._ids.insert(at, entry.job.id)
                if rows is not None:
                    rows.insert(at, _waiting(entry, self._shapes))
                self._said += _is_said(entry.job)
        return True


def _is_said(job: Job) -> bool:
    return bool(job.tier or job.nice)
