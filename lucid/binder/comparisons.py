"""The rules between two jobs, one after the other: as a verdict, and as the reasons that tell it.

A verdict is asked of every candidate for every job that waits, and reasons of one of them at most.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from lucid.binder.candidates import Candidate
from lucid.core.frozen import dataclass
from lucid.core.job import Job, JobProfile, Pending
from lucid.core.ledger import Ledger
from lucid.core.ports import PairSpeeds, Predictor
from lucid.core.reason import (
    GpuMemory,
    HostFits,
    PairHarm,
    PairSpeed,
    PartnerLeaves,
    PartnerOutlasts,
    Reason,
    ShareScores,
)
from lucid.core.restart import Restarts, may_restart
from lucid.core.rounding import past, reached

if TYPE_CHECKING:
    from lucid.config import PackingSettings

__all__ = ["ALL_HOLD", "MEMORY", "OUTLASTS", "Comparisons", "Guest", "Verdict"]

_SPEED_ERROR: Final = 0.15
"""A pair may turn out slower than expected by this: the worst plausible error of a measured pair model."""

MEMORY, OUTLASTS, _HOST, _LEAVES, _SPEED, _HARM, ALL_HOLD = range(7)
"""The rules, in order: a verdict names the one that fails first. (Share scores are compared beforehand.)"""


class Verdict(NamedTuple):
    """Which rule fails first, or ``ALL_HOLD``; then the speeds that the pair is expected to have add up to
    ``speed``."""

    failed: int
    speed: float = 0.0


@dataclass(frozen=True, slots=True)
class Guest:
    """A job that looks for a partner, under which capacity and at what least speed of either."""

    entry: Pending
    profile: JobProfile
    value: float
    score: int
    gss: int
    floor: float
    may_restart: bool
    """May it be started over, so that the pair can be parted?"""


class Comparisons:
    """Compares jobs of one plan of one partition."""

    def __init__(self, ledger: Ledger, predictor: Predictor, settings: PackingSettings, restarts: Restarts) -> None:
        self._ledger = ledger
        self._predictor = predictor
        self._settings = settings
        self._restarts: Restarts = restarts

    def outlasts(self, remaining_s: float) -> bool:
        """Has a job enough time left to be joined? No other job has a part in that."""
        return reached(remaining_s, self._settings.least_partner_remaining_s)

    def may_restart(self, job: Job) -> bool:
        """May this job be started over?"""
        return bool(may_restart(job, self._restarts))

    def fit(self, guest: Guest, other: Candidate) -> bool:
        """Do both memory peaks fit on a GPU?"""
        return guest.profile.gpu_mem_mib + other.mem_mib < other.capacity_mib

    def judge(self, guest: Guest, other: Candidate) -> Verdict:
        """May the job start beside one that lasts? Bare numbers, as in ``told``."""
        settings, job = self._settings, guest.entry.job
        if not self.fit(guest, other):
            return _VERDICTS[MEMORY]
        if self._asks_host(guest) and not self._ledger.host_fits(other.index, job, job.gpus):
            return _VERDICTS[_HOST]
        if settings.priority_ratio is not None and not guest.value <= settings.priority_ratio * other.value:
            return _VERDICTS[_LEAVES]
        found = self._pair_speed(guest, other)
        own, its = _speeds(found)
        if found == "failed" or (found is not None and not min(own, its) >= guest.floor):
            return _VERDICTS[_SPEED]
        harm = 1.0 - _worst(own, its)
        if past(harm, settings.unparted_harm) and not (guest.may_restart or self.may_restart(other.entry.job)):
            return _VERDICTS[_HARM]
        return Verdict(ALL_HOLD, own + its)

    def told(self, guest: Guest, other: Candidate) -> tuple[Reason, ...]:
        """The comparisons between two jobs, up to the first that fails."""
        made: list[Reason] = []
        for reason in self._all(guest, other):
            made.append(reason)
            if not reason:
                break
        return tuple(made)

    def _all(self, guest: Guest, other: Candidate) -> Iterator[Reason]:
        """The rules, in order. A rule without a limit to compare with is left out."""
        settings, job, other_id = self._settings, guest.entry.job, other.entry.job.id
        yield ShareScores(guest.score, other.score, guest.gss)
        yield GpuMemory(other_id, guest.profile.gpu_mem_mib, other.mem_mib, other.capacity_mib)
        yield PartnerOutlasts(other_id, other.remaining_s, settings.least_partner_remaining_s)
        if self._asks_host(guest):
            yield HostFits(job.cpus, job.mem_mib, self._ledger.host_fits(other.index, job, job.gpus))
        if settings.priority_ratio is not None:
            yield PartnerLeaves(other_id, guest.value, other.value, settings.priority_ratio)
        found = self._pair_speed(guest, other)
        own, its = found if isinstance(found, tuple) else (None, None)
        yield PairSpeed(other_id, own, its, guest.floor, self._predictor.name, found == "failed")
        if not (guest.may_restart or self.may_restart(other.entry.job)):
            yield PairHarm(other_id, _worst(*_speeds(found)), settings.unparted_harm)

    def _asks_host(self, guest: Guest) -> bool:
        return self._ledger.host_limits and (guest.entry.job.cpus > 0 or guest.entry.job.mem_mib > 0)

    def _pair_speed(self, guest: Guest, other: Candidate) -> PairSpeeds:
        theirs = other.entry.profile
        assert theirs is not None
        return self._predictor.pair_speed(guest.profile, theirs)


def _speeds(found: PairSpeeds) -> tuple[float, float]:
    """Expected speeds of a pair; full speed where the predictor has no opinion."""
    return found if isinstance(found, tuple) else (1.0, 1.0)


def _worst(own: float, its: float) -> float:
    """The lowest plausible speed of either."""
    return max(min(own, its) - _SPEED_ERROR, 0.0)


_VERDICTS = tuple(Verdict(rule) for rule in range(ALL_HOLD))
