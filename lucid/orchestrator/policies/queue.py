"""The queue policies ``fifo``, ``sjf``, ``srtf``, ``qssf`` and ``tiresias``: a sort key each.

The first four stop at the first job that does not fit (head-of-line), as the published baselines do; srtf also
preempts. Tiresias is discretised two-dimensional least attained service (2D-LAS): two queues, preemptive."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from lucid.core.decision import Action, Decision, Hold, PartitionPlan, Requeue, Start
from lucid.core.job import Job, Pending, Running
from lucid.core.ledger import Ledger, Ledgers
from lucid.core.placement import Placement
from lucid.core.ports import Capability
from lucid.core.prediction import Prediction
from lucid.core.reason import Reason
from lucid.core.reasons.queue import BehindHead, FairOrder, FreeGpus, Preempted, Priority
from lucid.core.snapshot import Partition, Snapshot
from lucid.core.times import ROUNDING
from lucid.orchestrator.capacity.placement import Feasibility, consolidated, emptiest, no_place, spread
from lucid.orchestrator.capacity.preemption import Yielding
from lucid.orchestrator.order.queue_order import in_precedence
from lucid.orchestrator.order.quotas import Quotas
from lucid.orchestrator.policies.backfill import BackfillPolicy
from lucid.orchestrator.policies.waiting import PlainQueue, Shapes, WaitingJob
from lucid.orchestrator.policy import PartitionPolicy, PolicyRules
from lucid.orchestrator.rounds import RoundPolicy, after_round_s

if TYPE_CHECKING:
    from lucid.config.policy import TiresiasSettings

_ROUND_S = 60.0
"""Seconds between rounds of Tiresias."""
SETTLE_S = 1.0
"""How soon the plan is made anew after a preemption, when the GPUs have come free."""

QueueKeys = Callable[[Sequence[Pending | Running], Mapping[str, Prediction], float], list[float]]
"""Sort values of jobs (smaller first) from their states, predictions by id and the time; worked out for a whole queue
at once."""


def attained_s(entry: Pending | Running, now_s: float) -> float:
    """Wall seconds that a job has run so far, over all its runs."""
    if isinstance(entry, Running):
        return entry.ran_s + entry.elapsed_s(now_s)
    return entry.ran_s


class QueuePolicy(PartitionPolicy):
    """Sort, start from the front, stop at the first job that does not fit; in a pool, at the first of its VC. With
    ``backfill`` go on behind it, as plain Slurm does: a job starts if by all time limits (estimates, where there is
    none) no job before it starts later for that.

    Without a prediction a job's key is infinite: it comes last, never out."""

    rules = PolicyRules(claims=True, quotas=True, reads_trust=False)

    def __init__(self, name: str, rule: str, keys: QueueKeys | None, *, backfill: bool = False) -> None:
        """``keys``: ``None`` for the order of submission."""
        super().__init__()
        self.name = name
        self._rule = rule
        self._keys = keys
        self._backfill = _backfilling() if backfill else None
        self._ledgers = Ledgers()
        self._queues: defaultdict[str, PlainQueue] = defaultdict(PlainQueue)

    def _in_order(self, partition: Partition, snapshot: Snapshot) -> Sequence[Pending]:
        if self._keys is None:
            return self._queues[partition.name].entries(partition)
        pending = partition.pending
        values = self._keys(pending, snapshot.predictions, snapshot.now_s)
        return [pending[i] for i in _in_order(values, pending)]

    def _why(self, entry: Pending, snapshot: Snapshot) -> Reason:
        job, prediction = entry.job, snapshot.predictions.get(entry.job.id)
        if prediction is None or self._keys is None:
            return FairOrder(job.submit_s)
        value = self._keys([entry], snapshot.predictions, snapshot.now_s)[0]
        made = self._rule, value, prediction.duration_s, job.gpus, prediction.duration_source
        return Priority(*made, job.tier, job.nice)

    def plan_partition(self, partition: Partition, snapshot: Snapshot) -> PartitionPlan:
        """Start jobs in order until one does not fit, and with ``backfill`` those behind it that delay no other."""
        decisions: dict[str, Decision] = {}
        actions: list[Action] = []
        if not partition.pending:
            return PartitionPlan(decisions)
        if self._backfill is not None:
            shapes, order = Shapes(), self._in_order(partition, snapshot)
            rows = [WaitingJob(entry, self._why(entry, snapshot), shapes.shape_of(entry.job)) for entry in order]
            return self._backfill.plan_because(partition, snapshot, (), rows)
        now_s = snapshot.now_s
        ledger, feasible = self._ledgers.ledger_of(partition, now_s), Feasibility(partition)
        yielding = Yielding(partition, ledger, now_s)
        quotas = Quotas(partition) if partition.quotas else None
        queue = self._in_order(partition, snapshot)
        behind: dict[str, Hold] = {}
        for at, entry in enumerate(queue):
            job = entry.job
            line = "" if quotas is None else job.vc  # each VC of a pool has a line of its own
            if line in behind:
                if quotas is None:  # all others are behind it, thousands at times
                    decisions |= dict.fromkeys(self._queues[partition.name].ids(queue, at), behind[line])
                    break
                decisions[job.id] = behind[line]
                continue
            hopeless = feasible.bar(job)
            if hopeless is not None:
                decisions[job.id] = Hold((hopeless,))
                continue
            why = (self._why(entry, snapshot),)
            quota = () if quotas is None else quotas.tests(job)
            open_to = all(quota)
            placement = consolidated(ledger, job, remainder_on_emptiest=True) if open_to else None
            claim = yielding.find(job) if placement is None and open_to else None
            if claim is not None:
                lacks = FreeGpus(job.gpus, ledger.largest, ledger.free, False)
                start = claim.start((*why, *quota, lacks), within_quota=quotas is not None)
                yielding.claim(job, claim)
            elif placement is not None:
                free = FreeGpus(job.gpus, ledger.largest, ledger.free, True)
                reasons = (*why, *quota, free, *spread(ledger, placement))
                start = Start(placement, reasons, within_quota=quotas is not None)
                ledger.claim(job, placement)
            else:
                decisions[job.id] = Hold((*why, *quota, *(no_place(ledger, entry) if open_to else ())))
                behind[line] = Hold((BehindHead(job.id),))
                continue
            if quotas is not None:
                quotas.claim(job)
            decisions[job.id] = start
            actions.append(Action(job.id, partition.name, start))
        return PartitionPlan(decisions, tuple(actions), yielding.changes_s)


