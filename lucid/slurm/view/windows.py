"""``Closings``: when Slurm's reservations close nodes, as windows of nodes.

Reservations are read once a minute, when something refers to one, and every three seconds while jobs wait and
something is reserved. A reservation of whole nodes, or of some of their GPUs (Slurm does not say which), closes its
nodes to everybody: jobs that ask for it by name are Slurm's alone. A reservation of some cores takes those cores
while it is in force."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from lucid.core.node import Window
from lucid.errors import ClusterError, ClusterUnavailable
from lucid.slurm.commands import CommandClient
from lucid.slurm.own.reasons import of_reservation
from lucid.slurm.records.configuration import Reservation
from lucid.slurm.records.job import SlurmJob, SlurmNode

_LOG = logging.getLogger(__name__)
_EVERY_S = 60.0
_WAITS_S = 2.9
"""How often reservations are read while jobs wait for a window: nothing else shows that it is moved or deleted. With
polls a second apart, this is every third one."""
_LEAST_S = 1.0
"""How long a reading counts, whatever has happened since."""
_LEAD_S = 10.0
"""How long before a window jobs must end: Slurm starts a job up to some seconds after its release, and judges by that
moment."""
_FLOAT_S = 59.0
"""The start of a floating reservation moves with the clock, and is read once a minute. Time limits are whole minutes,
so a job that would reach into it does not fit before this, and one that would not always does."""
_YEAR_S = 366 * 86400.0
"""How long Slurm assumes a job without a time limit to last."""
_STATES = frozenset(["RESERVED", "MAINTENANCE"])


class Closings:
    """The reservations as last read."""

    def __init__(self, client: CommandClient) -> None:
        self._client = client
        self._trouble = ""
        self._found: tuple[Reservation, ...] = ()
        self._read_s = float("-inf")
        self._fresh = False
        """Whether reservations were read at this poll of jobs and nodes."""
        self._speaks: frozenset[str] = frozenset()
        self._states: frozenset[str] = frozenset()
        self._explained: frozenset[str] = frozenset()
        """Nodes whose states come from a reservation that was read. Slurm clears these states up to five seconds
        after its end, and starts jobs there before."""

    def update(self, jobs: Sequence[SlurmJob], nodes: Sequence[SlurmNode], now_s: float) -> bool:
        """Take in a poll of jobs and nodes, and read the reservations where they are due: when the time has come,
        when another job waits for one, and when one begins or ends by the nodes' states. Returns whether anything is
        reserved otherwise now."""
        speaks = frozenset(job.id for job in jobs if job.pending and of_reservation(job.reason))
        states = frozenset(node.name for node in nodes if node.states & _STATES)
        news = not speaks <= self._speaks or states != self._states
        self._speaks, self._states = (self._speaks & speaks) if news else speaks, states
        pressing = bool(self._found) and any(job.pending and job.asks for job in jobs)
        self._fresh = self._due(now_s, _LEAST_S if news else _WAITS_S if pressing else _EVERY_S)
        if not self._fresh:
            return False
        self._speaks = speaks
        return self._read(now_s)

    def changed(self, now_s: float) -> bool:
        """Whether anything is reserved otherwise than when jobs were planned; asked before they start. A job may have
        been submitted after a reservation was made, and both since the last reading."""
        return not (self._fresh and not self._due(now_s, _LEAST_S)) and self._read(now_s)

    def _due(self, now_s: float, every_s: float) -> bool:
        return not 0 <= now_s - self._read_s < every_s

    def _read(self, now_s: float) -> bool:
        """Read the reservations; returns whether they changed. If that fails, the earlier ones stay."""
        self._read_s = now_s
        try:
            found = self._client.reservations()
        except ClusterUnavailable:
            raise
        except ClusterError as error:
            if self._trouble != str(error):
                self._trouble = str(error)
                _LOG.warning("reservations cannot be read", extra={"facts": {"why": self._trouble}})
            return False
        self._trouble = ""
        before, self._found = self._found, tuple(found)
        return _to_come(before, now_s) != _to_come(self._found, now_s)

    def windows(self, now_s: float) -> Mapping[str, tuple[Window, ...]]:
        """The windows by node, the earliest first."""
        made: dict[str, set[Window]] = {}
        for one in self._found:
            if one.cores or not one.nodes:
                continue
            for window in _windows(one, now_s):
                for name in one.nodes:
                    made.setdefault(name, set()).add(window)
        return {name: tuple(sorted(found, key=lambda w: (w.from_s, w.end_s, w.why))) for name, found in made.items()}

    def explained(self, nodes: Sequence[SlurmNode], now_s: float) -> Sequence[SlurmNode]:
        """The nodes as the reservations explain them: without the states that these cause where it is known when the
        nodes open again, and without the cores that they take."""
        known = {name for one in self._found for name in one.nodes if one.start_s <= now_s} | self._explained
        self._explained = frozenset(node.name for node in nodes if node.name in known and node.states & _STATES)
        cores: dict[str, int] = {}
        for one in self._found:
            if one.start_s <= now_s < one.end_s:
                for name, count in one.cores:
                    cores[name] = cores.get(name, 0) + count
        if not known:
            return nodes
        return [
            replace(node, states=node.states - _STATES, cpus=max(node.cpus - cores.get(node.name, 0), 1))
            if node.name in known
            else node
            for node in nodes
        ]

    def draws(self, job: SlurmJob, nodes: Sequence[SlurmNode], now_s: float) -> str:
        """The reservation in force in which Slurm may start this job without being asked (MAGNETIC), on nodes of its
        partition; empty for all others."""
        for one in self._found:
            if "MAGNETIC" in one.flags and one.start_s <= now_s < one.end_s and one.admits(job.user, job.account):
                here = set(one.nodes)
                if any(node.name in here and job.partition in node.partitions for node in nodes):
                    return one.name
        return ""


def _to_come(found: Sequence[Reservation], now_s: float) -> list[Reservation]:
    """The reservations as they are compared: without those that are over; a recurring one at its next time; a
    floating one moves on at each reading."""
    told = []
    for one in found:
        for start_s, end_s in times_of(one, now_s)[:1]:
            floats = "TIME_FLOAT" in one.flags
            told.append(replace(one, start_s=0.0 if floats else start_s, end_s=end_s - start_s if floats else end_s))
    return told


def _windows(one: Reservation, now_s: float) -> list[Window]:
    what = "maintenance" if "MAINT" in one.flags else "reservation"
    nodes = one.node_list if len(one.node_list) <= 60 else f"{len(one.nodes)} nodes"
    why = f"{what} of {nodes} ({one.name})"
    if "TIME_FLOAT" in one.flags:
        return [Window(one.start_s + _FLOAT_S, None, f"{why}, which always lies ahead")]
    return [
        Window(start_s, end_s, why, _LEAD_S) for start_s, end_s in times_of(one, now_s) if start_s < now_s + _YEAR_S
    ]


# When a reservation comes again: Slurm moves a daily one on by a day of slurmctld's local time when it ends.


_MOST = 12
_AHEAD_S = 15 * 86400.0
"""How far ahead the times of a recurring reservation are listed; the first always is."""
_SATURDAY, _SUNDAY = 5, 6


def times_of(one: Reservation, now_s: float) -> list[tuple[float, float]]:
    """From when until when the reservation lasts, Unix seconds, without the times that are over."""
    found: list[tuple[float, float]] = []
    for start_s, end_s in _each(one):
        if len(found) >= _MOST or (found and start_s > now_s + _AHEAD_S):
            break
        if end_s > now_s:
            found.append((start_s, end_s))
    return found


def _each(one: Reservation) -> Iterator[tuple[float, float]]:
    yield one.start_s, one.end_s
    if not one.flags & {"HOURLY", "DAILY", "WEEKDAY", "WEEKEND", "WEEKLY"}:
        return
    days = hours = 0
    for _ in range(24 * 400):  # Slurm shows one that is in force or to come: more have never passed
        weekday = time.localtime(_later(one.start_s, days, hours)).tm_wday
        if "HOURLY" in one.flags:
            hours += 1
        elif "WEEKLY" in one.flags:
            days += 7
        elif "WEEKDAY" in one.flags:
            days += 3 if weekday == _SATURDAY - 1 else 2 if weekday == _SATURDAY else 1
        elif "WEEKEND" in one.flags:
            days += 1 if weekday == _SATURDAY else 6 if weekday == _SUNDAY else _SATURDAY - weekday
        else:
            days += 1
        yield _later(one.start_s, days, hours), _later(one.end_s, days, hours)


def _later(at_s: float, days: int, hours: int) -> float:
    """The moment so many days and hours later by the local calendar: a day is 23 hours long when the clocks go
    forward."""
    moment = time.localtime(at_s)
    moved = (*moment[:2], moment.tm_mday + days, moment.tm_hour + hours, *moment[4:8], -1)
    return time.mktime(moved)
