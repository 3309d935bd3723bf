"""Who may stand beside whom: the five packing rules, share scores within GSS, and the choice of partner."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from lucid.config import PackingSettings
from lucid.core.job import Pending, Running
from lucid.core.ledger import Ledger
from lucid.core.placement import Placement
from lucid.core.ports import Predictor
from lucid.core.prediction import Prediction
from lucid.core.reason import (
    DistributedAlone,
    GpuMemory,
    NotMeasured,
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
        self._open: dict[int, dict[str, Running]] = defaultdict(dict)
        """Jobs that may be joined, by GPU count and id, in order of start."""
        for entry in partition.running:
            self._offer(entry)

    def _offer(self, entry: Running) -> None:
        if (
            entry.partner is None
            and entry.profile is not None
            and entry.job.shareable
            and not entry.alone
            and not entry.profile.unstable
            and len(entry.placement) == 1
        ):
            self._open[entry.job.gpus][entry.job.id] = entry

    def partner(self, entry: Pending, value: float, fenced=None) -> tuple[Running | None, list[Reason]]:
        """The job to stand beside, with the comparisons that chose it; or ``None`` with those that failed."""
        settings, job, profile = self._settings, entry.job, entry.profile
        distributed = DistributedAlone(job.gpus, self._ledger.gpus_per_node)
        if distributed:
            return None, [distributed]
        allowed = UserAllows(job.shareable, entry.alone)
        if not allowed:
            return None, [allowed]
        score = self._predictions[job.id].share_score
        if profile is None or score is None:
            return None, [NotMeasured(False)]
        shareable = Shareable(score, settings.gss)
        if not shareable:
            return None, [shareable]
        stable = Stable(job.id, profile.unstable)
        if not stable:
            return None, [stable]
        candidates = self._open[job.gpus]
        same = SameGpus(job.gpus, len(candidates))
        if not same:
            return None, [same]
        refused: list[Reason] = []
        best: tuple[float, Running, list[Reason]] | None = None
        for other in candidates.values():
            assert other.profile is not None
            if fenced is not None and fenced.touches(other.placement):
                continue
            found = self._predictions[other.job.id]
            scores = ShareScores(other.job.id, score, found.share_score if found.share_score is not None else 99, settings.gss)
            if not scores:
                refused = [scores]
                continue
            memory = GpuMemory(other.job.id, profile.gpu_mem_mib, other.profile.gpu_mem_mib, self._capacity_mib(other))
            if not memory:
                refused = [memory]
                continue
            reasons: list[Reason] = [same, scores, memory]
            if settings.least_partner_remaining_s:
                outlasts = PartnerOutlasts(
                    other.job.id, found.remaining_s(other.elapsed_s(self._now_s)), settings.least_partner_remaining_s
                )
                if not outlasts:
                    refused = [outlasts]
                    continue
                reasons.append(outlasts)
            if settings.priority_ratio is not None:
                leaves = PartnerLeaves(other.job.id, value, found.duration_s * other.job.gpus, settings.priority_ratio)
                if not leaves:
                    refused = [leaves]
                    continue
                reasons.append(leaves)
            if settings.partner == "first":
                return other, reasons
            speeds = self._predictor.pair_speed(profile, other.profile)
            total = sum(speeds) if speeds else 0.0
            if best is None or total > best[0]:
                best = (total, other, reasons)
        if best is not None:
            return best[1], best[2]
        return None, [same, *refused]

    def _capacity_mib(self, other: Running) -> float:
        return min(self._ledger.nodes[self._ledger.index[part.node]].gpu_mem_mib for part in other.placement)

    def joined(self, entry: Pending, other: Running, now_s: float) -> None:
        """Note a pair."""
        del self._open[entry.job.gpus][other.job.id]
        self._ledger.join(entry.job, other.placement)

    def started(self, entry: Pending, placement: Placement, now_s: float) -> None:
        """Note a job that started alone: it may be joined in the same plan."""
        self._ledger.take(entry.job, placement)
        self._offer(Running(entry.job, now_s, placement, profile=entry.profile, alone=entry.alone))
