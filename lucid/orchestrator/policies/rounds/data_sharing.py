"""The policies ``elastic``, ``fcfs`` and ``ef`` of the elastic data-sharing platform (rows E1-E15).

Every request gets GPUs as soon as there are any; idle ones go to running jobs, and come back when requests wait. Jobs
that are not elastic get the GPUs that they asked for. They wait in the same queue, and running elastic jobs give GPUs
back for them too. The mathematics is in ``lucid.orchestrator.policies.rounds.expansion``."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from lucid.core.decision import Action, Decision, Hold, PartitionPlan, Requeue, Resize, Start
from lucid.core.job import Elastic, Job, Pending, Running, Stage
from lucid.core.ledger import Ledger
from lucid.core.placement import NodeGpus, Placement
from lucid.core.ports import Capability
from lucid.core.prediction import Prediction
from lucid.core.reason import Reason
from lucid.core.reasons.queue import BehindHead, FairOrder, FreeGpus, Rescaled
from lucid.core.snapshot import WAITING_ORDER, Partition, Snapshot
from lucid.orchestrator.capacity.placement import Feasibility, consolidated, no_place, own_first
from lucid.orchestrator.policies.rounds.expansion import ElasticJob, EpochTimes, best_fit, ef_gpus, rescale
from lucid.orchestrator.policy import PartitionPolicy, PolicyRules

Floats = NDArray[np.float64]
_Parts = Sequence[tuple[str, int]]
"""The GPUs of a job on each node."""

_MOST_ROUNDS = 3
"""Passes: the first admits jobs, the second expands them; a third would change nothing."""
_MOST_FITS = 16
"""Most steps by which jobs that are bound to few nodes are made to fit."""


class ElasticPolicy(PartitionPolicy):
    """The platform ("elastic"), or its baselines that never rescale: "fcfs" gives each request the least it takes,
    "ef" the most, one after the other.

    Epochs left and epoch times are the prediction's (the user's number of epochs, the preset table), corrected by
    what the job has reported."""

    def __init__(self, name: str, rule: Literal["elastic", "fcfs", "ef"] = "elastic") -> None:
        super().__init__()
        self.name = name
        self._rule = rule
        if rule == "elastic":
            self.needs = frozenset({Capability.RESIZE, Capability.PREEMPT})
            self.rules = PolicyRules(preempts="elastic", resizes=True)

    def plan_partition(self, partition: Partition, snapshot: Snapshot) -> PartitionPlan:
        """Serve the queue, then resize the running jobs."""
        draft = _PlanDraft(partition, snapshot.now_s, snapshot.predictions)
        if self._rule == "elastic":
            draft.rescale()
        else:
            draft.serve_fixed(most=self._rule == "ef")
        return draft.plan()


@dataclass(slots=True)
class _Job:
    """An elastic job while the plan is made: ``gpus`` as planned, 0 while it waits."""

    entry: Pending | Running
    limits: Elastic
    epochs: float
    epoch_s: Floats
    gpus: int
    restart_s: float = 0.0
    """The cost of a resize, s, where that is measured; 0 in a replay, as in the document."""

    @property
    def id(self) -> str:
        return self.entry.job.id

    def on_few(self, parts: _Parts) -> bool:
        """Whether these are no more nodes than the job may have."""
        return self.limits.max_nodes is None or len(parts) <= self.limits.max_nodes

    def virtual(self, width: int) -> ElasticJob:
        """The job as the mathematics takes it, where every job has at least one GPU: its least number counts as
        one."""
        times = np.full(width, np.inf)
        known = self.epoch_s[self.limits.min_gpus - 1 : self.limits.max_gpus][:width]
        times[: len(known)] = known
        return ElasticJob(self.id, self.gpus - self.limits.min_gpus + 1, self.epochs, times)


def _held(entry: Pending | Running) -> _Parts:
    return [(name, mask.bit_count()) for name, mask in entry.placement] if isinstance(entry, Running) else []


def _job(entry: Pending | Running, limits: Elastic, found: Prediction | None) -> _Job:
    """The job with its epochs left and epoch times: reported times before preset ones (E13). Without preset times
    they are inverse in the number of GPUs, from the last one reported. Where the number of epochs is unknown: as many
    again as done, at least one."""
    most = limits.max_gpus
    reported = [gpus * seconds for gpus, seconds in entry.progress.epoch_s] if entry.progress is not None else []
    one_s = reported[-1] if reported and reported[-1] > 0 else 60.0
    preset = found.epoch_s if found is not None and found.epoch_s else one_s / np.arange(1, most + 1)
    times = EpochTimes([*preset, *[preset[-1]] * (most - len(preset))][:most])
    done = 0.0
    if entry.progress is not None:
        done = entry.progress.epochs
        for gpus, epoch_s in entry.progress.epoch_s:
            if 1 <= gpus <= most and epoch_s > 0:
                times.record(gpus, epoch_s)
    epochs = (found.epochs if found is not None else None) or limits.epochs or max(2.0 * done, done + 1.0)
    gpus, restart_s = (entry.gpus, entry.restart_s or 0.0) if isinstance(entry, Running) else (0, 0.0)
    return _Job(entry, limits, max(epochs - done, 0.0), times.times(), gpus, restart_s)


class _PlanDraft:
    """The plan of one partition while it is made."""

    def __init__(self, partition: Partition, now_s: float, predictions: Mapping[str, Prediction]) -> None:
        self._partition = partition
        self._decisions: dict[str, Decision] = {}
        self._actions: list[Action] = []
        up = {node.name for node in partition.nodes if node.available}
        self._sizes = [node.usable.bit_count() for node in partition.nodes if node.available]
        self._running: list[_Job] = []
        self._waiting: list[Pending] = []
        self._jobs: dict[str, _Job] = {}
        feasible = Feasibility(partition)
        for entry in partition.running:
            limits = entry.job.elastic
            moves = entry.partner is None and not entry.group and entry.stage is Stage.MAIN
            if limits is None or entry.gpus < limits.min_gpus:  # its user has changed the range
                continue
            if moves and all(part.node in up for part in entry.placement):
                self._running.append(_job(entry, limits.on_nodes(self._sizes), predictions.get(entry.job.id)))
        for waiting in sorted(partition.pending, key=WAITING_ORDER):
            hopeless = feasible.bar(waiting.job)
            if hopeless is not None:
                self._decisions[waiting.job.id] = Hold((hopeless,))
                continue
            self._waiting.append(waiting)
            limits = waiting.job.elastic
            if limits is not None:
                found = predictions.get(waiting.job.id)
                self._jobs[waiting.job.id] = _job(waiting, limits.on_nodes(self._sizes), found)
        self._ledger = Ledger(partition, now_s)
        """The free GPUs once every job that will be resized has given its GPUs back."""

    # -- what runs, on how many GPUs -----------------------------------------------------------------------

    def serve_fixed(self, most: bool) -> None:
        """First come, first served; no job is ever resized (E14, E15)."""
        ledger, total = self._ledger, sum(self._sizes)
        for at, entry in enumerate(self._waiting):
            made = self._jobs.get(entry.job.id)
            if made is None:
                gpus = entry.job.gpus
            elif most:
                limits = made.limits
                gpus = ef_gpus(made.epoch_s, ledger.free, min(total, limits.max_gpus))
            else:
                gpus = made.limits.min_gpus
            where = self._find(entry, gpus) if 0 < gpus <= ledger.free else None
            if where is None:
                self._hold_from(at)
                return
            self._start(entry, where)

    def rescale(self) -> None:
        """The five principles (E1-E5): in queue order each request gets one GPU, from idle GPUs, else from running
        jobs. If no request waits, idle GPUs expand running jobs. A job bound to few nodes gets no more than these
        give, and others get the rest."""
        first = self._serve_rigid()
        had = {job.id: job.gpus for job in self._running}
        for tries in itertools.count():
            line, rigid = self._front(self._waiting[first:])
            jobs = self._sized(line, rigid, had)
            found = self._best_fit(jobs, had)
            if not self._less(jobs, found, had, at_once=tries >= _MOST_FITS):
                break
        self._deal(jobs, had, found)
        where = None if rigid is None or line else self._find(rigid, rigid.job.gpus)
        if rigid is not None and where is not None:
            self._start(rigid, where)
        self._hold_from(first)

    def _sized(self, line: list[_Job], rigid: Pending | None, had: Mapping[str, int]) -> list[_Job]:
        """The jobs that run or start, each with its number of GPUs; jobs that start are taken from ``line``."""
        jobs, total = list(self._running), self._ledger.free + sum(had.values())
        for job in jobs:
            job.gpus = min(had[job.id], job.limits.max_gpus)
        width = max((job.limits.max_gpus for job in (*jobs, *line)), default=1)
        asked = 0
        if rigid is not None and rigid.job.gpus <= total - sum(job.limits.min_gpus for job in (*jobs, *line)):
            asked = rigid.job.gpus
        for _ in range(_MOST_ROUNDS):
            need = asked + sum(job.limits.min_gpus for job in line)
            spare = total - sum(job.limits.min_gpus - 1 for job in jobs)
            plan = rescale([job.virtual(width) for job in jobs], need, spare, [job.restart_s for job in jobs])
            for job in jobs:
                if job.id in plan.gpus:
                    job.gpus = plan.gpus[job.id] + job.limits.min_gpus - 1
            admitted = self._admit(line, total - sum(job.gpus for job in jobs))
            jobs += admitted
            if not admitted:
                break
        return jobs

    def _front(self, line: Sequence[Pending]) -> tuple[list[_Job], Pending | None]:
        """The elastic jobs before the first one that is not elastic, and that one: no job passes another."""
        front: list[_Job] = []
        for entry in line:
            if entry.job.elastic is None:
                return front, entry
            front.append(self._jobs[entry.job.id])
        return front, None

    def _serve_rigid(self) -> int:
        """Start jobs at the head of the queue that are not elastic, while they fit; returns how many started."""
        for at, entry in enumerate(self._waiting):
            if entry.job.elastic is not None:
                return at
            where = self._find(entry, entry.job.gpus)
            if where is None:
                return at
            self._start(entry, where)
        return len(self._waiting)

    @staticmethod
    def _admit(waiting: list[_Job], idle: int) -> list[_Job]:
        """The jobs from the front of the queue for which the idle GPUs suffice; they leave the queue."""
        admitted: list[_Job] = []
        while waiting and waiting[0].limits.min_gpus <= idle:
            job = waiting.pop(0)
            job.gpus = job.limits.min_gpus
            idle -= job.gpus
            admitted.append(job)
        return admitted

    # -- where ---------------------------------------------------------------------------------------------

    def _best_fit(self, jobs: Sequence[_Job], had: Mapping[str, int]) -> Mapping[str, _Parts]:
        """The places of resized and starting jobs; no other job moves (E11), unless it is on too many nodes."""
        free = {node.name: count for node, count in zip(self._ledger.nodes, self._ledger.free_count, strict=True)}
        changed = [job for job in jobs if job.gpus != had.get(job.id, 0) or not job.on_few(_held(job.entry))]
        for job in changed:
            for name, count in _held(job.entry):
                free[name] += count
        return best_fit(free, [(job.id, job.gpus) for job in changed])

    def _less(self, jobs: Sequence[_Job], found: Mapping[str, _Parts], had: dict[str, int], at_once: bool) -> bool:
        """Lower the most GPUs of jobs whose place is on too many nodes; a running job that cannot have less stays as
        it is. Returns whether anything was to be done. ``at_once``: not step by step."""
        changed = False
        for job in jobs:
            parts = found.get(job.id, ())
            if job.on_few(parts):
                continue
            there = sum(sorted((count for _, count in parts), reverse=True)[: job.limits.max_nodes])
            keeps = min(had.get(job.id, 0), job.gpus) if job.on_few(_held(job.entry)) else 0
            most = job.limits.min_gpus if at_once else max(there, keeps, job.limits.min_gpus)
            if had.get(job.id) is not None and (at_once or most >= job.limits.max_gpus):
                self._running = [other for other in self._running if other is not job]
                changed = bool(had.pop(job.id))
            elif most < job.limits.max_gpus:
                job.limits, changed = replace(job.limits, max_gpus=most), True
        return changed

    def _deal(self, jobs: Sequence[_Job], had: Mapping[str, int], found: Mapping[str, _Parts]) -> None:
        """Decide the jobs for which a place was sought."""
        changed = [job for job in jobs if job.id in found]
        self._ledger.give_back([job.entry for job in changed if isinstance(job.entry, Running)])
        waits = sum(1 for entry in self._waiting if entry.job.id not in self._decisions)
        for job in changed:
            entry, where = job.entry, self._gpus_of(job, found[job.id])
            if not job.on_few(found[job.id]) or not self._host_fits(entry.job, where):
                where = entry.placement if isinstance(entry, Running) and self._is_free(entry.placement) else ()
            if where:
                self._ledger.claim(entry.job, where)
            if isinstance(entry, Pending):
                if where:
                    self._start(entry, where, taken=True)
            elif not where:
                self._act(entry, Requeue(no_place(self._ledger, Pending(entry.job, 0.0))))
            elif set(where) != set(entry.placement):
                self._act(entry, Resize(where, (Rescaled(had[job.id], job.gpus, waits),)))

    def _is_free(self, where: Placement) -> bool:
        return all(not mask & ~self._ledger.free_mask[self._ledger.index[name]] for name, mask in where)

    def _host_fits(self, job: Job, where: Placement) -> bool:
        at, fits = self._ledger.index, self._ledger.host_fits
        return not self._ledger.selective or all(fits(at[name], job, mask.bit_count()) for name, mask in where)

    def _gpus_of(self, job: _Job, parts: _Parts) -> Placement:
        """So many GPUs of each node, the job's own before others where they are free."""
        own = dict(job.entry.placement) if isinstance(job.entry, Running) else {}
        where: list[NodeGpus] = []
        for name, count in parts:
            free = self._ledger.free_mask[self._ledger.index[name]]
            where.append(NodeGpus(name, own_first(free, own.get(name, 0), count)))
        return tuple(where)

    def _find(self, entry: Pending, gpus: int) -> Placement | None:
        """Free GPUs for a start that does not wait for a resize."""
        if entry.job.elastic is None:
            return consolidated(self._ledger, entry.job)
        if gpus > self._ledger.free:
            return None
        free = {node.name: n for node, n in zip(self._ledger.nodes, self._ledger.free_count, strict=True)}
        parts = best_fit(free, [(entry.job.id, gpus)])[entry.job.id]
        if not self._jobs[entry.job.id].on_few(parts):
            return None
        where = tuple(self._ledger.lowest(self._ledger.index[name], count) for name, count in parts)
        return where if self._host_fits(entry.job, where) else None

    # -- decisions -----------------------------------------------------------------------------------------

    def _start(self, entry: Pending, where: Placement, taken: bool = False) -> None:
        gpus = sum(part.mask.bit_count() for part in where)
        # GPUs that the deal has given it already were free for it, too
        free = FreeGpus(gpus, self._ledger.largest, self._ledger.free + (gpus if taken else 0), True)
        if not taken:
            self._ledger.claim(entry.job, where)
        self._act(entry, Start(where, (FairOrder(entry.job.submit_s), free)))

    def _hold_from(self, first: int) -> None:
        """Let the rest of the queue wait: the first job for GPUs, the others for the first job."""
        head: Pending | None = None
        for entry in self._waiting[first:]:
            if entry.job.id in self._decisions:
                continue
            why: tuple[Reason, ...] = (BehindHead(head.job.id),) if head else no_place(self._ledger, entry)
            self._decisions[entry.job.id] = Hold(why)
            head = head or entry

    def _act(self, entry: Pending | Running, decision: Start | Resize | Requeue) -> None:
        self._decisions[entry.job.id] = decision
        self._actions.append(Action(entry.job.id, self._partition.name, decision))

    def plan(self) -> PartitionPlan:
        """The plan, pending jobs in the order of the partition."""
        members: list[Pending | Running] = [*self._partition.pending, *self._partition.running]
        decisions = {e.job.id: self._decisions[e.job.id] for e in members if e.job.id in self._decisions}
        return PartitionPlan(decisions, tuple(self._actions))
