"""The policies ``optimus``, ``optimus-fitted`` and ``drf``, for jobs that train without parameter servers.

Optimus gives one GPU after another to the job whose training it shortens most (rows O1-O13); a worker is a GPU, and
all workers synchronise with each other. Dominant resource fairness, with which it was compared (rows O19, O21), gives
every elastic job as many GPUs as every other, placed one by one as Kubernetes does by default."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from lucid.config.policy import OptimusSettings
from lucid.core.decision import PartitionPlan
from lucid.core.ports import Capability
from lucid.core.prediction import Prediction
from lucid.core.reasons.queue import Allotted
from lucid.core.snapshot import Partition, Snapshot
from lucid.orchestrator.policies.rounds.draft import (
    Entry,
    PlanDraft,
    keep_unless_worth,
    limits_of,
    most_of,
    stacked,
    within_nodes,
)
from lucid.orchestrator.policies.rounds.marginal import Claim, OptimusJob, allocate, fair_shares, pick_node
from lucid.orchestrator.policies.rounds.optimus_models import SpeedEstimator, end_epoch, merge_points, next_probe
from lucid.orchestrator.policy import PolicyRules
from lucid.orchestrator.rounds import RoundPolicy, after_round_s

Ints = NDArray[np.intp]
Point = tuple[int, int]

_WORKER = (0.0, 0.0, 0.0, 1.0)
_NO_SERVER = (0.0, 0.0, 0.0, 0.0)
_ALMOST = 1e-3
"""Epochs left of a job that has outlived its expected number: it goes on, and asks for nothing."""


@dataclass(frozen=True, slots=True, eq=False)
class _Memory:
    """What jobs of each type have shown: measured speeds, and epochs of those that have ended. ``present``: by job
    id, type and last report of the jobs that were there."""

    speeds: Mapping[str, Mapping[Point, float]] = field(default_factory=dict)
    epochs: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    present: Mapping[str, tuple[str, float]] = field(default_factory=dict)


class OptimusPolicy(RoundPolicy):
    """Optimus. With ``fitted`` a job's epochs come from its loss curve or from jobs of its type (those of the same
    name), and its speed from a fit to what it and they have shown; an unknown job runs on numbers of GPUs chosen at
    random until it is known (O9). Otherwise the predictor gives both."""

    rules = PolicyRules(preempts="elastic", resizes=True)

    def __init__(self, name: str, settings: OptimusSettings, *, fitted: bool) -> None:
        super().__init__(settings.interval_s)
        self.name = name
        self._settings = settings
        self._fitted = fitted
        self.needs = frozenset({Capability.RESIZE, Capability.PREEMPT} | (set() if fitted else {Capability.ORACLE}))
        self._fits: dict[str, SpeedEstimator] = {}

    def idle_plan(self, partition: Partition, memory: object) -> PartitionPlan | None:
        """The plan while no job is there: what was learnt is kept."""
        return None if partition.pending or partition.running else PartitionPlan({}, memory=memory)

    def plan_round(self, partition: Partition, snapshot: Snapshot, memory: object) -> PartitionPlan:
        """Allocate anew."""
        learnt = memory if isinstance(memory, _Memory) else _Memory()
        now_s = snapshot.now_s
        draft = PlanDraft(partition, snapshot.now_s)
        entries = sorted(draft.entries, key=lambda e: (e.job.submit_s, e.job.rank))
        total = int(draft.capacity.sum())
        if self._fitted:
            there = {e.job.id for e in partition.pending} | {e.job.id for e in partition.running}
            learnt = _learn(learnt, entries, there)
            jobs, probes = self._fitted_jobs(entries, learnt, now_s)
        else:
            measured = self._settings.epochs_left == "measured"
            jobs, probes = [_known_job(e, snapshot.predictions.get(e.job.id), measured) for e in entries], {}
        # no job has parameter servers: a rule that stops at the first offer without gain would stop at those
        tasks = allocate(jobs, (0.0, 0.0, 0.0, float(total)), stop="exhausted").tasks
        wanted = {str(job_id): workers for job_id, (_, workers) in tasks.items()}
        _probe(wanted, probes, total)
        found = _rows(draft, entries, wanted)

        def speed(j: int, row: Ints) -> float:
            gpus = int(row.sum())
            known = jobs[j].speed(gpus, gpus) if gpus else 0.0
            return np.nan if known is None else known

        ids = [entry.job.id for entry in entries]
        kept = keep_unless_worth(draft, entries, stacked([found[job_id] for job_id in ids], draft), speed, now_s)
        rows = dict(zip(ids, kept, strict=True))
        why = {
            job.job_id: Allotted("epochs left", int(rows[entry.job.id].sum()), most_of(entry), max(job.epochs, 0.0))
            for entry, job in zip(entries, jobs, strict=True)
        }
        draft.deal(rows, {str(job_id): reason for job_id, reason in why.items()})
        due_s = after_round_s(now_s, self.interval_s) if entries else None
        return draft.plan(due_s, learnt if self._fitted else None)

    def _fitted_jobs(
        self, entries: list[Entry], memory: _Memory, now_s: float
    ) -> tuple[list[OptimusJob], dict[str, int]]:
        """The jobs as far as they are known, and how many GPUs to try for the others."""
        jobs: list[OptimusJob] = []
        probes: dict[str, int] = {}
        for entry in entries:
            job, limits = entry.job, limits_of(entry)
            points = memory.speeds.get(_type(entry), {})
            estimator, most = self._estimator(_type(entry), limits.batch, points), most_of(entry)
            if estimator.model is None and len(points) < most:
                lot = np.random.default_rng((self._settings.seed, int(now_s), job.rank, int(job.submit_s)))
                found = next_probe(points, lot, diagonal=True, most=min(most, _MOST_PROBED))
                if found is not None:
                    probes[job.id] = found[1]
            progress = entry.progress
            done = progress.epochs if progress is not None else 0.0
            seen = progress.losses if progress is not None else ()
            end = end_epoch(
                done,
                specified=limits.epochs,
                same_type=memory.epochs.get(_type(entry), ()),
                epochs=[epoch for epoch, _ in seen],
                losses=[loss for _, loss in seen],
            )
            jobs.append(_job(job.id, max(end - done, _ALMOST), _capped(estimator, most)))
        return jobs, probes

    def _estimator(self, kind: str, batch: int, points: Mapping[Point, float]) -> SpeedEstimator:
        """The fit to these points, made once."""
        kept = self._fits.get(kind)
        if kept is None or kept.points != points:
            kept = self._fits[kind] = SpeedEstimator("sync", batch, points)
        return kept


_MOST_PROBED = 10


def _type(entry: Entry) -> str:
    """The type of a job: jobs of one name and batch size count as alike; one without a name is like no other."""
    return f"{entry.job.name or entry.job.id} {limits_of(entry).batch}"


def _job(job_id: str, epochs: float, speed: Callable[[int, int], float | None]) -> OptimusJob:
    return OptimusJob(job_id, _NO_SERVER, _WORKER, epochs, speed)


def _capped(estimator: SpeedEstimator, most: int) -> Callable[[int, int], float | None]:
    """The speed by GPUs, no faster beyond the most that the job may have."""
    return lambda _, workers: estimator(min(workers, most), min(workers, most))


def _known_job(entry: Entry, prediction: Prediction | None, measured: bool) -> OptimusJob:
    """The job by its prediction; one without a prediction keeps to one GPU. ``measured``: take the epochs after the
    present one from a measured run."""
    progress, most = entry.progress, most_of(entry)
    done = progress.epochs if progress is not None else 0.0
    if prediction is None or prediction.epochs is None or not prediction.epoch_s:
        return _job(entry.job.id, 0.0, lambda _, __: None)
    table, left, run = prediction.epoch_s[:most], prediction.epochs - done, prediction.measured
    if measured and run is not None:
        ended = len(progress.losses) if progress is not None else 0
        table, left = run.epoch_s[:most], run.left[min(ended, len(run.left) - 1)]
    return _job(
        entry.job.id,
        max(left, _ALMOST),
        lambda _, workers: 1.0 / table[min(workers, len(table)) - 1],
    )


def _learn(memory: _Memory, entries: list[Entry], there: Collection[str]) -> _Memory:
    """The memory with what present jobs have measured, and how long those took that are gone. A number of GPUs is
    measured once for a type: the mean of the jobs that show it first. ``there``: all jobs; a job that is not resized
    for a while has not ended."""
    present = {job_id: seen for job_id, seen in memory.present.items() if job_id in there}
    present |= {e.job.id: (_type(e), e.progress.epochs if e.progress is not None else 0.0) for e in entries}
    epochs = dict(memory.epochs)
    for job_id, (kind, done) in memory.present.items():
        if job_id not in present and done > 0:
            epochs[kind] = (*epochs.get(kind, ()), done)
    shown: dict[str, list[Mapping[Point, float]]] = defaultdict(list)
    for entry in entries:
        if entry.progress is not None and entry.progress.epoch_s:
            shown[_type(entry)].append({(g, g): 1.0 / seconds for g, seconds in entry.progress.epoch_s})
    speeds = dict(memory.speeds)
    for kind, points in shown.items():
        speeds[kind] = {**merge_points(points), **speeds.get(kind, {})}
    return _Memory(speeds, epochs, present)


def _probe(wanted: dict[str, int], probes: Mapping[str, int], total: int) -> None:
    """Give jobs that are not known yet the number of GPUs to be tried, as far as GPUs are left."""
    left = total - sum(wanted.values())
    for job_id, gpus in probes.items():
        if job_id in wanted:
            more = min(gpus - wanted[job_id], left)
            if more > 0:
                wanted[job_id] += more
                left -= more


def _rows(draft: PlanDraft, entries: list[Entry], wanted: Mapping[str, int]) -> dict[str, Ints]:
    """(N,) GPUs of each job on each node. A job that keeps its number keeps its GPUs; the others follow, those with
    few GPUs first (O14), each on the emptiest nodes, so on as few as possible (O16)."""
    base = draft.base(entries)
    rows: dict[str, Ints] = {}
    room = draft.capacity.copy()
    for entry, row in zip(entries, base, strict=True):
        if row.sum() == wanted.get(entry.job.id, 0) and (row <= room).all() and within_nodes(entry, row) is row:
            rows[entry.job.id] = row
            room -= row
    for entry in sorted((e for e in entries if e.job.id not in rows), key=lambda e: wanted.get(e.job.id, 0)):
        row = np.zeros_like(room)
        left, most = wanted.get(entry.job.id, 0), limits_of(entry).max_nodes
        while left and room.any() and (most is None or np.count_nonzero(row) < most):
            node = int(room.argmax())
            row[node] = min(left, int(room[node]))
            room[node] -= row[node]
            left -= int(row[node])
        rows[entry.job.id] = row
    return rows


class DrfPolicy(RoundPolicy):
    """DRF, at Optimus's rounds. A worker is a GPU, so the dominant resource of each job is the GPU. A job that keeps
    its number of GPUs keeps its GPUs."""

    name = "optimus-drf"
    needs = frozenset({Capability.RESIZE, Capability.PREEMPT})
    rules = PolicyRules(preempts="elastic", resizes=True)

    def __init__(self, settings: OptimusSettings) -> None:
        super().__init__(settings.interval_s)

    def plan_round(self, partition: Partition, snapshot: Snapshot, memory: object) -> PartitionPlan:  # noqa: ARG002
        """Share out anew."""
        draft = PlanDraft(partition, snapshot.now_s)
        entries = sorted(draft.entries, key=lambda e: (e.job.submit_s, e.job.rank))
        total = float(draft.capacity.sum())
        claims = [Claim(e.job.id, (1.0,), most_of(e), limits_of(e).min_gpus) for e in entries]
        units = fair_shares(claims, [total])
        used = np.zeros((len(draft.capacity), 1))
        capacity = draft.capacity.astype(np.float64)[:, None]
        rows: dict[str, Ints] = {}
        for entry, row in zip(entries, draft.base(entries), strict=True):
            few = within_nodes(entry, row) is row
            if few and row.sum() == units[entry.job.id] and (used[:, 0] + row <= draft.capacity).all():
                rows[entry.job.id] = row
                used[:, 0] += row
        for entry, claim in zip(entries, claims, strict=True):
            if claim.job_id in rows:
                continue
            row = rows[str(claim.job_id)] = np.zeros_like(draft.capacity)
            most = limits_of(entry).max_nodes
            for _ in range(units[claim.job_id]):
                full = most is not None and np.count_nonzero(row) >= most  # then only nodes that it has already
                there = np.where(row[:, None] > 0, used, capacity) if full else used
                node = pick_node(claim.demand, there, capacity)
                if node is None:
                    break
                row[node] += 1
                used[node] += 1.0
        # as fast as it has GPUs: the rule asks no job how fast it is
        found = stacked([rows[entry.job.id] for entry in entries], draft)
        kept = keep_unless_worth(draft, entries, found, lambda _, row: float(row.sum()), snapshot.now_s)
        given = {entry.job.id: row for entry, row in zip(entries, kept, strict=True)}
        why = {
            str(c.job_id): Allotted("share of the GPUs", units[c.job_id], c.most, units[c.job_id] / max(total, 1.0))
            for c in claims
        }
        draft.deal(given, why)
        return draft.plan(after_round_s(snapshot.now_s, self.interval_s) if entries else None)
