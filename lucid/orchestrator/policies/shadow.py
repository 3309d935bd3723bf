"""Plain order's shadow: what plain Slurm would have done by now, from which the starvation bound counts.

The shadow has the nodes of the VC and gets every job when that job is submitted; each VC of a pool has a shadow on
GPUs of its own, without lending. It starts jobs as the policy ``backfill`` does, on whole GPUs. It only goes forward,
up to now, and what it has started stays started. In it a job takes the time that it really ran, and stays until that
is known: estimates of single jobs are too short more often than too long by hours, and a shadow that believes them
runs ahead of plain order by days where a VC is jammed (docs/decisions/0022)."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from operator import attrgetter

from msgspec import Struct, field, structs

from lucid.core.decision import Start, earliest
from lucid.core.job import Ended, Pending, Running, Stage
from lucid.core.ledger import Ledger
from lucid.core.node import Node
from lucid.core.prediction import Prediction
from lucid.core.snapshot import Partition, Snapshot
from lucid.core.times import ROUNDING, past
from lucid.orchestrator.capacity.placement import consolidated
from lucid.orchestrator.capacity.reservations import KeptNodes
from lucid.orchestrator.policies.backfill import BackfillPolicy


class Kept(Struct, frozen=True):
    """The tally of the starvation bound, by which no job is to start more than ``bound_s`` after plain order would
    have started it. ``jobs``: how many have started. ``past``: how many of them started after their bound.
    ``worst_s``: the most seconds after it."""

    bound_s: float
    jobs: int = 0
    past: int = 0
    worst_s: float = 0.0

    def counting(self, excess_s: float) -> Kept:
        """The tally with one more job, which started so long after its bound (before it, if negative)."""
        late = past(excess_s, 0.0)
        return Kept(self.bound_s, self.jobs + 1, self.past + late, max(self.worst_s, excess_s if late else 0.0))


class Shadow(Struct, frozen=True):
    """Plain order at ``at_s``. It is frozen, and handed from plan to plan.

    ``waiting``, ``running``: the jobs in the shadow, by id, in order. ``starts_s``: when the shadow started jobs that
    really still wait. ``guesses``: each job's estimate when it was submitted, from which its time limit is made where
    it has none. ``ran_s``: how long jobs that have ended really ran. ``started``: jobs that really run, as of
    ``at_s``. ``fences``: the nodes that the last plan kept, by the job whose turn had come. ``told_s``: when the last
    plan started which jobs. These two are the plan's own, so the next step of the shadow begins without them."""

    at_s: float
    nodes: tuple[str, ...]
    kept: Kept
    waiting: Mapping[str, Pending] = field(default_factory=dict)
    running: Mapping[str, Running] = field(default_factory=dict)
    starts_s: Mapping[str, float] = field(default_factory=dict)
    guesses: Mapping[str, Prediction] = field(default_factory=dict)
    ran_s: Mapping[str, float] = field(default_factory=dict)
    fences: Mapping[str, KeptNodes] = field(default_factory=dict)
    started: frozenset[str] = frozenset()
    told_s: Mapping[str, float] = field(default_factory=dict)
    next_end_s: float | None = None
    """When a job of the shadow next ends, as far as is known, where others wait in the shadow."""


_YIELDS = attrgetter("yields")
_LEAST_S = 1.0
"""The least run time of a job in the shadow: time goes on with every start."""
_TESTED = 500
"""How many jobs of its queue the shadow tries: as many as Slurm's own backfill scheduler tests by default
(bf_max_job_test). Where a VC is overloaded, the queue of plain order grows without end."""


class Seen(Struct, frozen=True):
    """What a shadow was made of, so that the next one handles only what has changed. It follows from the shadow and
    the VC at that time: without it the next shadow comes out the same, for more work.

    ``running``: the shadow's, by which it is recognised. ``partition``: the VC; ``newcomers``: its jobs in profiling.
    ``real``: jobs that really hold GPUs, by id. ``absent``: jobs of the shadow that have left the VC. ``ends_s``:
    when jobs of the shadow end, where that is known, s."""

    running: Mapping[str, Running]
    partition: Partition
    newcomers: tuple[Pending | Running, ...]
    real: Mapping[str, Running]
    absent: frozenset[str]
    ends_s: Mapping[str, float]

    def until_s(self) -> float:
        """Until when the shadow stays as it is if no job of the VC changes, s."""
        return min(self.ends_s.values(), default=math.inf) - 2 * ROUNDING


