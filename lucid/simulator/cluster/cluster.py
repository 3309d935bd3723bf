"""``SimulatedCluster``: the ``Cluster`` of a replay, event-driven; and a variant that acts as lucidd.

Between two cycles everything is computed exactly: a job's end follows from the work left and its speed, and moves
when a partner comes or goes. Policies see only what Slurm and a sampler could show them. ``LiveLikeCluster`` predicts
what a real cluster will do."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lucid.config.policy import OverheadSettings, ProfilingSettings
from lucid.core.decision import Start
from lucid.core.job import Ended, Job, Pending, Running, Stage
from lucid.core.node import Node
from lucid.core.ports import Capability
from lucid.core.snapshot import Partition, Snapshot, Versioned
from lucid.errors import ConfigError
from lucid.models.packing.like_profiles import LikeProfiles
from lucid.models.packing.pair_memory import PairMemory
from lucid.profiler.stage import measured_after_s
from lucid.simulator.cluster.jobs import JobActions
from lucid.simulator.cluster.lending import LentByVc
from lucid.simulator.cluster.nodes import NodeBook, Outages, WindowFigures
from lucid.simulator.cluster.state import Event, JobOutcome, Live, Room
from lucid.simulator.cluster.truth import Interference, Interleaving
from lucid.simulator.cluster.usage import UsageBook
from lucid.simulator.traces.record import Trace, TraceJob

PROFILING = "profiling"
"""Name of the simulated profiling partition."""

POOL = "pool"
"""Name of the partition in which VCs have their nodes in common."""

Layout = Mapping[str, Sequence[Node]]
"""Nodes by VC."""


class SimulatedCluster(JobActions):
    """Replays a trace on a layout of nodes.

    ``profiled`` says which new jobs enter through the profiling partition (job_submit's rule). With ``agents``
    elastic jobs choose their batch size themselves. For parity with the published simulator only: with
    ``measured_before`` every job brings its profile; with ``mend_survivors=False`` the survivor of a pair whose
    first-placed job ends first keeps its slowed speed and its place in the pair for ever. ``interleaving`` is the
    executor of interleaved groups, where there is one; it reports the work done by each job. ``usage`` counts usage
    for fair-share factors. With ``memory`` the speeds of a pair show in its jobs' profiles once a sampler could have
    judged them (``LEAST_TOGETHER_S``), and the memory takes them in. With ``pooled`` the VCs have their nodes in
    common, and each a quota of as many GPUs as its own nodes have. ``outages``: when nodes are closed or down.

    Raises: ConfigError: a VC has no nodes, or is called like the profiling partition; or a job asks for no GPU."""

    def __init__(
        self,
        trace: Trace,
        layout: Layout,
        interference: Interference,
        overheads: OverheadSettings,
        profiling: ProfilingSettings,
        profiled: Callable[[Job], bool],
        *,
        profiling_nodes: Sequence[Node] = (),
        agents: bool = False,
        measured_before: bool = False,
        mend_survivors: bool = True,
        interleaving: Interleaving | None = None,
        usage: UsageBook | None = None,
        memory: PairMemory | None = None,
        pooled: bool = False,
        outages: Outages | None = None,
    ) -> None:
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
        if profiling_nodes and PROFILING in layout:
            raise ConfigError(
                f"trace {trace.name!r} has a VC {PROFILING!r}, as the simulated profiling partition is called; give "
                "the VC another name in the trace and the --vcs file, or set policy.profiling.enabled = false"
            )
        if pooled:
            everything = tuple(node for nodes in layout.values() for node in nodes)
            quotas = {name: sum(node.gpus for node in nodes) for name, nodes in layout.items()}
            rooms = {POOL: Room(POOL, everything, False, quotas)}
        else:
            rooms = {name: Room(name, tuple(nodes), False) for name, nodes in layout.items()}
        if profiling_nodes:
            rooms[PROFILING] = Room(PROFILING, tuple(profiling_nodes), True)
        super().__init__(
            rooms,
            interference,
            overheads,
            profiling,
            mend_survivors=mend_survivors,
            interleaving=interleaving,
            usage=usage,
            memory=memory,
            nodes=None if outages is None else NodeBook(rooms, outages),
            agents=agents,
        )
        self._profiled = profiled
        self._elastic = any(item.learning is not None for item in trace.jobs)
        self._measured_before = measured_before
        self._ended: list[Ended] = []
        self._order = {name: at for at, name in enumerate(rooms)}
        self._stale: set[str] = set()
        """Rooms whose shown partition is out of date."""
        for room in rooms.values():
            room.stale = self._stale
        self._seen: Versioned[Partition] = Versioned({name: room.show() for name, room in rooms.items()})
        """The partitions that were handed out last."""
        self._to_come = list(reversed(trace.jobs))
        """Arrivals, the next one last: a sorted list needs no heap."""
        self.outcomes: dict[str, JobOutcome] = {}
        self.ended = 0

    @property
    def capabilities(self) -> frozenset[Capability]:
        """Every capability, except profiling where no nodes are set aside for it, interleaving without an executor,
        and those of elastic jobs where the trace has none."""
        able = {Capability.PREEMPT, Capability.SHARE}
        if self._interleaving is not None:
            able.add(Capability.INTERLEAVE)
        if PROFILING in self._rooms:
            able.add(Capability.PROFILE)
        if self._elastic:
            able |= {Capability.RESIZE, Capability.ORACLE}
            if self._agents:
                able.add(Capability.ADAPT)
        return frozenset(able)

    @property
    def total_gpus(self) -> int:
        """GPUs of all nodes."""
        return sum(node.gpus for room in self._rooms.values() for node in room.nodes)

    def window_figures(self) -> WindowFigures | None:
        """The effects of windows and failing nodes so far, where there are any."""
        return None if self._nodes is None else self._nodes.figures

    def lent(self) -> dict[str, LentByVc]:
        """GPU-seconds that the VCs of a pool have lent and borrowed so far; empty without a pool."""
        return {} if self._lent is None else self._lent.by_vc()

    def pending_by_vc(self) -> dict[str, int]:
        """How many jobs wait, by partition."""
        return {name: len(room.pending) for name, room in self._rooms.items()}

    # -- clock ---------------------------------------------------------------------------------------------

    def now_s(self) -> float:
        """The trace time."""
        return self._now_s

    def next_event_s(self) -> float | None:
        """When the next event happens by itself; ``None`` when none is left."""
        events = self._events
        while events and self._void(events[0]):
            heapq.heappop(events)
        times = []
        if events:
            times.append(events[0][0])
        if self._to_come:
            times.append(self._to_come[-1].job.submit_s)
        if self._nodes is not None and (self._live or self._to_come):
            times.append(self._nodes.next_s())
        return min((at_s for at_s in times if at_s < math.inf), default=None)

    def _void(self, event: tuple[float, int, int, str, int]) -> bool:
        live = self._live.get(event[3])
        return live is None or event[4] != (live.epoch if event[1] == Event.END else live.run)

    def advance(self, to_s: float) -> None:
        """Let everything up to and including ``to_s`` happen: ends first, then readings, nodes, and arrivals."""
        if self._lent is not None:
            self._lent.wait(to_s - self._now_s)
        self._now_s = to_s
        events = self._events
        while events and events[0][0] <= to_s:
            event = heapq.heappop(events)
            if self._void(event):
                continue
            live = self._live[event[3]]
            if event[1] == Event.END:
                self._catch_up(live)
                if live.training is None or live.training.done:
                    self._end(live)
                else:
                    live.work_s = live.training.left_s()
                    self._schedule_end(live)
            elif event[1] == Event.PAIR_SEEN:
                self._pair_seen(live)
            else:
                self._measured(live)
        if self._nodes is not None:
            self._leave_nodes(self._nodes)
        while self._to_come and self._to_come[-1].job.submit_s <= to_s:
            self._arrive(self._to_come.pop())

    # -- what happens by itself ----------------------------------------------------------------------------

    def _arrive(self, item: TraceJob) -> None:
        job = item.job
        room = PROFILING if PROFILING in self._rooms and self._profiled(job) else self._home(job)
        outcome = JobOutcome(job, item.duration_s)
        self.outcomes[job.id] = outcome
        if self._lent is not None:
            outcome.within_quota = self._lent.within(job.vc)
        if self._usage is not None:
            self._usage.observe(job)
        live = Live(item, outcome, item.duration_s, room)
        self._live[job.id] = live
        if item.learning is not None:
            live.training = item.learning.begin(job, self._agents)
        self._wait(live, Pending(job, self._now_s, item.profile if self._measured_before else None))

    def _end(self, live: Live) -> None:
        view = live.view
        assert isinstance(view, Running)
        outcome = live.outcome
        outcome.end_s = self._now_s
        outcome.ended_in_profiling = view.stage is Stage.PROFILE
        self._leave(live, view)
        del self._live[view.job.id]
        self.ended += 1
        ran_s = view.ran_s + view.elapsed_s(self._now_s)
        self._ended.append(Ended(view.job, self._now_s, ran_s, live.item.state or "COMPLETED", view.profile))

    def _leave_nodes(self, book: NodeBook) -> None:
        """Start jobs over that are still on nodes which close or go down."""
        closed, down = book.advance(self._now_s)
        if not closed and not down:
            return
        for room in self._rooms.values():
            for view in list(room.running.values()):
                names = {part.node for part in view.placement}
                if names & (closed | down):
                    book.figures.cut += not names & down
                    book.figures.failed += bool(names & down)
                    self._cut(self._live[view.job.id])

    def _measured(self, live: Live) -> None:
        """Take in a reading: at T_prof the profile; an unstable pattern shows only some time later."""
        view, profile = live.view, live.item.profile
        assert isinstance(view, Running)
        assert profile is not None
        if view.profile is None and profile.unstable:
            profile = replace(profile, unstable=False)
        self._show(live, replace(view, profile=profile))
        self._watch(live)

    # -- what can be seen ----------------------------------------------------------------------------------

    def observe(self) -> Snapshot:
        """The present state; partitions in which nothing changed are the same objects as before."""
        if self._elastic:
            for room in self._rooms.values():
                for job_id in room.elastic:
                    self._report(self._live[job_id])
        if self._stale:
            fresh = {name: self._rooms[name].show() for name in sorted(self._stale, key=self._order.__getitem__)}
            self._stale.clear()
            self._seen = Versioned(self._seen, self._seen.key, fresh)
        partitions = self._seen
        ended, self._ended = tuple(self._ended), []
        fair_share = {} if self._usage is None else self._usage.factors(self._now_s)
        return Snapshot(self._now_s, partitions, ended, fair_share=fair_share)

    def _report(self, live: Live) -> None:
        """Let a running elastic job report its progress."""
        view, training = live.view, live.training
        assert isinstance(view, Running)
        assert training is not None
        if view.progress is None or live.since_s < self._now_s:
            self._catch_up(live)
            self._show(live, replace(view, progress=training.progress()))


@dataclass(frozen=True, slots=True)
class AsLive:
    """How the simulated cluster follows the real one.

    ``start_s``: seconds from the decision to start a job to the first second of its work; it holds its GPUs.
    ``similar``: jobs bring the profile of similar programs of their user, not only of those of their own name."""

    start_s: float = 0.0
    similar: bool = True


class LiveLikeCluster(SimulatedCluster):
    """A cluster that acts as lucidd does on Slurm: jobs like one measured before bring its profile
    (``LikeProfiles``), skip the profiling nodes, or go from there to their VC at once. A job that then runs alone for
    long enough is measured itself. A start takes a moment."""

    def __init__(self, live: AsLive, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._as_live = live
        self._like = LikeProfiles(similar=live.similar)
        self._predicted: set[str] = set()
        """Jobs whose profile is that of other jobs."""

    def _arrive(self, item: TraceJob) -> None:
        super()._arrive(item)
        self._tell(self._live[item.job.id])

    def _measured(self, live: Live) -> None:
        view = live.view
        assert isinstance(view, Running)
        if view.job.id in self._predicted:
            if view.partner is not None or view.group:
                return  # what is seen beside another says nothing of it alone
            self._predicted.discard(view.job.id)
            self._show(live, replace(view, profile=None))
        super()._measured(live)
        view = live.view
        assert isinstance(view, Running)
        if view.profile is None or not view.job.user:
            return
        job = view.job
        self._like.note(job.user, job.name, job.gpus, view.profile, self._now_s)
        for job_id in [entry for room in self._rooms.values() for entry in room.pending]:
            if self._live[job_id].item.job.user == job.user:
                self._tell(self._live[job_id])

    def _watch(self, live: Live) -> None:
        view = live.view
        assert isinstance(view, Running)
        if (
            view.job.id in self._predicted
            and view.partner is None
            and not view.group
            and live.item.profile is not None
        ):
            self._push(view.start_s + measured_after_s(view.job, self._profiling), Event.MEASURED, live)
        else:
            super()._watch(live)

    def _tell(self, live: Live) -> None:
        """Give a waiting job the profile of jobs like it; it then leaves the profiling nodes."""
        view = live.view
        if not isinstance(view, Pending) or (view.profile is not None and view.job.id not in self._predicted):
            return
        job = view.job
        profile = self._like.profile_of(job.user, job.name, job.gpus, self._now_s)
        if profile is None or profile is view.profile:
            return
        self._predicted.add(job.id)
        room = self._rooms[live.partition]
        view = replace(view, profile=profile)
        if live.partition == PROFILING:
            room.drop(view)
            self.pending_gpus -= job.gpus
            live.partition = self._home(job)
            self._wait(live, view)
        else:
            live.view = view
            room.put(view)

    def _start(self, live: Live, start: Start) -> None:
        live.work_s += self._as_live.start_s
        super()._start(live, start)
