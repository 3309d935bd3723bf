"""A simulated cluster that acts as lucidd on Slurm does, to predict what a real cluster will do.

Beside what the ``SimulatedCluster`` charges: jobs like one measured before bring its profile, and a start takes a
moment.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from lucid.core.decision import Start
from lucid.core.job import Pending, Running
from lucid.models.packing.likeness import LikeProfiles
from lucid.profiler.stage import measured_after_s
from lucid.simulator.cluster import PROFILING, SimulatedCluster
from lucid.simulator.state import Event, Live
from lucid.simulator.traces.record import TraceJob

__all__ = ["AsLive", "LiveLikeCluster"]


@dataclass(frozen=True, slots=True)
class AsLive:
    """What the cluster is to know of the real one.

    ``start_s``: seconds from the decision to start a job to the first second of its work; it holds its GPUs.
    ``similar``: jobs bring the profile of similar programs of their user, not only of those of their own name.
    """

    start_s: float = 0.0
    similar: bool = True


class LiveLikeCluster(SimulatedCluster):
    """Jobs like one measured before bring its profile (``LikeProfiles``, as with ``daemon.reuse_profiles_days``):
    they skip the profiling nodes, and jobs that wait there go to their VC at once. One that then runs alone for
    long enough is measured itself."""

    def __init__(self, live: AsLive, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._as_live = live
        self._like = LikeProfiles(similar=live.similar)
        self._predicted: set[str] = set()
        """Jobs whose profile is that of others."""

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
        """What is known of jobs like this one that waits; it has nothing to do on the profiling nodes then."""
        view = live.view
        if not isinstance(view, Pending) or (view.profile is not None and view.job.id not in self._predicted):
            return
        job = view.job
        profile = self._like.of(job.user, job.name, job.gpus, self._now_s)
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