def advance(
    before: Shadow | None,
    partition: Partition,
    newcomers: Iterable[Pending | Running],
    snapshot: Snapshot,
    plain: BackfillPolicy,
    bound_s: float,
    kept: dict[str, Seen] | None = None,
) -> Shadow:
    """The shadow at the time of the snapshot.

    Args:
        before: the shadow as it was; ``None``, or one of other nodes, begins anew, from what runs now, and
            with no bound for any job yet.
        newcomers: jobs of it that are in the profiling partition.
        snapshot: for the time, what has ended, and the estimates.
        plain: the policy that says what plain order is.
        bound_s: the promise, s, for the tally.
        kept: by VC, what the last shadow was made of: saves work, and changes nothing."""
    partition = without_yielding(partition)  # whom plain Slurm would preempt is in nobody's way
    names = tuple(node.name for node in partition.nodes)
    if before is None or before.nodes != names:
        running = {entry.job.id: entry for entry in partition.running}
        before = Shadow(snapshot.now_s, names, Kept(bound_s), running=running, started=frozenset(running))
    if before.kept.bound_s != bound_s:  # the promise is another one since the daemon was last started
        before = structs.replace(before, kept=Kept(bound_s))
    seen = None if kept is None else kept.get(partition.name)
    if seen is not None and seen.running is not before.running:
        seen = None
    step = _Advance(before, partition, tuple(newcomers), snapshot, plain, seen)
    shadow = step.done()
    if kept is not None:
        kept[partition.name] = step.seen()
    return shadow


def without_yielding(partition: Partition) -> Partition:
    """The partition without the jobs that give way to all of its own; the same object where there are none."""
    if not any(map(_YIELDS, partition.running)):
        return partition
    stay = tuple(e for e in partition.running if e.yields is None or e.yields.to is not None)
    return replace(partition, running=stay)


