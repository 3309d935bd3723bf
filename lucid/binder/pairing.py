"""Which jobs may share GPUs: the packing rules, share scores within GSS, and the choice of partner."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import merge
from itertools import count, islice
from operator import attrgetter
from typing import Final

from lucid.config import PackingSettings
from lucid.core.job import Job, Pending, Running
from lucid.core.ledger import Ledger
from lucid.core.placement import Placement
from lucid.core.ports import Predictor
from lucid.core.prediction import Prediction
from lucid.core.reason import (
    BestPartner,
    DistributedAlone,
    GpuMemory,
    HostFits,
    InSlots,
    NotMeasured,
    PairHarm,
    PairSpeed,
    PartnerLeaves,
    PartnerOutlasts,
    Reason,
    SameGpus,
    SameUser,
    Shareable,
    ShareScores,
    Stable,
    UserAllows,
)
from lucid.core.restart import Restarts, may_restart
from lucid.core.snapshot import Partition

__all__ = ["Binder"]

_SPEED_ERROR: Final = 0.15
"""A pair may turn out slower than expected by this: the worst plausible error of a measured pair model."""


@dataclass(slots=True)
class _Candidate:
    """A running job that may be joined, with what the rules between two jobs compare."""

    number: int
    """Its place in the order of start."""
    entry: Running
    score: int
    mem_mib: float
    capacity_mib: float
    remaining_s: float
    value: float
    node: str
    may_restart: bool
    noted: bool = False
    """Is it noted when this job will have outlived its estimate?"""


@dataclass(frozen=True, slots=True)
class _Wish:
    """A job that looks for a partner, under which capacity and at what least speed of either."""

    entry: Pending
    value: float
    score: int
    gss: int
    floor: float


@dataclass(frozen=True, slots=True)
class _Pair:
    """A candidate, and the comparisons made with it: all hold, the pair's speeds adding up to ``speed``; or the last
    one fails, and ``speed`` is ``None``."""

    other: _Candidate
    reasons: Sequence[Reason]
    speed: float | None = None


_NUMBER = attrgetter("number")
_SCAN_LIMIT = 256
"""Candidates looked at for one job, oldest first: what bounds a plan on a cluster of thousands of GPUs. By the
time hundreds of partners qualify, the best of them is hardly better than the best of these."""


class Binder:
    """Finds partners within one plan of one partition, and keeps book of the pairs made."""

    def __init__(
        self,
        partition: Partition,
        ledger: Ledger,
        predictions: Mapping[str, Prediction],
        predictor: Predictor,
        settings: PackingSettings,
        now_s: float,
        restarts: Restarts = "allowed",
    ) -> None:
        self._restarts = restarts
        self._ledger = ledger
        self._predictions = predictions
        self._predictor = predictor
        self._settings = settings
        self._now_s = now_s
        self.changes_s: float | None = None
        """When the next partner that was refused as nearly done will have outlived its estimate: it is then
        expected to go on for long (``Prediction.remaining_s``), and the same question gets another answer."""
        self._open: dict[tuple[int, str], dict[int, dict[str, _Candidate]]] = defaultdict(lambda: defaultdict(dict))
        """Jobs that may be joined, by GPU count (and user, where only jobs of one user share), then by share score,
        then by id in order of start."""
        self._numbers = count()
        self._unasked: list[Running] = [*partition.running] if settings.gss else []
        """Jobs not yet looked at: in most plans nobody looks for a partner."""

    def _offered(self) -> dict[tuple[int, str], dict[int, dict[str, _Candidate]]]:
        """The jobs that may be joined, as ``_open``."""
        if self._unasked:
            unasked, self._unasked = self._unasked, []
            # most of a large VC's jobs have a partner already: the others are picked out in one go
            for entry in [e for e in unasked if e.partner is None and e.profile is not None]:
                self.offer(entry)
        return self._open

    def offer(self, entry: Running) -> None:
        """Let others join this job, if every rule that concerns it alone holds: measured, stable, alone on
        its GPUs, not distributed, on a node that is up, willing."""
        profile, job = entry.profile, entry.job
        if entry.partner is not None or profile is None or profile.unstable or len(entry.placement) != 1:
            return
        found = self._predictions[job.id]
        score = found.share_score
        if score is None or score > self._settings.gss or not job.shareable or entry.alone:
            return
        node = entry.placement[0].node
        if not self._ledger.nodes[self._ledger.index[node]].available:
            return  # down or draining: nothing new may start there
        self._open[self._kind(job)][score][job.id] = _Candidate(
            next(self._numbers),
            entry,
            score,
            profile.gpu_mem_mib,
            self._ledger.nodes[self._ledger.index[node]].gpu_mem_mib,
            found.remaining_s(entry.elapsed_s(self._now_s)),
            found.duration_s * job.gpus,
            node,
            bool(may_restart(job, self._restarts)),
        )

    def _kind(self, job: Job) -> tuple[int, str]:
        return job.gpus, job.user if self._settings.same_user_only else ""

    def in_slots(self, entry: Pending, score: int | None, nodes: int) -> InSlots:
        """Does a job that starts alone on so many nodes start in slots? It does if another job may join it by the
        rules of ``offer``, now or once it is measured."""
        profile = entry.profile
        return InSlots(
            entry.job.shareable,
            entry.alone,
            nodes,
            profile is not None,
            profile is not None and profile.unstable,
            score,
            self._settings.gss or -1,
        )

    def bars(self, entry: Pending, score: int | None, gss: int) -> Reason | None:
        """The rule by which this job may share with no other under this capacity; ``None`` if there is none."""
        job, profile = entry.job, entry.profile
        test: Reason = DistributedAlone(job.gpus, self._ledger.gpus_per_node, job.min_nodes)
        if test:
            return test
        test = UserAllows(job.shareable, entry.alone, job.whole_because)
        if not test:
            return test
        if profile is None or score is None:
            return NotMeasured(False)
        test = Shareable(score, gss)
        if not test:
            return test
        test = Stable(job.id, profile.unstable)
        return None if test else test

    def partner(
        self,
        entry: Pending,
        value: float,
        score: int,
        gss: int,
        fenced: Container[str] = (),
        floor: float | None = None,
    ) -> tuple[Running | None, tuple[Reason, ...]]:
        """The job to start beside, with the comparisons that chose it; or ``None`` with the count of candidates
        and the comparison that the one which came furthest failed.

        ``value`` is the priority value, ``gss`` the sharing capacity in force, ``fenced`` names nodes that this
        job must keep off, ``floor`` is the least speed of either if not ``least_pair_speed``.
        """
        wish = _Wish(entry, value, score, gss, self._settings.least_pair_speed if floor is None else floor)
        job = entry.job
        candidates = self._offered()[self._kind(job)]
        fitting = [jobs for theirs, jobs in candidates.items() if theirs <= gss - score]
        furthest: _Pair | None = None
        best: _Pair | None = None
        qualified = 0
        for other in _oldest(fitting):
            if other.node in fenced or not self._ledger.ends_before(self._ledger.index[other.node], job):
                continue
            pair = self._judge(wish, other)
            if pair.speed is None:
                if furthest is None or len(pair.reasons) > len(furthest.reasons):
                    furthest = pair
                continue
            qualified += 1
            if best is None or best.speed is None or pair.speed > best.speed:
                best = pair
            if self._settings.partner == "first":
                break
        same = SameGpus(job.gpus, sum(map(len, candidates.values())))
        if best is not None and best.speed is not None:
            chosen = best.other.entry
            choice = BestPartner(chosen.job.id, best.speed, qualified, self._settings.partner)
            return chosen, (same, *best.reasons, choice)
        if furthest is not None:
            return None, (same, furthest.reasons[-1])
        heavier = _oldest([jobs for theirs, jobs in candidates.items() if theirs > gss - score])
        too_much = next((other for other in heavier if other.node not in fenced), None)
        if too_much is not None:
            return None, (same, ShareScores(score, too_much.score, gss))
        others = 0
        if self._settings.same_user_only and not same:
            open_to = [by_score for (gpus, _), by_score in self._offered().items() if gpus == job.gpus]
            others = sum(len(jobs) for by_score in open_to for jobs in by_score.values())
        none = SameGpus(job.gpus, 0)
        return None, (none, SameUser(job.user, others)) if others else (none,)

    def _judge(self, wish: _Wish, other: _Candidate) -> _Pair:
        """Make the comparisons between two jobs, up to the first that fails."""
        reasons: list[Reason] = []
        speed = 0.0
        for reason in self._comparisons(wish, other):
            reasons.append(reason)
            if isinstance(reason, PairSpeed):
                speed = sum(_speeds(reason))
            if not reason:
                if isinstance(reason, PartnerOutlasts) and not other.noted:
                    self._changes(other)
                return _Pair(other, reasons)
        return _Pair(other, reasons, speed)

    def _comparisons(self, wish: _Wish, other: _Candidate) -> Iterator[Reason]:
        """The rules between two jobs, in order; without those for which there is no limit to compare with."""
        settings, job, profile = self._settings, wish.entry.job, wish.entry.profile
        assert profile is not None
        other_id = other.entry.job.id
        yield ShareScores(wish.score, other.score, wish.gss)
        yield GpuMemory(other_id, profile.gpu_mem_mib, other.mem_mib, other.capacity_mib)
        yield PartnerOutlasts(other_id, other.remaining_s, settings.least_partner_remaining_s)
        if self._ledger.host_limits and (job.cpus > 0 or job.mem_mib > 0):
            fits = self._ledger.host_fits(self._ledger.index[other.node], job, job.gpus)
            yield HostFits(job.cpus, job.mem_mib, fits)
        if settings.priority_ratio is not None:
            yield PartnerLeaves(other_id, wish.value, other.value, settings.priority_ratio)
        found = self._pair_speed(wish, other)
        yield found
        if not (other.may_restart or may_restart(job, self._restarts)):
            yield PairHarm(other_id, max(min(_speeds(found)) - _SPEED_ERROR, 0.0), settings.unparted_harm)

    def _pair_speed(self, wish: _Wish, other: _Candidate) -> PairSpeed:
        mine, theirs, name = wish.entry.profile, other.entry.profile, self._predictor.name
        assert mine is not None
        assert theirs is not None
        found = self._predictor.pair_speed(mine, theirs)
        own, its = found if isinstance(found, tuple) else (None, None)
        return PairSpeed(other.entry.job.id, own, its, wish.floor, name, found == "failed")

    def _changes(self, other: _Candidate) -> None:
        """Note when a partner that is nearly done would no longer be, should it outlive its estimate."""
        other.noted = True
        found = self._predictions[other.entry.job.id]
        at_s = other.entry.start_s + max(found.duration_s, self._settings.least_partner_remaining_s)
        if self.changes_s is None or at_s < self.changes_s:
            self.changes_s = at_s

    def joined(self, entry: Pending, other: Running) -> None:
        """Note a pair."""
        for jobs in self._offered()[self._kind(entry.job)].values():
            jobs.pop(other.job.id, None)
        self._ledger.take(entry.job, other.placement)

    def left(self, gone: Iterable[Running]) -> None:
        """Note jobs that the plan preempts: nobody joins them any more."""
        for entry in gone:
            for jobs in self._offered()[self._kind(entry.job)].values():
                jobs.pop(entry.job.id, None)

    def started(self, entry: Pending, placement: Placement) -> None:
        """Note a job that started alone: it may be joined in the same plan."""
        self._ledger.take(entry.job, placement)
        fresh = Running(entry.job, self._now_s, placement, profile=entry.profile, alone=entry.alone)
        if self._unasked:
            self._unasked.append(fresh)
        else:
            self.offer(fresh)


def _oldest(by_score: Iterable[dict[str, _Candidate]]) -> Iterator[_Candidate]:
    """Of these candidates the first that started, at most as many as one job may look at."""
    return islice(merge(*(jobs.values() for jobs in by_score), key=_NUMBER), _SCAN_LIMIT)


def _speeds(pair: PairSpeed) -> tuple[float, float]:
    """Expected speeds of the pair; full speed where the predictor has no opinion."""
    return (1.0, 1.0) if pair.own is None or pair.other is None else (pair.own, pair.other)
