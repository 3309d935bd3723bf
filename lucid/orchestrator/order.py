"""The queue of one partition in order of estimate x GPUs, without working everything out anew for every plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import attrgetter

from lucid.core.job import Job, Pending
from lucid.core.prediction import Prediction
from lucid.core.reason import FairShare
from lucid.core.restart import Restarts, may_restart
from lucid.orchestrator.precedence import in_precedence

__all__ = ["QueueOrder", "QueuedJob", "fair_share_of"]

Shape = tuple[object, ...]


class QueuedJob:
    """A pending job with what its place in the queue follows from. ``value`` is the priority value (estimated
    seconds x GPUs). Two jobs of one ``shape`` differ, for the question whether there is room, only in GPU memory
    and profile."""

    __slots__ = ("entry", "fair", "gpu_mem_mib", "id", "prediction", "shape", "steady", "value")

    def __init__(
        self,
        entry: Pending,
        prediction: Prediction,
        by_user: bool = False,
        fair: FairShare | None = None,
        restarts: Restarts = "allowed",
    ) -> None:
        job, profile = entry.job, entry.profile
        self.id = job.id
        self.entry = entry
        self.prediction = prediction
        self.value = prediction.duration_s * job.gpus * (1.0 if fair is None else fair.times)
        self.fair = fair
        self.gpu_mem_mib = 0.0 if profile is None else profile.gpu_mem_mib
        self.steady = profile is None or not profile.unstable
        self.shape: Shape = (
            job.gpus,
            prediction.share_score,
            job.shareable,
            entry.alone,
            self.steady,
            job.cpus,
            job.mem_mib,
            job.min_nodes,
            job.constraint,
            job.user if by_user else "",
            fair,
            bool(may_restart(job, restarts)),  # else a pair that may cost much is refused, for it cannot be parted
        )


def fair_share_of(job: Job, factors: Mapping[tuple[str, str], float], bound: float) -> FairShare | None:
    """How many times the job's priority value counts: ``bound`` to the power of 1 - 2 x its fair-share factor, so
    once for an account that has used what it is entitled to. ``None`` without a bound, or where it is unknown."""
    factor = factors.get((job.account, job.user)) if bound > 1.0 else None
    if factor is None:
        return None
    return FairShare(job.account or job.user, factor, bound ** (1.0 - 2.0 * min(max(factor, 0.0), 1.0)), bound)


class QueueOrder:
    """Sorts a partition's pending jobs. What it keeps from one call to the next follows from the entries and
    their predictions, both frozen, and is looked up by their identity: it saves work and changes nothing."""

    def __init__(self, by_user: bool = False, share_bound: float = 1.0, restarts: Restarts = "allowed") -> None:
        self._restarts: Restarts = restarts
        """Whom plans may start over."""
        self._share_bound = share_bound
        """How many times a priority value may count for an account's usage."""
        self._fair_share: Mapping[tuple[str, str], float] = {}
        self._by_user = by_user
        """Only jobs of one user share GPUs: what stops one user's job says nothing of another's."""
        self._known: dict[int, QueuedJob] = {}
        """By ``id`` of the entry, which lives as long as the ``QueuedJob`` that holds it."""
        self._said = False
        """Has there been a job of whose place the site or its user said anything?"""

    def __call__(
        self,
        pending: Sequence[Pending],
        predictions: Mapping[str, Prediction],
        fair_share: Mapping[tuple[str, str], float] | None = None,
    ) -> list[QueuedJob]:
        """Smallest value first, unless the site or a user said otherwise (``precedence``); equals in the order of
        ``pending``. ``fair_share``: factors by account and user.

        Raises:
            KeyError: a job has no prediction.
        """
        if fair_share is not None and self._share_bound > 1.0 and fair_share is not self._fair_share:
            self._fair_share, self._known = fair_share, {}
        known = self._known
        if len(known) > 2 * len(pending) + 64:
            known = self._known = {id(e): known[id(e)] for e in pending if id(e) in known}
        # a queue of thousands is looked through for every job that starts or ends: whole lists at a time
        found = list(map(known.get, map(id, pending)))
        queue = [
            row if row is not None and predictions[row.id] is row.prediction else self._anew(entry, predictions)
            for row, entry in zip(found, pending, strict=True)
        ]
        queue.sort(key=_VALUE)
        return in_precedence(queue, [row.entry.job for row in queue]) if self._said else queue

    def _anew(self, entry: Pending, predictions: Mapping[str, Prediction]) -> QueuedJob:
        job, fair = entry.job, None
        self._said = self._said or bool(job.tier or job.nice)
        if self._fair_share:
            fair = fair_share_of(job, self._fair_share, self._share_bound)
        row = self._known[id(entry)] = QueuedJob(entry, predictions[job.id], self._by_user, fair, self._restarts)
        return row


_VALUE = attrgetter("value")
