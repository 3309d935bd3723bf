"""The policies ``muri-s`` and ``muri-l``: jobs of equal GPU count take turns on resources, in groups.

At every arrival and end the jobs to run are chosen by priority and grouped anew (rows M9-M19). Running groups keep
their GPUs. On a real cluster nobody is stopped for that (``muri.live``)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from msgspec import structs

from lucid.config.policy import MuriSettings
from lucid.core.decision import Decision, Hold, PartitionPlan
from lucid.core.job import Job, Pending, Running
from lucid.core.ledger import Ledger
from lucid.core.ports import Capability
from lucid.core.prediction import Prediction
from lucid.core.reason import Reason
from lucid.core.reasons.queue import FreeGpus, Priority
from lucid.core.reasons.sharing import Interleaved
from lucid.core.snapshot import Partition, Snapshot
from lucid.orchestrator.capacity.placement import Feasibility, consolidated
from lucid.orchestrator.policies.muri.grouping import (
    GammaTable,
    Group,
    GroupingOptions,
    choose_candidates,
    group_jobs,
    group_period,
    unpack,
)
from lucid.orchestrator.policies.muri.interleave import (
    IN_TURNS,
    NO_OVERHEAD,
    PUBLISHED,
    PUBLISHED_UNMATCHED,
    MuriJob,
    Overhead,
)
from lucid.orchestrator.policies.muri.live import Line, LiveRules, member_speeds, plan_live
from lucid.orchestrator.policies.muri.placement import Place, Placed, arrange, moves
from lucid.orchestrator.policies.muri.seen import Turns
from lucid.orchestrator.policies.queue import attained_s
from lucid.orchestrator.policy import PartitionPolicy, PolicyRules


def remaining_s(entry: Pending | Running, prediction: Prediction | None, now_s: float) -> float:
    """Expected seconds that a job still needs alone on its GPUs: its duration less the work that its executor
    reported, or less its run time without a report. Infinite without a prediction."""
    if prediction is None:
        return float("inf")
    done_s = attained_s(entry, now_s) if entry.work is None else entry.work.by_s(now_s)
    return prediction.duration_s - done_s


@dataclass(frozen=True, slots=True)
class PriorityRule:
    """A sort key of jobs: ``value`` of a job (smaller first), and the name of the value in reasons."""

    name: str
    value: Callable[[Pending | Running, Prediction | None, float], float]


REMAINING = PriorityRule(
    "remaining time x GPUs",
    lambda entry, prediction, now_s: remaining_s(entry, prediction, now_s) * entry.job.gpus,
)
"""The rule of Muri-S (M14)."""
ATTAINED = PriorityRule(
    "attained GPU-seconds",
    lambda entry, _prediction, now_s: attained_s(entry, now_s) * entry.job.gpus,
)
"""The rule of Muri-L, which needs no duration (M15)."""


def grouping_options(settings: MuriSettings) -> GroupingOptions:
    """The settings as the grouping takes them."""
    matched = PUBLISHED if settings.matching == "blossom" else PUBLISHED_UNMATCHED
    return GroupingOptions(
        group_size=settings.group_size,
        ordering=settings.ordering,
        overhead=matched if settings.overheads else NO_OVERHEAD,
        matching=settings.matching,
    )


class MuriPolicy(PartitionPolicy):
    """Muri-S or Muri-L, by the rule of priority.

    Jobs that were never measured, or whose users asked not to share, get GPUs of their own. ``place`` finds GPUs;
    with ``stay=False`` everything is placed anew each time, as if moving were free."""

    needs = frozenset({Capability.PREEMPT, Capability.INTERLEAVE})

    def __init__(
        self,
        name: str,
        rule: PriorityRule,
        settings: MuriSettings,
        place: Place = consolidated,
        stay: bool = True,
        same_user: bool = True,
    ) -> None:
        """``same_user``: on a real cluster only jobs of one user share GPUs."""
        super().__init__()
        self.name = name
        self.options = grouping_options(settings)
        self.rules = PolicyRules(preempts="anybody", interleaves=True, group_limit=self.options.limit)
        self.rule = rule
        self.settings = settings
        self._unpack = settings.unpack
        self._place = place
        self._stay = stay
        live = replace(self.options, overhead=IN_TURNS if settings.overheads else NO_OVERHEAD)
        self._live = LiveRules(live, settings.patience_s, same_user)
        self._table = GammaTable(self.options.k, self.options.ordering, self.options.overhead)
        self._known: dict[str, MuriJob] = {}

    def plan_partition(self, partition: Partition, snapshot: Snapshot) -> PartitionPlan:
        """Choose by priority, group, split what would be slower together, place."""
        decisions: dict[str, Decision] = {}
        queue = self._queue(partition, snapshot, decisions)
        if not queue.order:
            return PartitionPlan(decisions, memory=snapshot.memory.get(partition.name))
        if partition.live:
            live = plan_live(partition, snapshot, queue.line(partition), self._live)
            return structs.replace(live, decisions={**decisions, **live.decisions})
        fits = _Fits(partition, snapshot.now_s, self._place, queue)
        admitted = choose_candidates(queue.order, fits, self.options.limit, queue.alone)
        groups = [Group(job.gpus, (job,)) for job in admitted if job.job_id in queue.alone]
        room = queue.gpus - sum(group.gpus for group in groups)
        sharing = [job for job in admitted if job.job_id not in queue.alone]
        groups += group_jobs(sharing, max(room, 1), self.options, self._table)
        whole = len(groups)
        groups = list(_within_memory(groups, queue.mem_mib, partition))
        if self._unpack:
            groups = unpack(groups, self.options)
        groups.sort(key=lambda group: min(queue.rank[str(job.job_id)] for job in group.jobs))
        if self._unpack or len(groups) > whole:
            fits = _Fits(partition, snapshot.now_s, self._place, queue)
            groups = [group for group in groups if fits(group.jobs[0])]
        members = [[queue.jobs[str(job.job_id)] for job in group.jobs] for group in groups]
        placed, ledger = arrange(partition, members, snapshot.now_s, self._place, self._stay)
        together = {str(job.job_id): group for group in groups for job in group.jobs if len(group.jobs) > 1}
        shown: dict[str, tuple[Reason, ...]] = {}

        def why(item: Placed, entry: Pending | Running) -> tuple[Reason, ...]:
            known = shown.get(item.jobs[0])
            if known is None:
                known = shown[item.jobs[0]] = self._interleaved(together.get(item.jobs[0]), item)
            return (queue.priority(entry), *known, FreeGpus(entry.job.gpus, ledger.largest, ledger.free, True))

        def why_not(entry: Pending | Running) -> tuple[Reason, ...]:
            found = fits.failed.get(entry.job.gpus)
            return (found or FreeGpus(entry.job.gpus, ledger.largest, ledger.free, False),)

        made, actions = moves(partition, placed, why, lambda entry: (queue.priority(entry), *why_not(entry)))
        decisions.update(made)
        holds: dict[int, Hold] = {}
        for entry in partition.pending:
            if entry.job.id not in decisions:
                decisions[entry.job.id] = holds.setdefault(entry.job.gpus, Hold(why_not(entry)))
        return PartitionPlan(decisions, tuple(actions))

    def group_speeds(
        self, members: Sequence[Running], snapshot: Snapshot, partition: Partition
    ) -> Mapping[str, float]:
        """The speed of each member, as ``member_speeds``; empty where not all stage times are known."""
        found = {entry.job.id: snapshot.predictions.get(entry.job.id) for entry in members}
        stages = {job_id: one.stages for job_id, one in found.items() if one is not None and one.stages is not None}
        if len(stages) < len(members) or not 1 < len(members) <= self.options.limit:
            return {}
        free = any(one.outside for one in stages.values())
        if free and len(members) > 2:
            return {}
        jobs = [MuriJob(e.job.id, e.job.gpus, (s := stages[e.job.id]).times_s, s.iteration_s) for e in members]
        options = self.options
        if partition.live:
            seen = Turns(snapshot.memory.get(partition.name), snapshot.now_s, self._live.options.overhead)
            factor = seen.factor([entry.job for entry in members])
            options = replace(options, overhead=Overhead(group=(1.0, *(factor,) * 3)))
        speeds = member_speeds(jobs, free, options)
        return {str(job.job_id): speed for job, speed in zip(jobs, speeds, strict=True)}

    def _interleaved(self, group: Group | None, item: Placed) -> tuple[Reason, ...]:
        """The comparison that keeps a group together; none for a job alone."""
        if group is None or not item.group:
            return ()
        alone_s = sum(job.solo_s for job in group.jobs)
        return (Interleaved(len(item.jobs), " ".join(item.jobs), group_period(group, self.options), alone_s),)

    def line_up(self, partition: Partition, now_s: float) -> list[Pending | Running]:
        """All jobs of the partition, in the order for equal priorities: new arrivals last, then
        more GPUs first, then running jobs, then by submission."""

        def stand(entry: Pending | Running) -> tuple[float, ...]:
            waits = isinstance(entry, Pending)
            fresh = isinstance(entry, Pending) and entry.since_s == now_s and not entry.restarts
            return fresh, -entry.job.gpus, waits, entry.job.submit_s, entry.job.rank

        return sorted((*partition.pending, *partition.running), key=stand)

    def queued(self, partition: Partition, order: Sequence[Pending | Running]) -> None:
        """Called with the jobs by priority; for variants."""

    def _queue(self, partition: Partition, snapshot: Snapshot, decisions: dict[str, Decision]) -> _Queue:
        """All jobs of the partition by priority; jobs that can never run are held, and left out."""
        now_s, predictions, rule = snapshot.now_s, snapshot.predictions, self.rule
        feasible = Feasibility(partition)
        keyed: list[tuple[float, Pending | Running]] = []
        for entry in self.line_up(partition, now_s):
            hopeless = feasible.bar(entry.job) if isinstance(entry, Pending) else None
            if hopeless is not None:
                decisions[entry.job.id] = Hold((hopeless,))
            if hopeless is not None or entry.job.gpus <= 0:  # Slurm runs such jobs without Lucid
                continue
            keyed.append((rule.value(entry, predictions.get(entry.job.id), now_s), entry))
        keyed.sort(key=lambda item: item[0])
        self.queued(partition, [entry for _, entry in keyed])
        known, self._known = self._known, {}
        alone: set[str] = set()
        for _, entry in keyed:
            job = entry.job
            found = predictions.get(job.id)
            stages = None if found is None else found.stages
            made = known.get(job.id)
            if made is None or (stages and (made.stages, made.iteration_s) != (stages.times_s, stages.iteration_s)):
                blank = (1.0,) * self.options.k
                times = (blank, None) if stages is None else (stages.times_s, stages.iteration_s)
                made = MuriJob(job.id, job.gpus, *times)
            self._known[job.id] = made
            if stages is None or not job.shareable or (isinstance(entry, Running) and entry.partner is not None):
                alone.add(job.id)
        gpus = sum(node.gpus for node in partition.nodes if node.available)
        return _Queue(
            [self._known[entry.job.id] for _, entry in keyed],
            {entry.job.id: entry.job for _, entry in keyed},
            {entry.job.id: at for at, (_, entry) in enumerate(keyed)},
            alone,
            gpus,
            {entry.job.id: entry.profile.gpu_mem_mib for _, entry in keyed if entry.profile is not None},
            rule,
            {entry.job.id: value for value, entry in keyed},
            predictions,
        )


def _within_memory(groups: Iterable[Group], mem_mib: Mapping[str, float], partition: Partition) -> Iterator[Group]:
    """The groups, each split if the sum of its measured memory peaks exceeds a GPU's memory. Jobs without a
    measurement count as fitting, as in Muri."""
    most = min((node.gpu_mem_mib for node in partition.nodes), default=0)
    for group in groups:
        if len(group.jobs) > 1 and sum(mem_mib.get(str(job.job_id), 0.0) for job in group.jobs) > most:
            yield from (Group(group.gpus, (job,)) for job in group.jobs)
        else:
            yield group


@dataclass(slots=True)
class _Queue:
    """The jobs of one plan, by priority."""

    order: list[MuriJob]
    jobs: dict[str, Job]
    rank: dict[str, int]
    alone: set[str]
    """Jobs that share with no other job."""
    gpus: int
    """GPUs of the nodes that are up."""
    mem_mib: dict[str, float]
    """Measured memory peak on a GPU, by job id."""
    rule: PriorityRule
    values: dict[str, float]
    predictions: Mapping[str, Prediction]

    def line(self, partition: Partition) -> Line:
        """The queue for a cluster on which nobody is moved."""
        entries: tuple[Pending | Running, ...] = (*partition.pending, *partition.running)
        return Line(
            [(self.values[e.job.id], e) for e in partition.pending if e.job.id in self.values],
            {str(job.job_id): job for job in self.order},
            frozenset(self.alone),
            {e.job.id: self.priority(e) for e in entries if e.job.id in self.values},
            frozenset(job_id for job_id, said in self.predictions.items() if said.stages and said.stages.outside),
        )

    def priority(self, entry: Pending | Running) -> Priority:
        """The sort key of a job, as a reason."""
        job = entry.job
        found = self.predictions.get(job.id)
        estimate_s, source = (found.duration_s, found.duration_source) if found else (0.0, "none")
        return Priority(self.rule.name, self.values[job.id], estimate_s, job.gpus, source)


class _Fits:
    """Says whether the next job by priority still finds GPUs on nodes that are otherwise empty, and if so takes
    them."""

    def __init__(self, partition: Partition, now_s: float, place: Place, queue: _Queue) -> None:
        self._ledger = Ledger(replace(partition, running=()), now_s)
        self._place = place
        self._jobs = queue.jobs
        self.failed: dict[int, FreeGpus] = {}
        """By GPU count, the comparison of the first job that did not fit."""

    def __call__(self, job: MuriJob) -> bool:
        known = self._jobs[str(job.job_id)]
        placement = self._place(self._ledger, known)
        if placement is None:
            free = FreeGpus(known.gpus, self._ledger.largest, self._ledger.free, False)
            self.failed.setdefault(known.gpus, free)
            return False
        self._ledger.claim(known, placement)
        return True
