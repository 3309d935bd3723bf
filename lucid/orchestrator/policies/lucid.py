"""Lucid's own policy: profiled first, ordered by estimate x GPUs, packed in pairs, placed consolidated."""

from __future__ import annotations

from collections.abc import Mapping

from lucid.binder.pairing import Binder
from lucid.config import PolicySettings
from lucid.core.decision import Action, Decision, Hold, PartitionPlan, Start
from lucid.core.job import Job, Pending
from lucid.core.ledger import Ledger
from lucid.core.ports import Capability, Predictor
from lucid.core.prediction import Prediction
from lucid.core.reason import FreeGpus, Priority, Reason
from lucid.core.snapshot import Partition
from lucid.orchestrator.placement import consolidated
from lucid.orchestrator.policies.queue import no_place, too_large
from lucid.orchestrator.policy import PartitionPolicy
from lucid.orchestrator.reservation import Reservation, next_holder, reserve
from lucid.profiler.stage import goes_through_profiling, plan_profiling

__all__ = ["LucidPolicy"]


class LucidPolicy(PartitionPolicy):
    """Algorithm 2 of the paper, plus a reservation for large jobs.

    Not blocking at the head: a job that finds no place lets the next one try.
    """

    name = "lucid"

    def __init__(self, settings: PolicySettings, predictor: Predictor) -> None:
        super().__init__()
        self._settings = settings
        self._predictor = predictor
        needs = set()
        if settings.profiling.enabled:
            needs.add(Capability.PROFILE)
        if settings.packing.gss:
            needs.add(Capability.SHARE)
        self.needs = frozenset(needs)

    @classmethod
    def make(cls, settings: PolicySettings, predictor: Predictor) -> LucidPolicy:
        """The factory under the name ``lucid``."""
        return cls(settings, predictor)

    def profiled(self, job: Job) -> bool:
        """All but jobs above N_prof."""
        return goes_through_profiling(job, self._settings.profiling)

    def plan_partition(
        self, partition: Partition, now_s: float, predictions: Mapping[str, Prediction]
    ) -> PartitionPlan:
        """Profile, or order and place."""
        if partition.profiling:
            return plan_profiling(partition, now_s, self._settings.profiling)
        return self._plan_vc(partition, now_s, predictions)

    def _plan_vc(self, partition: Partition, now_s: float, predictions: Mapping[str, Prediction]) -> PartitionPlan:
        decisions: dict[str, Decision] = {}
        actions: list[Action] = []
        if not partition.pending:
            return PartitionPlan(decisions)
        ledger = Ledger(partition)
        binder = Binder(partition, ledger, predictions, self._predictor, self._settings.packing, now_s)
        queue = [(predictions[e.job.id].duration_s * e.job.gpus, e) for e in partition.pending]
        queue.sort(key=lambda item: item[0])
        holder, wake_s = next_holder(partition, ledger.gpus_per_node, now_s, self._settings.reservation)
        kept: Reservation | None = None
        if holder is not None:
            at = next(i for i, item in enumerate(queue) if item[1] is holder)
            queue.insert(0, queue.pop(at))
        for value, entry in queue:
            job, prediction = entry.job, predictions[entry.job.id]
            why: list[Reason] = [
                Priority("estimate x GPUs", value, prediction.duration_s, job.gpus, prediction.duration_source)
            ]
            hopeless = too_large(entry, partition)
            if hopeless:
                decisions[job.id] = Hold((hopeless,))
                continue
            admits = None if kept is None else kept.admits(now_s, prediction.duration_s)
            fenced = None if admits is None or admits else kept
            beside, reasons = binder.partner(entry, value, fenced)
            if beside is not None:
                start = Start(beside.placement, (*why, *reasons), beside.job.id)
                binder.joined(entry, beside, now_s)
            else:
                allowed = None if fenced is None else (lambda i, f=fenced: i not in f.nodes)
                placement = consolidated(ledger, job, allowed)
                if placement is None:
                    if entry is holder:
                        kept = reserve(entry, partition, ledger, predictions, now_s, self._settings.reservation)
                    blocked = no_place(ledger, entry) if fenced is None else (admits, *no_place(ledger, entry))
                    decisions[job.id] = Hold((*why, *reasons, *blocked))
                    continue
                start = Start(placement, (*why, FreeGpus(job.gpus, ledger.largest, ledger.free, True)))
                binder.started(entry, placement, now_s)
            decisions[job.id] = start
            actions.append(Action(job.id, partition.name, start))
        return PartitionPlan(decisions, tuple(actions), wake_s)
