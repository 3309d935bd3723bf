"""``Binder``: which running job a job may start beside: packing rules, share scores, choice of partner."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping
from math import inf
from typing import TYPE_CHECKING

from lucid.binder.candidates import Candidate, Candidates
from lucid.binder.rules import ORDER, Comparisons, Guest, Verdict
from lucid.core.job import Job, Pending, Restarts, Running
from lucid.core.ledger import Ledger
from lucid.core.placement import Placement
from lucid.core.ports import Predictor
from lucid.core.prediction import Prediction
from lucid.core.reason import Reason
from lucid.core.reasons.sharing import (
    BestPartner,
    DistributedAlone,
    GpuMemory,
    InSlots,
    NotMeasured,
    PairSpeed,
    SameGpus,
    SameUser,
    Shareable,
    ShareScores,
    Stable,
    UserAllows,
)
from lucid.core.snapshot import Partition
from lucid.core.times import reached

if TYPE_CHECKING:
    from lucid.config.policy import PackingSettings


class Binder:
    """Finds partners within one plan of one partition, and keeps track of jobs that may still be joined. The ledger
    is only read."""

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
        self._ledger = ledger
        self._predictions = predictions
        self._settings = settings
        self._now_s = now_s
        self._compared = Comparisons(ledger, predictor, settings, restarts, now_s)
        self._changes_s = inf
        """When the next partner that was refused as nearly done will have outlived its estimate. It is then expected
        to go on for long (``Prediction.remaining_s``), and the same question has another answer."""
        self._open: defaultdict[tuple[int, str], Candidates] = defaultdict(Candidates)
        """Jobs that may be joined, by GPU count (and user, where only jobs of one user share)."""
        self.too_slow = False
        """Whether a partner was refused to the last job that found none, because the pair would be too slow."""
        self._number = 0
        self._running: list[Running] = [*partition.running] if settings.gss else []
        self._idle = not self._running
        """Whether no job ran before this plan."""
        self._asked: set[int] = set()
        """The GPU counts of which jobs have been offered: in most plans nobody looks for a partner."""

    @property
    def changes_s(self) -> float | None:
        """When time alone may let a job start beside another, s."""
        changes_s = min(self._changes_s, self._compared.changes_s)
        return None if changes_s == inf else changes_s

    def _candidates(self, job: Job) -> Candidates:
        """The running jobs that a job may join."""
        if job.gpus not in self._asked:
            self._offer_all(job.gpus)
        return self._open[self._kind(job)]

    def offered_to(self, job: Job) -> bool:
        """Whether any running job with as many GPUs may be joined."""
        return len(self._candidates(job)) > 0

    def _offer_all(self, gpus: int) -> None:
        """Offer the running jobs of so many GPUs."""
        self._asked.add(gpus)
        # most of a large VC's jobs have a partner already: the others are picked out in one go
        for entry in [e for e in self._running if e.partner is None and e.profile is not None and e.job.gpus == gpus]:
            self.offer(entry)

    def any_to_join(self, gpus: int) -> bool:
        """Whether any job of so many GPUs may be joined, if a job of this plan was compared with any."""
        if gpus not in self._asked and (self._asked or self._idle):
            self._offer_all(gpus)
        return any(len(found) for (count, _), found in self._open.items() if count == gpus)

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
        i = self._ledger.index[entry.placement[0].node]
        node = self._ledger.nodes[i]
        if not node.available or node.slots == 1:
            return  # down or draining: nothing new may start there; or its GPUs are not shared
        remaining_s = found.remaining_s(entry.elapsed_s(self._now_s))
        candidate = Candidate(
            self._number,
            entry,
            score,
            profile.gpu_mem_mib,
            node.gpu_mem_mib,
            remaining_s,
            found.duration_s * job.gpus,
            node.name,
            i,
            entry.start_s + max(found.duration_s, self._settings.least_partner_remaining_s),
        )
        self._number += 1
        lasts = reached(remaining_s, self._settings.least_partner_remaining_s)
        self._open[self._kind(job)].add(candidate, lasts)

    def _kind(self, job: Job) -> tuple[int, str]:
        return job.gpus, job.user if self._settings.same_user_only else ""

    def in_slots(self, entry: Pending, score: int | None, nodes: int) -> InSlots:
        """The comparison that says whether a job that starts alone on so many nodes starts in slots. It does if
        another job may join it by the rules of ``offer``, now or once it is measured."""
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
        waits: bool = False,
    ) -> tuple[Running | None, tuple[Reason, ...]]:
        """The job to start beside, with the comparisons that chose it; or ``None`` with the count of candidates and
        the comparison in which the candidate that came furthest failed.

        ``value`` is the priority value, ``gss`` the sharing capacity in force, ``fenced`` names nodes that this job
        must keep off, ``floor`` is the least speed of either if not ``least_pair_speed``, ``waits`` whether the job
        would otherwise wait."""
        assert entry.profile is not None
        candidates, self.too_slow = self._candidates(entry.job), False
        if not candidates:
            return None, self._no_candidates(entry.job)
        floor = self._settings.least_pair_speed if floor is None else floor
        duration_s = self._predictions[entry.job.id].duration_s if waits else 0.0
        may_restart = self._compared.may_restart(entry.job)
        guest = Guest(entry, entry.profile, value, score, gss, floor, may_restart, waits, duration_s)
        last = candidates.last(gss - score)
        best: tuple[Candidate, Verdict] | None = None
        furthest: tuple[Candidate, Verdict] | None = None
        qualified = 0
        for other in self._in_reach(guest, candidates.lasting, last, fenced):
            found = self._compared.judge(guest, other)
            if found.refusal is not None:
                if furthest is None or found.failed > furthest[1].failed:
                    furthest = other, found
                continue
            qualified += 1
            if best is None or found.speed > best[1].speed:
                best = other, found
            if self._settings.partner == "first":
                last = other.number
                break
        if candidates.soonest_s < self._changes_s:
            self._note_changes(guest, candidates, last, fenced)
        same = SameGpus(entry.job.gpus, len(candidates))
        if best is not None:
            partner, found = best
            choice = BestPartner(partner.entry.job.id, found.speed, qualified, self._settings.partner)
            return partner.entry, (same, ShareScores(score, partner.score, gss), *found.comparisons, choice)
        failed = -1 if furthest is None else furthest[1].failed
        self.too_slow = failed >= ORDER.index(PairSpeed)
        if failed <= ORDER.index(GpuMemory):
            for other in self._in_reach(guest, candidates.ending, last, fenced):
                fits = self._compared.fit(guest, other)  # it fails the next rule
                if fits or furthest is None or other.number < furthest[0].number:
                    furthest = other, self._compared.judge(guest, other)
                if fits:
                    break
        if furthest is not None and furthest[1].refusal is not None:
            return None, (same, furthest[1].refusal)
        too_much = candidates.heavy(gss - score, fenced)
        if too_much is not None:
            return None, (same, ShareScores(score, too_much.score, gss))
        return None, (SameGpus(entry.job.gpus, 0),)

    def _in_reach(
        self, guest: Guest, others: Mapping[str, Candidate], last: float, fenced: Container[str]
    ) -> Iterator[Candidate]:
        """The candidates, up to the ``last``, with which the share scores allow a pair, on nodes on which the job may
        start."""
        room, closing, job = guest.gss - guest.score, self._ledger.closing, guest.entry.job
        for other in others.values():
            if other.number > last:
                return
            if other.score > room or other.node in fenced:
                continue
            if not closing or self._ledger.ends_before(other.index, job):
                yield other

    def _note_changes(self, guest: Guest, candidates: Candidates, last: float, fenced: Container[str]) -> None:
        """Note when a partner that is refused as nearly done would no longer be, should it outlive its estimate."""
        for other in self._in_reach(guest, candidates.ending, last, fenced):
            if other.outlived_s < self._changes_s and self._compared.fit(guest, other):
                self._changes_s = other.outlived_s

    def _no_candidates(self, job: Job) -> tuple[Reason, ...]:
        """Why a job finds no partner where no job with as many GPUs may be joined (or none of the same user, where
        others may not share with it)."""
        others = 0
        if self._settings.same_user_only:
            others = sum(len(theirs) for (gpus, _), theirs in self._open.items() if gpus == job.gpus)
        none = SameGpus(job.gpus, 0)
        return (none, SameUser(job.user, others)) if others else (none,)

    def speeds(self, entry: Pending, other: Running) -> tuple[float, float] | None:
        """The expected speeds of a pair; ``None`` where the predictor has no opinion."""
        found = self._compared.pair_speed(entry.profile, other.profile)
        return found if isinstance(found, tuple) else None

    def left(self, gone: Iterable[Running]) -> None:
        """Note running jobs that the plan preempts or gives a partner: they cannot be joined any more."""
        for entry in gone:
            self._candidates(entry.job).drop(entry.job.id)

    def started(self, entry: Pending, placement: Placement) -> None:
        """Note a job that started alone: it may be joined in the same plan. Its GPUs are noted by the ledger."""
        fresh = Running(entry.job, self._now_s, placement, profile=entry.profile, alone=entry.alone)
        self._running.append(fresh)
        if entry.job.gpus in self._asked:
            self.offer(fresh)
