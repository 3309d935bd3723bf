"""Published semantics, for parity only: where the simulators of the papers on Lucid and Muri differ from ours.

Muri's, read off its code: every job's iterations take 1.015 of the time in the trace. Starting costs nothing at a
start; instead each job that runs through an event (an arrival, an end, a demotion) loses the seconds that its group
takes to start, up to the time since the last event, and the end of a job is reckoned without them. Moving is free: at
each event everything is placed anew, by first fit. srtf and srsf skip jobs that find no place; tiresias has three
queues and counts GPUs only."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from enum import StrEnum

from lucid.config.policy import MuriSettings
from lucid.core.decision import Hold, PartitionPlan
from lucid.core.job import Job, Pending, Running
from lucid.core.ledger import Ledger
from lucid.core.placement import NodeGpus, Placement
from lucid.core.ports import Capability
from lucid.core.reason import Reason
from lucid.core.reasons.queue import FreeGpus, Preempted, Priority
from lucid.core.snapshot import Partition, Snapshot
from lucid.core.times import reached
from lucid.orchestrator.capacity.placement import Feasibility
from lucid.orchestrator.policies.muri.interleave import PUBLISHED
from lucid.orchestrator.policies.muri.placement import Placed, arrange, moves
from lucid.orchestrator.policies.muri.policy import REMAINING, MuriPolicy, PriorityRule, remaining_s
from lucid.orchestrator.policies.queue import attained_s
from lucid.orchestrator.policy import PartitionPolicy, Policy, PolicyRules
from lucid.simulator.cluster.cluster import SimulatedCluster
from lucid.simulator.cluster.state import Live
from lucid.simulator.traces.record import Trace

_SHORTEST = PriorityRule("remaining time", remaining_s)
_LIMITS_GPU_S = (3250.0, 7200.0)
"""Attained GPU-seconds from which a job moves to the second queue, and to the third."""


def lengthened(trace: Trace) -> Trace:
    """The trace with the measured cost of running under Muri's executor on every iteration."""
    jobs = []
    for item in trace.jobs:
        stages = item.stages
        if stages is not None:
            stages = replace(stages, iteration_s=stages.iteration_s * PUBLISHED.solo)
        jobs.append(replace(item, duration_s=item.duration_s * PUBLISHED.solo, stages=stages))
    return replace(trace, jobs=tuple(jobs))


class EventChargedCluster(SimulatedCluster):
    """Charges the cost of starting at every event instead of at starts."""

    def advance(self, to_s: float) -> None:
        """Let everything up to ``to_s`` happen, then charge every running job."""
        super().advance(to_s)
        for live in self._live.values():
            view = live.view
            if isinstance(view, Running):
                self._catch_up(live)
                self._schedule_end(live)
                self._show(live, view)

    def _done_s(self, live: Live) -> float:
        return max(self._now_s - live.since_s - live.cold_s, 0.0) * live.speed

    def _ready_s(self, live: Live) -> float:  # noqa: ARG002 - nothing waits for a start
        return self._now_s


def first_fit(ledger: Ledger, job: Job) -> Placement | None:
    """The first node with enough free GPUs; for larger jobs the first whole free nodes, and the first other one
    for the remainder."""
    per_node, free = ledger.gpus_per_node, ledger.free_count
    whole, rest = divmod(job.gpus, per_node) if job.gpus > per_node else (0, job.gpus)
    chosen = [i for i, count in enumerate(free) if count == per_node][:whole] if whole else []
    if len(chosen) < whole:
        return None
    parts: list[NodeGpus] = [ledger.lowest(i, per_node) for i in chosen]
    if rest:
        last = next((i for i, count in enumerate(free) if count >= rest and i not in chosen), None)
        if last is None:
            return None
        parts.append(ledger.lowest(last, rest))
    return tuple(parts)


class PublishedMuri(MuriPolicy):
    """Muri as its authors replay it: by first fit, everything anew each time. Jobs of equal priority stay in the
    order of the previous plan, re-sorted there by GPUs; so the order is kept from one plan to the next."""

    def __init__(self, name: str, rule: PriorityRule, settings: MuriSettings) -> None:
        super().__init__(name, rule, settings, first_fit, stay=False)
        self._before: dict[str, dict[str, int]] = {}

    def line_up(self, partition: Partition, now_s: float) -> list[Pending | Running]:  # noqa: ARG002
        """The jobs in their last order, new arrivals last."""
        before = self._before.get(partition.name, {})
        members: list[Pending | Running] = [*partition.pending, *partition.running]
        members.sort(key=lambda e: (before.get(e.job.id, len(before)), e.job.submit_s, e.job.rank))
        return members

    def queued(self, partition: Partition, order: Sequence[Pending | Running]) -> None:
        """Note the jobs' order."""
        by_gpus = sorted(order, key=lambda entry: -entry.job.gpus)
        self._before[partition.name] = {entry.job.id: at for at, entry in enumerate(by_gpus)}


