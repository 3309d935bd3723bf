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

from msgspec import structs

from lucid.config.policy import FairnessSettings, MuriSettings, PackingSettings, PolicySettings, ReservationSettings
from lucid.core.decision import Hold, PartitionPlan
from lucid.core.job import Job, Pending, Running
from lucid.core.ledger import Ledger
from lucid.core.placement import NodeGpus, Placement
from lucid.core.ports import Capability, Predictor, Recorder
from lucid.core.reason import Reason
from lucid.core.reasons.queue import FreeGpus, Preempted, Priority
from lucid.core.snapshot import Partition, Snapshot
from lucid.core.times import reached
from lucid.models.history import HistoryPredictor
from lucid.orchestrator.capacity.placement import Feasibility
from lucid.orchestrator.policies.muri.interleave import PUBLISHED
from lucid.orchestrator.policies.muri.placement import Placed, arrange, moves
from lucid.orchestrator.policies.muri.policy import REMAINING, MuriPolicy, PriorityRule, remaining_s
from lucid.orchestrator.policies.queue import QueuePolicy, attained_s
from lucid.orchestrator.policy import PartitionPolicy, Policy, PolicyRules
from lucid.orchestrator.registry import make_policy
from lucid.simulator.cluster.cluster import Layout, SimulatedCluster
from lucid.simulator.cluster.jobs import Parts
from lucid.simulator.cluster.state import Semantics
from lucid.simulator.engine import Progress, Run, run
from lucid.simulator.layout import lend_profiling_nodes
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
            stages = structs.replace(stages, iteration_s=stages.iteration_s * PUBLISHED.solo)
        jobs.append(replace(item, duration_s=item.duration_s * PUBLISHED.solo, stages=stages))
    return replace(trace, jobs=tuple(jobs))


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


# -- Lucid's published simulator -------------------------------------------------------------------------------

_T_PROF_S = 80.0
_N_PROF = 4
_PROFILING_NODES = 2
_TICK_S = 1.0
_TICKED = frozenset({"srtf", "tiresias", "lucid"})
"""Policies whose published loops notice an end one tick late."""


def ticked(trace: Trace, policy: str) -> Trace:
    """The trace with jobs as long as the published loop of the policy takes them to be."""
    if policy not in _TICKED:
        return trace
    return replace(trace, jobs=tuple(replace(item, duration_s=item.duration_s + _TICK_S) for item in trace.jobs))


def published_lucid(
    trace: Trace,
    layout: Layout,
    parts: Parts,
    predictor: Predictor,
    recorder: Recorder | None,
    progress: Progress | None,
) -> Run:
    """The run under published semantics: profiling first, by itself, over the whole trace; jobs that ended there have
    left, all others enter their VC at submission. The delay in the profiler's queue counts as queueing, but delays
    nothing."""
    layout, lent = lend_profiling_nodes(layout, trace, _PROFILING_NODES)
    profiled = [
        replace(item, job=replace(item.job, vc="profiler"), duration_s=min(item.duration_s, _T_PROF_S))
        for item in trace.jobs
        if item.job.gpus <= _N_PROF
    ]
    alone = replace(parts, semantics=Semantics.HONEST)
    profiler = SimulatedCluster(Trace(trace.name, tuple(profiled)), {"profiler": lent}, lambda _job: False, alone)
    fewest_gpus_first = QueuePolicy(
        "profiler", "GPUs", lambda entries, _known, _now: [entry.job.gpus for entry in entries]
    )
    before = run(profiler, fewest_gpus_first, HistoryPredictor())
    true_s = {item.job.id: item.duration_s for item in trace.jobs}
    over = {o.job.id: o for o in before.outcomes if true_s[o.job.id] <= _T_PROF_S}
    delay_s = {o.job.id: o.queue_s for o in before.outcomes}
    late = ticked(trace, "lucid")
    rest = replace(late, jobs=tuple(item for item in late.jobs if item.job.id not in over))
    policy_settings = PolicySettings(
        profiling=parts.profiling.changed({"enabled": False}),
        packing=PackingSettings(
            partner="first", least_pair_speed=0.0, least_partner_remaining_s=0.0, priority_ratio=2.0, when_calm=True
        ),
        reservation=ReservationSettings(enabled=False),
        fairness=FairnessSettings(estimates="always"),
        remainder_on_emptiest=True,
    )
    made = make_policy("lucid", policy_settings, predictor)
    cluster = SimulatedCluster(rest, layout, made.profiled, parts)
    main = run(cluster, made, predictor, recorder, progress, len(rest.jobs), settings=policy_settings)
    jobs = {item.job.id: item.job for item in trace.jobs}
    for outcome in main.outcomes:
        outcome.queue_s += delay_s.get(outcome.job.id, 0.0)
    for outcome in over.values():
        outcome.job = jobs[outcome.job.id]
        outcome.ended_in_profiling = True
    return replace(
        main,
        outcomes=[*main.outcomes, *over.values()],
        wall_s=main.wall_s + before.wall_s,
        cpu_s=main.cpu_s + before.cpu_s,
        total_gpus=main.total_gpus + before.total_gpus,
    )
