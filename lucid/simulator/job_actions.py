"""What a policy makes happen on the simulated cluster: actions, refused as Slurm refuses them, or carried out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from lucid.config import OverheadSettings, ProfilingSettings
from lucid.core.decision import Action, EndProfiling, Regroup, Requeue, Resize, Start
from lucid.core.job import Job, Pending, Running, Stage
from lucid.core.placement import Placement
from lucid.core.ports import Applied
from lucid.models.packing.pair_memory import PairMemory
from lucid.profiler.stage import measured_after_s
from lucid.profiler.watch import LEAST_TOGETHER_S
from lucid.simulator.ground_truth import Interference
from lucid.simulator.interleaving import Interleaving
from lucid.simulator.nodes import NodeBook
from lucid.simulator.running_jobs import RunningJobs
from lucid.simulator.state import Event, Live, Room
from lucid.simulator.usage import UsageBook

__all__ = ["JobActions"]

_INSTABILITY_SHOWS_S = 600.0
"""An unstable utilisation pattern shows only after so long a run, not in a profiling run of a minute or two."""


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
        """A job changed partition in the last ``apply``: plan again at once."""

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
        elif isinstance(decision, EndProfiling):
            self._release(live)
            self.moved = True
        else:
            self._keep(live)

    def _lend(self, live: Live, partition: str) -> None:
        """A waiting job goes over to another partition, where it is about to start."""
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
        """A pair has been together for long enough for a sampler to judge it: both speeds show in the profiles."""
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
        self._memory.look(mine, other)

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
        """A preempted job was checkpointed and keeps its work; a parted one starts over, since Lucid did not ask
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
        """Its node went away: it starts over, an elastic one from its checkpoint. One that forbids a restart is
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
        """The work of a run is lost with its nodes."""
        if self._nodes is not None:
            self._nodes.figures.lost_gpu_s += view.gpus * view.elapsed_s(self._now_s)

    def _release(self, live: Live) -> None:
        """From the profiling partition to the job's own VC: after its profiling run it starts over."""
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
