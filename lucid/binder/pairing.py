"""Who may stand beside whom: the packing rules, share scores within GSS, and the choice of partner."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Mapping
from dataclasses import dataclass

from lucid.config import PackingSettings
from lucid.core.job import Job, JobProfile, Pending, Running
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


@dataclass(slots=True)
class _Candidate:
    """A running job that may be joined, with what the rules between two jobs compare."""

    entry: Running
    score: int
    mem_mib: float
    capacity_mib: float
    remaining_s: float
    value: float
    node: str
    may_restart: bool
    noted: bool = False
    """Has it been noted when it will have outlived its estimate?"""


_ROUNDING_S = 1e-6
"""A look again at the time when a partner becomes eligible may come out a rounding error early."""

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
        self._open: dict[tuple[int, str], dict[str, _Candidate]] = defaultdict(dict)
        """Jobs that may be joined, by GPU count (and user, where only jobs of one user share), then by id in order of
        start."""
        if settings.gss:
            for entry in partition.running:
                self.offer(entry)

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
        self._open[self._kind(job)][job.id] = _Candidate(
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
        """The rule that keeps this job from sharing with anybody under this capacity; ``None`` if there is none."""
        job, profile = entry.job, entry.profile
        test: Reason = DistributedAlone(job.gpus, self._ledger.gpus_per_node)
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
        """The job to stand beside, with the comparisons that chose it; or ``None`` with the count of candidates
        and the comparison that the one which came furthest failed.

        ``value`` is the priority value, ``gss`` the sharing capacity in force, ``fenced`` names nodes that this
        job must keep off, ``floor`` is the least speed of either if not ``least_pair_speed``.
        """
        settings, profile, job = self._settings, entry.profile, entry.job
        assert profile is not None
        room = gss - score
        mem_mib, least_s = profile.gpu_mem_mib, settings.least_partner_remaining_s
        floor = settings.least_pair_speed if floor is None else floor
        ratio = settings.priority_ratio if settings.priority_ratio is not None else float("inf")
        needs_host = self._ledger.host_limits and (job.cpus > 0 or job.mem_mib > 0)
        candidates = self._open[self._kind(job)]
        free_to_part = bool(may_restart(job, self._restarts))
        furthest: tuple[int, _Candidate] | None = None
        best: tuple[float, _Candidate] | None = None
        qualified = looked_at = 0
        for other in candidates.values():
            # the loop runs once for each candidate of each job: bare numbers here, reasons made of the same
            # numbers for the one that is chosen and the one that came furthest
            if other.node in fenced:
                continue
            passed, speed = 0, 0.0
            if other.score <= room:
                looked_at += 1
                if looked_at > _SCAN_LIMIT:
                    break
                passed = 1
                if mem_mib + other.mem_mib < other.capacity_mib:
                    passed = 2
                    if other.remaining_s < least_s - _ROUNDING_S:
                        if not other.noted:
                            self._changes(other)
                    else:
                        passed = 3
                        if not needs_host or self._host_fits(entry, other):
                            passed = 4
                            if value <= ratio * other.value:
                                passed = 5
                                speeds = self._speeds(profile, other)
                                if min(speeds) >= floor:
                                    passed = 6
                                    if free_to_part or other.may_restart or self._harm(entry, other, speeds):
                                        passed = _ALL_RULES
                                        speed = speeds[0] + speeds[1]
            if passed < _ALL_RULES:
                if furthest is None or passed > furthest[0]:
                    furthest = (passed, other)
                continue
            qualified += 1
            if best is None or speed > best[0]:
                best = (speed, other)
            if settings.partner == "first":
                break
        same = SameGpus(job.gpus, len(candidates))
        if best is not None:
            chosen = best[1]
            compared = self._compared(entry, value, score, gss, chosen, floor)
            parts = free_to_part or chosen.may_restart
            reasons = [r for r in compared if self._asked(r, needs_host, parts)]
            choice = BestPartner(chosen.entry.job.id, best[0], qualified, settings.partner)
            return chosen.entry, (same, *reasons, choice)
        if furthest is None:
            others = 0
            if settings.same_user_only and not candidates:
                others = sum(len(jobs) for (gpus, _), jobs in self._open.items() if gpus == job.gpus)
            none = SameGpus(job.gpus, 0)
            return None, (none, SameUser(job.user, others)) if others else (none,)
        return None, (same, self._compared(entry, value, score, gss, furthest[1], floor)[furthest[0]])

    def _speeds(self, profile: JobProfile, other: _Candidate) -> tuple[float, float]:
        """Expected speeds of the pair; full speed where the predictor has no opinion."""
        assert other.entry.profile is not None
        return self._predictor.pair_speed(profile, other.entry.profile) or (1.0, 1.0)

    def _harm(self, entry: Pending, other: _Candidate, speeds: tuple[float, float]) -> PairHarm:
        """What this pair may cost at the most, until the shorter one has to be gone."""
        settings, host = self._settings, other.entry
        worst = max(min(speeds) - settings.speed_error, settings.part_below_speed)
        own_s = max(self._predictions[entry.job.id].duration_s, 1.0)
        other_s = max(other.remaining_s, 1.0)
        together_s = min(
            _longest_s(own_s, entry.job.time_limit_s, 0.0),
            _longest_s(other_s, host.job.time_limit_s, host.elapsed_s(self._now_s)),
        )
        own, theirs = ((1.0 - worst) * min(1.0, together_s / left_s) for left_s in (own_s, other_s))
        return PairHarm(host.job.id, worst, together_s, own, theirs, settings.unparted_harm)

    def _host_fits(self, entry: Pending, other: _Candidate) -> bool:
        return self._ledger.host_fits(self._ledger.index[other.node], entry.job, entry.job.gpus)

    def _compared(
        self, entry: Pending, value: float, score: int, gss: int, other: _Candidate, floor: float
    ) -> tuple[Reason, ...]:
        """The comparisons between two jobs, in the order of ``partner``."""
        settings, job, profile = self._settings, entry.job, entry.profile
        assert profile is not None
        other_id = other.entry.job.id
        ratio = settings.priority_ratio
        own_speed, other_speed = self._speeds(profile, other)
        return (
            ShareScores(score, other.score, gss),
            GpuMemory(other_id, profile.gpu_mem_mib, other.mem_mib, other.capacity_mib),
            PartnerOutlasts(other_id, other.remaining_s, settings.least_partner_remaining_s),
            HostFits(job.cpus, job.mem_mib, not self._ledger.host_limits or self._host_fits(entry, other)),
            PartnerLeaves(other_id, value, other.value, ratio if ratio is not None else float("inf")),
            PairSpeed(other_id, own_speed, other_speed, floor, self._predictor.name),
            self._harm(entry, other, (own_speed, other_speed)),
        )

    def _asked(self, reason: Reason, needs_host: bool, parts: bool) -> bool:
        """Was this comparison made at all? Some are not where there is no rule or no limit to compare with."""
        if isinstance(reason, PairHarm):
            return not parts
        if isinstance(reason, PartnerLeaves):
            return self._settings.priority_ratio is not None
        return needs_host or not isinstance(reason, HostFits)

    def _changes(self, other: _Candidate) -> None:
        """Note when a partner that is nearly done would no longer be, should it outlive its estimate."""
        other.noted = True
        found = self._predictions[other.entry.job.id]
        at_s = other.entry.start_s + max(found.duration_s, self._settings.least_partner_remaining_s)
        if self.changes_s is None or at_s < self.changes_s:
            self.changes_s = at_s

    def joined(self, entry: Pending, other: Running) -> None:
        """Note a pair."""
        self._open[self._kind(entry.job)].pop(other.job.id, None)
        self._ledger.join(entry.job, other.placement)

    def started(self, entry: Pending, placement: Placement) -> None:
        """Note a job that started alone: it may be joined in the same plan."""
        self._ledger.take(entry.job, placement)
        self.offer(Running(entry.job, self._now_s, placement, profile=entry.profile, alone=entry.alone))


_LIMIT_FACTOR = 2.0
"""A job without a time limit is reckoned to take at most so many times its estimate, as plain order reckons it."""


def _longest_s(left_s: float, limit_s: float | None, elapsed_s: float) -> float:
    """The upper bound of what a job has still to run: its time limit, where it has one."""
    return _LIMIT_FACTOR * left_s if limit_s is None else max(limit_s - elapsed_s, 0.0)


_ALL_RULES = 7
