"""The queue of a partition in order of estimate x GPUs, after tiers and nice values; site factors.

Slurm adds the priority of a job's QOS and its user's ``--nice`` to the points of age and size. A policy here has no
such points, so they go before its order: jobs of a higher tier first, and among the jobs of one user in one tier the
least nice first. A user's nice values move no other user's jobs.

In order mode a job's place becomes a number that Slurm adds to its priority. Places count by powers of two (1, 2, 3
to 4, 5 to 8, and so on), so an arrival at the head of a queue of 1,000 jobs changes 10 numbers, each of which is a
command to Slurm. The number is bounded, so that QOS, age and fair-share keep their say."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter, itemgetter
from typing import TypeVar

from lucid.core.decision import PartitionPlan
from lucid.core.job import Job, JobProfile, Pending, Restarts
from lucid.core.prediction import Prediction
from lucid.core.reasons.profiling import Requeueable
from lucid.core.reasons.queue import FairShare
from lucid.core.snapshot import Partition

_T = TypeVar("_T")
_TIER, _NICE = attrgetter("tier"), attrgetter("nice")


def in_precedence(queue: Iterable[_T], jobs: Sequence[Job]) -> list[_T]:
    """The rows of a queue, which come in a policy's order, reordered by tier and nice value. ``jobs``: one a row."""
    found = list(queue)
    if not (any(map(_TIER, jobs)) or any(map(_NICE, jobs))):  # most queues are long, and nobody has said anything
        return found
    if len({job.tier for job in jobs}) > 1:
        at = sorted(range(len(jobs)), key=lambda i: -jobs[i].tier)
        found, jobs = [found[i] for i in at], [jobs[i] for i in at]
    if not any(job.nice for job in jobs):
        return found
    places: dict[tuple[str, int], list[int]] = {}
    for i, job in enumerate(jobs):
        places.setdefault((job.user, job.tier), []).append(i)
    for mine in places.values():
        rows = [found[i] for i in sorted(mine, key=lambda i: jobs[i].nice)]
        for i, row in zip(mine, rows, strict=True):
            found[i] = row
    return found


QueueRow = tuple[float, int, float, float, str, Pending, Prediction]
"""A pending job with what a plan needs of each of thousands: its priority value (estimated seconds x GPUs), the
number of its shape, its GPU memory (MiB), its estimate (s), its id, its entry and its prediction. As to whether there
is room, two jobs of one shape differ only in GPU memory and profile. (It is a tuple since thousands are made in one
go.)"""

_MOST_SHAPES = 4096
"""Beyond so many shapes their numbers are given out anew."""


class QueuedJob:
    """A pending job as it is tried or explained. ``value`` is its priority value."""

    __slots__ = ("entry", "fair", "id", "prediction", "value")

    def __init__(self, entry: Pending, prediction: Prediction, fair: FairShare | None = None) -> None:
        self.id = entry.job.id
        self.entry = entry
        self.prediction = prediction
        self.value = prediction.duration_s * entry.job.gpus * (1.0 if fair is None else fair.times)
        self.fair = fair


def fair_share_of(job: Job, factors: Mapping[tuple[str, str], float], bound: float) -> FairShare | None:
    """How many times the job's priority value counts: ``bound`` to the power of 1 - 2 x its fair-share factor, so
    once for an account that has used its share. ``None`` without a bound, or where the factor is unknown."""
    factor = factors.get((job.account, job.user)) if bound > 1.0 else None
    if factor is None:
        return None
    return FairShare(job.account or job.user, factor, bound ** (1.0 - 2.0 * min(max(factor, 0.0), 1.0)), bound)


class _Shapes(dict[tuple[object, ...], int]):
    """The number of each shape, by all fields of a job that bear on it. Few jobs of a long queue bring a new
    combination: only for these it is worked out which of the fields make a difference."""

    def __init__(self, restarts: Restarts) -> None:
        super().__init__()
        self._restarts: Restarts = restarts
        self._numbers: dict[object, int] = {}
        self.said = False
        """Whether the site or a user has set the place of any job."""

    def __missing__(self, said: tuple[object, ...]) -> int:
        *shape, switches, switches_until_s, requeueable, restart_asked, tier, nice = said
        self.said = self.said or bool(tier or nice)
        # a pair that may cost much is refused if it cannot be parted
        may_restart = bool(Requeueable(bool(requeueable), self._restarts, bool(restart_asked)))
        found = self[said] = self.number_of((*shape, (switches, switches_until_s) if switches else (), may_restart))
        return found

    def number_of(self, shape: object) -> int:
        """The number of a shape, given by what makes a difference."""
        return self._numbers.setdefault(shape, len(self._numbers))


