"""The policy ``lucid``: jobs profiled first, ordered by estimate x GPUs, packed in pairs, placed consolidated.

Where no job is started over to be profiled, profiling nodes take in jobs that find no place in their own VC."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from lucid.core.decision import Action, Decision, Hold, PartitionPlan, Plan, Start
from lucid.core.job import Job, Pending, Running
from lucid.core.ledger import Ledger
from lucid.core.ports import Capability, Predictor
from lucid.core.reasons.profiling import HomeHasRoom, Overflow, SkipsProfiling
from lucid.core.reasons.queue import FreeGpus, Priority, Unranked
from lucid.core.snapshot import Partition, Snapshot
from lucid.orchestrator.capacity.placement import consolidated
from lucid.orchestrator.order.quotas import Quotas
from lucid.orchestrator.policies.backfill import BackfillPolicy
from lucid.orchestrator.policies.lucid.plan import LucidMemory, VcBooks, plan_vc
from lucid.orchestrator.policies.shadow import PoolShadows, Seen, Shadow, advance, joined
from lucid.orchestrator.policy import PartitionPolicy, PolicyRules, with_boots
from lucid.profiler.stage import goes_through_profiling, plan_profiling

if TYPE_CHECKING:
    from lucid.config.policy import PolicySettings, ProfilingSettings


def with_overflow(plan: Plan, snapshot: Snapshot, settings: ProfilingSettings) -> Plan:
    """The plan, with jobs that wait in their VCs started on free GPUs of profiling nodes.

    The job with the smallest estimate x GPUs goes first, whichever VC it belongs to. Only jobs expected to take at
    most ``_OVERFLOW_MOST_S`` go, so that the nodes come back soon. No job of a VC loses its place, because profiling
    nodes belong to no VC. Two kinds of jobs stay in their VC: those whose request slots cannot express (they may ask
    for what only the nodes there have), and those above N_prof."""
    profiling = snapshot.profiling
    if profiling is None or profiling.name not in plan.partitions:
        return plan
    ledger = Ledger(profiling, snapshot.now_s)
    own = plan.partitions[profiling.name]
    for action in own.actions:
        if isinstance(action.decision, Start):
            ledger.claim(_job(profiling.pending, action.job_id), action.decision.placement)
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
        ledger.claim(job, placement)
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
    """Jobs that could start on a profiling node, smallest priority value first."""
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
                and snapshot.predictions[job.id].duration_s <= _OVERFLOW_MOST_S
                and not SkipsProfiling(job.gpus, settings.n_prof)
                and isinstance(part.decisions.get(job.id), Hold)
            ):
                found.append((snapshot.predictions[job.id].duration_s * job.gpus, entry))
    found.sort(key=lambda item: (item[0], item[1].job.submit_s, item[1].job.rank))
    return found


def _with(plan: Plan, room: Partition, own: PartitionPlan, starts: Mapping[str, tuple[str, Start]]) -> Plan:
    """The plan with these starts; each job keeps one decision, that of the partition where it starts."""
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


_Entries = tuple[Pending | Running, ...]
_OVERFLOW_MOST_S = 21600.0
"""Where jobs are measured in place: jobs expected to take longer wait for their own VC, instead of starting on a
profiling node."""
_TO_SPARE = 0.25
"""A VC has GPUs to spare while this share of them is idle: a job that is measured there alone delays no other
(docs/decisions/0022)."""


class LucidPolicy(PartitionPolicy):
    """Algorithm 2 of the paper, with a reservation for large jobs beside it (docs/decisions/0004).

    The queue does not block at its head: a job that finds no place lets the next one try."""

    name = "lucid"
    rules = PolicyRules(pairs=True, profiles=True, claims=True, quotas=True, borrows=True)

    def __init__(self, settings: PolicySettings, predictor: Predictor) -> None:
        super().__init__()
        self._settings = settings
        self._predictor = predictor
        self._books: defaultdict[str, VcBooks] = defaultdict(lambda: VcBooks(settings))
        bound_s = settings.fairness.beyond_plain_s or None
        self._plain = None if bound_s is None else BackfillPolicy(settings.backfill)
        self._seen: dict[str, Seen] = {}
        self._pools: dict[str, PoolShadows] = {}
        self._profiling = settings.profiling
        if bound_s is not None:  # no job's bound passes while the job waits for a profiling node
            most_s = min(settings.profiling.max_wait_s, bound_s)
            self._profiling = settings.profiling.changed({"max_wait_s": most_s})
        self._newcomers: tuple[Partition | None, Mapping[str, _Entries]] = (None, {})
        """The jobs in profiling, by VC, beside the profiling partition that they follow from."""
        self._trust: Mapping[str, Unranked] = {}
        self._in_place = settings.profiling.enabled and settings.profiling.restarts != "allowed"
        needs = set()
        if settings.profiling.enabled:
            needs.add(Capability.PROFILE)
        if settings.packing.gss:
            needs.add(Capability.SHARE)
        self.needs = frozenset(needs)

    def profiled(self, job: Job) -> bool:
        """Whether the job is profiled first: jobs up to N_prof that may be requeued; none where jobs are measured in
        place."""
        return goes_through_profiling(job, self._settings.profiling)

    def plan(self, snapshot: Snapshot) -> Plan:
        """Plan every partition; where jobs are measured in place, profiling nodes then take remaining jobs."""
        if snapshot.trust != self._trust:  # the plans of all that wait may change, in partitions that have not
            self._trust = snapshot.trust
            self.forget()
        plan = super().plan(snapshot)
        return with_overflow(plan, snapshot, self._profiling) if self._in_place else plan

    @property
    def plans_alone(self) -> bool:
        """Whether each VC's plan depends on that VC alone, as by default."""
        own = self._settings
        return not (self._in_place or self._plain is not None or own.fairness.share_bound > 1.0)

    def depends_on(self, partition: Partition, snapshot: Snapshot) -> tuple[object, ...]:
        """What else a plan depends on: for the profiling queue, room in the VCs of its jobs and, where it is
        time-aware, the forecast."""
        others = self._depends_on(partition, snapshot)
        if partition.profiling:
            return others
        if self._in_place and partition.pending:  # a record of what overflows holds the plan of who did not
            others = (snapshot.profiling, *others)
        if self._settings.fairness.share_bound > 1.0:
            return (snapshot.fair_share, *others)
        return others

    def _depends_on(self, partition: Partition, snapshot: Snapshot) -> tuple[object, ...]:
        if self._plain is not None and not partition.profiling:
            plain = self._plain.depends_on(partition, snapshot)
            return (*(self._in_profiling(vc, snapshot) for vc in partition.vcs), *plain)
        if not partition.pending or not partition.profiling:
            return ()
        profiling = self._settings.profiling
        if not profiling.time_aware and not profiling.home_if_room:
            return ()
        homes = map(snapshot.home, {entry.job.vc: None for entry in partition.pending})
        return (*homes, snapshot.arrivals.profiled_per_hour if profiling.time_aware else None)

    def _in_profiling(self, vc: str, snapshot: Snapshot) -> _Entries:
        profiling = snapshot.profiling
        if profiling is None:
            return ()
        if self._newcomers[0] is not profiling:
            found: dict[str, list[Pending | Running]] = defaultdict(list)
            both: _Entries = (*profiling.pending, *profiling.running)
            for entry in both:
                found[entry.job.vc].append(entry)
            self._newcomers = (profiling, {name: tuple(entries) for name, entries in found.items()})
        return self._newcomers[1].get(vc, ())

    def _shadow(self, partition: Partition, snapshot: Snapshot) -> tuple[Shadow | None, Mapping[str, Shadow]]:
        """Plain order's shadow at this time, where there is a starvation bound; and in a pool the shadow of each
        VC."""
        bound_s = self._settings.fairness.beyond_plain_s
        if self._plain is None or bound_s is None:
            return None, {}
        before = snapshot.memory.get(partition.name)
        known = before if isinstance(before, LucidMemory) else None
        if partition.quotas:
            pool = self._pools.setdefault(partition.name, PoolShadows(self._plain))
            by_vc = pool.advance(
                {} if known is None else known.by_vc,
                partition,
                lambda vc: self._in_profiling(vc, snapshot),
                snapshot,
                bound_s,
            )
            return joined(by_vc), by_vc
        shadow = advance(
            None if known is None else known.shadow,
            partition,
            self._in_profiling(partition.name, snapshot),
            snapshot,
            self._plain,
            bound_s,
            self._seen,
        )
        return shadow, {}

    def plan_partition(self, partition: Partition, snapshot: Snapshot) -> PartitionPlan:
        """The plan of the profiling partition, or of a VC."""
        now_s = snapshot.now_s
        if partition.profiling:
            return plan_profiling(
                partition,
                now_s,
                self._profiling,
                _WaitingAtHome(snapshot),
                _RoomAtHome(
                    snapshot, self._settings, lambda home: self._books[home.name].ledgers.ledger_of(home, now_s)
                ),
                snapshot.arrivals,
                self._books[partition.name].ledgers.ledger_of,
            )
        shadow, by_vc = self._shadow(partition, snapshot)
        books = self._books[partition.name]
        return plan_vc(partition, snapshot, self._settings, self._predictor, books, shadow, by_vc)


