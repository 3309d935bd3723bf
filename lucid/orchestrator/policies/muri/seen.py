"""How groups of jobs were seen to run: rounds that were reported, and groups that ran slower than promised.

Groups that ran slower than promised are not made again. Jobs that take turns report how long an iteration takes them;
for two jobs that do not, samplers see how fast they run beside each other (lucid.profiler.pair_watch)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from lucid.core.job import Job, Running
from lucid.orchestrator.policies.muri.interleave import MuriJob, Overhead

_LEAST_KEPT = 0.75
"""The least share of the promised speed: a group below it has broken its promise. Speeds are measured within 0.07 on
a GPU, and a promise is a model's."""
_SAME = 0.2
"""Stage times, as shares of an iteration, that differ by more than this belong to another program."""
_MOST_KEPT = 200
_KEEP_S = 30 * 86400.0
"""A slow group may be tried again after a month: drivers and programs change."""

_LEAST_RATIO, _MOST_RATIO = 0.5, 4.0
"""Bounds of a reported round, as a ratio to the formula's round."""
_COUNTS = 2
"""How many groups the measured cost of the executor counts for."""

Kind = tuple[str, str, int]
"""User, name and number of GPUs of a job."""


@dataclass(frozen=True, slots=True)
class SlowGroup:
    """Kinds of job that ran slower beside each other than promised. ``shares``: what was known of each then. ``seen``
    and ``promised``: normalised speeds, means over the jobs. ``at_s``: when it was last seen, Unix s."""

    kinds: tuple[Kind, ...]
    shares: tuple[tuple[float, ...], ...]
    seen: float
    promised: float
    at_s: float


@dataclass(frozen=True, slots=True)
class TurnsSeen:
    """A group of these kinds of job that took turns. ``ratio``: the round that its members reported over the
    formula's (M5). ``at_s``: when this was first seen, Unix s."""

    kinds: tuple[Kind, ...]
    ratio: float
    at_s: float


_Row = TypeVar("_Row", SlowGroup, TurnsSeen)


def _kept(memory: object, of: type[_Row], now_s: float) -> dict[tuple[Kind, ...], _Row]:
    """The rows of a memory that are not too old, by kinds of job."""
    rows = memory if isinstance(memory, tuple) else ()
    return {row.kinds: row for row in rows if isinstance(row, of) and now_s - row.at_s < _KEEP_S}


class Turns:
    """How much longer rounds are than the formula says: what our executor costs, corrected by what members reported.

    Reports of a group's own kinds come first, from all users. Else reports of groups of as many jobs count, but only
    of this group's users: a user with false reports changes no promise to others."""

    def __init__(self, memory: object, now_s: float, overhead: Overhead) -> None:
        self._rows = _kept(memory, TurnsSeen, now_s)
        self._now_s = now_s
        self._overhead = overhead

    @property
    def memory(self) -> tuple[TurnsSeen, ...]:
        """The reported rounds, kept for the next plan."""
        return tuple(self._rows.values())[-_MOST_KEPT:]

    def observe(self, group: Sequence[Running], period_s: float) -> None:
        """Take in what members of a group report of their turns. ``period_s``: their round by the formula."""
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
        """The factor on the round of a group of these jobs."""
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
    """The slow groups that earlier plans left (``memory``), and those seen now."""

    def __init__(self, memory: object, now_s: float) -> None:
        self._rows = _kept(memory, SlowGroup, now_s)
        self._now_s = now_s

    @property
    def memory(self) -> object:
        """The slow groups, kept for the next plan; ``None`` where there are none."""
        return tuple(self._rows.values())[-_MOST_KEPT:] or None

    def observe(self, group: Sequence[Running], known: Mapping[str, MuriJob], promised: Sequence[float]) -> None:
        """Take in how fast these jobs run beside each other. ``promised``: the normalised speed of each."""
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
        """The record of such a group that was slower than promised; ``None`` also where one of the jobs now does
        something else."""
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
    """Mean speed of the members by their reports of turns; ``None`` unless all report on this group."""
    speeds = [
        known[entry.job.id].solo_s / entry.in_turns[0]
        for entry in group
        if entry.in_turns is not None and entry.in_turns[1] == len(group)
    ]
    return (sum(speeds) / len(speeds), None) if len(speeds) == len(group) else None


def _sampled(group: Sequence[Running], promised: Sequence[float]) -> tuple[float, float | None] | None:
    """Mean speed of a pair by its sampler, which weighs both by their use of the GPU, and the least that may be
    expected. ``None`` for larger groups, and where the sampler has not seen the pair for long enough."""
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
