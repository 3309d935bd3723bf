"""Do pairs of Muri's run as fast as was promised? Those that did not are not made again.

Samplers see how fast two jobs run beside each other (lucid.profiler.watch), whether or not they take turns. Groups of
three and four are not seen: a card's readings cannot be divided among so many.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lucid.core.job import Job, Running
from lucid.systems.muri import MuriJob

__all__ = ["SlowPair", "SlowPairs"]

_LEAST_KEPT = 0.75
"""Of the promised speed: a pair below has broken its promise. Speeds are seen within 0.07 on a GPU, and a promise
is a model's."""
_SAME = 0.2
"""Times of a job, as shares of its iteration, that differ by more are another program's."""
_MOST_KEPT = 200
_KEEP_S = 30 * 86400.0
"""After a month a pair may be tried again: drivers and programs change."""

Kind = tuple[str, str, int]
"""User, name and number of GPUs of a job."""


@dataclass(frozen=True, slots=True)
class SlowPair:
    """Two kinds of job that ran slower beside each other than promised. ``shares``: what was known of each then;
    ``seen`` and ``promised``: normalised speeds; ``at_s``: when it was seen last, Unix s."""

    kinds: tuple[Kind, Kind]
    shares: tuple[tuple[float, ...], tuple[float, ...]]
    seen: float
    promised: float
    at_s: float


class SlowPairs:
    """What earlier plans left (``memory``), and what is seen now."""

    def __init__(self, memory: object, now_s: float) -> None:
        rows = memory if isinstance(memory, tuple) else ()
        found = (row for row in rows if isinstance(row, SlowPair) and now_s - row.at_s < _KEEP_S)
        self._rows = {row.kinds: row for row in found}
        self._now_s = now_s

    @property
    def memory(self) -> object:
        """For the next plan; ``None`` where there is nothing."""
        return tuple(self._rows.values())[-_MOST_KEPT:] or None

    def look(self, pair: Sequence[Running], known: Mapping[str, MuriJob], promised: float) -> None:
        """Two jobs that run beside each other."""
        first, second = sorted(pair, key=lambda entry: _kind(entry.job))
        speeds = [_seen(first, second), _seen(second, first)]
        told = [speed for speed in speeds if speed is not None]
        if not told or not (first.job.user and second.job.user):
            return
        kinds, seen = (_kind(first.job), _kind(second.job)), sum(told) / len(told)
        before = self._rows.pop(kinds, None)
        if seen < _LEAST_KEPT * promised:
            shares = (_shares(known[first.job.id]), _shares(known[second.job.id]))
            again = before is not None and (before.seen, before.shares) == (seen, shares)
            row = before if again and before is not None else SlowPair(kinds, shares, seen, promised, self._now_s)
            self._rows[kinds] = row

    def found(self, a: Job, b: Job, known: Mapping[str, MuriJob]) -> SlowPair | None:
        """Was such a pair slower than promised? Not where either job does something else by now."""
        first, second = sorted((a, b), key=_kind)
        row = self._rows.get((_kind(first), _kind(second)))
        if row is None:
            return None
        now = (_shares(known[first.id]), _shares(known[second.id]))
        alike = all(
            len(one) == len(other) and all(abs(x - y) <= _SAME for x, y in zip(one, other, strict=True))
            for one, other in zip(now, row.shares, strict=True)
        )
        return row if alike else None


def _kind(job: Job) -> Kind:
    return job.user, job.name, job.gpus


def _shares(job: MuriJob) -> tuple[float, ...]:
    return tuple(time / job.solo_s for time in job.stages)


def _seen(entry: Running, partner: Running) -> float | None:
    profile = entry.profile
    return profile.seen_speed if profile is not None and profile.seen_beside == partner.job.id else None
