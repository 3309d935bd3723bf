"""``Quotas``: how many more GPUs each VC of a pool may use, up to its quota and, by lending, beyond it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from msgspec import Struct

from lucid.core.job import Job, Running
from lucid.core.placement import Placement, placement_gpus
from lucid.core.reason import Reason
from lucid.core.reasons.queue import Borrows, Quota
from lucid.core.snapshot import Partition
from lucid.orchestrator.capacity.timeline import End

if TYPE_CHECKING:
    from lucid.config.policy import LendingSettings


def holders(running: Iterable[Running]) -> dict[Placement, Running]:
    """The first job on each set of GPUs in use. ``running``: in order of start."""
    return {entry.placement: entry for entry in reversed([*running])}


class _Kept(Struct, frozen=True):
    """GPUs of a VC's quota that are kept for a job; other jobs of the VC may have them for at most ``room_s``."""

    holder: str
    gpus: int
    room_s: float


class Quotas:
    """The GPUs that each VC of a pool holds while a plan is being made.

    A pair holds its GPUs once, for the VC of the job that was there first. A job that joins takes no quota; if it
    outlasts its partner, the GPUs are its VC's from then on."""

    def __init__(self, partition: Partition, lending: LendingSettings | None = None) -> None:
        self.by_vc: Mapping[str, int] = partition.quotas
        self.held = dict.fromkeys(self.by_vc, 0)
        held = self.held
        shared: list[Running] = []
        for entry in partition.running:
            job = entry.job
            if entry.partner is not None or entry.group:
                shared.append(entry)
            else:
                held[job.vc] = held.get(job.vc, 0) + (job.gpus if job.elastic is None else entry.gpus)
        for entry in holders(shared).values():
            held[entry.job.vc] = held.get(entry.job.vc, 0) + entry.gpus
        self.borrows = lending is not None and lending.mode == "borrow"
        """Whether jobs may go beyond the quota of their VC."""
        self._lends = False
        self._kept: dict[str, list[_Kept]] = {}

    def _add(self, vc: str, gpus: int) -> None:
        self.held[vc] = self.held.get(vc, 0) + gpus

    def lend(self) -> bool:
        """Give out loans from here on, since all jobs that stay within their VC's quota have been tried; returns
        whether there are loans."""
        self._lends = self.borrows
        return self._lends

    def lends_later(self, job: Job) -> bool:
        """Whether the job goes beyond its VC's quota, and loans are only given out once all others have been
        tried."""
        return self.borrows and job.borrows and not self._lends and not self.has_room(job)

    def claim(self, job: Job) -> None:
        """Note that the job starts alone."""
        self._add(job.vc, job.gpus)

    def keep(self, job: Job, room_s: float) -> None:
        """Keep GPUs of the VC's quota for the job; jobs expected to take at most ``room_s`` may have them meanwhile.
        Nothing is kept for a job that may borrow, for it does not wait for its quota."""
        if not (self.borrows and job.borrows):
            self._kept.setdefault(job.vc, []).append(_Kept(job.id, job.gpus, room_s))

    def has_room(self, job: Job) -> bool:
        """Whether the VC's quota has room for the job, whatever is kept there for others. No comparison is made,
        since each waiting job asks in every plan."""
        return self.held.get(job.vc, 0) + job.gpus <= self.by_vc.get(job.vc, 0)

    def within(self, job: Job, estimate_s: float) -> Quota:
        """The comparison that says whether the job stays within its VC's quota."""
        vc = job.vc
        if not self._kept:
            return Quota(vc, job.gpus, self.held.get(vc, 0), self.by_vc.get(vc, 0))
        kept = [item for item in self._kept.get(vc, ()) if item.holder != job.id and estimate_s > item.room_s]
        keeper = kept[0].holder if kept else ""
        gpus = sum(item.gpus for item in kept)
        return Quota(vc, job.gpus, self.held.get(vc, 0), self.by_vc.get(vc, 0), gpus, keeper)

    def opens_s(self, job: Job, ends: Iterable[End]) -> float | None:
        """When the VC's quota is expected to have room for the job; ``None`` if it has. ``ends``: when jobs that hold
        GPUs are expected to give them back."""
        wanted = self.held.get(job.vc, 0) + job.gpus - self.by_vc.get(job.vc, 0)
        if wanted <= 0:
            return None
        last: dict[Placement, tuple[float, str]] = {}
        for end_s, other, placement in ends:
            last[placement] = max(last.get(placement, (end_s, other.vc)), (end_s, other.vc))
        for end_s, placement in sorted((end_s, where) for where, (end_s, vc) in last.items() if vc == job.vc):
            wanted -= placement_gpus(placement)
            if wanted <= 0:
                return end_s
        return None

    def tests(self, job: Job, estimate_s: float = 0.0) -> tuple[Reason, ...]:
        """The comparisons that decide whether the job may start alone: it may if the last one holds."""
        return self._tests(self.within(job, estimate_s), estimate_s, self._lends and job.borrows)

    def large(self, job: Job, estimate_s: float) -> tuple[Reason, ...]:
        """The comparisons for the large job of its VC that has waited longest. It need not wait until loans are given
        out: a VC whose quota is the size of one such job would have to stand empty for it, and plain order, which
        starts it on GPUs of the VC's own, does not lend."""
        return self._tests(self.within(job, 0.0), estimate_s, self.borrows and job.borrows)

    def _tests(self, within: Quota, estimate_s: float, lends: bool) -> tuple[Reason, ...]:
        if within or not lends or within.gpus > within.quota:
            return (within,)
        beyond = min(within.held + within.gpus - within.quota, within.gpus)
        return (within, Borrows(estimate_s, self._lenders(within.vc), beyond))

    def open_to(self, job: Job, estimate_s: float) -> bool:
        """Whether the job may start alone, as ``tests`` decides, without making the comparisons."""
        if self._kept:
            return bool(self.tests(job, estimate_s)[-1])
        if self.has_room(job):
            return True
        return self._lends and job.borrows and job.gpus <= self.by_vc.get(job.vc, 0)

    def _lenders(self, to: str) -> tuple[str, ...]:
        idle = {vc: quota - self.held.get(vc, 0) for vc, quota in self.by_vc.items()}
        return tuple(
            sorted((vc for vc, gpus in idle.items() if gpus > 0 and vc != to), key=lambda vc: (-idle[vc], vc))
        )
