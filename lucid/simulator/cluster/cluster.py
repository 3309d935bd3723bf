"""``SimulatedCluster``: the ``Cluster`` of a replay, event-driven.

Between two cycles everything is computed exactly: a job's end follows from the work left and its speed, and moves
when a partner comes or goes. Policies see only what Slurm and a sampler could show them."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from lucid.core.decision import Action, EndProfiling, Regroup, Resize, Start
from lucid.core.job import Ended, Job, Running
from lucid.core.node import Node
from lucid.core.ports import Applied, Capability
from lucid.core.snapshot import ByName, Snapshot
from lucid.errors import ConfigError
from lucid.simulator.cluster.jobs import PROFILING, Jobs, Parts
from lucid.simulator.cluster.nodes import WindowFigures
from lucid.simulator.cluster.state import Event, JobOutcome, Live, Room, Semantics
from lucid.simulator.cluster.usage import LentByVc
from lucid.simulator.traces.record import Trace

POOL = "pool"
"""Name of the partition in which VCs have their nodes in common."""

Layout = Mapping[str, Sequence[Node]]
"""Nodes by VC."""


class SimulatedCluster:
    """Replays a trace on a layout of nodes. ``profiled`` says which new jobs enter through the profiling partition
    (job_submit's rule).

    Raises: ConfigError: a VC has no nodes, or is called like the profiling partition; or a job asks for no GPU."""

    def __init__(self, trace: Trace, layout: Layout, profiled: Callable[[Job], bool], parts: Parts) -> None:
        _check(trace, layout, parts)
        if parts.pooled:
            everything = tuple(node for nodes in layout.values() for node in nodes)
            quotas = {name: sum(node.gpus for node in nodes) for name, nodes in layout.items()}
            rooms = {POOL: Room(POOL, everything, False, quotas)}
        else:
            rooms = {name: Room(name, tuple(nodes), False) for name, nodes in layout.items()}
        if parts.profiling_nodes:
            rooms[PROFILING] = Room(PROFILING, tuple(parts.profiling_nodes), True)
        self.jobs = Jobs(rooms, parts)
        self._parts = parts
        self._profiled = profiled
        self._elastic = any(item.learning is not None for item in trace.jobs)
        self._ended: list[Ended] = []
        self._stale: set[str] = set()
        """Rooms whose shown partition is out of date."""
        for room in rooms.values():
            room.stale = self._stale
        self._seen = ByName({name: room.show() for name, room in rooms.items()})
        """The partitions that were handed out last."""
        self._to_come = list(reversed(trace.jobs))
        """Arrivals, the next one last: a sorted list needs no heap."""
        self.outcomes: dict[str, JobOutcome] = {}
        self.ended = 0
        self.moved = False
        """Whether a job changed partition in the last ``apply``, so that the next plan comes at once."""

    @property
    def capabilities(self) -> frozenset[Capability]:
        """Every capability, except profiling where no nodes are set aside for it, interleaving without an executor,
        and those of elastic jobs where the trace has none."""
        able = {Capability.PREEMPT, Capability.SHARE}
        if self._parts.interleaving is not None:
            able.add(Capability.INTERLEAVE)
        if PROFILING in self.jobs.rooms:
            able.add(Capability.PROFILE)
        if self._elastic:
            able |= {Capability.RESIZE, Capability.ORACLE}
            if self._parts.agents:
                able.add(Capability.ADAPT)
        return frozenset(able)

    @property
    def total_gpus(self) -> int:
        """GPUs of all nodes."""
        return sum(node.gpus for room in self.jobs.rooms.values() for node in room.nodes)

    def window_figures(self) -> WindowFigures | None:
        """The effects of windows and failing nodes so far, where there are any."""
        return self.jobs.nodes.figures if self._parts.outages.windows or self._parts.outages.downs else None

    def lent(self) -> dict[str, LentByVc]:
        """GPU-seconds that the VCs of a pool have lent and borrowed so far; empty without a pool."""
        return self.jobs.lent.by_vc()

    # -- clock ---------------------------------------------------------------------------------------------

    def now_s(self) -> float:
        """The trace time."""
        return self.jobs.now_s

    def next_event_s(self) -> float | None:
        """When the next event happens by itself; ``None`` when none is left."""
        events = self.jobs.events
        while events and self.jobs.void(events[0]):
            heapq.heappop(events)
        at_s = events[0][0] if events else math.inf
        if self._to_come and self._to_come[-1].job.submit_s < at_s:
            at_s = self._to_come[-1].job.submit_s
        if (self.jobs.live or self._to_come) and self.jobs.nodes.next_s < at_s:
            at_s = self.jobs.nodes.next_s
        return at_s if at_s < math.inf else None

    def advance(self, to_s: float) -> None:
        """Let everything up to and including ``to_s`` happen: ends first, then readings, nodes, and arrivals."""
        jobs = self.jobs
        jobs.lent.wait(to_s - jobs.now_s)
        jobs.now_s = to_s
        while jobs.events and jobs.events[0][0] <= to_s:
            event = heapq.heappop(jobs.events)
            if jobs.void(event):
                continue
            live = jobs.live[event[3]]
            if event[1] == Event.END:
                ended = jobs.end(live)
                if ended is not None:
                    self._ended.append(ended)
                    self.ended += 1
            elif event[1] == Event.PAIR_SEEN:
                jobs.pair_seen(live)
            else:
                jobs.measured(live)
        if jobs.nodes.next_s <= to_s:
            jobs.leave_nodes()
        while self._to_come and self._to_come[-1].job.submit_s <= to_s:
            item = self._to_come.pop()
            outcome = self.outcomes[item.job.id] = JobOutcome(item.job, item.duration_s)
            jobs.arrive(item, outcome, PROFILING in jobs.rooms and self._profiled(item.job))
        if self._parts.semantics is Semantics.MURI:
            jobs.charge_all()

    # -- what can be seen, and done ------------------------------------------------------------------------

    def observe(self) -> Snapshot:
        """The present state; partitions in which nothing changed are the same objects as before."""
        if self._elastic:
            for room in self.jobs.rooms.values():
                for job_id in room.elastic:
                    self._report(self.jobs.live[job_id])
        if self._stale:
            self._seen = ByName(self._seen, {name: self.jobs.rooms[name].show() for name in self._stale})
            self._stale.clear()
        now_s, ended = self.jobs.now_s, tuple(self._ended)
        self._ended = []
        return Snapshot(now_s, self._seen, ended, fair_share=self._parts.usage.factors(now_s))

    def _report(self, live: Live) -> None:
        assert live.training is not None
        if live.running.progress is None or live.since_s < self.now_s():
            self.jobs.catch_up(live)
            self.jobs.show(live, replace(live.running, progress=live.training.progress()))

    def apply(self, actions: Sequence[Action]) -> list[Applied]:
        """Carry out the actions: jobs that leave first, then starts, each in order. As Slurm does, it refuses what
        does not fit the state of the job; whether a plan is safe is not checked here."""
        self.moved = False
        refused: dict[int, str] = {}
        for starts in (False, True):
            for i, action in enumerate(actions):
                decision = action.decision
                regroups = isinstance(decision, Regroup)
                if i in refused or (isinstance(decision, Start) is not starts and not regroups):
                    continue
                words = None if starts and regroups else self._refusal(action)
                if words is not None:
                    refused[i] = words
                elif regroups and not starts:
                    self.jobs.lift(self.jobs.live[action.job_id])
                else:
                    self.jobs.carry_out(self.jobs.live[action.job_id], action)
                    self.moved = self.moved or isinstance(decision, EndProfiling)
        return [Applied(action, refused.get(i)) for i, action in enumerate(actions)]

    def _refusal(self, action: Action) -> str | None:
        job_id, decision = action.job_id, action.decision
        live = self.jobs.live.get(job_id)
        if live is None or (live.partition != action.partition and not self._overflows(action)):
            return f"job {job_id} is not in partition {action.partition!r}"
        runs = isinstance(live.view, Running)
        if isinstance(decision, Resize):
            fits = isinstance(live.view, Running) and live.training is not None and live.view.partner is None
            return None if fits else f"job {job_id} is not an elastic job that runs alone"
        if isinstance(decision, EndProfiling):
            profiles = self.jobs.rooms[live.partition].profiling
            return None if profiles else f"job {job_id} is not in profiling"
        if runs is isinstance(decision, Start):
            return f"job {job_id} is {'running' if runs else 'pending'}"
        interleaves = isinstance(decision, Regroup) or (isinstance(decision, Start) and bool(decision.group))
        if interleaves and self._parts.interleaving is None:
            return f"job {job_id}: this cluster cannot interleave jobs"
        if isinstance(decision, Start) and decision.beside is not None:
            partner = self.jobs.live.get(decision.beside)
            shown = None if partner is None else partner.view
            if not isinstance(shown, Running) or shown.placement != decision.placement:
                return f"job {job_id}: {decision.beside} does not run on these GPUs"
        return None

    def _overflows(self, action: Action) -> bool:
        """Whether a job that waits in its VC starts on a profiling node."""
        room = self.jobs.rooms.get(action.partition)
        return isinstance(action.decision, Start) and room is not None and room.profiling


def _check(trace: Trace, layout: Layout, parts: Parts) -> None:
    missing = [vc for vc in trace.vcs if vc not in layout]
    if missing:
        raise ConfigError(
            f"trace {trace.name!r} has jobs of VC {', '.join(missing)}, for which there are no nodes "
            f"(nodes are given for: {', '.join(layout) or 'none'}); add them to the --vcs file"
        )
    without = [item.job.id for item in trace.jobs if item.job.gpus < 1]
    if without:
        raise ConfigError(
            f"trace {trace.name!r}: {len(without)} jobs ask for no GPU (the first is {without[0]!r}); Lucid "
            "schedules GPU jobs only; read the trace without keep_cpu_jobs"
        )
    if parts.profiling_nodes and PROFILING in layout:
        raise ConfigError(
            f"trace {trace.name!r} has a VC {PROFILING!r}, as the simulated profiling partition is called; give "
            "the VC another name in the trace and the --vcs file, or set policy.profiling.enabled = false"
        )
