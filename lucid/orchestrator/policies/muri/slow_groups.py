"""Do groups of Muri's run as fast as was promised? Those that did not are not made again.

Jobs that take turns report how long an iteration takes them there. Of two jobs that do not, samplers see how fast
they run beside each other (lucid.profiler.watch).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lucid.core.job import Job, Running
from lucid.systems.muri import MuriJob, Overhead

__all__ = ["SlowGroup", "SlowGroups", "Turns", "TurnsSeen"]

_LEAST_KEPT = 0.75
"""Of the promised speed: a group below has broken its promise. Speeds are seen within 0.07 on a GPU, and a promise
is a model's."""
_SAME = 0.2
"""Times of a job, as shares of its iteration, that differ by more are another program's."""
_MOST_KEPT = 200
_KEEP_S = 30 * 86400.0
"""After a month a group may be tried again: drivers and programs change."""

_LEAST_RATIO, _MOST_RATIO = 0.5, 4.0
"""Of the formula's round, what a reported one is taken for at the least and at the most."""
_COUNTS = 2
"""What was measured of the executor counts for as many groups as this."""

Kind = tuple[str, str, int]
"""User, name and number of GPUs of a job."""


@dataclass(frozen=True, slots=True)
class SlowGroup:
    """Kinds of job that ran slower beside each other than promised. ``shares``: what was known of each then;
    ``seen`` and ``promised``: normalised speeds, means over the jobs; ``at_s``: when it was seen last, Unix s."""

    kinds: tuple[Kind, ...]
    shares: tuple[tuple[float, ...], ...]
    seen: float
    promised: float
    at_s: float


@dataclass(frozen=True, slots=True)
class TurnsSeen:
    """A group of these kinds of job that took turns: ``ratio`` of the round that its members reported to the
    formula's (M5). ``at_s``: when it was seen so first, Unix s."""

    kinds: tuple[Kind, ...]
    ratio: float
    at_s: float


class Turns:
    """How much longer than the formula's a round is: what our executor costs, corrected by what members reported.

    A group's own kinds count for all. Else those of as many jobs, of nobody but the users of this group: who lies
    about his rounds changes no promise to others.
    """

    def __init__(self, memory: object, now_s: float, overhead: Overhead) -> None:
        rows = memory if isinstance(memory, tuple) else ()
        found = (row for row in rows if isinstance(row, TurnsSeen) and now_s - row.at_s < _KEEP_S)
        self._rows = {row.kinds: row for row in found}
        self._now_s = now_s
        self._overhead = overhead

    @property
    def memory(self) -> tuple[TurnsSeen, ...]:
        """For the next plan."""
        return tuple(self._rows.values())[-_MOST_KEPT:]

    def look(self, group: Sequence[Running], period_s: float) -> None:
        """Jobs that take turns. ``period_s``: their round by the formula."""
        told = [entry.in_turns[0] for entry in group if entry.in_turns and entry.in_turns[1] == len(group)]
        if len(told) < len(group) or not all(entry.job.user for entry in group):
            return
        kinds = tuple(sorted(_kind(entry.job) for entry in group))
        ratio = min(max(sum(told) / len(told) / period_s, _LEAST_RATIO), _MOST_RATIO)
        before = self._rows.get(kinds)
        if before is None or before.ratio != ratio or self._now_s - before.at_s > _KEEP_S / 2:
            self._rows.pop(kinds, None)
            self._rows[kinds] = TurnsSeen(kinds, ratio, self._now_s)

    def factor(self, jobs: Sequence[Job]) -> float:
        """On the round of a group of these jobs."""
        kinds = tuple(sorted(map(_kind, jobs)))
        own, first = self._rows.get(kinds), self._overhead.factor(len(jobs))
        if len(jobs) < 2 or own is not None:
            return first if own is None else own.ratio
        users = {job.user for job in jobs}
        seen = [row.ratio for row in self._rows.values() if len(row.kinds) == len(jobs) and _users(row) <= users]
        return (_COUNTS * first + sum(seen)) / (_COUNTS + len(seen))


def _users(row: TurnsSeen) -> set[str]:
    return {user for user, _, _ in row.kinds}


class SlowGroups:
    """What earlier plans left (``memory``), and what is seen now."""

    def __init__(self, memory: object, now_s: float) -> None:
        rows = memory if isinstance(memory, tuple) else ()
        found = (row for row in rows if isinstance(row, SlowGroup) and now_s - row.at_s < _KEEP_S)
        self._rows = {row.kinds: row for row in found}
        self._now_s = now_s

    @property
    def memory(self) -> object:
        """For the next plan; ``None`` where there is nothing."""
        return tuple(self._rows.values())[-_MOST_KEPT:] or None

    def look(self, group: Sequence[Running], known: Mapping[str, MuriJob], promised: Sequence[float]) -> None:
        """Jobs that run beside each other. ``promised``: the normalised speed of each."""
        told = _in_turns(group, known) or _sampled(group, promised)
        if told is None or not all(entry.job.user for entry in group):
            return
        seen, expected = told[0], told[1] or sum(promised) / len(promised)
        ordered = sorted((entry.job for entry in group), key=_kind)
        kinds = tuple(map(_kind, ordered))
        before = self._rows.pop(kinds, None)
        if seen < _LEAST_KEPT * expected:
            shares = tuple(_shares(known[job.id]) for job in ordered)
            again = before is not None and (before.seen, before.shares) == (seen, shares)
            row = before if again and before is not None else SlowGroup(kinds, shares, seen, expected, self._now_s)
            self._rows[kinds] = row

    def found(self, jobs: Sequence[Job], known: Mapping[str, MuriJob]) -> SlowGroup | None:
        """Was such a group slower than promised? Not where one of them does something else by now."""
        ordered = sorted(jobs, key=_kind)
        row = self._rows.get(tuple(map(_kind, ordered)))
        if row is None:
            return None
        now = [_shares(known[job.id]) for job in ordered]
        alike = all(
            len(one) == len(other) and all(abs(x - y) <= _SAME for x, y in zip(one, other, strict=True))
            for one, other in zip(now, row.shares, strict=True)
        )
        return row if alike else None


def _in_turns(group: Sequence[Running], known: Mapping[str, MuriJob]) -> tuple[float, float | None] | None:
    """Mean speed of the members by what they report of their turns; ``None`` unless all do, of this group."""
    speeds = [
        known[entry.job.id].solo_s / entry.in_turns[0]
        for entry in group
        if entry.in_turns is not None and entry.in_turns[1] == len(group)
    ]
    return (sum(speeds) / len(speeds), None) if len(speeds) == len(group) else None


def _sampled(group: Sequence[Running], promised: Sequence[float]) -> tuple[float, float | None] | None:
    """Mean speed of a pair by their sampler, and the least that may be expected: it weighs both by their use of the
    GPU. ``None`` where it has not seen them for long enough, and of larger groups."""
    if len(group) != 2:
        return None
    speeds = [
        entry.profile.seen_speed
        for entry, partner in zip(group, reversed(group), strict=True)
        if entry.profile is not None and entry.profile.seen_beside == partner.job.id
    ]
    told = [speed for speed in speeds if speed is not None]
    return (sum(told) / len(told), min(promised)) if told else None


def _kind(job: Job) -> Kind:
    return job.user, job.name, job.gpus


def _shares(job: MuriJob) -> tuple[float, ...]:
    return tuple(time / job.solo_s for time in job.stages)
