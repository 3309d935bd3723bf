"""Profiling nodes take in jobs that find no place in their own VC, where no job is started over to be profiled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from lucid.core.decision import Action, Decision, Hold, PartitionPlan, Plan, Start
from lucid.core.job import Job, Pending
from lucid.core.ledger import Ledger
from lucid.core.reason import FreeGpus, Overflow, Priority, SkipsProfiling
from lucid.core.snapshot import Partition, Snapshot
from lucid.orchestrator.boot_reasons import with_boots
from lucid.orchestrator.capacity.placement import consolidated

if TYPE_CHECKING:
    from lucid.config import ProfilingSettings

__all__ = ["with_overflow"]


def with_overflow(plan: Plan, snapshot: Snapshot, settings: ProfilingSettings) -> Plan:
    """The plan, with jobs that it leaves waiting in their VCs started on free GPUs of profiling nodes.

    The job with the smallest estimate x GPUs goes first, whichever VC it belongs to. Only jobs expected to take at
    most ``overflow_most_s`` go, so that the nodes come back soon. No job of a VC loses its place, because profiling
    nodes belong to no VC. Two kinds of jobs stay in their VC: those whose request slots cannot express (they may
    ask for what only the nodes there have), and those above N_prof.
    """
    profiling = snapshot.profiling
    if profiling is None or profiling.name not in plan.partitions:
        return plan
    ledger = Ledger(profiling, snapshot.now_s)
    own = plan.partitions[profiling.name]
    for action in own.actions:
        if isinstance(action.decision, Start):
            ledger.take(_job(profiling.pending, action.job_id), action.decision.placement)
    if not ledger.free:
        return plan
    starts: dict[str, tuple[str, Start]] = {}
    for value, entry in _waiting(plan, snapshot, settings, ledger.largest):
        job = entry.job
        placement = consolidated(ledger, job) if job.min_nodes <= 1 else None
        if placement is None:
            continue
        found = snapshot.predictions[job.id]
        why = Priority("estimate x GPUs", value, found.duration_s, job.gpus, found.duration_source)
        free = FreeGpus(job.gpus, ledger.largest, ledger.free, True)
        ledger.take(job, placement)
        home = snapshot.home(job.vc)
        assert home is not None
        starts[job.id] = home.name, Start(placement, (Overflow(job.vc, False), why, free))
        if not ledger.free:
            break
    return _with(plan, profiling, own, starts) if starts else plan


def _job(entries: Sequence[Pending], job_id: str) -> Job:
    return next(entry.job for entry in entries if entry.job.id == job_id)


def _waiting(
    plan: Plan, snapshot: Snapshot, settings: ProfilingSettings, largest: int
) -> list[tuple[float, Pending]]:
    """Who could start on a profiling node, smallest priority value first."""
    found = []
    for name, part in plan.partitions.items():
        partition = snapshot.partitions[name]
        if partition.profiling or not partition.acting or part.error:
            continue
        for entry in partition.pending:
            job = entry.job
            if (
                job.shareable
                and not entry.barred
                and not entry.home_only
                and 0 < job.gpus <= largest
                and snapshot.predictions[job.id].duration_s <= settings.overflow_most_s
                and not SkipsProfiling(job.gpus, settings.n_prof)
                and isinstance(part.decisions.get(job.id), Hold)
            ):
                found.append((snapshot.predictions[job.id].duration_s * job.gpus, entry))
    found.sort(key=lambda item: (item[0], item[1].job.submit_s, item[1].job.rank))
    return found


def _with(plan: Plan, room: Partition, own: PartitionPlan, starts: Mapping[str, tuple[str, Start]]) -> Plan:
    """Each job keeps one decision: that of the partition where it starts."""
    parts = dict(plan.partitions)
    decisions: dict[str, Decision] = {job_id: start for job_id, (_, start) in starts.items()}
    actions = tuple(Action(job_id, room.name, start) for job_id, (_, start) in starts.items())
    more = with_boots(room, PartitionPlan(decisions, actions), plan.now_s)
    parts[room.name] = replace(
        own, decisions={**own.decisions, **more.decisions}, actions=(*own.actions, *more.actions)
    )
    for vc in {vc for vc, _ in starts.values()}:
        left = {job_id: made for job_id, made in parts[vc].decisions.items() if job_id not in starts}
        parts[vc] = replace(parts[vc], decisions=left)
    return Plan(plan.now_s, parts)
