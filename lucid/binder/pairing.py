"""Who may stand beside whom: the packing rules, share scores within GSS, and the choice of partner."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Mapping

from lucid.config import PackingSettings
from lucid.core.job import Pending, Running
from lucid.core.ledger import Ledger
from lucid.core.placement import Placement
from lucid.core.ports import Predictor
from lucid.core.prediction import Prediction
from lucid.core.reason import (
    BestPartner,
    DistributedAlone,
    GpuMemory,
    HostFits,
    NotMeasured,
    PairSpeed,
    PartnerLeaves,
    PartnerOutlasts,
    Reason,
    SameGpus,
    Shareable,
    ShareScores,
    Stable,
    UserAllows,
)
from lucid.core.snapshot import Partition

__all__ = ["Binder"]

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
    ) -> None:
        self._ledger = ledger
        self._predictions = predictions
        self._predictor = predictor
        self._settings = settings
        self._now_s = now_s
        self.changes_s: float | None = None
        """When the next partner that was refused as nearly done will have outlived its estimate: it is then
        expected to go on for long (``Prediction.remaining_s``), and the same question gets another answer."""
        self._open: dict[int, dict[str, tuple[int, Running]]] = defaultdict(dict)
        """Jobs that may be joined with their share scores, by GPU count, then by id in order of start."""
        if settings.gss:
            for entry in partition.running:
                self.offer(entry)

    def offer(self, entry: Running) -> None:
        """Let others join this job, if every rule that concerns it alone holds: measured, stable, alone on
        its GPUs, not distributed, on a node that is up, willing."""
        profile = entry.profile
        if entry.partner is not None or profile is None or profile.unstable or len(entry.placement) != 1:
            return
        if not self._ledger.nodes[self._ledger.index[entry.placement[0].node]].available:
            return  # down or draining: nothing new may start there
        score = self._predictions[entry.job.id].share_score
        if score is not None and score <= self._settings.gss and entry.job.shareable and not entry.alone:
            self._open[entry.job.gpus][entry.job.id] = (score, entry)

    def bars(self, entry: Pending, score: int | None) -> Reason | None:
        """The rule that keeps this job from sharing with anybody, whoever it is; ``None`` if there is none."""
        job, profile = entry.job, entry.profile
        test: Reason = DistributedAlone(job.gpus, self._ledger.gpus_per_node)
        if test:
            return test
        test = UserAllows(job.shareable, entry.alone)
        if not test:
            return test
        if profile is None or score is None:
            return NotMeasured(False)
        test = Shareable(score, self._settings.gss)
        if not test:
            return test
        test = Stable(job.id, profile.unstable)
        return None if test else test

    def partner(
        self, entry: Pending, value: float, score: int, fenced: Container[str] = ()
    ) -> tuple[Running | None, tuple[Reason, ...]]:
        """The job to stand beside, with the comparisons that chose it; or ``None`` with the count of candidates
        and the comparison that the one which came furthest failed.

        ``value`` is the priority value, ``fenced`` names nodes that this job must keep off.
        """
        gpus, gss = entry.job.gpus, self._settings.gss
        candidates = self._open[gpus]
        same = SameGpus(gpus, len(candidates))
        furthest = -1
        failed: Reason | None = None
        best: tuple[float, Running, tuple[Reason, ...]] | None = None
        qualified = looked_at = 0
        for other_score, other in candidates.values():
            if score + other_score > gss:
                if furthest < 0:
                    furthest, failed = 0, ShareScores(score, other_score, gss)
                continue
            if other.placement[0].node in fenced:
                continue
            looked_at += 1
            if looked_at > _SCAN_LIMIT:
                break
            passed, reasons = self._rules(entry, value, other)
            if passed < _ALL_RULES:
                if passed > furthest:
                    furthest, failed = passed, reasons[-1]
                continue
            reasons = (ShareScores(score, other_score, gss), *reasons)
            if self._settings.partner == "first":
                return other, (same, *reasons)
            qualified += 1
            speed = reasons[-1]
            total = speed.own + speed.other if isinstance(speed, PairSpeed) else 0.0
            if best is None or total > best[0]:
                best = (total, other, reasons)
        if best is not None:
            total, other, reasons = best
            return other, (same, *reasons, BestPartner(other.job.id, total, qualified))
        return None, (same,) if failed is None else (same, failed)

    def _rules(self, entry: Pending, value: float, other: Running) -> tuple[int, tuple[Reason, ...]]:
        """How many of the rules between two jobs hold, in order, and the comparisons made; the last one is
        the one that failed, if any did."""
        settings, own, theirs = self._settings, entry.profile, other.profile
        assert own is not None
        assert theirs is not None
        other_id, found = other.job.id, self._predictions[other.job.id]
        node = self._ledger.index[other.placement[0].node]
        memory = GpuMemory(other_id, own.gpu_mem_mib, theirs.gpu_mem_mib, self._ledger.nodes[node].gpu_mem_mib)
        if not memory:
            return 1, (memory,)
        outlasts = PartnerOutlasts(
            other_id, found.remaining_s(other.elapsed_s(self._now_s)), settings.least_partner_remaining_s
        )
        if not outlasts:
            self._changes(other.start_s + max(found.duration_s, settings.least_partner_remaining_s))
            return 2, (outlasts,)
        reasons: tuple[Reason, ...] = (memory, outlasts)
        if self._ledger.host_limits and (entry.job.cpus or entry.job.mem_mib):
            host = HostFits(
                entry.job.cpus, entry.job.mem_mib, self._ledger.host_fits(node, entry.job, entry.job.gpus)
            )
            if not host:
                return 3, (host,)
            reasons = (*reasons, host)
        if settings.priority_ratio is not None:
            leaves = PartnerLeaves(other_id, value, found.duration_s * other.job.gpus, settings.priority_ratio)
            if not leaves:
                return 4, (leaves,)
            reasons = (*reasons, leaves)
        speeds = self._predictor.pair_speed(own, theirs)
        if speeds is not None:
            speed = PairSpeed(other_id, speeds[0], speeds[1], settings.least_pair_speed, self._predictor.name)
            if not speed:
                return 5, (speed,)
            reasons = (*reasons, speed)
        return _ALL_RULES, reasons

    def _changes(self, at_s: float) -> None:
        if self.changes_s is None or at_s < self.changes_s:
            self.changes_s = at_s

    def joined(self, entry: Pending, other: Running) -> None:
        """Note a pair."""
        self._open[entry.job.gpus].pop(other.job.id, None)
        self._ledger.join(entry.job, other.placement)

    def started(self, entry: Pending, placement: Placement) -> None:
        """Note a job that started alone: it may be joined in the same plan."""
        self._ledger.take(entry.job, placement)
        self.offer(Running(entry.job, self._now_s, placement, profile=entry.profile, alone=entry.alone))


_ALL_RULES = 6