class _WaitingAtHome(Mapping[str, int]):
    """How many jobs wait, by VC; counted only for VCs that are asked for."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    def __getitem__(self, vc: str) -> int:
        home = self._snapshot.home(vc)
        if home is None or home.profiling:
            raise KeyError(vc)
        return sum(entry.job.vc == vc for entry in home.pending) if home.quotas else len(home.pending)

    def __iter__(self) -> Iterator[str]:
        return (vc for part in self._snapshot.partitions.values() if not part.profiling for vc in part.vcs)

    def __len__(self) -> int:
        return sum(1 for _ in self)


class _RoomAtHome:
    """Says which jobs their own VC could start at once, asked one after the other within one plan."""

    def __init__(
        self, snapshot: Snapshot, settings: PolicySettings, ledger_of: Callable[[Partition], Ledger]
    ) -> None:
        self._ledger_of = ledger_of
        self._snapshot = snapshot
        self._settings = settings
        self._ledgers: dict[str, Ledger] = {}
        self._quotas: dict[str, Quotas] = {}
        self._full: set[str] = set()
        """VCs that have no home, or in whose home a job waits."""

    def __call__(self, job: Job, to_spare: bool) -> HomeHasRoom | None:
        """The comparison for a job that has room, which counts as started from then on; ``None`` where there is no
        room. ``to_spare``: a quarter of the GPUs must stay idle, and as many as a node has."""
        if job.vc in self._full:
            return None
        home = self._snapshot.home(job.vc)
        if home is None or home.pending:
            self._full.add(job.vc)
            return None
        ledger = self._ledgers.get(home.name)
        if ledger is None:
            ledger = self._ledgers[home.name] = self._ledger_of(home)
        free = ledger.free
        if to_spare and free - job.gpus < max(ledger.gpus_per_node, _TO_SPARE * home.gpus):
            return None
        quotas = None
        if home.quotas:
            quotas = self._quotas.get(home.name)
            if quotas is None:  # each looks at all running jobs: not one for every job that is asked about
                quotas = self._quotas[home.name] = Quotas(home, self._settings.lending)
            if not quotas.within(job, 0.0):
                return None
        placement = consolidated(ledger, job, None, self._settings.remainder_on_emptiest)
        if placement is None:
            return None
        ledger.claim(job, placement)
        if quotas is not None:
            quotas.claim(job)
        return HomeHasRoom(job.vc, free, True)
