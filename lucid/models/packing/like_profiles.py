"""``LikeProfiles``: profiles predicted from a user's measured jobs of the same or a similar program.

A program is known by its name without what differs from run to run (`name_stem`: case and numbers). The looser the
likeness, the larger the margin on GPU memory: rule 1 of packing rests on that peak, and a job that outgrows it takes
its partner along. Every level predicts the largest peak of its kind."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from lucid.core.job import JobProfile
from lucid.models.duration.features import name_stem

_Key = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Known:
    profile: JobProfile
    """The latest profile of the kind."""
    most_mib: float
    """The largest peak of memory on one GPU among the kind's jobs measured since ``since_s``."""
    at_s: float


KINDS_KEPT: Final = 10_000
"""How many kinds of jobs are remembered. A name may be of one job alone, so there may be as many kinds as jobs."""
_MARGINS: Final = (1.0, 1.1, 1.25)
"""Factors on the largest peak of memory, by level: the same name and GPU count, the same program on as many GPUs, and
the same program on another number of GPUs."""


class LikeProfiles:
    """Measured profiles by likeness, of the ``KINDS_KEPT`` kinds that were measured last. ``keep_s``: older profiles
    are forgotten."""

    def __init__(self, keep_s: float = float("inf")) -> None:
        self._keep_s = keep_s
        self._known: dict[_Key, _Known] = {}
        self._users: set[str] = set()
        """Users with any measured job: each poll asks about every job."""
        self._predicted: dict[_Key, tuple[_Known, JobProfile]] = {}

    def note(self, user: str, name: str, gpus: int, profile: JobProfile, at_s: float) -> None:
        """Record a measured job. A job without a user is similar to no other job."""
        if not user:
            return
        self._users.add(user)
        for key in self._keys(user, name, gpus):
            before = self._known.pop(key, None)
            fresh = before is not None and at_s - before.at_s <= self._keep_s
            most_mib = max(profile.gpu_mem_mib, before.most_mib if before is not None and fresh else 0.0)
            latest = profile if before is None or at_s >= before.at_s else before.profile
            self._known[key] = _Known(latest, most_mib, at_s if before is None else max(at_s, before.at_s))
            if len(self._known) > KINDS_KEPT:  # the kind that was measured longest ago
                gone = next(iter(self._known))
                del self._known[gone]
                self._predicted.pop(gone, None)

    def profile_of(self, user: str, name: str, gpus: int, now_s: float) -> JobProfile | None:
        """The profile predicted for such a job: the same object as long as it is equal; ``None`` if no similar job
        was measured."""
        if user not in self._users:
            return None
        for level, (key, margin) in enumerate(zip(self._keys(user, name, gpus), _MARGINS, strict=False)):
            known = self._known.get(key)
            if known is None or now_s - known.at_s > self._keep_s:
                continue
            told = self._predicted.get(key)
            if told is None or told[0] is not known:
                profile = replace(
                    known.profile,
                    gpu_mem_mib=known.most_mib * margin,
                    seen_speed=None,
                    seen_beside=None,
                    shares=None if level else known.profile.shares,  # of another program they may be all others
                )
                told = self._predicted[key] = (known, profile)
            return told[1]
        return None

    def _keys(self, user: str, name: str, gpus: int) -> Iterator[_Key]:
        """The keys of a job, from the closest likeness to the loosest."""
        yield user, "name", name, str(gpus)
        stem = name_stem(name)
        if stem:
            yield user, "program", stem, str(gpus)
            yield user, "program", stem
