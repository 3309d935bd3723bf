"""Sia: every round a linear program gives each job one bundle of GPUs of one type, or none (SOSP '23)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from lucid.config import SiaSettings
from lucid.core.decision import PartitionPlan
from lucid.core.job import Running
from lucid.core.node import Node
from lucid.core.ports import Capability
from lucid.core.snapshot import Partition, Snapshot
from lucid.orchestrator.policies.elastic.plan_draft import Entry, PlanDraft, limits_of
from lucid.orchestrator.policies.elastic.pollux import allotted, chosen_batches, reported_job
from lucid.orchestrator.policies.elastic.resize_worth import keep_unless_worth, restarts_s
from lucid.orchestrator.policies.queue import attained_s
from lucid.orchestrator.rounds import RoundPolicy, after_round_s
from lucid.orchestrator.rules import PolicyRules
from lucid.systems.pollux import Goodputs, PolluxJob, SpeedupTable, restart_factors
from lucid.systems.sia import Bundle, Kind, bundles_of, choose, kinds_of, place, utilities

__all__ = ["SiaPolicy"]

Ints = NDArray[np.intp]
Floats = NDArray[np.float64]

_NO_GPUS = 1.1
"""What a job without GPUs costs the sum (lambda); above 1 no GPU stays idle while a job could use it."""
_GAP = 1e-4
"""How far, relatively, the sum may be from the best one."""
_MOST_NODES = 1000
"""Most nodes of the solver's search tree in a round: a bound on its effort."""


class SiaPolicy(RoundPolicy):
    """Needs no estimate: it uses what the jobs report."""

    name = "sia"
    needs = frozenset({Capability.RESIZE, Capability.ADAPT, Capability.PREEMPT})
    rules = PolicyRules(preempts="elastic", resizes=True)

    def __init__(self, settings: SiaSettings) -> None:
        super().__init__(settings.interval_s)
        self._settings = settings
        self._goodputs: dict[tuple[str, float], Goodputs] = {}
        """By partition and speed of its GPUs, what the last round has worked out."""

    def plan_round(self, partition: Partition, snapshot: Snapshot, memory: object) -> PartitionPlan:  # noqa: ARG002
        """Solve the program."""
        now_s, settings = snapshot.now_s, self._settings
        draft = PlanDraft(partition, snapshot.now_s)
        entries = sorted(draft.entries, key=lambda e: (attained_s(e, now_s), e.job.submit_s, e.job.rank))
        if not entries:
            draft.deal({}, {})
            return draft.plan(None)
        jobs = [reported_job(entry, now_s) for entry in entries]
        kinds = kinds_of(
            [node.gpu_type for node in partition.nodes], [n.gpus for n in partition.nodes], draft.capacity.tolist()
        )
        bundles = bundles_of(kinds)
        base = draft.base(entries)
        present = [_bundle_of(row, bundles, kinds) for row in base]
        goodput = self._goodput(partition, entries, jobs, bundles, kinds)
        least = [limits_of(entry).min_gpus for entry in entries]
        restart = restart_factors(
            [job.age_s for job in jobs], [job.restarts for job in jobs], restarts_s(entries, settings.restart_s)
        )
        chosen = choose(
            utilities(goodput, least, present, restart, settings.p),
            bundles,
            kinds,
            maximise=settings.p > 0,
            idle=_NO_GPUS,
            gap=_GAP,
            nodes=_MOST_NODES,
        )
        picked = tuple(present) if chosen is None else chosen.bundle  # without a solution all stays as it is
        wanted = {j: bundles[b] for j, b in enumerate(picked) if b >= 0}
        staying = {j: base[j] for j in wanted if picked[j] == present[j] and (base[j] <= draft.capacity).all()}
        placed = place(wanted, staying, kinds, len(partition.nodes))
        found = np.zeros((len(entries), len(partition.nodes)), dtype=np.intp)
        for j, row in placed.rows.items():
            found[j] = row

        def speed(j: int, row: Ints) -> float:
            bundle = _bundle_of(row, bundles, kinds)
            return float(goodput[j, bundle]) if bundle >= 0 else 0.0

        rows = keep_unless_worth(draft, entries, found, speed, now_s)
        worth = _normalised(goodput)
        batches = chosen_batches(jobs, rows, base)
        values = [float(worth[j, bundle]) if bundle >= 0 else 0.0 for j, bundle in enumerate(picked)]
        why = {
            entry.job.id: allotted("normalised goodput", rows[j], jobs[j], values[j], batches)
            for j, entry in enumerate(entries)
        }
        draft.deal({entry.job.id: rows[j] for j, entry in enumerate(entries)}, why, batches)
        return draft.plan(after_round_s(now_s, settings.interval_s))

    def _goodput(
        self,
        partition: Partition,
        entries: Sequence[Entry],
        jobs: Sequence[PolluxJob],
        bundles: Sequence[Bundle],
        kinds: Sequence[Kind],
    ) -> Floats:
        """(J, C) goodput of each job on each bundle; 0 where it cannot have the bundle."""
        speeds = self._settings.speeds
        seen = _seen_speeds(entries, partition.nodes, speeds)
        out = np.zeros((len(jobs), len(bundles)))
        least = np.array([limits_of(entry).min_gpus for entry in entries])
        most_nodes = [limits_of(entry).max_nodes or len(partition.nodes) for entry in entries]
        total = sum(kind.width * len(kind.nodes) for kind in kinds)
        for number, kind in enumerate(kinds):
            mine = [i for i, bundle in enumerate(bundles) if bundle.kind == number]
            speed = speeds.get(kind.gpu_type, 1.0)
            key = (partition.name, speed)
            scaled = [_on(job, speed / was) for job, was in zip(jobs, seen, strict=True)]
            table = SpeedupTable(scaled, max(total, 1), known=self._goodputs.get(key))
            gpus = np.array([bundles[i].gpus for i in mine], dtype=np.intp)
            wide = np.array([bundles[i].nodes for i in mine], dtype=np.intp)
            across = (wide > 1).astype(np.intp)
            for j in range(len(jobs)):
                fits = (gpus <= table.most[j]) & (gpus >= least[j]) & (wide <= most_nodes[j])
                value = table(np.full(int(fits.sum()), j), across[fits], gpus[fits]) * table.base[j]
                # of a job that has not reported yet it is taken that it is as fast as its GPUs
                out[j, np.array(mine, dtype=np.intp)[fits]] = value if jobs[j].model is not None else value * speed
            self._goodputs[key] = table.known
        return out


