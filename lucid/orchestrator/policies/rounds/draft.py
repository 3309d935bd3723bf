"""``PlanDraft``: plans of elastic jobs from GPUs by node; and whether a resize is worth a restart."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from lucid.core.decision import Action, Decision, Hold, PartitionPlan, Requeue, Resize, Start
from lucid.core.job import Elastic, Pending, Running, Stage
from lucid.core.ledger import Ledger
from lucid.core.placement import NodeGpus, Placement, placement_gpus
from lucid.core.reason import Reason
from lucid.core.reasons.queue import FairOrder, FreeGpus, Preempted
from lucid.core.snapshot import Partition
from lucid.orchestrator.capacity.placement import Feasibility, consolidated, no_place, own_first
from lucid.orchestrator.policies.queue import attained_s

Ints = NDArray[np.intp]
Entry = Pending | Running


def limits_of(entry: Entry) -> Elastic:
    """The limits of an elastic job."""
    limits = entry.job.elastic
    assert limits is not None
    return limits


def most_of(entry: Entry) -> int:
    """Most GPUs of an elastic job that keeps its batch: each must get its least samples of it."""
    limits = limits_of(entry)
    return max(min(limits.max_gpus, limits.batch // limits.atomic_min), limits.min_gpus)


def _submitted(entry: Entry) -> tuple[float, int, str]:
    return entry.job.submit_s, entry.job.rank, entry.job.id


def _may_move(entry: Entry) -> bool:
    """Whether an elastic policy decides the GPUs of this job: not if the job shares GPUs or is being profiled."""
    if entry.job.elastic is None:
        return False
    return isinstance(entry, Pending) or (entry.partner is None and not entry.group and entry.stage is Stage.MAIN)


_E = TypeVar("_E", Pending, Running)


def _bound(entry: _E, sizes: Sequence[int]) -> _E:
    """The job with no more GPUs than the nodes that it may have can give. ``sizes``: GPUs of each node."""
    limits = limits_of(entry)
    bound = limits.on_nodes(sizes)
    return entry if bound is limits else replace(entry, job=replace(entry.job, elastic=bound))


def within_nodes(entry: Entry, row: Ints) -> Ints:
    """(N,) the GPUs of ``row`` on no more nodes than the job may have: those with the most GPUs."""
    most = limits_of(entry).max_nodes
    if most is None or np.count_nonzero(row) <= most:
        return row
    kept = np.zeros_like(row)
    at = np.argsort(-row, kind="stable")[:most]
    kept[at] = row[at]
    return kept


class PlanDraft:
    """The plan of one partition while it is made.

    Jobs that are not elastic stay as they are. Waiting ones start first come, first served, before the elastic jobs
    get GPUs, as long as jobs that are not elastic hold no more than their share by number of jobs (or nothing at
    all). Without that bound elastic jobs, which give way at once, would starve. Beyond it they get what the elastic
    jobs leave."""

    def __init__(self, partition: Partition, now_s: float) -> None:
        self.partition = partition
        self._now_s = now_s
        sizes = [node.usable.bit_count() for node in partition.nodes if node.available]
        self.pending = sorted((_bound(e, sizes) for e in partition.pending if _may_move(e)), key=_submitted)
        self.running = sorted((_bound(e, sizes) for e in partition.running if _may_move(e)), key=_submitted)
        self._decisions: dict[str, Decision] = {}
        self._actions: list[Action] = []
        self._feasible = Feasibility(partition)
        self._rigid_starts: list[tuple[Pending, Placement]] = []
        self._beyond_share: list[tuple[Pending, Preempted]] = []
        ledger = Ledger(partition, now_s)
        ledger.give_back(self.running)
        self._serve_rigid(ledger)
        self.capacity: Ints = np.array(ledger.free_count, dtype=np.intp)
        """(N,) GPUs of each node that elastic jobs may have."""
        self.crossed = np.zeros(len(partition.nodes), dtype=bool)
        """(N,) nodes used by a job on several nodes that is not to be moved."""
        moving = {e.job.id for e in self.running}
        held = [e.placement for e in partition.running if e.job.id not in moving]
        for placement in (*held, *(where for _, where in self._rigid_starts)):
            if len(placement) > 1:
                self.crossed[[ledger.index[name] for name, _ in placement]] = True

    @property
    def entries(self) -> list[Entry]:
        """Elastic jobs, running ones first, each in the order of their submission."""
        return [*self.running, *self.pending]

    def _serve_rigid(self, without: Ledger) -> None:
        """Start waiting jobs that are not elastic. ``without``: the resources as if no elastic job ran; what starts
        is taken out of them."""
        waiting = sorted((e for e in self.partition.pending if not _may_move(e)), key=_submitted)
        if not waiting:
            return
        rigid = len(waiting) + len(self.partition.running) - len(self.running)
        total = sum(node.gpus for node in self.partition.nodes)
        share = total * rigid / (rigid + len(self.entries))
        held = sum(e.gpus for e in self.partition.running) - sum(e.gpus for e in self.running)
        as_is = Ledger(self.partition, self._now_s)
        for entry in waiting:
            job = entry.job
            hopeless = self._feasible.bar(job)
            if hopeless is not None:
                self._decisions[job.id] = Hold((hopeless,))
                continue
            room = Preempted(job.gpus, max(int(share) - held, 0))
            if room and held:
                self._beyond_share.append((entry, room))
                continue
            where = consolidated(as_is, job) or consolidated(without, job)
            if where is None:
                self._decisions[job.id] = Hold((FairOrder(job.submit_s), *no_place(without, entry)))
                continue
            as_is.claim(job, where)
            without.claim(job, where)
            held += job.gpus
            self._rigid_starts.append((entry, where))

    def base(self, entries: Sequence[Entry]) -> Ints:
        """(J, N) GPUs of each job on each node at present."""
        at = {node.name: i for i, node in enumerate(self.partition.nodes)}
        out = np.zeros((len(entries), len(at)), dtype=np.intp)
        for row, entry in zip(out, entries, strict=True):
            if isinstance(entry, Running):
                for name, mask in entry.placement:
                    row[at[name]] = (mask & self.partition.nodes[at[name]].usable).bit_count()
        return out

    def deal(
        self,
        wanted: Mapping[str, Ints],
        why: Mapping[str, Reason],
        batches: Mapping[str, tuple[int, int]] = {},
    ) -> None:
        """Decide all elastic jobs.

        Args:
            wanted: by job id, (N,) GPUs on each node, all 0 to wait; jobs whose row is what they have stay.
            why: a reason for each.
            batches: what ``Resize.batch`` is to be, of jobs for which the policy chose one."""
        present = {e.job.id: row for e, row in zip(self.running, self.base(self.running), strict=True)}
        moved = [e for e in self.running if not np.array_equal(wanted[e.job.id], present[e.job.id])]
        ledger = Ledger(self.partition, self._now_s)
        ledger.give_back(moved)
        for rigid, place in self._rigid_starts:
            self._start_rigid(ledger, rigid, place, moved)
        everybody: list[Entry] = [*moved, *self.pending]
        for entry in everybody:
            job = entry.job
            where = _place(ledger, entry, within_nodes(entry, wanted[job.id]))
            if where:
                ledger.claim(job, where)
            decision: Decision
            if isinstance(entry, Running) and set(where) == set(entry.placement):
                continue
            if isinstance(entry, Running):
                reasons, batch = (why[job.id],), batches.get(job.id)
                if placement_gpus(where) != wanted[job.id].sum():
                    batch = None  # it was chosen for other GPUs
                decision = Resize(where, reasons, batch) if where else Requeue(reasons)
            else:
                decision = Start(where, (why[job.id],)) if where else self._hold(entry, ledger, why[job.id])
            self._act(entry, decision)
        for beyond, room in self._beyond_share:
            found = consolidated(ledger, beyond.job)
            if found is None:
                self._act(beyond, Hold((FairOrder(beyond.job.submit_s), room, *no_place(ledger, beyond))))
            else:
                self._start(ledger, beyond, found)

    def _start_rigid(self, ledger: Ledger, entry: Pending, place: Placement, moved: list[Running]) -> None:
        """Start the job on these nodes, with as many GPUs of each as ``place`` says, whichever elastic jobs leave
        free. Elastic jobs that would stay on a node with too few CPUs or too little memory must find a place anew
        (``moved``)."""
        job = entry.job
        counts = [(ledger.index[name], mask.bit_count()) for name, mask in place]
        if ledger.selective and not all(ledger.host_fits(i, job, here) for i, here in counts):
            names = {name for name, _ in place}
            staying = [e for e in self.running if e not in moved and any(p.node in names for p in e.placement)]
            ledger.give_back(staying)
            moved.extend(staying)
        self._start(ledger, entry, tuple(ledger.lowest(i, here) for i, here in counts))

    def _start(self, ledger: Ledger, entry: Pending, where: Placement) -> None:
        job = entry.job
        free = FreeGpus(job.gpus, ledger.largest, ledger.free, True)
        ledger.claim(job, where)
        self._act(entry, Start(where, (FairOrder(job.submit_s), free)))

    def _hold(self, entry: Pending, ledger: Ledger, why: Reason) -> Hold:
        return Hold((why,)) if not why else Hold((why, *no_place(ledger, entry)))

    def _act(self, entry: Entry, decision: Decision) -> None:
        self._decisions[entry.job.id] = decision
        if not isinstance(decision, Hold):
            self._actions.append(Action(entry.job.id, self.partition.name, decision))

    def plan(self, wake_s: float | None, memory: object = None) -> PartitionPlan:
        """The plan, pending jobs in queue order."""
        members: list[Entry] = [*self.partition.pending, *self.partition.running]
        decisions = {e.job.id: self._decisions[e.job.id] for e in members if e.job.id in self._decisions}
        return PartitionPlan(decisions, tuple(self._actions), wake_s, memory)


def _place(ledger: Ledger, entry: Entry, row: Ints) -> Placement:
    """Free GPUs as ``row`` asks, the job's own first; fewer where a node lacks GPUs, CPUs or memory for them, and
    none at all below the job's least number."""
    job = entry.job
    own = dict(entry.placement) if isinstance(entry, Running) else {}
    parts: list[NodeGpus] = []
    for i in np.flatnonzero(row).tolist():
        here = min(int(row[i]), ledger.free_count[i])
        while here and ledger.selective and not ledger.host_fits(i, job, here):
            here -= 1
        if not here:
            continue
        name, free = ledger.nodes[i].name, ledger.free_mask[i]
        parts.append(NodeGpus(name, own_first(free, own.get(name, 0), here)))
    enough = sum(part.mask.bit_count() for part in parts) >= limits_of(entry).min_gpus
    return tuple(parts) if enough else ()


