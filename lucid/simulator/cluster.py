"""The simulated cluster: one more ``Cluster`` adapter, event-driven, with its own clock.

What happens between two cycles is computed exactly: a job's end follows from the work left and its speed, and
moves when a partner comes or goes. Policies see only what Slurm and a sampler could show them.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from lucid.config import OverheadSettings, ProfilingSettings
from lucid.core.decision import Action, Regroup, Release, Requeue, Resize, Start
from lucid.core.job import Ended, Job, Pending, Running, Stage
from lucid.core.node import Node
from lucid.core.placement import Placement
from lucid.core.ports import Applied, Capability
from lucid.core.snapshot import Partition, Snapshot
from lucid.errors import ConfigError
from lucid.models.packing.pair_memory import PairMemory
from lucid.profiler.stage import measured_after_s
from lucid.profiler.watch import LEAST_TOGETHER_S
from lucid.simulator.floor import Floor
from lucid.simulator.interleaving import Interleaving
from lucid.simulator.state import Event, JobOutcome, Live, Room
from lucid.simulator.traces.record import Trace, TraceJob
from lucid.simulator.truth import Interference
from lucid.simulator.usage import UsageBook

__all__ = ["PROFILING", "JobOutcome", "Layout", "SimulatedCluster"]

PROFILING = "profiling"
"""Name of the simulated profiling partition."""

Layout = Mapping[str, Sequence[Node]]
"""Nodes by VC."""

_INSTABILITY_SHOWS_S = 600.0
"""An unstable utilisation pattern shows only after so long a run, not in a profiling run of a minute or two."""


class SimulatedCluster(Floor):
    """Replays a trace on a layout of nodes.

    ``profiled`` says which new jobs enter through the profiling partition (job_submit's rule). With ``agents``
    elastic jobs choose their batch size themselves. For parity with
    the published simulator only: with ``measured_before`` every job brings its profile; with
    ``mend_survivors=False`` the survivor of a pair whose first-placed job ends first keeps its slowed speed
    and its place in the pair for ever. ``interleaving`` is the executor of interleaved groups, where there is one;
    it reports the work done by each job. ``usage`` keeps the books of which fair-share factors are made. ``memory``
    is told how fast pairs of labelled workloads ran, once they part, if they were together for long enough for a
    sampler to judge them (``LEAST_TOGETHER_S``).

    Raises:
        ConfigError: a VC of the trace has no nodes, or a job of it asks for no GPU.
    """

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
                f"trace {trace.name!r}: {len(without)} jobs ask for no GPU (the first is {without[0]!r}), and a GPU "
                "scheduler has nothing to give them; read the trace without keep_cpu_jobs"
            )
        rooms = {name: Room(name, tuple(nodes), False) for name, nodes in layout.items()}
        if profiling_nodes:
            rooms[PROFILING] = Room(PROFILING, tuple(profiling_nodes), True)
        super().__init__(rooms, interleaving)
        self._interference = interference
        self._overheads = overheads
        self._profiling = profiling
        self._profiled = profiled
        self._agents = agents
        self._elastic = any(item.learning is not None for item in trace.jobs)
        self._measured_before = measured_before
        self._mend_survivors = mend_survivors
        self._usage = usage
        self._memory = memory
        self._ended: list[Ended] = []
        self._to_come = list(reversed(trace.jobs))
        """Arrivals, the next one last: a sorted list needs no heap."""
        self.outcomes: dict[str, JobOutcome] = {}
        self.ended = 0
        self.moved = False
        """A job changed partition in the last ``apply``: plan again at once."""

    @property
    def capabilities(self) -> frozenset[Capability]:
        """Everything, except profiling where no nodes are set aside for it, interleaving without an executor, and
        what takes elastic jobs where the trace has none."""
        able = {Capability.PREEMPT, Capability.SHARE}
        if self._interleaving is not None:
            able.add(Capability.INTERLEAVE)
        if PROFILING in self._rooms:
            able.add(Capability.PROFILE)
        if self._elastic:
            able.add(Capability.RESIZE)
            if self._agents:
                able.add(Capability.ADAPT)
        return frozenset(able)

    @property
    def total_gpus(self) -> int:
        """GPUs of all nodes."""
        return sum(node.gpus for room in self._rooms.values() for node in room.nodes)

    def pending_by_vc(self) -> dict[str, int]:
        """How many jobs wait, by partition."""
        return {name: len(room.pending) for name, room in self._rooms.items()}

    # -- clock ---------------------------------------------------------------------------------------------

    def now_s(self) -> float:
        """Trace time."""
        return self._now_s

    def next_event_s(self) -> float | None:
        """When something next happens by itself; ``None`` when nothing is left to happen."""
        events = self._events
        while events and self._void(events[0]):
            heapq.heappop(events)
        times = []
        if events:
            times.append(events[0][0])
        if self._to_come:
            times.append(self._to_come[-1].job.submit_s)
        return min(times, default=None)

    def _void(self, event: tuple[float, int, int, str, int]) -> bool:
        live = self._live.get(event[3])
        return live is None or event[4] != (live.epoch if event[1] == Event.END else live.run)

    def advance(self, to_s: float) -> None:
        """Let everything up to and including ``to_s`` happen: ends first, then readings, then arrivals."""
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
            else:
                self._measured(live)
        while self._to_come and self._to_come[-1].job.submit_s <= to_s:
            self._arrive(self._to_come.pop())

    # -- what happens by itself ----------------------------------------------------------------------------

    def _arrive(self, item: TraceJob) -> None:
        job = item.job
        room = PROFILING if PROFILING in self._rooms and self._profiled(job) else job.vc
        outcome = JobOutcome(job, item.duration_s)
        self.outcomes[job.id] = outcome
        if self._usage is not None:
            self._usage.saw(job)
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

    def _measured(self, live: Live) -> None:
        """A reading comes in: at T_prof the profile; an unstable pattern shows only some time later."""
        view, profile = live.view, live.item.profile
        assert isinstance(view, Running)
        assert profile is not None
        if view.profile is None and profile.unstable:
            profile = replace(profile, unstable=False)
        self._show(live, replace(view, profile=profile))
        self._watch(live)

    def _watch(self, live: Live) -> None:
        """When will the next reading of a running job tell something new?"""
        view, truth = live.view, live.item.profile
        assert isinstance(view, Running)
        if truth is None:
            return
        if view.profile is None:
            self._push(view.start_s + measured_after_s(view.job, self._profiling), Event.MEASURED, live)
        elif truth.unstable and not view.profile.unstable:
            self._push(max(self._now_s, view.start_s + _INSTABILITY_SHOWS_S), Event.MEASURED, live)

    def _leave(self, live: Live, view: Running) -> None:
        """Take a job off its GPUs."""
        room = self._rooms[live.partition]
        del room.running[view.job.id]
        self._charge(view.job, -view.gpus)
        room.elastic.discard(view.job.id)
        room.shown = None
        outcome = live.outcome
        elapsed_s = view.elapsed_s(self._now_s)
        if view.stage is Stage.PROFILE:
            outcome.profiled_s += elapsed_s
        live.epoch += 1
        live.run += 1
        self._give_up(view.placement)
        self._ungroup(view)
        partner = None if view.partner is None else self._live.get(view.partner)
        if partner is None:
            return
        shown = partner.view
        assert isinstance(shown, Running)
        if not self._mend_survivors and shown.start_s >= view.start_s:
            return  # the published slip: the survivor stays slow, and in a pair with nobody, for ever
        self._remember(live, view, partner, shown)
        self._catch_up(partner)
        partner.speed = 1.0
        self._schedule_end(partner)
        self._show(partner, replace(shown, partner=None))

    def _remember(self, live: Live, view: Running, partner: Live, shown: Running) -> None:
        if self._memory is None or view.profile is None or shown.profile is None:
            return
        together_s = self._now_s - max(view.start_s, shown.start_s)
        workloads = (view.profile.workload, shown.profile.workload)
        if together_s >= LEAST_TOGETHER_S and all(workloads):
            self._memory.note(workloads, (live.speed, partner.speed), f"{view.job.id}+{shown.job.id}")

    # -- what a policy makes happen ------------------------------------------------------------------------

    def observe(self) -> Snapshot:
        """The present state; partitions in which nothing changed are the same objects as before."""
        partitions: dict[str, Partition] = {}
        for name, room in self._rooms.items():
            for job_id in room.elastic:
                self._report(self._live[job_id])
            if room.shown is None:
                room.shown = Partition(
                    name, room.nodes, tuple(room.pending.values()), tuple(room.running.values()), room.profiling
                )
            partitions[name] = room.shown
        ended, self._ended = tuple(self._ended), []
        fair_share = {} if self._usage is None else self._usage.factors(self._now_s)
        return Snapshot(self._now_s, partitions, ended, fair_share=fair_share)

    def _report(self, live: Live) -> None:
        """A running elastic job says how far it is."""
        view, training = live.view, live.training
        assert isinstance(view, Running)
        assert training is not None
        if view.progress is None or live.since_s < self._now_s:
            self._catch_up(live)
            self._show(live, replace(view, progress=training.progress()))

    def apply(self, actions: Sequence[Action]) -> list[Applied]:
        """Carry out what leaves first, then what starts, each in order. As Slurm does, it refuses what does not
        fit the state of the job; whether a plan is safe is not asked here."""
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
                elif isinstance(decision, Regroup) and not starts:
                    self._lift(self._live[action.job_id])
                else:
                    self._carry_out(self._live[action.job_id], action)
        return [Applied(action, refused.get(i)) for i, action in enumerate(actions)]

    def _refusal(self, action: Action) -> str | None:
        job_id, decision = action.job_id, action.decision
        live = self._live.get(job_id)
        if live is None or (live.partition != action.partition and not self._overflows(action)):
            return f"job {job_id} is not in partition {action.partition!r} (any more)"
        runs = isinstance(live.view, Running)
        if isinstance(decision, Resize):
            fits = isinstance(live.view, Running) and live.training is not None and live.view.partner is None
            return None if fits else f"job {job_id} is not an elastic job that runs alone"
        if isinstance(decision, Release):
            return None if self._rooms[live.partition].profiling else f"job {job_id} is not in profiling"
        if runs is isinstance(decision, Start):
            return f"job {job_id} is {'running' if runs else 'pending'}"
        interleaves = isinstance(decision, Regroup) or (isinstance(decision, Start) and bool(decision.group))
        if interleaves and self._interleaving is None:
            return f"job {job_id}: nothing here interleaves jobs"
        if isinstance(decision, Start) and decision.beside is not None:
            partner = self._live.get(decision.beside)
            shown = None if partner is None else partner.view
            if not isinstance(shown, Running) or shown.placement != decision.placement:
                return f"job {job_id}: {decision.beside} does not run on these GPUs"
        return None

    def _overflows(self, action: Action) -> bool:
        """Does a job that waits in its VC start on a profiling node?"""
        room = self._rooms.get(action.partition)
        return isinstance(action.decision, Start) and room is not None and room.profiling

    def _carry_out(self, live: Live, action: Action) -> None:
        decision = action.decision
        if isinstance(decision, Start):
            if live.partition != action.partition:
                self._lend(live, action.partition)
            self._start(live, decision)
        elif isinstance(decision, Resize):
            self._resize(live, decision)
        elif isinstance(decision, Regroup):
            self._regroup(live, decision)
        elif isinstance(decision, Requeue):
            self._requeue(live, decision)
        elif isinstance(decision, Release):
            self._release(live)
            self.moved = True
        else:
            self._keep(live)

    def _lend(self, live: Live, partition: str) -> None:
        """A waiting job goes over to another partition, where it is about to start."""
        view = live.view
        assert isinstance(view, Pending)
        room = self._rooms[live.partition]
        del room.pending[view.job.id]
        room.shown = None
        live.partition = partition
        self._rooms[partition].pending[view.job.id] = view

    def _start(self, live: Live, start: Start) -> None:
        view = live.view
        assert isinstance(view, Pending)
        job, room, now_s = view.job, self._rooms[live.partition], self._now_s
        del room.pending[job.id]
        self.pending_gpus -= job.gpus
        outcome = live.outcome
        outcome.queue_s += now_s - view.since_s
        if outcome.start_s < 0:
            outcome.start_s = now_s
        outcome.placement = start.placement
        live.since_s, live.speed, live.ready_s = now_s, 1.0, now_s
        if live.training is not None:
            costs = self._overheads
            self._place(live, start.placement, costs.rescale_s if view.restarts else costs.elastic_start_s)
        stage = Stage.PROFILE if room.profiling else Stage.MAIN
        running = Running(
            job, now_s, start.placement, stage, view.profile, view.ran_s, view.restarts, start.beside,
            not start.slots, group=start.group,
        )  # fmt: skip
        self._hold(start.placement)
        self._charge(job, running.gpus)
        if start.beside is not None:
            self._pair(live, running, self._live[start.beside])
        self._show(live, running)
        if start.beside is None:
            self._begin(live, start.group)
        else:
            self._schedule_end(live)
        self._watch(live)

    def _charge(self, job: Job, gpus: int) -> None:
        if self._usage is not None:
            self._usage.holds(job, gpus, self._now_s)

    def _pair(self, live: Live, running: Running, partner: Live) -> None:
        shown = partner.view
        assert isinstance(shown, Running)
        mine, others = live.item.profile or running.profile, partner.item.profile or shown.profile
        assert mine is not None
        assert others is not None
        self._catch_up(partner)
        live.speed, partner.speed = self._interference.speeds(mine, others)
        live.outcome.packed = partner.outcome.packed = True
        self._schedule_end(partner)
        self._show(partner, replace(shown, partner=running.job.id))

    def _place(self, live: Live, placement: Placement, delay_s: float) -> None:
        """Put an elastic job's training on GPUs."""
        assert live.training is not None
        live.training.place(tuple(part.mask.bit_count() for part in placement), delay_s)
        live.work_s = live.training.left_s()
        self._rooms[live.partition].elastic.add(live.item.job.id)

    def _resize(self, live: Live, resize: Resize) -> None:
        """A checkpoint, a restart elsewhere: the same run for Slurm's clock, less the time that this takes."""
        view, training = live.view, live.training
        assert isinstance(view, Running)
        assert training is not None
        self._catch_up(live)
        training.leave()
        self._place(live, resize.placement, self._overheads.rescale_s)
        shown = replace(view, placement=resize.placement, restarts=view.restarts + 1, progress=training.progress())
        self._give_up(view.placement)
        self._hold(resize.placement)
        self._charge(view.job, shown.gpus - view.gpus)
        live.outcome.resizes += 1
        live.outcome.placement = resize.placement
        self._show(live, shown)
        self._schedule_end(live)

    def _requeue(self, live: Live, decision: Requeue) -> None:
        """A preempted job was checkpointed and keeps its work; a parted one starts over, since nobody asked
        its program to save anything."""
        view = live.view
        assert isinstance(view, Running)
        self._catch_up(live)
        self._leave(live, view)
        costs = self._overheads
        if live.training is not None:
            live.training.leave()  # its work is in its checkpoint; the next start charges the restart
            live.outcome.preemptions += not decision.part
        elif decision.part:
            live.work_s = live.item.duration_s + costs.requeue_s
        else:
            if live.item.stages is None:  # else the next start costs what is known of it
                live.work_s += costs.preempt_small_s if view.job.gpus <= 8 else costs.preempt_large_s
            live.outcome.preemptions += 1
        live.parted = live.parted or decision.part
        ran_s = view.ran_s + view.elapsed_s(self._now_s)
        self._wait(live, Pending(view.job, self._now_s, view.profile, ran_s, view.restarts + 1, live.parted))

    def _release(self, live: Live) -> None:
        """From the profiling partition to the job's own VC: after its profiling run it starts over."""
        view = live.view
        assert view is not None
        if isinstance(view, Pending):
            del self._rooms[live.partition].pending[view.job.id]
            self._rooms[live.partition].shown = None
            self.pending_gpus -= view.job.gpus
            live.outcome.queue_s += self._now_s - view.since_s
            waiting = replace(view, since_s=self._now_s)
        else:
            self._catch_up(live)
            self._leave(live, view)
            live.work_s = live.item.duration_s + self._overheads.requeue_s
            if live.training is not None:
                live.training.leave()
            ran_s = view.ran_s + view.elapsed_s(self._now_s)
            waiting = Pending(view.job, self._now_s, view.profile, ran_s, view.restarts + 1)
        live.partition = view.job.vc
        self._wait(live, waiting)

    def _keep(self, live: Live) -> None:
        view = live.view
        assert isinstance(view, Running)
        live.outcome.profiled_s += view.elapsed_s(self._now_s)
        self._show(live, replace(view, stage=Stage.MAIN))
