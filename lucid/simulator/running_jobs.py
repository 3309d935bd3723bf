"""The floor of the simulated cluster: the GPUs of each job, how fast the job works there, and when it ends."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import replace

from lucid.core.decision import Regroup
from lucid.core.job import Job, Pending, Running, Work
from lucid.core.placement import Placement, placement_gpus
from lucid.core.rounding import past
from lucid.simulator.interleaving import Interleaving
from lucid.simulator.lent_gpus import LentBook
from lucid.simulator.nodes import NodeBook
from lucid.simulator.state import Event, Live, Room

__all__ = ["RunningJobs"]


class RunningJobs:
    """Jobs on GPUs, alone, in pairs or in interleaved groups; their work, brought up to date when it changes pace."""

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
        """How many jobs stand on each set of GPUs in use."""
        self._events: list[tuple[float, int, int, str, int]] = []
        self._seq = 0
        self.busy_gpus = 0
        self.shared_gpus = 0
        self.pending_gpus = 0

    def _home(self, job: Job) -> str:
        """The partition in which jobs of its VC run: its own, or the pool of all VCs."""
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
        """One job more on these GPUs."""
        if self._lent is not None and self._rooms[live.partition].quotas:
            self._lent.hold(placement, live.item.job.vc)
        count = self._holders[placement] = self._holders.get(placement, 0) + 1
        if self._nodes is not None and count == 1:
            self._nodes.hold(placement, 1, self._now_s)
        self.busy_gpus += placement_gpus(placement) if count == 1 else 0
        self.shared_gpus += placement_gpus(placement) if count == 2 else 0

    def _give_up(self, live: Live, placement: Placement) -> None:
        """One job less on them."""
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
        """From when on it works."""
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
        """The others of its group go on without this job."""
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
        """Give the members of a group, brought up to date before, their speeds."""
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
        """Put a job that was lifted off its GPUs on those decided; its run goes on."""
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
