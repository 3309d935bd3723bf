"""Jobs of a replay that give way to others: who goes when a job claims GPUs, and what each loses."""

from __future__ import annotations

import math
from dataclasses import replace

from lucid.core.decision import Action, Start
from lucid.core.job import Job, Pending, Running
from lucid.core.placement import Placement
from lucid.simulator.job_actions import JobActions
from lucid.simulator.preemption import Group
from lucid.simulator.slurm_victims import slurm_claim
from lucid.simulator.state import Live

__all__ = ["YieldingFloor"]


class YieldingFloor(JobActions):
    """Carries out what preempts, where there is anything that may be preempted."""

    _slurm_chooses = False
    """Are victims Slurm's own choice, whatever the plan says?"""

    def _refusal(self, action: Action) -> str | None:
        words, start = super()._refusal(action), action.decision
        if words is not None or self._layers is None or not isinstance(start, Start):
            return words
        if action.partition in self.clashed:  # it was planned after one that did not start
            return f"job {action.job_id}: another partition has GPUs that this plan counted on"
        if start.beside is not None:
            return None
        others = (self._live.get(job_id) for job_id in (*start.preempts, *start.group))
        going = [other.view.placement for other in others if other and isinstance(other.view, Running)]
        if self._layers.free(start.placement, going):
            return None
        self.clashed.add(action.partition)
        return f"job {action.job_id}: another partition has its GPUs"

    def _carry_out(self, live: Live, action: Action) -> None:
        start = action.decision
        if self._layers is None or not isinstance(start, Start):
            super()._carry_out(live, action)
            return
        if start.preempts:
            start = self._claim(live.item.job, start, action.partition)
        super()._carry_out(live, replace(action, decision=start))
        view = live.view
        assert isinstance(view, Running)
        live.saved_s = live.work_s
        rules = self._layers.rules
        if rules.by_qos and rules.group_of(view.job) is not None:
            self._show(live, replace(view, yields=rules.yields(view, rules.qos_over(view.job.qos))))

    def _claim(self, job: Job, start: Start, partition: str) -> Start:
        """Let those go whom the start preempts. It may get other GPUs, where Slurm chooses."""
        layers = self._layers
        assert layers is not None
        if self._slurm_chooses:
            found = slurm_claim(
                job, self._rooms[partition].show(), self._now_s, self._tier, layers.rules.youngest_first
            )
            if found is not None:
                preempts = tuple(entry.job.id for entry in found[1])
                start = replace(start, placement=found[0], preempts=preempts, lost_gpu_s=())
        for victim in start.preempts:
            live = self._live.get(victim)
            if live is not None and isinstance(live.view, Running):
                self._preempt(live, job.id)
                self.moved = True  # it waits again, and may have left GPUs that nobody claims
        return start

    def _tier(self, job: Job) -> int:
        group = None if self._layers is None else self._layers.rules.group_of(job)
        return 0 if group is None else group.tier

    def _boot_s(self, placement: Placement) -> float:
        boot_s = super()._boot_s(placement)
        return boot_s if self._layers is None else max(boot_s, self._layers.clears_s(placement, self._now_s))

    def _preempt(self, live: Live, by: str) -> None:
        """Stop a run: it starts over, from its last checkpoint if it has any. One that is cancelled is submitted
        again by its user at once, and begins from nothing."""
        view, layers = live.view, self._layers
        assert isinstance(view, Running)
        assert layers is not None
        group = layers.rules.group_of(view.job)
        assert group is not None
        self._catch_up(live)
        self._leave(live, view)
        ends = group.cancels(view.job)
        figures = layers.figures
        figures.preempted += 1
        figures.cancelled += ends
        figures.jobs.add(view.job.id)
        figures.lost_gpu_s += view.gpus * self._set_back(live, view, group, ends)
        live.outcome.preemptions += 1
        live.outcome.preempted_by.append((self._now_s, by))
        if group.grace_s:
            layers.leaves(view.placement, self._now_s + group.grace_s)
        now_s, job = self._now_s, view.job
        if ends:
            self._wait(live, Pending(replace(job, submit_s=now_s), now_s, view.profile))
        else:
            ran_s = view.ran_s + view.elapsed_s(now_s)
            self._wait(live, Pending(job, now_s, view.profile, ran_s, view.restarts + 1, live.parted))

    def _set_back(self, live: Live, view: Running, group: Group, ends: bool) -> float:
        """Note what the job has left to do; the seconds of its run that are lost."""
        elapsed_s, item, requeue_s = view.elapsed_s(self._now_s), live.item, self._overheads.requeue_s
        if item.learning is not None:
            if ends:
                live.training = item.learning.begin(view.job, self._agents)
                return elapsed_s
            assert live.training is not None
            live.training.leave()  # its work is in its checkpoint; the next start charges the restart
            return 0.0
        if ends or group.checkpoint_s == math.inf:
            live.work_s = item.duration_s + requeue_s
            return elapsed_s
        saved_s = elapsed_s - elapsed_s % group.checkpoint_s
        done_s = live.saved_s - live.work_s
        live.work_s = live.saved_s - (done_s * saved_s / elapsed_s if elapsed_s else 0.0) + requeue_s
        return elapsed_s - saved_s
