"""What plain Slurm order would have done by now: a shadow of one VC, from which the starvation bound counts.

The shadow has the nodes of the VC and gets every job when that job is submitted. It starts jobs as the policy
``backfill`` does, on whole GPUs. It only goes forward, up to now, with what is known by now. In it a job takes
the time that it really ran, once that is known. Before, it takes its estimate, and at least what it has run so far.
What the shadow has started stays started.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from lucid.core.decision import Start
from lucid.core.job import Ended, Pending, Running, Stage
from lucid.core.prediction import Prediction
from lucid.core.rounding import past
from lucid.core.snapshot import Partition, Snapshot
from lucid.orchestrator.fences import KeptNodes
from lucid.orchestrator.policies.backfill import BackfillPolicy

__all__ = ["Kept", "Shadow", "advance"]

_LEAST_S = 1.0
"""No job is over in less: time goes on with every start."""


@dataclass(frozen=True, slots=True)
class Kept:
    """How the starvation bound was kept so far: no job is to start more than ``bound_s`` after plain order would have
    started it. ``jobs``: how many have started. ``past``: how many of them after their bound. ``worst_s``: the most
    seconds after it."""

    bound_s: float
    jobs: int = 0
    past: int = 0
    worst_s: float = 0.0

    def counting(self, excess_s: float) -> Kept:
        """With one more job, that started so long after its bound (before it, if negative)."""
        late = past(excess_s, 0.0)
        return Kept(self.bound_s, self.jobs + 1, self.past + late, max(self.worst_s, excess_s if late else 0.0))


@dataclass(frozen=True, slots=True)
class Shadow:
    """Plain order at ``at_s``. It is frozen, and handed from plan to plan.

    ``waiting``, ``running``: in the shadow, by job id, in order. ``starts_s``: when the shadow started those jobs
    that really still wait. ``guesses``: the estimate with which each job of the shadow was submitted, of which its
    time limit is made where it has none. ``ran_s``: how long jobs really ran, of those that have ended. ``fences``:
    nodes kept for a job whose turn has come. ``started``: jobs that really run, as of
    ``at_s``. ``told_s``: when the last plan started which jobs.
    """

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
    """When a job of the shadow is next expected to end, where others wait in it."""


def advance(
    before: Shadow | None,
    partition: Partition,
    newcomers: Iterable[Pending | Running],
    snapshot: Snapshot,
    plain: BackfillPolicy,
    bound_s: float,
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
    """
    names = tuple(node.name for node in partition.nodes)
    if before is None or before.nodes != names:
        running = {entry.job.id: entry for entry in partition.running}
        before = Shadow(snapshot.now_s, names, Kept(bound_s), running=running, started=frozenset(running))
    if before.kept.bound_s != bound_s:  # the promise is another one since the daemon was last started
        before = replace(before, kept=Kept(bound_s))
    return _Advance(before, partition, newcomers, snapshot, plain).done()