class ThreeQueueTiresias(PartitionPolicy):
    """Tiresias as Muri's authors replay it. Within a queue running jobs come before waiting ones, and otherwise the
    order is that of entry; so the queues are kept from one plan to the next."""

    name = "tiresias"
    needs = frozenset({Capability.PREEMPT, Capability.INTERLEAVE})
    rules = PolicyRules(preempts="anybody", interleaves=True)

    def __init__(self) -> None:
        super().__init__()
        self._queues: dict[str, tuple[list[str], list[str], list[str]]] = {}

    def plan_partition(self, partition: Partition, snapshot: Snapshot) -> PartitionPlan:
        """Give the GPUs out by queue; plan again when a job is due to move to the next queue."""
        now_s = snapshot.now_s
        members: tuple[Pending | Running, ...] = (*partition.running, *partition.pending)
        entries = {entry.job.id: entry for entry in members}
        queues = self._queues.setdefault(partition.name, ([], [], []))
        self._update(queues, entries, now_s)
        feasible = Feasibility(partition)
        free = sum(node.gpus for node in partition.nodes if node.available)
        chosen: list[Job] = []
        left_out: dict[str, tuple[Reason, ...]] = {}
        for queue in queues:
            for job_id in queue:
                job = entries[job_id].job
                hopeless = feasible.bar(job)
                test = Preempted(job.gpus, free)
                if hopeless is not None or test:
                    left_out[job_id] = (hopeless or test,)
                    continue
                free -= job.gpus
                chosen.append(job)
        placed, ledger = arrange(partition, [(job,) for job in chosen], now_s, first_fit, stay=False)

        def why(item: Placed, entry: Pending | Running) -> tuple[Reason, ...]:  # noqa: ARG001
            had = attained_s(entry, now_s) * entry.job.gpus
            rule = Priority("attained GPU-seconds", had, 0.0, entry.job.gpus, "attained service")
            return (rule, FreeGpus(entry.job.gpus, ledger.largest, ledger.free, True))

        def why_not(entry: Pending | Running) -> tuple[Reason, ...]:
            nowhere = FreeGpus(entry.job.gpus, ledger.largest, ledger.free, False)
            return left_out.get(entry.job.id, (nowhere,))

        decisions, actions = moves(partition, placed, why, why_not)
        runs = {job_id for item in placed for job_id in item.jobs}
        for queue in queues:
            queue.sort(key=lambda job_id: job_id not in runs)
        for entry in partition.pending:
            if entry.job.id not in runs:
                decisions[entry.job.id] = Hold(why_not(entry))
        return PartitionPlan(decisions, tuple(actions), self._next_s(queues, runs, entries, now_s))

    @staticmethod
    def _update(queues: Sequence[list[str]], entries: Mapping[str, Pending | Running], now_s: float) -> None:
        """Remove ended jobs, put new ones into the first queue, and move jobs on by one that have had enough."""
        at: dict[str, int] = {}
        for number, queue in enumerate(queues):
            queue[:] = [job_id for job_id in queue if job_id in entries]
            at.update(dict.fromkeys(queue, number))
        queues[0].extend(job_id for job_id in entries if job_id not in at)
        for job_id, entry in entries.items():
            number = at.get(job_id, 0)
            if isinstance(entry, Running) and number < len(_LIMITS_GPU_S):
                due_s = _LIMITS_GPU_S[number] / entry.job.gpus
                if reached(attained_s(entry, now_s), due_s):
                    queues[number].remove(job_id)
                    queues[number + 1].append(job_id)

    @staticmethod
    def _next_s(
        queues: Sequence[list[str]], runs: set[str], entries: Mapping[str, Pending | Running], now_s: float
    ) -> float | None:
        """When the next running job is due to move on, rounded up to a second of its own time."""
        due = [
            now_s + math.ceil(limit / entries[job_id].job.gpus) - attained_s(entries[job_id], now_s)
            for limit, queue in zip(_LIMITS_GPU_S, queues, strict=False)
            for job_id in queue
            if job_id in runs
        ]
        return max(min(due), now_s) if due else None


def published_policy(policy: Policy, settings: MuriSettings) -> Policy:
    """The published variant of a policy; a policy that Muri's simulator lacks, as it is."""
    alone = settings.changed({"group_size": 1, "unpack": False})
    if policy.name == "srtf":
        return PublishedMuri("srtf", _SHORTEST, alone)
    if policy.name == "srsf":
        return PublishedMuri("srsf", REMAINING, alone)
    if policy.name == "tiresias":
        return ThreeQueueTiresias()
    if isinstance(policy, MuriPolicy):
        return PublishedMuri(policy.name, policy.rule, policy.settings)
    return policy


class Semantics(StrEnum):
    """How a replay treats what the published simulator leaves out."""

    HONEST = "honest"
    """Profiling takes time and nodes, readings come when a sampler would have them, survivors speed up."""
    PUBLISHED = "published"
    """As Lucid's published simulator: profiling beside, and free of charge to, the main queue; a survivor of a
    pair stays slow; one second more for each job of srtf, tiresias and lucid. For parity only."""
    PUBLISHED_MENDED = "published-mended"
    """As ``published``, but survivors of pairs speed up."""
    MURI = "muri"
    """As Muri's published simulator, for parity with its traces and figures."""