Speed = Callable[[int, Ints], float]
"""The speed of a job, by its number, on so many GPUs of each node; in any unit, for it is compared for one job only.
NaN where it is not known."""


def restarts_s(entries: Sequence[Entry], otherwise_s: float) -> list[float]:
    """The expected cost of a restart of each job, s: as measured, ``otherwise_s`` where it was not."""
    costs = (entry.restart_s if isinstance(entry, Running) else None for entry in entries)
    return [otherwise_s if cost_s is None else cost_s for cost_s in costs]


def left_s(entry: Running, now_s: float) -> float:
    """Seconds that a job will still run on the GPUs that it has: by its epochs and reported times, or as long as it
    has run where these are not known."""
    progress, epochs = entry.progress, limits_of(entry).epochs
    if progress is None or epochs is None or not progress.epoch_s:
        return attained_s(entry, now_s)
    gpus, epoch_s = next((pair for pair in progress.epoch_s if pair[0] == entry.gpus), progress.epoch_s[-1])
    return max(epochs - progress.epochs, 0.0) * epoch_s * gpus / max(entry.gpus, 1)


def stacked(rows: Sequence[Ints], draft: PlanDraft) -> Ints:
    """(J, N) array of the rows of all jobs."""
    return np.stack(rows) if rows else np.zeros((0, len(draft.capacity)), dtype=np.intp)


