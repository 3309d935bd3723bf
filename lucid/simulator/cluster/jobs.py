"""Running jobs of the simulated cluster: GPUs, speeds, ends, pairs, groups; and actions carried out."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import replace

from lucid.config.policy import OverheadSettings, ProfilingSettings
from lucid.core.decision import Action, EndProfiling, Regroup, Requeue, Resize, Start
from lucid.core.job import Job, Pending, Running, Stage, Work
from lucid.core.placement import Placement, placement_gpus
from lucid.core.ports import Applied
from lucid.core.times import past
from lucid.models.packing.pair_memory import PairMemory
from lucid.profiler.pair_watch import LEAST_TOGETHER_S
from lucid.profiler.stage import measured_after_s
from lucid.simulator.cluster.lending import LentBook
from lucid.simulator.cluster.nodes import NodeBook
from lucid.simulator.cluster.state import Event, Live, Room
from lucid.simulator.cluster.truth import Interference, Interleaving
from lucid.simulator.cluster.usage import UsageBook


class RunningJobs:
    """Jobs on GPUs, alone, in pairs or in interleaved groups. Their work is brought up to date when it changes
    pace."""

    def __init__(
        self,
        rooms: Mapping[str, Room],
        interleaving: Interleaving | None,
        nodes: NodeBook | None = None,
    ) -> None:
        self._now_s = 0.0
        self._rooms = rooms
        self._nodes = nodes
        self._interleaving = interleaving
        quotas = next((room.quotas for room in rooms.values() if room.quotas), {})
        self._lent = LentBook(quotas) if quotas else None
        self._live: dict[str, Live] = {}
        self._holders: dict[Placement, int] = {}
        """How many jobs are on each set of GPUs in use."""
        self._events: list[tuple[float, int, int, str, int]] = []
        self._seq = 0
        self.busy_gpus = 0
        self.shared_gpus = 0
        self.pending_gpus = 0

    def _home(self, job: Job) -> str:
        """The partition in which jobs of the VC run: its own, or the pool of all VCs."""
        if job.vc in self._rooms:
            return job.vc
        return next(name for name, room in self._rooms.items() if job.vc in room.quotas)

    def _push(self, at_s: float, kind: Event, live: Live) -> None:
        self._seq += 1
        stamp = live.epoch if kind is Event.END else live.run
        heapq.heappush(self._events, (at_s, int(kind), self._seq, live.item.job.id, stamp))

    def _wait(self, live: Live, view: Pending) -> None:
        if live.training is not None:
            view = replace(view, progress=live.training.progress())
        if self._interleaving is not None:
            view = replace(view, work=Work(live.item.duration_s - live.work_s, self._now_s, 0.0))
        if live.home_only:
            view = replace(view, home_only=True)
        live.view = view
        self._rooms[live.partition].put(view)
        self.pending_gpus += view.job.gpus

    def _show(self, live: Live, view: Running) -> None:
        if self._interleaving is not None:
            done_s = live.item.duration_s - live.work_s
            view = replace(view, work=Work(done_s, max(live.since_s, live.ready_s), live.speed))
        live.view = view
        self._rooms[live.partition].put(view)

    def _hold(self, live: Live, placement: Placement) -> None:
        """Count one job more on these GPUs."""
        if self._lent is not None and self._rooms[live.partition].quotas:
            self._lent.hold(placement, live.item.job.vc)
        count = self._holders[placement] = self._holders.get(placement, 0) + 1
        if self._nodes is not None and count == 1:
            self._nodes.hold(placement, 1, self._now_s)
        self.busy_gpus += placement_gpus(placement) if count == 1 else 0
        self.shared_gpus += placement_gpus(placement) if count == 2 else 0

    def _give_up(self, live: Live, placement: Placement) -> None:
        """Count one job less on these GPUs."""
        if self._lent is not None and self._rooms[live.partition].quotas:
            self._lent.give_up(placement, live.item.job.vc)
        count = self._holders[placement] = self._holders[placement] - 1
        if self._nodes is not None and not count:
            self._nodes.hold(placement, -1, self._now_s)
        self.busy_gpus -= placement_gpus(placement) if count == 0 else 0
        self.shared_gpus -= placement_gpus(placement) if count == 1 else 0
        if not count:
            del self._holders[placement]

    def _done_s(self, live: Live) -> float:
        """Work done since it was last brought up to date."""
        return max(self._now_s - max(live.since_s, live.ready_s), 0.0) * live.speed

    def _ready_s(self, live: Live) -> float:
        """The time from which on the job works."""
        return max(self._now_s, live.ready_s)

    def _catch_up(self, live: Live) -> None:
        """Bring the work left of a running job up to now."""
        done_s = self._done_s(live)
        live.work_s -= done_s
        view = live.view
        if live.training is not None and isinstance(view, Running):
            live.training.advance(done_s)
        if isinstance(view, Running) and (view.partner is not None or view.group):
            live.outcome.packed_s += self._now_s - live.since_s
        live.since_s = self._now_s

    def _schedule_end(self, live: Live) -> None:
        live.epoch += 1
        left_s = max(live.work_s, 0.0) / live.speed
        self._push(self._ready_s(live) + (left_s if past(left_s, 0.0) else 0.0), Event.END, live)

    # -- interleaved groups --------------------------------------------------------------------------------

    def _ungroup(self, view: Running) -> None:
        """Let the others of its group go on without this job."""
        if not view.group:
            return
        rest = tuple(job_id for job_id in view.group if job_id != view.job.id)
        others = [self._live[job_id] for job_id in rest]
        shown = [other.view for other in others]
        if not all(isinstance(other, Running) and other.group == view.group for other in shown):
            return  # they have been regrouped already
        for other in others:
            self._catch_up(other)
        self._pace(others)
        for other, seen in zip(others, shown, strict=True):
            assert isinstance(seen, Running)
            self._schedule_end(other)
            self._show(other, replace(seen, group=rest if len(rest) > 1 else ()))

    def _pace(self, members: Sequence[Live]) -> None:
        """Set the speeds of a group's members, which were brought up to date before."""
        known = [member.item.stages for member in members if member.item.stages is not None]
        speeds = [1.0] * len(members)
        if self._interleaving is not None and len(members) > 1:
            assert len(known) == len(members), "a group of jobs without stage times"
            speeds = self._interleaving.speeds(known)
        cold_s = sum(item.start_s for item in known)
        for member, speed in zip(members, speeds, strict=True):
            member.speed, member.cold_s = speed, cold_s

    def _begin(self, live: Live, group: tuple[str, ...]) -> None:
        """Start the clock of a job just placed; a group begins with the last of its members to be placed."""
        members = [self._live[job_id] for job_id in group] if group else [live]
        views = [member.view for member in members]
        if not all(isinstance(view, Running) and view.group == group for view in views):
            return
        self._pace(members)
        for member, view in zip(members, views, strict=True):
            assert isinstance(view, Running)
            member.since_s, member.ready_s = self._now_s, self._now_s + member.cold_s
            self._schedule_end(member)
            if self._interleaving is not None:
                member.outcome.packed = member.outcome.packed or bool(group)
                self._show(member, view)

    def _regroup(self, live: Live, decision: Regroup) -> None:
        """Put a job that was lifted off its GPUs on the chosen ones; its run goes on."""
        view = live.view
        assert isinstance(view, Running)
        live.outcome.placement = decision.placement
        self._hold(live, decision.placement)
        self._show(live, replace(view, placement=decision.placement, group=decision.group))
        self._begin(live, decision.group)

    def _lift(self, live: Live) -> None:
        """Take a job that is to be regrouped off its GPUs."""
        view = live.view
        assert isinstance(view, Running)
        self._catch_up(live)
        live.epoch += 1
        self._give_up(live, view.placement)
        self._ungroup(view)
        live.view = replace(view, group=())