class _Advance:
    """One step of a shadow in the making.

    The step handles the entries that are new since the last one (``_fresh``) and the jobs that have left (``_gone``):
    between two steps most jobs of a VC have stayed as they were."""

    def __init__(
        self,
        before: Shadow,
        partition: Partition,
        newcomers: tuple[Pending | Running, ...],
        snapshot: Snapshot,
        plain: BackfillPolicy,
        seen: Seen | None,
    ) -> None:
        self._before = before
        self._partition = partition
        self._now_s = snapshot.now_s
        self._predictions = snapshot.predictions
        self._plain = plain
        self._fair_share = snapshot.fair_share
        self._waiting = dict(before.waiting)
        self._running = dict(before.running)
        self._starts_s = dict(before.starts_s)
        self._guesses = dict(before.guesses)
        self._ran_s = dict(before.ran_s)
        self._snapshot = snapshot
        self._newcomers = newcomers
        self._away = set(map(id, newcomers))
        """The entries in profiling, by identity."""
        if seen is None:
            fresh: Iterable[Pending | Running] = (*partition.pending, *partition.running, *newcomers)
            lost = {*before.waiting, *before.running, *before.starts_s, *before.started, *before.told_s}
        else:
            changes = partition.since(seen.partition)
            came = {id(entry): entry for entry in (*changes.came, *newcomers)}
            went = {id(entry): entry for entry in (*changes.went, *seen.newcomers)}
            fresh = [entry for at, entry in came.items() if at not in went]  # not who only came from profiling
            lost = {entry.job.id for at, entry in went.items() if at not in came}
        self._fresh = sorted(fresh, key=lambda e: (e.job.submit_s, e.job.rank, e.job.id))
        self._gone = lost - {entry.job.id for entry in fresh}
        """Jobs that have left since the last step."""
        self._real = {} if seen is None else dict(seen.real)
        self._absent = set() if seen is None else set(seen.absent)
        self._started = set(before.started) - self._gone
        """Jobs that really started for good."""
        for job_id in self._gone:
            self._real.pop(job_id, None)
        for entry in self._fresh:
            self._note(entry)
        self._ends_s = {} if seen is None else dict(seen.ends_s)
        """When jobs of the shadow end, where that is known."""
        self._changed = set(self._running) if seen is None else self._gone & self._running.keys()

    def _note(self, entry: Pending | Running) -> None:
        """Note a job of the VC that is new or in another state."""
        job_id = entry.job.id
        self._absent.discard(job_id)
        self._started.discard(job_id)
        if isinstance(entry, Pending):
            self._real.pop(job_id, None)
            return
        self._real[job_id] = entry
        if id(entry) not in self._away or entry.stage is not Stage.PROFILE:
            self._started.add(job_id)

    def done(self) -> Shadow:
        withdrawn, ends_s, at_s = self._note_ended(), self._ends_s, self._before.at_s
        for job_id in self._changed & self._running.keys():
            self._reckon(job_id)
        while True:
            next_s = min(ends_s.values(), default=self._now_s + 1.0)
            if past(next_s, self._now_s):
                break
            at_s = max(next_s, at_s)
            for job_id in [job_id for job_id, end_s in ends_s.items() if not past(end_s, at_s)]:
                del self._running[job_id]
                self._forget(job_id)
            self._start(at_s)
        if self._arrive() or withdrawn:
            self._start(self._now_s)
        started = self._started
        for job_id in [*self._gone, *(entry.job.id for entry in self._fresh if entry.job.id in started)]:
            self._starts_s.pop(job_id, None)
        return structs.replace(
            self._before,
            at_s=self._now_s,
            waiting=self._waiting,
            running=self._running,
            starts_s=self._starts_s,
            guesses=self._guesses,
            ran_s=self._ran_s,
            fences={},
            started=frozenset(started),
            told_s={},
            next_end_s=min(ends_s.values(), default=None) if self._waiting else None,
            kept=self._tally(),
        )

    def seen(self) -> Seen:
        """What the shadow was made of."""
        return Seen(
            self._running, self._partition, self._newcomers, self._real, frozenset(self._absent), self._ends_s
        )

    def _note_ended(self) -> bool:
        """Take in the jobs that have really ended since, so that their run times are known. A job that never ran was
        withdrawn, and leaves the shadow's line; returns whether there was one."""
        ended: Mapping[str, Ended] | None = None
        withdrawn = False
        for job_id in sorted(self._gone):  # the order of what is kept is part of the plan
            if job_id not in self._waiting and job_id not in self._running:
                continue
            self._absent.add(job_id)
            if job_id in self._ran_s:
                continue
            if ended is None:
                ended = {item.job.id: item for item in self._snapshot.ended}
            found = ended.get(job_id)
            if found is not None and found.ran_s > 0:
                self._ran_s[job_id] = found.ran_s
            elif job_id in self._before.started or job_id in self._before.told_s:
                self._ran_s[job_id] = self._guesses[job_id].duration_s if job_id in self._guesses else _LEAST_S
            else:
                self._waiting.pop(job_id, None)
                self._running.pop(job_id, None)
                self._forget(job_id)
                withdrawn = True
        return withdrawn

    def _forget(self, job_id: str) -> None:
        self._ran_s.pop(job_id, None)
        self._guesses.pop(job_id, None)
        self._ends_s.pop(job_id, None)
        self._absent.discard(job_id)

    def _reckon(self, job_id: str) -> None:
        """Note when a job of the shadow ends, if that is known."""
        took_s = self._ran_s.get(job_id)
        if took_s is not None:
            self._ends_s[job_id] = self._running[job_id].start_s + max(took_s, _LEAST_S)

    def _arrive(self) -> bool:
        """Add new jobs to the shadow's line. A job that waits again, after it had started, counts from when it began
        to wait again. Returns whether any came."""
        known = self._before
        came = False
        # what finished in the shadow while it still waits is in ``starts_s``, what really started in ``started``
        for entry in self._fresh:
            job_id = entry.job.id
            if job_id in known.started:
                if isinstance(entry, Pending) and job_id not in self._waiting:
                    self._starts_s[job_id] = entry.since_s
                continue
            seen = job_id in known.waiting or job_id in known.running or job_id in self._starts_s
            if not seen and entry.job.gpus > 0:
                self._waiting[job_id] = Pending(entry.job, entry.job.submit_s)
                self._guesses[job_id] = self._predictions[job_id]
                came = True
        return came

    def _start(self, at_s: float) -> None:
        free = self._free() if self._waiting else 0
        if not free or all(entry.job.gpus > free for entry in self._waiting.values()):
            return
        nodes = tuple(node.at(at_s) for node in self._partition.nodes)
        room = Partition(self._partition.name, nodes, tuple(self._waiting.values()), tuple(self._running.values()))
        seen = Snapshot(at_s, {room.name: room}, predictions=self._guesses, fair_share=self._fair_share)
        for action in self._plain.starts(room, seen, _TESTED):
            assert isinstance(action.decision, Start)
            entry = self._waiting.pop(action.job_id)
            self._running[action.job_id] = Running(entry.job, at_s, action.decision.placement)
            self._reckon(action.job_id)
            if action.job_id not in self._started and action.job_id not in self._absent:
                self._starts_s[action.job_id] = at_s

    def _free(self) -> int:
        """GPUs that are free in the shadow, over all nodes."""
        held = {part for entry in self._running.values() for part in entry.placement}
        return self._partition.gpus - sum(part.mask.bit_count() for part in held)

    def _tally(self) -> Kept:
        """The tally with the jobs that have started: by a decision, even if they have ended since, or by carrying
        on."""
        before, kept = self._before, self._before.kept
        fresh = {entry.job.id: entry for entry in self._fresh}
        begun: dict[str, float] = {}
        for job_id, told_s in before.told_s.items():
            entry = fresh.get(job_id)
            if job_id in self._gone or isinstance(entry, Running) or (entry is not None and id(entry) in self._away):
                begun[job_id] = told_s  # else it was not started, and waits as it did
        for job_id, entry in fresh.items():
            if job_id in self._started and job_id not in before.started and job_id not in before.told_s:
                assert isinstance(entry, Running)
                begun[job_id] = entry.start_s
        for job_id, start_s in begun.items():
            plain_s = before.starts_s.get(job_id)
            kept = kept.counting(0.0 if plain_s is None else start_s - plain_s - kept.bound_s)
        return kept


