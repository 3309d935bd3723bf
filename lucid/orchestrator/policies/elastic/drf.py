"""Dominant resource fairness, with which Optimus was compared (rows O19, O21): every elastic job gets as many GPUs as
every other, placed one by one as Kubernetes does by default."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lucid.config import OptimusSettings
from lucid.core.decision import PartitionPlan
from lucid.core.ports import Capability
from lucid.core.reason import Allotted
from lucid.core.snapshot import Partition, Snapshot
from lucid.orchestrator.policies.elastic.plan_draft import PlanDraft, limits_of, most_of, within_nodes
from lucid.orchestrator.policies.elastic.resize_worth import keep_unless_worth, stacked
from lucid.orchestrator.rounds import RoundPolicy, after_round_s
from lucid.orchestrator.rules import PolicyRules
from lucid.systems.optimus import Claim, fair_shares, pick_node

__all__ = ["DrfPolicy"]

Ints = NDArray[np.intp]


class DrfPolicy(RoundPolicy):
    """Decides at Optimus's rounds. A worker is a GPU, so the dominant resource of each job is the GPU. Who keeps his
    number of GPUs keeps his GPUs."""

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
