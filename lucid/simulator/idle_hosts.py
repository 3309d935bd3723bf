"""Jobs that do nothing for a while, and their guests, on the simulated cluster.

While the host does nothing both run at full speed. Once it goes on both run as any pair does, until lucidd has seen
it and the guest has left.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from lucid.core.job import Idle, Running
from lucid.simulator.ground_truth import Interference
from lucid.simulator.running_jobs import RunningJobs
from lucid.simulator.state import Event, Live

__all__ = ["SEEN_S", "IdleJobs"]

SEEN_S: Final = 3.0
"""From a host's first work to the guest's end, s, as measured on a testbed (docs/idle-hosts.md)."""
_SLOWED: Final = 0.95
"""A host below this speed counts as slowed."""


class IdleJobs(RunningJobs):
    """``_idle_after_s``: how long a job does nothing before it may be a host; ``None``: none is."""

    _interference: Interference
    _idle_after_s: float | None

    def _watch_idle(self, live: Live, view: Running) -> None:
        """When does the run that begins do nothing?"""
        if self._idle_after_s is None:
            return
        for begin_s, end_s in live.item.idle:
            if end_s - begin_s > self._idle_after_s:
                self._push(view.start_s + begin_s + self._idle_after_s, Event.IDLE, live)
                self._push(view.start_s + end_s, Event.WAKES, live)
                self._push(view.start_s + end_s + SEEN_S, Event.SEEN_AWAKE, live)

    def _idle_changes(self, live: Live, event: Event) -> None:
        view, profile = live.view, live.item.profile
        assert isinstance(view, Running)
        if event is Event.IDLE:
            assert self._idle_after_s is not None
            mem_mib = 0.0 if profile is None else profile.gpu_mem_mib
            self._show(live, replace(view, idle=Idle(self._now_s - self._idle_after_s, mem_mib)))
        elif event is Event.SEEN_AWAKE:
            self._show(live, replace(view, idle=None))
        elif (guest := self._guest(view)) is not None:
            self._hosted(live, guest)
            self._catch_up(live)
            self._catch_up(guest)
            assert profile is not None
            assert guest.item.profile is not None
            live.speed, guest.speed = self._interference.speeds(profile, guest.item.profile)
            live.woke_s = self._now_s
            self._schedule_end(live)
            self._schedule_end(guest)

    def _guest(self, view: Running) -> Live | None:
        """The job that came beside this one because it did nothing."""
        guest = self._live.get(view.partner or "")
        shown = None if guest is None else guest.view
        return guest if isinstance(shown, Running) and shown.visits == view.job.id else None

    def _hosted(self, host: Live, guest: Live) -> None:
        """Its time as a host ends."""
        assert isinstance(guest.view, Running)
        host.outcome.hosted_s += self._now_s - guest.view.start_s

    def _parts_from_host(self, live: Live, view: Running, partner: Live) -> None:
        """A job of a pair leaves: note what hosting came to."""
        host, guest = (partner, live) if view.visits == partner.item.job.id else (live, partner)
        if not isinstance(guest.view, Running) or guest.view.visits != host.item.job.id:
            return
        if host.woke_s is None:
            self._hosted(host, guest)
        else:
            host.outcome.slowed_s.append(self._now_s - host.woke_s if host.speed < _SLOWED else 0.0)
            host.woke_s = None
