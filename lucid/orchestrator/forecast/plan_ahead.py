"""When waiting jobs are expected to start: the policy plans ahead, as if no further jobs came.

The first plan is the one in force, and the policy makes those that follow. So the forecast never disagrees with the
plan, and knows of nodes, pairs, profiling and reservations whatever the policy knows. How far such forecasts are off
is learned from starts that came true (``orchestrator.forecast.ranges``)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import inf, log
from typing import Any

from msgspec import Struct, field

from lucid.core.decision import Action, EndProfiling, Keep, Plan, Requeue, Start
from lucid.core.job import Ended, JobProfile, Pending, Running, Stage, Yields
from lucid.core.node import next_edge_s
from lucid.core.ports import Capability, PairSpeeds
from lucid.core.snapshot import WAITING_ORDER, Partition, Snapshot
from lucid.core.times import reached
from lucid.orchestrator.forecast.run_times import Draws, RunTimes
from lucid.orchestrator.planner import PoliciesByPartition
from lucid.orchestrator.policy import PartitionPolicy, Policy
from lucid.orchestrator.rounds import RoundPolicy, after_round_s

PairSpeed = Callable[[JobProfile, JobProfile], PairSpeeds]
"""The speeds of a pair, as ``Predictor.pair_speed`` gives them."""
_GroupSpeeds = Callable[[Sequence[Running], Snapshot, Partition], Mapping[str, float]]
"""The speeds of a group, as ``PartitionPolicy.group_speeds`` gives them."""

SETTLE_S = 1.0
"""How soon the policy plans again after a job was moved or has come, as lucidd does."""
_FINEST, _COARSEST = 0.06, 0.3
"""Share of the time planned so far whose events are taken together, so that there are fewer plans the further ahead;
chosen between these bounds so that the looks reach ``_REACH``. A forecast start is late by at most this share, less
than it is uncertain by."""
_REACH_S, _REACH = 10.0, 8640.0
"""How far planning ahead should reach: from this many seconds on, this many times as far, which is a day."""
_MOST_VISITS = 90_000
"""Planning ahead ends once so many jobs were looked at, over all plans: well below a second."""
_FIRSTS = (0.5, 1 / 6, 5 / 6)
"""Quantiles of the first job's run time in the paths."""
_PLANS = 20
"""The least number of plans that each path must be allowed for there to be several paths."""
_FAR_S = 30 * 86400.0
_SLOWEST = 0.1
"""The least speed of a pair or group that is reckoned with: at a speed of 0 a job would never end."""


class Forecast(Struct, frozen=True):
    """Expected starts. ``starts_s``: seconds from now until each job's next start, which may be its profiling run.
    ``ahead_s``: how far the policy planned ahead, seconds. A job without a start is expected after that; where it is
    infinite, such a job never starts as things are."""

    starts_s: Mapping[str, float]
    ahead_s: float
    visits: int = 0
    """How many jobs were looked at, over all plans: what the forecast cost."""
    spreads: Mapping[str, float] = field(default_factory=dict)
    """How far the planned paths differ by job, where there were several: logarithm of the latest over the earliest
    start."""
    own_ahead_s: Mapping[str, float] = field(default_factory=dict)
    """How far ahead was planned, by job, in partitions whose policy was planned ahead by itself; for other jobs see
    ``ahead_s``."""

    def ahead_of(self, job_id: str) -> float:
        """How far ahead was planned for this job, s."""
        return self.own_ahead_s.get(job_id, self.ahead_s)


def around(snapshot: Snapshot, plan: Plan, names: frozenset[str]) -> tuple[Snapshot, Plan]:
    """The snapshot and plan cut down to these partitions and the profiling partition. Where partitions share nothing
    else, the forecast of their jobs is hardly another, and costs less."""
    kept = {name: part for name, part in snapshot.partitions.items() if name in names or part.profiling}
    parts = {name: part for name, part in plan.partitions.items() if name in kept}
    return replace(snapshot, partitions=kept, ended=()), Plan(plan.now_s, parts)