def _backfilling() -> BackfillPolicy:
    from lucid.config.policy import BackfillSettings

    return BackfillPolicy(BackfillSettings())


def _in_order(values: Sequence[float], entries: Sequence[Pending | Running]) -> list[int]:
    """The indices of jobs in order of their values, after the places that the site and users have set."""
    order = sorted(range(len(entries)), key=values.__getitem__)
    return in_precedence(order, [entries[i].job for i in order])


def _whole(ledger: Ledger, job: Job) -> Placement | None:
    return consolidated(ledger, job, remainder_on_emptiest=True)


def fill_quota(
    partition: Partition,
    now_s: float,
    order: Sequence[tuple[Pending | Running, Reason]],
    place: Callable[[Ledger, Job], Placement | None] = _whole,
) -> tuple[dict[str, Decision], list[Action]]:
    """Give out the partition's GPUs, in a pool those of each VC's quota, in ``order`` over running and pending jobs
    together. Running jobs left over are preempted; pending ones that got a share start where ``place`` finds room.
    Jobs of other partitions on its nodes keep what they hold."""
    foreign, masks = set[str](), dict[str, int]()
    for held in partition.running:
        if held.job.vc not in (partition.quotas or (partition.name,)):
            foreign.add(held.job.id)
            masks.update({part.node: masks.get(part.node, 0) | part.mask for part in held.placement})
    left = dict(partition.quotas) or {"": partition.gpus - sum(mask.bit_count() for mask in masks.values())}
    decisions: dict[str, Decision] = {}
    actions: list[Action] = []
    chosen: list[tuple[Pending, Reason]] = []
    preempted: list[Running] = []
    feasible = Feasibility(partition)
    for entry, why in order:
        if entry.job.id in foreign:
            continue
        hopeless = feasible.bar(entry.job) if isinstance(entry, Pending) else None
        if hopeless is not None:
            decisions[entry.job.id] = Hold((hopeless,))
            continue
        line = entry.job.vc if partition.quotas else ""  # each VC of a pool has a quota of its own
        test = Preempted(entry.job.gpus, left.setdefault(line, 0))
        if not test:
            left[line] -= entry.job.gpus
            if isinstance(entry, Pending):
                chosen.append((entry, why))
            continue
        decision: Decision
        if isinstance(entry, Running):
            decision = Requeue((why, test))
            preempted.append(entry)
            actions.append(Action(entry.job.id, partition.name, decision))
        else:
            decision = Hold((why, test))
        decisions[entry.job.id] = decision
    if chosen:
        ledger = Ledger(partition, now_s)
        ledger.give_back(preempted)
        for pending, why in chosen:
            placement = place(ledger, pending.job)
            if placement is None:
                decisions[pending.job.id] = Hold((why, *no_place(ledger, pending)))
                continue
            start = Start(placement, (why, FreeGpus(pending.job.gpus, ledger.largest, ledger.free, True)))
            ledger.claim(pending.job, placement)
            decisions[pending.job.id] = start
            actions.append(Action(pending.job.id, partition.name, start))
    decisions = {entry.job.id: decisions[entry.job.id] for entry, _ in order if entry.job.id in decisions}
    return decisions, actions


