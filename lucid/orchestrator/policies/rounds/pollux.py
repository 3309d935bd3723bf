"""The policy ``pollux``: every round divides the GPUs anew, for the most goodput (rows P20, P24-P30)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lucid.config.policy import PolluxSettings
from lucid.core.decision import PartitionPlan
from lucid.core.job import Running
from lucid.core.ports import Capability
from lucid.core.reasons.queue import Allotted
from lucid.core.snapshot import Partition, Snapshot
from lucid.orchestrator.policies.queue import attained_s
from lucid.orchestrator.policies.rounds.draft import Entry, PlanDraft, keep_unless_worth, limits_of, restarts_s
from lucid.orchestrator.policies.rounds.genetic import Objective, SearchOptions, carry_over, search
from lucid.orchestrator.policies.rounds.goodput import BatchLimits, GoodputModel, GradParams, PerfParams
from lucid.orchestrator.policies.rounds.speedup import Goodputs, PolluxJob, SpeedupTable, growth_cap, restart_factors
from lucid.orchestrator.policy import PolicyRules
from lucid.orchestrator.rounds import RoundPolicy, after_round_s

Ints = NDArray[np.intp]


@dataclass(frozen=True, slots=True, eq=False)
class _Memory:
    """The last population of the search, and what its numbers stand for."""

    jobs: tuple[str, ...]
    capacity: tuple[int, ...]
    nodes: tuple[str, ...]
    population: NDArray[np.int32]


class PolluxPolicy(RoundPolicy):
    """Pollux. It needs no estimate: it uses what the jobs report."""

    name = "pollux"
    needs = frozenset({Capability.RESIZE, Capability.ADAPT, Capability.PREEMPT})
    rules = PolicyRules(preempts="elastic", resizes=True)

    def __init__(self, settings: PolluxSettings) -> None:
        super().__init__(settings.interval_s)
        self._settings = settings
        self._goodputs: dict[str, Goodputs] = {}
        """By partition, the goodputs of the last round, which hold where a job reports nothing new."""

    def plan_round(self, partition: Partition, snapshot: Snapshot, memory: object) -> PartitionPlan:
        """Search for the best allocation."""
        now_s, settings = snapshot.now_s, self._settings
        draft = PlanDraft(partition, snapshot.now_s)
        # jobs that had least come first where two want the same GPU
        entries = sorted(draft.entries, key=lambda e: (attained_s(e, now_s), e.job.submit_s, e.job.rank))
        if not entries:
            draft.deal({}, {})
            return draft.plan(None)
        total, base = int(draft.capacity.sum()), draft.base(entries)
        jobs = [reported_job(entry, now_s) for entry in entries]
        speedups = SpeedupTable(jobs, max(total, 1), known=self._goodputs.get(partition.name))
        nodes, delays_s = len(draft.capacity), restarts_s(entries, settings.restart_s)
        bounds = [limits_of(entry).max_nodes for entry in entries]
        found = search(
            speedups,
            draft.capacity,
            base,
            restart_factors([job.age_s for job in jobs], [job.restarts for job in jobs], delays_s),
            np.random.default_rng((settings.seed, int(now_s))),
            objective=Objective(p=settings.p, scale=nodes / max(total, 1)),
            options=SearchOptions(
                settings.population, settings.generations, settings.patience, seeds=settings.greedy_seeds
            ),
            previous=_previous(memory, draft, entries),
            avoid_interference=settings.avoid_interference,
            blocked=draft.crossed,
            most_nodes=[bound or nodes for bound in bounds] if any(bounds) else None,
        )
        self._goodputs[partition.name] = speedups.known

        def speed(j: int, row: Ints) -> float:
            gpus = min(int(row.sum()), int(speedups.most[j]))
            return float(speedups(np.array([j]), np.array([int((row > 0).sum() > 1)]), np.array([gpus]))[0])

        wanted = found.allocation.astype(np.intp)
        rows = keep_unless_worth(draft, entries, wanted, speed, now_s)
        worth = [
            float(value) if np.array_equal(row, want) else speed(j, row)
            for j, (value, row, want) in enumerate(zip(found.speedups, rows, wanted, strict=True))
        ]
        batches = chosen_batches(jobs, rows, base)
        why = {
            entry.job.id: allotted("speedup", row, job, value, batches)
            for entry, job, row, value in zip(entries, jobs, rows, worth, strict=True)
        }
        draft.deal({entry.job.id: row for entry, row in zip(entries, rows, strict=True)}, why, batches)
        kept = _Memory(
            tuple(entry.job.id for entry in entries),
            tuple(draft.capacity.tolist()),
            tuple(node.name for node in partition.nodes),
            found.population,
        )
        return draft.plan(after_round_s(now_s, settings.interval_s), kept)


def reported_job(entry: Entry, now_s: float) -> PolluxJob:
    """The job as its limits and its last report describe it."""
    limits, progress = limits_of(entry), entry.progress
    least, most = (limits.batch,) * 2 if limits.pinned else (limits.init_batch, limits.most_batch)
    batch = BatchLimits(least, most, limits.atomic_min, limits.atomic_max)
    largest = max((gpus for gpus, _ in progress.epoch_s), default=0) if progress is not None else 0
    if isinstance(entry, Running) and entry.restart_s is not None:
        largest = max(largest, entry.gpus)  # what it has on a real cluster, whether it has told of that or not
    model = None
    if progress is not None and progress.step_model and progress.gradient is not None:
        perf, grad = PerfParams(*progress.step_model), GradParams(*progress.gradient)
        model = GoodputModel(perf, grad, limits.init_batch)
    cap = min(max(growth_cap(largest, batch), limits.min_gpus), limits.max_gpus)
    return PolluxJob(entry.job.id, model, batch, cap, now_s - entry.job.submit_s, entry.restarts)


def chosen_batches(jobs: Sequence[PolluxJob], rows: Iterable[Ints], present: Ints) -> dict[str, tuple[int, int]]:
    """By id, samples per GPU and pass and passes per step with the best goodput (P21), for jobs whose GPUs change.
    Jobs with a pinned batch, or without a model, are left out."""
    found = {}
    for job, row, before in zip(jobs, rows, present, strict=True):
        model, limits = job.model, job.limits
        if model is None or limits is None or limits.init == limits.most or not row.any():
            continue
        if not np.array_equal(row, before):
            best = model.optimize((row > 0).sum(), row.sum(), limits)
            if best.goodput > 0:
                found[str(job.job_id)] = int(best.atomic), int(best.accum) + 1
    return found


def allotted(rule: str, row: Ints, job: PolluxJob, value: float, batches: Mapping[str, tuple[int, int]]) -> Allotted:
    """The reason for a job's GPUs of a round."""
    gpus, chosen = int(row.sum()), batches.get(str(job.job_id))
    return Allotted(rule, gpus, job.max_replicas, value, None if chosen is None else gpus * math.prod(chosen))


def _previous(memory: object, draft: PlanDraft, entries: list[Entry]) -> NDArray[np.int32] | None:
    """The last population in terms of these jobs, if the nodes are the same."""
    names = tuple(node.name for node in draft.partition.nodes)
    if not isinstance(memory, _Memory) or memory.nodes != names or memory.capacity != tuple(draft.capacity.tolist()):
        return None
    now = {entry.job.id: i for i, entry in enumerate(entries)}
    index = [now.get(job_id, -1) for job_id in memory.jobs]
    return carry_over(memory.population, len(memory.jobs), index, len(entries))