def forecast(
    snapshot: Snapshot,
    plan: Plan,
    policy: Policy,
    most_visits: int = _MOST_VISITS,
    *,
    pair_speed: PairSpeed | None = None,
    until: frozenset[str] = frozenset(),
    coarser: float | None = None,
    run_times: RunTimes | None = None,
    most_paths: int = 3,
) -> Forecast:
    """When the jobs that wait in ``snapshot`` are expected to start: the median of a few planned paths. Policies that
    resize jobs in rounds are not planned ahead: known is what the plan starts now, and when the next round is.

    Args:
        snapshot: what ``plan`` was made from, with a prediction for every job.
        policy: as the one that made it.
        most_visits: how many jobs to look at, all plans together.
        pair_speed: how fast a pair runs; without it as fast as its jobs do alone.
        until: planning ahead ends once all of these jobs start. Of such a job ``plan`` may say nothing, as it came
            later: then the policy looks again as soon as that plan is carried out.
        coarser: what happens within this share of the time planned so far is seen at once; by default as the looks
            suffice.
        run_times: how estimates came true; without it jobs run for their estimates, and there is one path.
        most_paths: 1, or as many as the looks suffice for."""
    if isinstance(policy, PoliciesByPartition):
        return _each(
            snapshot, plan, policy, until, most_visits=most_visits, pair_speed=pair_speed, coarser=coarser,
            run_times=run_times, most_paths=most_paths,
        )  # fmt: skip
    if isinstance(policy, RoundPolicy) and Capability.RESIZE in policy.needs:
        # the jobs here stay where they are when they are resized, and each round is a search: only its starts count
        # the plan may have no wake time, where the last round saw no elastic job, or that of another partition
        next_s = after_round_s(snapshot.now_s, policy.interval_s)
        till_round_s = max((next_s if plan.wake_s is None else min(plan.wake_s, next_s)) - snapshot.now_s, 0.0)
        world = _World(snapshot, pair_speed, None, Draws(RunTimes(), snapshot.predictions, 0.5))
        starts = [(a.job_id, a.partition, a.decision) for a in plan.actions if isinstance(a.decision, Start)]
        return Forecast({job_id: world.delay_s(name, start) for job_id, name, start in starts}, till_round_s)
    jobs = max(sum(len(part.pending) + len(part.running) for part in snapshot.partitions.values()), 1)
    several = run_times is not None and most_paths > 1 and jobs * _PLANS * len(_FIRSTS) <= most_visits
    firsts = _FIRSTS if several else _FIRSTS[:1]
    visits = most_visits // len(firsts)
    if coarser is None:
        coarser = min(max(_REACH ** (1.0 / max(visits / jobs, 1.0)) - 1.0, _FINEST), _COARSEST)
    group_speeds = policy.group_speeds if isinstance(policy, PartitionPolicy) else None
    paths = []
    for first in firsts:
        draws = Draws(run_times or RunTimes(), snapshot.predictions, first)
        world = _World(snapshot, pair_speed, group_speeds, draws)
        paths.append(_planned(world, snapshot, plan, policy, visits, until, coarser))
    return paths[0] if len(paths) == 1 else _median(paths)


def _each(
    snapshot: Snapshot, plan: Plan, policies: PoliciesByPartition, until: frozenset[str], **how: Any
) -> Forecast:
    """The forecasts of each policy's partitions by themselves, joined: they share nothing. ``until``: a policy whose
    partitions hold none of these jobs is passed over."""
    starts_s, spreads, own_ahead_s, visits = dict[str, float](), dict[str, float](), dict[str, float](), 0
    for policy, seen in policies.split(snapshot):
        waiting = {entry.job.id for part in seen.partitions.values() for entry in part.pending}
        if until and not until & waiting:
            continue
        parts = {name: part for name, part in plan.partitions.items() if name in seen.partitions}
        found = forecast(seen, Plan(plan.now_s, parts), policy, until=until & waiting, **how)
        starts_s.update(found.starts_s)
        spreads.update(found.spreads)
        own_ahead_s.update(dict.fromkeys(waiting, found.ahead_s))
        visits += found.visits
    return Forecast(starts_s, inf, visits, spreads, own_ahead_s)