class PreemptiveQueuePolicy(QueuePolicy):
    """A queue policy that preempts: the quota of GPUs goes to running and queued jobs together, in order."""

    needs = frozenset({Capability.PREEMPT})
    rules = PolicyRules(preempts="anybody", quotas=True, reads_trust=False)

    def __init__(self, name: str, rule: str, keys: QueueKeys) -> None:
        super().__init__(name, rule, keys)
        self._over_all = keys

    def plan_partition(self, partition: Partition, snapshot: Snapshot) -> PartitionPlan:
        """Fill the quota; plan again shortly after a preemption."""
        if not partition.pending:
            return PartitionPlan({})
        rule = self._rule
        now_s, predictions = snapshot.now_s, snapshot.predictions
        both: list[Pending | Running] = [*partition.pending, *partition.running]
        values = self._over_all(both, predictions, now_s)
        order: list[tuple[Pending | Running, Reason]] = []
        for i in _in_order(values, both):
            value, entry = values[i], both[i]
            found = predictions.get(entry.job.id)
            estimate, source = (found.duration_s, found.duration_source) if found else (value, "none")
            order.append((entry, Priority(rule, value, estimate, entry.job.gpus, source)))
        decisions, actions = fill_quota(partition, now_s, order)
        preempts = any(isinstance(action.decision, Requeue) for action in actions)
        return PartitionPlan(decisions, tuple(actions), now_s + SETTLE_S if preempts else None)


def _anywhere(ledger: Ledger, job: Job) -> Placement | None:
    return emptiest(ledger, job, job.gpus)


class TiresiasPolicy(RoundPolicy):
    """Jobs that have had at most ``threshold_gpu_s`` GPU-seconds come before the rest; by submission within each
    queue. It needs no estimate."""

    name = "tiresias"
    needs = frozenset({Capability.PREEMPT})
    rules = PolicyRules(preempts="anybody", quotas=True)

    def __init__(self, settings: TiresiasSettings) -> None:
        super().__init__(_ROUND_S)
        self._threshold = settings.threshold_gpu_s
        self._anywhere = settings.placement == "emptiest"

    def idle_plan(self, partition: Partition, memory: object) -> PartitionPlan | None:  # noqa: ARG002
        """Nothing is decided while nobody waits."""
        return None if partition.pending else PartitionPlan({})

    def plan_round(self, partition: Partition, snapshot: Snapshot, memory: object) -> PartitionPlan:  # noqa: ARG002
        """Fill the quota of GPUs."""
        now_s = snapshot.now_s
        both: list[Running | Pending] = [*partition.running, *partition.pending]
        keyed = [(attained_s(entry, now_s) * entry.job.gpus, entry) for entry in both]
        keyed.sort(key=lambda item: (item[0] > self._threshold, item[1].job.submit_s))
        keyed = in_precedence(keyed, [entry.job for _, entry in keyed])
        order: list[tuple[Pending | Running, Reason]] = [
            (entry, Priority("attained GPU-seconds", value, 0.0, entry.job.gpus, "attained service"))
            for value, entry in keyed
        ]
        decided, actions = fill_quota(partition, now_s, order, *([_anywhere] if self._anywhere else []))
        return PartitionPlan(decided, tuple(actions), self._next_s(partition, now_s, bool(actions)))

    def _next_s(self, partition: Partition, now_s: float, acted: bool) -> float | None:
        """The next round that could decide otherwise: the very next one after an action, else the first at which a
        running job has crossed the threshold. (Arrivals and ends change the partition by themselves.)"""
        if acted:
            return after_round_s(now_s, self.interval_s)
        crossings = [
            now_s + (self._threshold / e.job.gpus - attained_s(e, now_s))
            for e in partition.running
            if e.job.gpus and attained_s(e, now_s) * e.job.gpus <= self._threshold
        ]
        if not crossings:
            return None
        # strictly past the threshold: at the crossing itself the job still counts as low
        return (math.floor(min(crossings) / self.interval_s + ROUNDING) + 1) * self.interval_s