def keep_unless_worth(draft: PlanDraft, entries: Sequence[Entry], rows: Ints, speed: Speed, now_s: float) -> Ints:
    """(J, N) GPUs of each job on each node. A job keeps what it has where a change would save less time than its
    restart costs, unless another job is to have those GPUs."""
    base, kept = draft.base(entries), rows.copy()
    measured = [
        (j, entry, entry.restart_s)
        for j, entry in enumerate(entries)
        if isinstance(entry, Running) and entry.restart_s is not None and not np.array_equal(rows[j], base[j])
        if limits_of(entry).allows(base[j][base[j] > 0].tolist())
    ]
    not_worth = [
        (j, entry) for j, entry, cost_s in measured if _saves_s(entry, j, base, rows, speed, now_s) <= cost_s
    ]
    again = True
    while again:  # who keeps its GPUs gives others back what they had
        again = False
        for j, _ in not_worth:
            if not np.array_equal(kept[j], base[j]):
                others = kept.sum(axis=0) - kept[j]
                if (others + base[j] <= draft.capacity).all():
                    kept[j], again = base[j], True
    return kept


def _saves_s(entry: Running, j: int, base: Ints, rows: Ints, speed: Speed, now_s: float) -> float:
    """Seconds that the change saves of what the job has left to run; below 0 where it is slower afterwards, infinite
    where nobody knows."""
    now, then = speed(j, base[j]), speed(j, rows[j])
    if np.isnan(now) or np.isnan(then):
        return np.inf
    return left_s(entry, now_s) * (1.0 - now / then) if then > 0 else -np.inf