def _planned(
    world: _World, snapshot: Snapshot, plan: Plan, policy: Policy, visits: int, until: frozenset[str], coarser: float
) -> Forecast:
    """The forecast along one planned path."""
    starts_s: dict[str, float] = {}
    left = visits
    moved = not all(any(job_id in part.decisions for part in plan.partitions.values()) for job_id in until)
    while True:
        for action in plan.actions:
            if isinstance(action.decision, Start):
                delay_s = world.delay_s(action.partition, action.decision)
                starts_s.setdefault(action.job_id, world.now_s - snapshot.now_s + delay_s)
            moved |= not isinstance(action.decision, Start | Keep)
            world.act(action)
        left -= world.jobs
        least_s = world.now_s + coarser * max(world.now_s - snapshot.now_s, _REACH_S)
        next_s = max(world.now_s + SETTLE_S if moved else world.next_s(plan.wake_s), least_s)
        if next_s == inf or not world.waiting:
            return Forecast(starts_s, inf, visits - left)
        if left <= 0 or (until and until <= starts_s.keys()):
            return Forecast(starts_s, next_s - snapshot.now_s, visits - left)
        plan = policy.plan(world.advance(next_s, plan.memory))
        moved = False


def _median(paths: list[Forecast]) -> Forecast:
    starts_s, spreads = dict[str, float](), dict[str, float]()
    for job_id in {job_id: None for path in paths for job_id in path.starts_s}:
        found = sorted(path.starts_s.get(job_id, inf) for path in paths)
        if found[len(found) // 2] < inf:
            starts_s[job_id] = found[len(found) // 2]
    ahead_s = sorted(path.ahead_s for path in paths)
    for job_id in starts_s:
        told = [path.starts_s.get(job_id, min(path.ahead_s, _FAR_S)) for path in paths]
        spreads[job_id] = log((max(told) + _REACH_S) / (min(told) + _REACH_S))
    return Forecast(starts_s, ahead_s[len(paths) // 2], sum(path.visits for path in paths), spreads)


class _World:
    """The cluster as it is expected to be at ``now_s``."""

    def __init__(
        self, snapshot: Snapshot, pair_speed: PairSpeed | None, group_speeds: _GroupSpeeds | None, draws: Draws
    ) -> None:
        self._draws = draws
        self.now_s = snapshot.now_s
        self._pair_speed, self._group_speeds = pair_speed, group_speeds
        self._speeds: dict[str, float] = {}
        """The speeds of jobs in pairs and groups; all others have 1."""
        self._seen = snapshot
        self._pending = {name: {e.job.id: e for e in part.pending} for name, part in snapshot.partitions.items()}
        self._running = {name: {e.job.id: e for e in part.running} for name, part in snapshot.partitions.items()}
        self._partitions = dict(snapshot.partitions)
        self._changed: set[str] = set()
        self._common = _common(snapshot)
        self._parted = {job_id for pending in self._pending.values() for job_id, e in pending.items() if e.alone}
        """Jobs that run alone for good. (A running job may also be alone because it was not started in slots.)"""
        self._ends_s = {
            job_id: max(self.now_s, entry.start_s) + draws.remaining_s(entry.job, entry.elapsed_s(self.now_s))
            for running in self._running.values()
            for job_id, entry in running.items()
        }
        for name, running in self._running.items():
            for job_id in running:
                self._pace(name, job_id)

    @property
    def waiting(self) -> bool:
        """Whether any job waits."""
        return any(self._pending.values())

    @property
    def jobs(self) -> int:
        """How many jobs there are."""
        return len(self._ends_s) + sum(map(len, self._pending.values()))

    def next_s(self, wake_s: float | None) -> float:
        """When the next event happens by itself, or the plan is due again; infinite where neither comes."""
        due_s = inf if wake_s is None else max(wake_s, self.now_s + SETTLE_S)
        edge_s = min((next_edge_s(part.nodes, self.now_s) for part in self._partitions.values()), default=inf)
        return min(min(self._ends_s.values(), default=inf), due_s, edge_s)

    def act(self, action: Action) -> None:
        """Carry an action out. Jobs that are resized or regrouped stay where they are."""
        decision, name = action.decision, action.partition
        if isinstance(decision, Start):
            self._start(action.job_id, name, decision)
            return
        entry: Pending | Running | None = self._running[name].get(action.job_id)
        if isinstance(decision, Keep) and isinstance(entry, Running):
            self._running[name][action.job_id] = replace(entry, stage=Stage.MAIN)
            self._changed.add(name)
        elif isinstance(decision, Requeue | EndProfiling):
            entry = entry or self._pending[name].get(action.job_id)
            home = name if entry is None or isinstance(decision, Requeue) else self._home(entry.job.vc)
            if entry is not None:
                self._leave(action.job_id, name)
                if home not in self._pending:  # not among the partitions that are planned for
                    return
                if isinstance(decision, Requeue) and decision.part:
                    self._parted.add(action.job_id)
                alone = action.job_id in self._parted
                again = Pending(entry.job, self.now_s, entry.profile, entry.ran_s, entry.restarts + 1, alone)
                self._pending[home][action.job_id] = again
                self._changed.add(home)

    def _home(self, vc: str) -> str:
        """The name of the partition where jobs of the VC run."""
        found = self._seen.home(vc)
        return vc if found is None else found.name

    def _start(self, job_id: str, name: str, start: Start) -> None:
        """Start the job in whichever partition it waits: profiling nodes take in jobs of VCs."""
        for victim in start.preempts:
            self._preempt(victim)
        for home, pending in self._pending.items():
            entry = pending.pop(job_id, None)
            if entry is None:
                continue
            running, delay_s = self._running[name], self.delay_s(name, start)
            start_s = self.now_s + delay_s
            if delay_s:
                self._wake(name, start)
            stage = Stage.PROFILE if self._partitions[name].profiling else Stage.MAIN
            running[job_id] = Running(
                entry.job, start_s, start.placement, stage, entry.profile, entry.ran_s, entry.restarts,
                start.beside, not start.slots, group=start.group,
            )  # fmt: skip
            if start.beside in running:
                running[start.beside] = replace(running[start.beside], partner=job_id)
            self._ends_s[job_id] = start_s + self._draws.remaining_s(entry.job, 0.0)
            if start.beside in running:
                self._pace(name, job_id)
                self._pace(name, start.beside)
            self._regroup(name, start.group)
            self._changed |= {home, name}
            for other, above in self._common.get(name, ()):
                self._show(other, above, running[job_id])
            return

    def _show(self, name: str, above: bool, entry: Running) -> None:
        """Show a started job to another partition with the same nodes. ``above``: that partition's jobs may preempt
        this one."""
        known = {node.name for node in self._partitions[name].nodes}
        here = tuple(part for part in entry.placement if part.node in known)
        if here:
            seen = replace(entry, placement=here, alone=True, yields=Yields() if above else None)
            self._running[name][entry.job.id] = seen
            self._changed.add(name)

    def _preempt(self, job_id: str) -> None:
        """Put a preempted job back to where its own partition is planned."""
        for name in [name for name, running in self._running.items() if job_id in running]:
            entry = self._running[name].get(job_id)
            if entry is None:
                continue
            self._leave(job_id, name)
            home = self._home(entry.job.vc)
            if home in self._pending and job_id not in self._pending[home]:
                again = Pending(entry.job, self.now_s, entry.profile, entry.ran_s, entry.restarts + 1)
                self._pending[home][job_id] = again
                self._changed.add(home)

    def delay_s(self, name: str, start: Start) -> float:
        """How long a job that starts now waits until its nodes have booted."""
        sleep = {node.name: node for node in self._partitions[name].nodes if node.boot_s}
        return max((sleep[p.node].delay_s(self.now_s) for p in start.placement if p.node in sleep), default=0.0)

    def _wake(self, name: str, start: Start) -> None:
        part, names = self._partitions[name], {part.node for part in start.placement}
        nodes = tuple(node.woken(self.now_s) if node.name in names else node for node in part.nodes)
        self._partitions[name] = replace(part, nodes=nodes)

    def _leave(self, job_id: str, name: str) -> None:
        for other, _ in self._common.get(name, ()):
            if self._running[other].pop(job_id, None) is not None:
                self._changed.add(other)
        self._pending[name].pop(job_id, None)
        self._ends_s.pop(job_id, None)
        gone = self._running[name].pop(job_id, None)
        self._speeds.pop(job_id, None)
        if gone is not None and gone.partner in self._running[name]:
            self._running[name][gone.partner] = replace(self._running[name][gone.partner], partner=None)
            self._pace(name, gone.partner)
        if gone is not None and gone.group:
            others = [other for other in gone.group if other != job_id]
            self._regroup(name, others)
        self._changed.add(name)

    def _regroup(self, name: str, ids: Sequence[str]) -> None:
        """Let those of these jobs that run take turns from now on; a job left over is alone."""
        here = tuple(job_id for job_id in ids if job_id in self._running[name])
        for job_id in here:
            self._running[name][job_id] = replace(self._running[name][job_id], group=here if len(here) > 1 else ())
        for job_id in here:
            self._pace(name, job_id)

    def _pace(self, name: str, job_id: str) -> None:
        """Set a job's speed to that beside the jobs with which it shares its GPUs now."""
        speed, before = self._speed(name, job_id), self._speeds.pop(job_id, 1.0)
        if speed != before:
            self._ends_s[job_id] = self.now_s + (self._ends_s[job_id] - self.now_s) * before / speed
        if speed != 1.0:
            self._speeds[job_id] = speed

    def _speed(self, name: str, job_id: str) -> float:
        entry = self._running[name][job_id]
        if entry.group and self._group_speeds is not None:
            here = self._running[name]
            members = [here[job_id] for job_id in entry.group if job_id in here]
            return max(self._group_speeds(members, self._seen, self._partitions[name]).get(job_id, 1.0), _SLOWEST)
        other = None if entry.partner is None else self._running[name].get(entry.partner)
        if self._pair_speed is None or other is None or entry.profile is None or other.profile is None:
            return 1.0
        if entry.profile.seen_speed is not None and entry.profile.seen_beside == entry.partner:
            return max(entry.profile.seen_speed, _SLOWEST)
        speeds = self._pair_speed(entry.profile, other.profile)
        return max(speeds[0], _SLOWEST) if isinstance(speeds, tuple) else 1.0

    def advance(self, to_s: float, memory: Mapping[str, object]) -> Snapshot:
        """Move time on to ``to_s``, let jobs end, and return the snapshot then. ``memory``: what the plan before
        left."""
        self.now_s = to_s
        ended: list[Ended] = []
        over = {job_id for job_id, end_s in self._ends_s.items() if reached(to_s, end_s)}
        for name, running in self._running.items() if over else ():
            for entry in [entry for job_id, entry in running.items() if job_id in over]:
                if entry.job.id in self._ends_s:  # not seen in another partition, too
                    ended.append(Ended(entry.job, to_s, entry.ran_s + entry.elapsed_s(to_s)))
                self._leave(entry.job.id, name)
        for name, part in self._partitions.items():
            nodes = tuple(node.at(to_s) for node in part.nodes)
            if any(a is not b for a, b in zip(nodes, part.nodes, strict=True)):
                self._partitions[name] = replace(part, nodes=nodes)
        for name in self._changed:
            pending = sorted(self._pending[name].values(), key=WAITING_ORDER)
            self._partitions[name] = replace(
                self._partitions[name], pending=tuple(pending), running=tuple(self._running[name].values())
            )
        self._changed.clear()
        return replace(self._seen, now_s=to_s, partitions=dict(self._partitions), ended=tuple(ended), memory=memory)


def _common(snapshot: Snapshot) -> dict[str, list[tuple[str, bool]]]:
    """By partition, the others with some of its nodes, and whether their jobs may preempt its own, in which case they
    come before it."""
    parts = snapshot.partitions
    nodes = {name: {node.name for node in part.nodes} for name, part in parts.items()}
    if sum(map(len, nodes.values())) == len(set().union(*nodes.values())):
        return {}
    order = list(parts)
    return {
        name: [(o, order.index(o) < i) for o in order if o != name and not nodes[o].isdisjoint(nodes[name])]
        for i, name in enumerate(order)
    }