class _Advance:
    """One step of a shadow in the making."""

    def __init__(
        self,
        before: Shadow,
        partition: Partition,
        newcomers: Iterable[Pending | Running],
        snapshot: Snapshot,
        plain: BackfillPolicy,
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
        profiling = list(newcomers)
        self._going = {e.job.id: e for e in (*partition.running, *profiling) if isinstance(e, Running)}
        """Jobs that hold GPUs, be it in profiling."""
        at_home = {e.job.id for e in partition.running}
        self._started = {
            job_id: e for job_id, e in self._going.items() if job_id in at_home or e.stage is not Stage.PROFILE
        }
        """Jobs that really started for good."""
        self._here = [*partition.pending, *partition.running, *profiling]
        self._ended: Mapping[str, Ended] = {item.job.id: item for item in snapshot.ended}

    def done(self) -> Shadow:
        changed = self._look()
        at_s = self._before.at_s
        while True:
            ends = {job_id: self._end_s(entry) for job_id, entry in self._running.items()}
            next_s = min(ends.values(), default=self._now_s + 1.0)
            if past(next_s, self._now_s):
                break
            at_s = max(next_s, at_s)
            for job_id in [job_id for job_id, end_s in ends.items() if not past(end_s, at_s)]:
                del self._running[job_id]
                self._forget(job_id)
            self._start(at_s)
        if self._arrive() or changed:
            self._start(self._now_s)
            ends = {job_id: self._end_s(entry) for job_id, entry in self._running.items()}
        next_end_s = min(ends.values(), default=None) if self._waiting else None
        waits = {entry.job.id for entry in self._here} - self._started.keys()
        return replace(
            self._before,
            at_s=self._now_s,
            waiting=self._waiting,
            running=self._running,
            starts_s={job_id: start_s for job_id, start_s in self._starts_s.items() if job_id in waits},
            guesses=self._guesses,
            ran_s=self._ran_s,
            fences={job_id: nodes for job_id, nodes in self._before.fences.items() if job_id in waits},
            started=frozenset(self._started),
            told_s={},
            next_end_s=next_end_s,
            kept=self._tally(),
        )

    def _look(self) -> bool:
        """What has really ended since: from now on it is known how long it took. One that never ran was withdrawn,
        and its place in the shadow's line is given up: is there one?"""
        there = {entry.job.id for entry in self._here}
        withdrawn = False
        for job_id in [*self._waiting, *self._running]:
            if job_id in there or job_id in self._ran_s:
                continue
            ended = self._ended.get(job_id)
            if ended is not None and ended.ran_s > 0:
                self._ran_s[job_id] = ended.ran_s
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

    def _arrive(self) -> bool:
        """Jobs that the shadow has not seen yet join its line; ones that wait again, after they had started, count
        from when they began to."""
        known = self._before
        came = False
        # what finished in the shadow while it still waits is in ``starts_s``, what really started in ``started``
        for entry in sorted(self._here, key=lambda e: (e.job.submit_s, e.job.rank)):
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

    def _end_s(self, entry: Running) -> float:
        """When a job of the shadow ends, as far as is known."""
        job_id = entry.job.id
        took_s = self._ran_s.get(job_id)
        if took_s is None:
            found = self._predictions.get(job_id) or self._guesses.get(job_id)
            real = self._going.get(job_id)
            ran_s = 0.0 if real is None else real.ran_s + real.elapsed_s(self._now_s)
            took_s = _LEAST_S if found is None else ran_s + found.remaining_s(ran_s)
        return entry.start_s + max(took_s, _LEAST_S)

    def _start(self, at_s: float) -> None:
        """Let plain order start what it starts."""
        if not self._waiting or self._free() < min(entry.job.gpus for entry in self._waiting.values()):
            return
        room = Partition(
            self._partition.name, self._partition.nodes, tuple(self._waiting.values()), tuple(self._running.values())
        )
        seen = Snapshot(at_s, {room.name: room}, predictions=self._guesses, fair_share=self._fair_share)
        plan = self._plain.plan_partition(room, seen)
        for action in plan.actions:
            assert isinstance(action.decision, Start)
            entry = self._waiting.pop(action.job_id)
            self._running[action.job_id] = Running(entry.job, at_s, action.decision.placement)
            if action.job_id not in self._started:
                self._starts_s[action.job_id] = at_s

    def _free(self) -> int:
        """GPUs that are free in the shadow, on any node."""
        held = {part for entry in self._running.values() for part in entry.placement}
        return self._partition.gpus - sum(part.mask.bit_count() for part in held)

    def _tally(self) -> Kept:
        """Count the jobs that have started: by a decision, even if they have ended since, or by carrying on."""
        before, kept = self._before, self._before.kept
        waiting = {e.job.id for e in self._partition.pending}
        begun = {job_id: told_s for job_id, told_s in before.told_s.items() if job_id not in waiting}
        begun |= {
            job_id: entry.start_s
            for job_id, entry in self._started.items()
            if job_id not in before.started and job_id not in before.told_s
        }
        for job_id, start_s in begun.items():
            plain_s = before.starts_s.get(job_id)
            kept = kept.counting(0.0 if plain_s is None else start_s - plain_s - kept.bound_s)
        return kept
