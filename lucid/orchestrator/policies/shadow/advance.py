"""Moving plain order's shadow (``lucid.orchestrator.policies.shadow.plain_order``) on to the time of a snapshot."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from operator import attrgetter

from lucid.core.decision import Start
from lucid.core.frozen import dataclass
from lucid.core.job import Ended, Pending, Running, Stage
from lucid.core.rounding import ROUNDING, past
from lucid.core.snapshot import Partition, Snapshot
from lucid.orchestrator.policies.backfill import BackfillPolicy
from lucid.orchestrator.policies.shadow.plain_order import Kept, Shadow

__all__ = ["Seen", "advance", "without_yielding"]

_YIELDS = attrgetter("yields")
_LEAST_S = 1.0
"""No job is over in less: time goes on with every start."""
_TESTED = 500
"""The shadow asks of so many jobs of its queue whether they start: as many as Slurm's own backfill scheduler tests by
default (bf_max_job_test). Where a VC is overloaded, the queue of plain order grows without end."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What a shadow was made of, so that the next one looks only at what has changed. It follows from the shadow and
    the VC at that time: without it the next shadow looks at everything, and comes out the same.

    ``running``: the shadow's, by which it is recognised. ``partition``: the VC; ``newcomers``: its jobs in profiling.
    ``real``: those that hold GPUs, by job id. ``absent``: jobs of the shadow that are in the VC no more. ``ends_s``:
    when jobs of the shadow end, of those of which this is known, s.
    """

    running: Mapping[str, Running]
    partition: Partition
    newcomers: tuple[Pending | Running, ...]
    real: Mapping[str, Running]
    absent: frozenset[str]
    ends_s: Mapping[str, float]

    def until_s(self) -> float:
        """Until when the shadow stays what it is as long as no job of the VC changes, s."""
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
        partition: the VC.
        newcomers: jobs of it that are in the profiling partition.
        snapshot: for the time, what has ended, and the estimates.
        plain: the policy that says what plain order is.
        bound_s: the promise, s, for the tally.
        kept: by VC, what the last shadow was made of: saves work, and changes nothing.
    """
    partition = without_yielding(partition)  # whom plain Slurm would preempt is in nobody's way
    names = tuple(node.name for node in partition.nodes)
    if before is None or before.nodes != names:
        running = {entry.job.id: entry for entry in partition.running}
        before = Shadow(snapshot.now_s, names, Kept(bound_s), running=running, started=frozenset(running))
    if before.kept.bound_s != bound_s:  # the promise is another one since the daemon was last started
        before = replace(before, kept=Kept(bound_s))
    seen = None if kept is None else kept.get(partition.name)
    if seen is not None and seen.running is not before.running:
        seen = None
    step = _Advance(before, partition, tuple(newcomers), snapshot, plain, seen)
    shadow = step.done()
    if kept is not None:
        kept[partition.name] = step.seen()
    return shadow


def without_yielding(partition: Partition) -> Partition:
    """The partition as if the jobs were not there that give way to all of its own; the same object where there are
    none."""
    if not any(map(_YIELDS, partition.running)):
        return partition
    stay = tuple(e for e in partition.running if e.yields is None or e.yields.to is not None)
    return replace(partition, running=stay)


class _Advance:
    """One step of a shadow in the making.

    What is done follows from the entries that are new since the last step (``_fresh``) and the jobs that are there no
    more (``_gone``): between two steps most jobs of a VC have stayed as they were.
    """

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
        """The entries in profiling."""
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
        """Jobs that are there no more, since the last step."""
        self._real = {} if seen is None else dict(seen.real)
        self._absent = set() if seen is None else set(seen.absent)
        self._started = set(before.started) - self._gone
        """Jobs that really started for good."""
        for job_id in self._gone:
            self._real.pop(job_id, None)
        for entry in self._fresh:
            self._note(entry)
        self._ends_s = {} if seen is None else dict(seen.ends_s)
        """When jobs of the shadow end, of those of which this is known."""
        self._changed = set(self._running) if seen is None else self._gone & self._running.keys()

    def _note(self, entry: Pending | Running) -> None:
        """A job of the VC is in another state, or new."""
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
        withdrawn, ends_s, at_s = self._look(), self._ends_s, self._before.at_s
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
        return replace(
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

    def _look(self) -> bool:
        """What has really ended since: from now on it is known how long it took. One that never ran was withdrawn,
        and its place in the shadow's line is given up: is there one?"""
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
        """Jobs that the shadow has not seen yet join its line; ones that wait again, after they had started, count
        from when they began to."""
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
        """Let plain order start what it starts."""
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
        """GPUs that are free in the shadow, on any node."""
        held = {part for entry in self._running.values() for part in entry.placement}
        return self._partition.gpus - sum(part.mask.bit_count() for part in held)

    def _tally(self) -> Kept:
        """Count the jobs that have started: by a decision, even if they have ended since, or by carrying on."""
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
