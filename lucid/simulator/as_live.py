"""A simulated cluster with the manners of lucidd on Slurm, for predicting what a real cluster will do.

Beside what the ``SimulatedCluster`` charges: jobs like one measured before bring its profile, only jobs that start in
slots can be joined later, and a start takes a moment.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from lucid.core.decision import Start
from lucid.core.job import Job, JobProfile, Pending, Running
from lucid.simulator.cluster import PROFILING, SimulatedCluster
from lucid.simulator.state import Live
from lucid.simulator.traces.record import TraceJob

__all__ = ["AsLive", "LiveLikeCluster"]

_Kind = tuple[str, str, int]


@dataclass(frozen=True, slots=True)
class AsLive:
    """What the cluster is to know of the real one.

    ``in_slots``: does a job with this profile that starts alone start in slots, so that it may be joined?
    ``start_s``: seconds from the decision to start a job to the first second of its work; it holds its GPUs.
    """

    in_slots: Callable[[Job, JobProfile, float], bool]
    start_s: float = 0.0


class LiveLikeCluster(SimulatedCluster):
    """Jobs of the same user, name and GPU count are alike (``daemon.reuse_profiles_days``): once one of them is
    measured, those that come skip the profiling nodes, and those that wait there go to their VC at once."""

    def __init__(self, live: AsLive, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._as_live = live
        self._kinds: dict[_Kind, JobProfile] = {}

    def _arrive(self, item: TraceJob) -> None:
        super()._arrive(item)
        known = self._kinds.get(_kind(item.job))
        if known is not None:
            self._tell(self._live[item.job.id], known)

    def _measured(self, live: Live) -> None:
        super()._measured(live)
        view = live.view
        if not isinstance(view, Running) or view.profile is None or not view.job.user:
            return
        kind = _kind(view.job)
        self._kinds[kind] = view.profile
        for job_id in [entry for room in self._rooms.values() for entry in room.pending]:
            other = self._live[job_id]
            if _kind(other.item.job) == kind:
                self._tell(other, view.profile)

    def _tell(self, live: Live, profile: JobProfile) -> None:
        """A waiting job is known now; it has nothing to do on the profiling nodes any more."""
        view = live.view
        if not isinstance(view, Pending) or view.profile is not None or not view.job.user:
            return
        room = self._rooms[live.partition]
        view = replace(view, profile=profile)
        if live.partition == PROFILING:
            del room.pending[view.job.id]
            self.pending_gpus -= view.job.gpus
            live.partition = view.job.vc
            self._wait(live, view)
        else:
            room.pending[view.job.id] = live.view = view
        room.shown = None

    def _start(self, live: Live, start: Start) -> None:
        live.work_s += self._as_live.start_s
        super()._start(live, start)
        view = live.view
        assert isinstance(view, Running)
        if view.partner is None and not self._starts_in_slots(view):
            self._show(live, replace(view, alone=True))

    def _starts_in_slots(self, view: Running) -> bool:
        """Only such a job can be joined; one that holds whole GPUs keeps them to itself until it ends."""
        profile = view.profile
        return (
            profile is not None
            and len(view.placement) == 1
            and view.job.shareable
            and self._as_live.in_slots(view.job, profile, self._now_s)
        )


def _kind(job: Job) -> _Kind:
    return job.user, job.name, job.gpus