_INSTABILITY_SHOWS_S = 600.0
"""How long a run must be for an unstable utilisation pattern to show; a profiling run of a minute or two is too
short."""


class JobActions(RunningJobs):
    """Carries actions out. The arguments are those of ``SimulatedCluster``."""

    def __init__(
        self,
        rooms: Mapping[str, Room],
        interference: Interference,
        overheads: OverheadSettings,
        profiling: ProfilingSettings,
        *,
        mend_survivors: bool,
        interleaving: Interleaving | None,
        usage: UsageBook | None,
        memory: PairMemory | None,
        nodes: NodeBook | None,
        agents: bool = False,
    ) -> None:
        super().__init__(rooms, interleaving, nodes)
        self._agents = agents
        self._interference = interference
        self._overheads = overheads
        self._profiling = profiling
        self._mend_survivors = mend_survivors
        self._usage = usage
        self._memory = memory
        self.moved = False
        """Whether a job changed partition in the last ``apply``, so that the next plan comes at once."""

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
                elif isinstance(decision, Regroup) and not starts:
                    self._lift(self._live[action.job_id])
                else:
                    self._carry_out(self._live[action.job_id], action)
        return [Applied(action, refused.get(i)) for i, action in enumerate(actions)]

    def _refusal(self, action: Action) -> str | None:
        job_id, decision = action.job_id, action.decision
        live = self._live.get(job_id)
        if live is None or (live.partition != action.partition and not self._overflows(action)):
            return f"job {job_id} is not in partition {action.partition!r}"
        runs = isinstance(live.view, Running)
        if isinstance(decision, Resize):
            fits = isinstance(live.view, Running) and live.training is not None and live.view.partner is None
            return None if fits else f"job {job_id} is not an elastic job that runs alone"
        if isinstance(decision, EndProfiling):
            return None if self._rooms[live.partition].profiling else f"job {job_id} is not in profiling"
        if runs is isinstance(decision, Start):
            return f"job {job_id} is {'running' if runs else 'pending'}"
        interleaves = isinstance(decision, Regroup) or (isinstance(decision, Start) and bool(decision.group))
        if interleaves and self._interleaving is None:
            return f"job {job_id}: this cluster cannot interleave jobs"
        if isinstance(decision, Start) and decision.beside is not None:
            partner = self._live.get(decision.beside)
            shown = None if partner is None else partner.view
            if not isinstance(shown, Running) or shown.placement != decision.placement:
                return f"job {job_id}: {decision.beside} does not run on these GPUs"
        return None

    def _overflows(self, action: Action) -> bool:
        """Whether a job that waits in its VC starts on a profiling node."""
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
        elif isinstance(decision, EndProfiling):
            self._release(live)
            self.moved = True
        else:
            self._keep(live)

    def _lend(self, live: Live, partition: str) -> None:
        """Move a waiting job to another partition, where it is about to start."""
        view = live.view
        assert isinstance(view, Pending)
        self._rooms[live.partition].drop(view)
        live.partition = partition
        self._rooms[partition].put(view)

    def _start(self, live: Live, start: Start) -> None:
        view = live.view
        assert isinstance(view, Pending)
        job, room, now_s = view.job, self._rooms[live.partition], self._now_s
        room.drop(view)
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
        self._hold(live, start.placement)
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
        if self._memory is not None:
            self._push(self._now_s + LEAST_TOGETHER_S, Event.PAIR_SEEN, live)

    def _pair_seen(self, live: Live) -> None:
        """Put both measured speeds of a pair into the profiles, since a sampler has seen it for long enough."""
        view = live.view
        assert isinstance(view, Running)
        partner = None if view.partner is None else self._live.get(view.partner)
        shown = None if partner is None else partner.view
        if not isinstance(shown, Running) or view.profile is None or shown.profile is None:
            return
        if self._now_s - shown.start_s < LEAST_TOGETHER_S:
            return  # another partner
        assert partner is not None
        assert self._memory is not None
        mine = replace(view, profile=replace(view.profile, seen_speed=live.speed, seen_beside=shown.job.id))
        other = replace(shown, profile=replace(shown.profile, seen_speed=partner.speed, seen_beside=view.job.id))
        self._show(live, mine)
        self._show(partner, other)
        self._memory.observe_pair(mine, other)

    def _place(self, live: Live, placement: Placement, delay_s: float) -> None:
        """Put an elastic job's training on GPUs."""
        assert live.training is not None
        live.training.place(tuple(part.mask.bit_count() for part in placement), delay_s)
        live.work_s = live.training.left_s()
        self._rooms[live.partition].elastic.add(live.item.job.id)

    def _resize(self, live: Live, resize: Resize) -> None:
        """Move an elastic job by a checkpoint and a restart: for Slurm's clock it is the same run, less the time that
        this takes."""
        view, training = live.view, live.training
        assert isinstance(view, Running)
        assert training is not None
        self._catch_up(live)
        training.leave()
        live.ready_s = max(live.ready_s, self._now_s)
        self._place(live, resize.placement, self._overheads.rescale_s)
        shown = replace(view, placement=resize.placement, restarts=view.restarts + 1, progress=training.progress())
        self._give_up(live, view.placement)
        self._hold(live, resize.placement)
        self._charge(view.job, shown.gpus - view.gpus)
        live.outcome.resizes += 1
        live.outcome.placement = resize.placement
        self._show(live, shown)
        self._schedule_end(live)

    def _requeue(self, live: Live, decision: Requeue) -> None:
        """Requeue a job. A preempted job was checkpointed and keeps its work; a parted one starts over, since Lucid
        did not ask its program to save anything."""
        view = live.view
        assert isinstance(view, Running)
        self._catch_up(live)
        self._leave(live, view)
        costs = self._overheads
        if live.training is not None:
            live.training.leave()  # its work is in its checkpoint; the next start charges the restart
            live.outcome.preemptions += not decision.part
        elif decision.part:
            self._lost(view)
            live.work_s = live.item.duration_s + costs.requeue_s
        else:
            if live.item.stages is None:  # else the next start costs what is known of it
                live.work_s += costs.preempt_small_s if view.job.gpus <= 8 else costs.preempt_large_s
            live.outcome.preemptions += 1
        live.parted = live.parted or decision.part
        ran_s = view.ran_s + view.elapsed_s(self._now_s)
        self._wait(live, Pending(view.job, self._now_s, view.profile, ran_s, view.restarts + 1, live.parted))

    def _cut(self, live: Live) -> None:
        """Start a job over whose node went away, an elastic one from its checkpoint. A job that forbids a restart is
        submitted again by its user."""
        view = live.view
        assert isinstance(view, Running)
        self._catch_up(live)
        self._leave(live, view)
        if live.training is not None:
            live.training.leave()
        else:
            self._lost(view)
            live.work_s = live.item.duration_s + self._overheads.requeue_s
        ran_s = view.ran_s + view.elapsed_s(self._now_s)
        self._wait(live, Pending(view.job, self._now_s, view.profile, ran_s, view.restarts + 1, live.parted))

    def _lost(self, view: Running) -> None:
        """Count the work of a run that is lost with its nodes."""
        if self._nodes is not None:
            self._nodes.figures.lost_gpu_s += view.gpus * view.elapsed_s(self._now_s)

    def _release(self, live: Live) -> None:
        """Move a job from the profiling partition to its own VC; after its profiling run it starts over."""
        view = live.view
        assert view is not None
        if isinstance(view, Pending):
            self._rooms[live.partition].drop(view)
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
        live.partition, live.home_only = self._home(view.job), True
        self._wait(live, waiting)

    def _keep(self, live: Live) -> None:
        view = live.view
        assert isinstance(view, Running)
        live.outcome.profiled_s += view.elapsed_s(self._now_s)
        self._show(live, replace(view, stage=Stage.MAIN))

    # -- readings, and leaving -----------------------------------------------------------------------------

    def _watch(self, live: Live) -> None:
        """Schedule the next informative reading of a running job."""
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
        room.drop(view)
        self._charge(view.job, -view.gpus)
        room.elastic.discard(view.job.id)
        outcome = live.outcome
        elapsed_s = view.elapsed_s(self._now_s)
        if view.stage is Stage.PROFILE:
            outcome.profiled_s += elapsed_s
        live.epoch += 1
        live.run += 1
        self._give_up(live, view.placement)
        if view.group:
            self._ungroup(view)
        partner = None if view.partner is None else self._live.get(view.partner)
        if partner is None:
            return
        shown = partner.view
        assert isinstance(shown, Running)
        if not self._mend_survivors and shown.start_s >= view.start_s:
            return  # a defect of the published simulator: the survivor stays slow, in a pair without partner
        self._catch_up(partner)
        partner.speed = 1.0
        self._schedule_end(partner)
        self._show(partner, replace(shown, partner=None))