class PoolShadows:
    """The shadows of the VCs of one pool. Keeping them from one plan to the next saves work, and changes nothing."""

    def __init__(self, plain: BackfillPolicy) -> None:
        self._plain = plain
        self._seen: dict[str, Seen] = {}
        self._last: dict[str, _Last] = {}

    def advance(
        self,
        before: Mapping[str, Shadow],
        partition: Partition,
        newcomers: Callable[[str], tuple[Pending | Running, ...]],
        snapshot: Snapshot,
        bound_s: float,
    ) -> dict[str, Shadow]:
        """The shadow of each VC at the time of the snapshot, by VC. The arguments are those of ``advance``, but
        ``newcomers`` gives the jobs of a VC that are in the profiling partition."""
        found: dict[str, Shadow] = {}
        for vc, (pending, running) in _by_vc(partition).items():
            known, last, fresh = before.get(vc), self._last.get(vc), newcomers(vc)
            if known is not None and last is not None and last.holds(known, pending, running, fresh, snapshot):
                found[vc] = structs.replace(known, at_s=snapshot.now_s)
                continue
            nodes = _nodes(vc, partition, snapshot.now_s)
            part = Partition(vc, nodes, tuple(pending), tuple(running))
            if known is None or known.nodes != tuple(node.name for node in nodes):
                known = _begun(part, snapshot.now_s, bound_s)
            shadow = found[vc] = advance(known, part, fresh, snapshot, self._plain, bound_s, self._seen)
            seen = self._seen[vc]
            self._last[vc] = _Last(shadow.running, pending, running, fresh, seen.until_s())
        return found