class QueueOrder:
    """Sorts a partition's pending jobs. The queue is carried from plan to plan by the jobs that came and went. It
    follows from the entries and their predictions, both frozen: keeping it saves work and changes nothing."""

    def __init__(self, by_user: bool = False, share_bound: float = 1.0, restarts: Restarts = "allowed") -> None:
        self._restarts: Restarts = restarts
        """Which jobs plans may start over."""
        self._share_bound = share_bound
        """How many times a priority value may count for an account's usage."""
        self._fair_share: Mapping[tuple[str, str], float] = {}
        self._by_user = by_user
        """Whether only jobs of one user share GPUs, so that what stops one user's job says nothing of another's."""
        self._shapes = _Shapes(restarts)
        self._partition: Partition | None = None
        """The partition as it was when the queue was made."""
        self._queue: list[QueueRow] = []
        """The queue of ``_partition``."""
        self._kept: tuple[list[str], list[Prediction | None]] | None = None
        """The ids and the predictions of the queue's jobs, from the second call on."""

    def __call__(
        self,
        partition: Partition,
        predictions: Mapping[str, Prediction],
        fair_share: Mapping[tuple[str, str], float] | None = None,
    ) -> Sequence[QueueRow]:
        """The queue: smallest value first, after tiers and nice values (``in_precedence``); equals in the order of
        ``partition.pending``. ``fair_share``: factors by account and user.

        Raises: KeyError: a job has no prediction."""
        before, self._partition = self._partition, None
        if fair_share is not None and self._share_bound > 1.0 and fair_share is not self._fair_share:
            self._fair_share, before = fair_share, None
        if len(self._shapes) > _MOST_SHAPES:
            self._shapes, before = _Shapes(self._restarts), None
        if before is None or not self._follows(partition, before, predictions):
            self._queue, self._kept = self._anew(partition.pending, predictions), None
            self._queue.sort(key=_VALUE)
        self._partition = partition
        return in_precedence(self._queue, [row[5].job for row in self._queue]) if self._shapes.said else self._queue

    def job(self, row: QueueRow) -> QueuedJob:
        """The job of a row."""
        return QueuedJob(row[5], row[6], fair_share_of(row[5].job, self._fair_share, self._share_bound))

    def _follows(self, partition: Partition, before: Partition, predictions: Mapping[str, Prediction]) -> bool:
        """Make the queue from the previous one, and return whether that was possible. It is not where a job is
        predicted anew, nor where two jobs have the same place, which only the whole partition decides."""
        queue, changes = self._queue, partition.since(before)
        if self._kept is None:
            self._kept = [row[4] for row in queue], [row[6] for row in queue]
        ids, known = self._kept
        for entry in changes.went:
            if isinstance(entry, Pending):
                at = ids.index(entry.job.id)
                del queue[at], ids[at], known[at]
        # a queue of thousands is looked through for every job that starts or ends: whole lists at a time
        if list(map(predictions.get, ids)) != known:
            return False
        for row in self._anew([entry for entry in changes.came if isinstance(entry, Pending)], predictions):
            place = _place(row)
            at = bisect_left(queue, place, key=_place)
            if at < len(queue) and _place(queue[at]) == place:
                return False
            queue.insert(at, row)
            ids.insert(at, row[4])
            known.insert(at, row[6])
        return True

    def _anew(self, entries: Sequence[Pending], predictions: Mapping[str, Prediction]) -> list[QueueRow]:
        shapes, by_user = self._shapes, self._by_user
        rows: list[QueueRow] = [
            (
                found.duration_s * job.gpus,
                shapes[
                    job.gpus,
                    found.share_score,
                    job.shareable,
                    entry.alone,
                    profile.unstable,
                    job.cpus,
                    job.mem_mib,
                    job.min_nodes,
                    job.constraint,
                    job.user if by_user else "",
                    job.most_switches,
                    job.switches_until_s,
                    job.requeueable,
                    job.restart_asked,
                    job.tier,
                    job.nice,
                ],
                profile.gpu_mem_mib,
                found.duration_s,
                job.id,
                entry,
                found,
            )
            for entry in entries
            for job, profile in ((entry.job, entry.profile or _UNMEASURED),)
            for found in (predictions[job.id],)
        ]
        return [*map(self._weighted, rows)] if self._fair_share else rows

    def _weighted(self, row: QueueRow) -> QueueRow:
        """The row of a job with its priority value weighted by its account's usage."""
        fair = self.job(row).fair
        return row if fair is None else (row[0] * fair.times, self._shapes.number_of((row[1], fair)), *row[2:])


def _place(row: QueueRow) -> tuple[float, float, float, int]:
    """The sort key of a row: its value, then the order of ``Partition.pending``."""
    entry = row[5]
    return row[0], entry.since_s, entry.job.submit_s, entry.job.rank


_UNMEASURED = JobProfile(0.0, 0.0, 0.0)
_VALUE = itemgetter(0)


BOUND = 1000
"""Most that order mode adds to a job's priority."""
_STEPS = 20


def factor_of(position: int) -> int:
    """The site factor of a place: ``BOUND`` for the first, a ``_STEPS``-th less for each power of two, down to 0."""
    return BOUND * max(_STEPS - (position - 1).bit_length(), 0) // _STEPS


def site_factors(plan: PartitionPlan) -> dict[str, int]:
    """The site factor of each waiting job, from its place in the plan."""
    return {job_id: factor_of(position) for job_id, position in plan.positions.items()}