def _on(job: PolluxJob, times: float) -> PolluxJob:
    """The job on GPUs ``times`` as fast: what it computes takes that much less time, what it sends takes as long."""
    if job.model is None or times == 1.0:
        return job
    perf = job.model.perf
    faster = perf._replace(alpha_c=perf.alpha_c / times, beta_c=perf.beta_c / times)
    return replace(job, model=job.model._replace(perf=faster))


def _seen_speeds(entries: Sequence[Entry], nodes: Sequence[Node], speeds: Mapping[str, float]) -> list[float]:
    """The speed of the GPUs on which each job measured what it reports: those that it has; 1 for one that waits."""
    types = {node.name: node.gpu_type for node in nodes}
    return [
        speeds.get(types[entry.placement[0].node], 1.0) if isinstance(entry, Running) else 1.0 for entry in entries
    ]


def _bundle_of(row: Ints, bundles: Sequence[Bundle], kinds: Sequence[Kind]) -> int:
    """The number of the bundle that a job has on each node as in ``row``; -1 if that is none."""
    nodes, total = np.flatnonzero(row), int(row.sum())
    for number, bundle in enumerate(bundles):
        kind = kinds[bundle.kind]
        if bundle.gpus == total and bundle.nodes == len(nodes) and all(node in kind.nodes for node in nodes.tolist()):
            return number
    return -1


def _normalised(goodput: Floats) -> Floats:
    """Relative to the least of each job."""
    least = np.where(goodput > 0, goodput, np.inf).min(axis=1, initial=np.inf)
    return np.asarray(goodput / np.where(np.isfinite(least), least, 1.0)[:, None])
