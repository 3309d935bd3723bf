"""Jobs of the simulated cluster: who holds which GPUs, how fast each works, when it ends; and actions carried out."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from lucid.binder.contention import contention_speeds
from lucid.config.policy import OverheadSettings, ProfilingSettings
from lucid.core.decision import Action, EndProfiling, Regroup, Requeue, Resize, Start
from lucid.core.job import Ended, Job, JobProfile, Pending, Running, Stage, Work
from lucid.core.node import Node
from lucid.core.placement import Placement, placement_gpus
from lucid.core.times import past
from lucid.models.packing.like_profiles import LikeProfiles
from lucid.models.packing.pair_memory import PairMemory
from lucid.profiler.pair_watch import LEAST_TOGETHER_S
from lucid.profiler.stage import measured_after_s
from lucid.simulator.cluster.nodes import NodeBook, Outages
from lucid.simulator.cluster.state import Event, JobOutcome, Live, Room, Semantics
from lucid.simulator.cluster.truth import Interference, Interleaving
from lucid.simulator.cluster.usage import LentBook, UsageBook
from lucid.simulator.traces.record import TraceJob

PROFILING = "profiling"
"""Name of the simulated profiling partition."""
_PREEMPT_SMALL_S, _PREEMPT_LARGE_S = 40.0, 60.0
"""Checkpoint and restart of a job of at most 8 GPUs, and of a larger one: what the published simulator charges, after
Tiresias' measured 62 s."""
_INSTABILITY_SHOWS_S = 600.0
"""How long a run must be for an unstable utilisation pattern to show; a profiling run of a minute or two is too
short."""


@dataclass(frozen=True, slots=True)
class Parts:
    """What a simulated cluster is made of beside a trace and its nodes.

    ``profiling_nodes``: those of the profiling partition. ``agents``: elastic jobs choose their batch size
    themselves. ``interleaving``: the executor of interleaved groups, where there is one; it reports the work done by
    each job. ``usage`` counts usage for fair-share factors. ``memory``: the speeds of a pair show in its jobs'
    profiles once a sampler could have judged them (``LEAST_TOGETHER_S``), and the memory takes them in. ``pooled``:
    the VCs have their nodes in common, and each a quota of as many GPUs as its own nodes have. ``outages``: when
    nodes are closed or down."""

    interference: Interference = contention_speeds
    overheads: OverheadSettings = field(default_factory=OverheadSettings)
    profiling: ProfilingSettings = field(default_factory=ProfilingSettings)
    profiling_nodes: Sequence[Node] = ()
    agents: bool = False
    interleaving: Interleaving | None = None
    usage: UsageBook = field(default_factory=UsageBook)
    memory: PairMemory | None = None
    pooled: bool = False
    outages: Outages = field(default_factory=Outages)
    semantics: Semantics = Semantics.HONEST