class _Last(Struct, frozen=True):
    """What the last shadow of a VC was made of, and until when nothing happens in it by itself, s."""

    shadow: Mapping[str, Running]
    pending: list[Pending]
    running: list[Running]
    newcomers: tuple[Pending | Running, ...]
    until_s: float

    def holds(
        self,
        known: Shadow,
        pending: list[Pending],
        running: list[Running],
        newcomers: tuple[Pending | Running, ...],
        snapshot: Snapshot,
    ) -> bool:
        """Whether a shadow made anew from this one would be the same, but for its time."""
        return (
            known.running is self.shadow
            and not known.told_s
            and not past(snapshot.now_s, self.until_s)
            and pending == self.pending
            and running == self.running
            and newcomers == self.newcomers
        )


def _by_vc(partition: Partition) -> dict[str, tuple[list[Pending], list[Running]]]:
    found: dict[str, tuple[list[Pending], list[Running]]] = {vc: ([], []) for vc in partition.quotas}
    for waiting in partition.pending:
        found[waiting.job.vc][0].append(waiting)
    for entry in partition.running:
        if entry.job.vc in found:
            found[entry.job.vc][1].append(entry)
    return found


def _nodes(vc: str, partition: Partition, now_s: float) -> tuple[Node, ...]:
    """The nodes of a VC's shadow: as many GPUs as its quota, on nodes like the pool's, which close when all of them
    do; none where the pool has none."""
    if not partition.nodes:
        return ()
    like = max(partition.nodes, key=lambda node: node.gpus)
    whole, rest = divmod(partition.quotas[vc], max(like.gpus, 1))
    sizes = [*[like.gpus] * whole, *([rest] if rest else [])]
    common = tuple(w for w in like.windows if all(w in node.windows for node in partition.nodes))
    return tuple(
        Node(f"{vc}#{i}", size, like.gpu_mem_mib, like.cpus, like.mem_mib, windows=common).at(now_s)
        for i, size in enumerate(sizes)
    )


def _begun(part: Partition, now_s: float, bound_s: float) -> Shadow:
    """A new shadow: the jobs that run now also run in it, as far as the VC's own GPUs suffice."""
    ledger, running = Ledger(replace(part, running=()), now_s), {}
    for entry in part.running:
        placement = consolidated(ledger, entry.job)
        if placement is not None:
            ledger.claim(entry.job, placement)
            running[entry.job.id] = replace(entry, placement=placement, partner=None, group=())
    names, started = tuple(node.name for node in part.nodes), frozenset(entry.job.id for entry in part.running)
    return Shadow(now_s, names, Kept(bound_s), running=running, started=started)


def joined(shadows: Mapping[str, Shadow]) -> Shadow:
    """The shadows of a pool in one, as its plan uses them: starts and the tally."""
    every = [*shadows.values()]
    kept = Kept(
        every[0].kept.bound_s,
        sum(shadow.kept.jobs for shadow in every),
        sum(shadow.kept.past for shadow in every),
        max(shadow.kept.worst_s for shadow in every),
    )
    starts_s: dict[str, float] = {}
    for shadow in every:
        starts_s.update(shadow.starts_s)
    next_end_s = earliest(*(shadow.next_end_s for shadow in every))
    return Shadow(max(shadow.at_s for shadow in every), (), kept, starts_s=starts_s, next_end_s=next_end_s)


def split(shadows: Mapping[str, Shadow], whole: Shadow, partition: Partition) -> dict[str, Shadow]:
    """The shadows by VC, each with the starts and fences that the pool's plan gave its jobs."""
    vc_of = {entry.job.id: entry.job.vc for entry in partition.pending}
    told_s: dict[str, dict[str, float]] = defaultdict(dict)
    fences: dict[str, dict[str, KeptNodes]] = defaultdict(dict)
    for job_id, at_s in whole.told_s.items():
        told_s[vc_of[job_id]][job_id] = at_s
    for job_id, nodes in whole.fences.items():
        fences[vc_of[job_id]][job_id] = nodes
    return {vc: structs.replace(shadow, told_s=told_s[vc], fences=fences[vc]) for vc, shadow in shadows.items()}