class Jobs:
    """The jobs in the system. Their work is brought up to date when it changes pace."""

    def __init__(self, rooms: Mapping[str, Room], parts: Parts) -> None:
        self.rooms = rooms
        self.parts = parts
        self.nodes = NodeBook(rooms, parts.outages)
        self.lent = LentBook(next((room.quotas for room in rooms.values() if room.quotas), {}))
        self.now_s = 0.0
        self.live: dict[str, Live] = {}
        self.events: list[tuple[float, int, int, str, int]] = []
        """A heap: the time, the ``Event``, a number, the job's id, and what it was stamped with."""
        self._seq = 0
        self._holders: dict[Placement, int] = {}
        """How many jobs are on each set of GPUs in use."""
        self.busy_gpus = 0
        self.shared_gpus = 0
        self.pending_gpus = 0
        self._like = LikeProfiles()
        self._predicted: set[str] = set()
        """Jobs whose profile is that of other jobs."""

    def pending_by_vc(self) -> dict[str, int]:
        """How many jobs wait, by partition."""
        return {name: len(room.pending) for name, room in self.rooms.items()}

    # -- what every change is made of ----------------------------------------------------------------------

    def _home(self, job: Job) -> str:
        """The partition in which jobs of the VC run: its own, or the pool of all VCs."""
        if job.vc in self.rooms:
            return job.vc
        return next(name for name, room in self.rooms.items() if job.vc in room.quotas)

    def _push(self, at_s: float, kind: Event, live: Live) -> None:
        self._seq += 1
        stamp = live.epoch if kind is Event.END else live.run
        heapq.heappush(self.events, (at_s, int(kind), self._seq, live.item.job.id, stamp))

    def void(self, event: tuple[float, int, int, str, int]) -> bool:
        """Whether the event is of a run, or of a pace, that is over."""
        live = self.live.get(event[3])
        return live is None or event[4] != (live.epoch if event[1] == Event.END else live.run)

    def _wait(self, live: Live, view: Pending) -> None:
        if live.training is not None:
            view = replace(view, progress=live.training.progress())
        if self.parts.interleaving is not None:
            view = replace(view, work=Work(live.item.duration_s - live.work_s, self.now_s, 0.0))
        if live.home_only:
            view = replace(view, home_only=True)
        live.view = view
        self.rooms[live.partition].put(view)
        self.pending_gpus += view.job.gpus

    def _wait_no_more(self, live: Live) -> Pending:
        view = live.view
        assert isinstance(view, Pending)
        self.rooms[live.partition].drop(view)
        self.pending_gpus -= view.job.gpus
        return view

    def show(self, live: Live, view: Running) -> None:
        """Let a running job be seen so."""
        if self.parts.interleaving is not None:
            done_s = live.item.duration_s - live.work_s
            view = replace(view, work=Work(done_s, max(live.since_s, live.ready_s), live.speed))
        live.view = view
        self.rooms[live.partition].put(view)

    def _hold(self, live: Live, placement: Placement, by: int) -> None:
        """Count one job more (``by`` 1) or less (-1) on these GPUs."""
        if self.rooms[live.partition].quotas:
            self.lent.hold(placement, live.item.job.vc, by)
        before = self._holders.get(placement, 0)
        self._holders[placement] = before + by
        most, gpus = max(before, before + by), by * placement_gpus(placement)
        if most == 1:
            self.nodes.hold(placement, by, self.now_s)
            self.busy_gpus += gpus
        elif most == 2:
            self.shared_gpus += gpus
        if not before + by:
            del self._holders[placement]

    def _done_s(self, live: Live) -> float:
        """Work done since it was last brought up to date."""
        if self.parts.semantics is Semantics.MURI:  # the group's start is charged at every event anew
            return max(self.now_s - live.since_s - live.cold_s, 0.0) * live.speed
        return max(self.now_s - max(live.since_s, live.ready_s), 0.0) * live.speed

    def catch_up(self, live: Live) -> None:
        """Bring the work left of a running job up to now."""
        done_s = self._done_s(live)
        live.work_s -= done_s
        view = live.view
        if isinstance(view, Running):
            if live.training is not None:
                live.training.advance(done_s)
            if view.partner is not None or view.group:
                live.outcome.packed_s += self.now_s - live.since_s
        live.since_s = self.now_s

    def schedule_end(self, live: Live) -> None:
        """Expect the job's end at its present pace."""
        live.epoch += 1
        left_s = max(live.work_s, 0.0) / live.speed
        from_s = self.now_s if self.parts.semantics is Semantics.MURI else max(self.now_s, live.ready_s)
        self._push(from_s + (left_s if past(left_s, 0.0) else 0.0), Event.END, live)

    # -- what happens by itself ----------------------------------------------------------------------------

    def arrive(self, item: TraceJob, outcome: JobOutcome, profiled: bool) -> None:
        """Let a job be submitted. ``profiled``: to the profiling partition."""
        job = item.job
        outcome.within_quota = self.lent.within(job.vc)
        self.parts.usage.observe(job)
        room = PROFILING if profiled else self._home(job)
        live = self.live[job.id] = Live(item, outcome, item.duration_s, room)
        if item.learning is not None:
            live.training = item.learning.begin(job, self.parts.agents)
        self._wait(live, Pending(job, self.now_s, item.profile if self.parts.semantics.published else None))
        self._tell(live)

    def end(self, live: Live) -> Ended | None:
        """Let a job end, or go on with the next part of its training."""
        self.catch_up(live)
        if live.training is not None and not live.training.done:
            live.work_s = live.training.left_s()
            self.schedule_end(live)
            return None
        view, outcome = live.running, live.outcome
        outcome.end_s = self.now_s
        outcome.ended_in_profiling = view.stage is Stage.PROFILE
        self._leave(live)
        del self.live[view.job.id]
        ran_s = view.ran_s + view.elapsed_s(self.now_s)
        return Ended(view.job, self.now_s, ran_s, live.item.state or "COMPLETED", view.profile)

    def leave_nodes(self) -> None:
        """Start jobs over that are still on nodes which close or go down: elastic ones from their checkpoint. A job
        that forbids a restart is submitted again by its user."""
        closed, down = self.nodes.advance(self.now_s)
        for room in self.rooms.values():
            for view in list(room.running.values()):
                names = {part.node for part in view.placement}
                if names & (closed | down):
                    self.nodes.figures.cut += not names & down
                    self.nodes.figures.failed += bool(names & down)
                    live = self.live[view.job.id]
                    self._requeued(live, start_over=live.training is None)

    def charge_all(self) -> None:
        """Bring all running jobs up to date."""
        for live in self.live.values():
            if isinstance(live.view, Running):
                self.catch_up(live)
                self.schedule_end(live)
                self.show(live, live.view)

    def measured(self, live: Live) -> None:
        """Take in a reading: at T_prof the profile; an unstable pattern shows only some time later."""
        view, profile = live.running, live.item.profile
        assert profile is not None
        if view.job.id in self._predicted:
            if view.partner is not None or view.group:
                return  # what is seen beside another says nothing of it alone
            self._predicted.discard(view.job.id)
            view = replace(view, profile=None)
        if view.profile is None and profile.unstable:
            profile = replace(profile, unstable=False)
        self.show(live, replace(view, profile=profile))
        self._watch(live)
        if self.parts.semantics is Semantics.AS_LIVE and view.job.user:
            self._note(view.job, profile)

    def _watch(self, live: Live) -> None:
        """Schedule the next informative reading of a running job."""
        view, truth = live.running, live.item.profile
        if truth is None:
            return
        alone = view.partner is None and not view.group
        if view.profile is None or (alone and view.job.id in self._predicted):
            self._push(view.start_s + measured_after_s(view.job, self.parts.profiling), Event.MEASURED, live)
        elif truth.unstable and not view.profile.unstable:
            self._push(max(self.now_s, view.start_s + _INSTABILITY_SHOWS_S), Event.MEASURED, live)

    def _note(self, job: Job, profile: JobProfile) -> None:
        """Let the user's waiting jobs have the profile of a job that was measured."""
        self._like.note(job.user, job.name, job.gpus, profile, self.now_s)
        for job_id in [entry for room in self.rooms.values() for entry in room.pending]:
            if self.live[job_id].item.job.user == job.user:
                self._tell(self.live[job_id])

    def _tell(self, live: Live) -> None:
        """Give a waiting job the profile of jobs like it; it then leaves the profiling nodes."""
        view = live.view
        if not isinstance(view, Pending) or (view.profile is not None and view.job.id not in self._predicted):
            return
        job = view.job
        profile = self._like.profile_of(job.user, job.name, job.gpus, self.now_s)
        if profile is None or profile is view.profile:
            return
        self._predicted.add(job.id)
        if live.partition == PROFILING:
            self._wait_no_more(live)
            live.partition = self._home(job)
            self._wait(live, replace(view, profile=profile))
        else:
            live.view = replace(view, profile=profile)
            self.rooms[live.partition].put(live.view)

    # -- actions -------------------------------------------------------------------------------------------

    def carry_out(self, live: Live, action: Action) -> None:
        """Carry out an action that fits the state of the job; a job that is regrouped was lifted before."""
        decision = action.decision
        if isinstance(decision, Start):
            self._start(live, decision, action.partition)
        elif isinstance(decision, Resize):
            self._resize(live, decision)
        elif isinstance(decision, Regroup):
            self._regroup(live, decision)
        elif isinstance(decision, Requeue):
            self._requeue(live, decision)
        elif isinstance(decision, EndProfiling):
            self._release(live)
        else:
            live.outcome.profiled_s += live.running.elapsed_s(self.now_s)
            self.show(live, replace(live.running, stage=Stage.MAIN))

    def _start(self, live: Live, start: Start, partition: str) -> None:
        view, now_s = self._wait_no_more(live), self.now_s
        job, outcome, costs = view.job, live.outcome, self.parts.overheads
        live.partition = partition
        outcome.queue_s += now_s - view.since_s
        if outcome.start_s < 0:
            outcome.start_s = now_s
        outcome.placement = start.placement
        live.since_s, live.speed, live.ready_s = now_s, 1.0, now_s
        if self.parts.semantics is Semantics.AS_LIVE:
            live.work_s += costs.start_s
        if live.training is not None:
            self._place(live, start.placement, costs.rescale_s if view.restarts else costs.elastic_start_s)
        stage = Stage.PROFILE if self.rooms[partition].profiling else Stage.MAIN
        running = Running(
            job, now_s, start.placement, stage, view.profile, view.ran_s, view.restarts, start.beside,
            not start.slots, group=start.group,
        )  # fmt: skip
        self._hold(live, start.placement, 1)
        self.parts.usage.holds(job, running.gpus, now_s)
        if start.beside is not None:
            self._pair(live, running, self.live[start.beside])
        self.show(live, running)
        if start.beside is None:
            self._begin(live, start.group)
        else:
            self.schedule_end(live)
        self._watch(live)

    def _pair(self, live: Live, running: Running, partner: Live) -> None:
        shown = partner.running
        mine, others = live.item.profile or running.profile, partner.item.profile or shown.profile
        assert mine is not None
        assert others is not None
        self.catch_up(partner)
        live.speed, partner.speed = self.parts.interference(mine, others)
        live.outcome.packed = partner.outcome.packed = True
        self.schedule_end(partner)
        self.show(partner, replace(shown, partner=running.job.id))
        if self.parts.memory is not None:
            self._push(self.now_s + LEAST_TOGETHER_S, Event.PAIR_SEEN, live)

    def pair_seen(self, live: Live) -> None:
        """Put both measured speeds of a pair into the profiles, since a sampler has seen it for long enough."""
        view = live.running
        partner = None if view.partner is None else self.live.get(view.partner)
        shown = None if partner is None else partner.view
        if not isinstance(shown, Running) or view.profile is None or shown.profile is None:
            return
        if self.now_s - shown.start_s < LEAST_TOGETHER_S:
            return  # another partner
        assert partner is not None
        assert self.parts.memory is not None
        mine = replace(view, profile=replace(view.profile, seen_speed=live.speed, seen_beside=shown.job.id))
        other = replace(shown, profile=replace(shown.profile, seen_speed=partner.speed, seen_beside=view.job.id))
        self.show(live, mine)
        self.show(partner, other)
        self.parts.memory.observe_pair(mine, other)

    def _place(self, live: Live, placement: Placement, delay_s: float) -> None:
        assert live.training is not None
        live.training.place(tuple(part.mask.bit_count() for part in placement), delay_s)
        live.work_s = live.training.left_s()
        self.rooms[live.partition].elastic.add(live.item.job.id)

    def _resize(self, live: Live, resize: Resize) -> None:
        """Move an elastic job by a checkpoint and a restart: for Slurm's clock it is the same run, less the time that
        this takes."""
        view, training = live.running, live.training
        assert training is not None
        self.catch_up(live)
        training.leave()
        live.ready_s = max(live.ready_s, self.now_s)
        self._place(live, resize.placement, self.parts.overheads.rescale_s)
        shown = replace(view, placement=resize.placement, restarts=view.restarts + 1, progress=training.progress())
        self._hold(live, view.placement, -1)
        self._hold(live, resize.placement, 1)
        self.parts.usage.holds(view.job, shown.gpus - view.gpus, self.now_s)
        live.outcome.resizes += 1
        live.outcome.placement = resize.placement
        self.show(live, shown)
        self.schedule_end(live)

    def _requeue(self, live: Live, decision: Requeue) -> None:
        """Requeue a job. A preempted job was checkpointed and keeps its work; a parted one starts over, since Lucid
        did not ask its program to save anything."""
        live.outcome.preemptions += not decision.part
        live.parted = live.parted or decision.part
        rigid = live.training is None
        if rigid and not decision.part and live.item.stages is None:  # else the next start costs what is known of it
            self.catch_up(live)
            live.work_s += _PREEMPT_SMALL_S if live.item.job.gpus <= 8 else _PREEMPT_LARGE_S
        self._requeued(live, start_over=rigid and decision.part)

    def _requeued(self, live: Live, start_over: bool) -> None:
        """Put a running job back into its partition's queue. ``start_over``: its work is lost."""
        view = live.running
        self._leave(live)
        if start_over:
            self.nodes.figures.lost_gpu_s += view.gpus * view.elapsed_s(self.now_s)
            live.work_s = live.item.duration_s + self.parts.overheads.requeue_s
        self._wait(live, self._again(view, live.parted))

    def _again(self, view: Running, alone: bool) -> Pending:
        ran_s = view.ran_s + view.elapsed_s(self.now_s)
        return Pending(view.job, self.now_s, view.profile, ran_s, view.restarts + 1, alone)

    def _release(self, live: Live) -> None:
        """Move a job from the profiling partition to its own VC; after its profiling run it starts over."""
        if isinstance(live.view, Pending):
            view = self._wait_no_more(live)
            live.outcome.queue_s += self.now_s - view.since_s
            waiting = replace(view, since_s=self.now_s)
        else:
            waiting = self._again(live.running, alone=False)
            self._leave(live)
            live.work_s = live.item.duration_s + self.parts.overheads.requeue_s
        live.partition, live.home_only = self._home(waiting.job), True
        self._wait(live, waiting)

    def _leave(self, live: Live) -> None:
        """Take a job off its GPUs; the work of an elastic one is in its checkpoint."""
        view, room = live.running, self.rooms[live.partition]
        self.catch_up(live)
        room.drop(view)
        self.parts.usage.holds(view.job, -view.gpus, self.now_s)
        room.elastic.discard(view.job.id)
        if live.training is not None:
            live.training.leave()
        if view.stage is Stage.PROFILE:
            live.outcome.profiled_s += view.elapsed_s(self.now_s)
        live.epoch += 1
        live.run += 1
        self._hold(live, view.placement, -1)
        if view.group:
            self._ungroup(view)
        partner = None if view.partner is None else self.live.get(view.partner)
        if partner is None:
            return
        shown = partner.running
        if self.parts.semantics is Semantics.PUBLISHED and shown.start_s >= view.start_s:
            return  # a defect of the published simulator: the survivor stays slow, in a pair without partner
        self.catch_up(partner)
        partner.speed = 1.0
        self.schedule_end(partner)
        self.show(partner, replace(shown, partner=None))

    # -- interleaved groups --------------------------------------------------------------------------------

    def _ungroup(self, view: Running) -> None:
        """Let the others of its group go on without this job."""
        rest = tuple(job_id for job_id in view.group if job_id != view.job.id)
        others = [self.live[job_id] for job_id in rest]
        if not all(isinstance(other.view, Running) and other.view.group == view.group for other in others):
            return  # they have been regrouped already
        for other in others:
            self.catch_up(other)
        self._pace(others)
        for other in others:
            self.schedule_end(other)
            self.show(other, replace(other.running, group=rest if len(rest) > 1 else ()))

    def _pace(self, members: Sequence[Live]) -> None:
        """Set the speeds of a group's members, which were brought up to date before."""
        known = [member.item.stages for member in members if member.item.stages is not None]
        speeds = [1.0] * len(members)
        if self.parts.interleaving is not None and len(members) > 1:
            assert len(known) == len(members), "a group of jobs without stage times"
            speeds = self.parts.interleaving.speeds(known)
        cold_s = sum(item.start_s for item in known)
        for member, speed in zip(members, speeds, strict=True):
            member.speed, member.cold_s = speed, cold_s

    def _begin(self, live: Live, group: tuple[str, ...]) -> None:
        """Start the clock of a job just placed; a group begins with the last of its members to be placed."""
        members = [self.live[job_id] for job_id in group] if group else [live]
        if not all(isinstance(member.view, Running) and member.view.group == group for member in members):
            return
        self._pace(members)
        for member in members:
            member.since_s, member.ready_s = self.now_s, self.now_s + member.cold_s
            self.schedule_end(member)
            if self.parts.interleaving is not None:
                member.outcome.packed = member.outcome.packed or bool(group)
                self.show(member, member.running)

    def lift(self, live: Live) -> None:
        """Take a job that is to be regrouped off its GPUs."""
        view = live.running
        self.catch_up(live)
        live.epoch += 1
        self._hold(live, view.placement, -1)
        self._ungroup(view)
        live.view = replace(view, group=())

    def _regroup(self, live: Live, decision: Regroup) -> None:
        """Put a job that was lifted off its GPUs on the chosen ones; its run goes on."""
        live.outcome.placement = decision.placement
        self._hold(live, decision.placement, 1)
        self.show(live, replace(live.running, placement=decision.placement, group=decision.group))
        self._begin(live, decision.group)
