"""``Comparisons``: the rules between two jobs that would share GPUs, as a verdict and as reasons.

A verdict is asked for every candidate of every waiting job, reasons for at most one of them."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil, inf
from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec import Struct

from lucid.binder.candidates import Candidate
from lucid.core.job import Job, JobProfile, Pending, Restarts, may_restart
from lucid.core.ledger import Ledger
from lucid.core.ports import PairSpeeds, Predictor
from lucid.core.reason import Reason
from lucid.core.reasons.queue import HostFits
from lucid.core.reasons.sharing import (
    GpuMemory,
    PairHarm,
    PairSpeed,
    PairWork,
    PartnerLeaves,
    PartnerOutlasts,
    ShareScores,
)
from lucid.core.times import reached

if TYPE_CHECKING:
    from lucid.config.policy import PackingSettings


_SPEED_ERROR: Final = 0.15
"""How much slower than expected a pair may turn out: the worst plausible error of a measured pair model."""

_WAITS_TIMES: Final = 2.0
_LEAST_SPEED: Final = 0.01
_JUDGE_AGAIN_S: Final = 60.0
"""The steps in which a job that waits for a slower partner is tried again."""

MEMORY, OUTLASTS, _HOST, _LEAVES, SPEED, _WORK, _HARM, ALL_HOLD = range(8)
"""The rules, in order: a verdict names the one that fails first. (Share scores are compared beforehand.)"""


class Verdict(NamedTuple):
    """The rule that fails first, or ``ALL_HOLD``, in which case ``speed`` is the sum of the pair's expected
    speeds."""

    failed: int
    speed: float = 0.0


class Guest(Struct, frozen=True):
    """A job that looks for a partner, under which capacity and at what least speed of either. ``waits``: it would
    otherwise wait, and has done so since ``since_s``; then ``duration_s`` is its expected run time alone."""

    entry: Pending
    profile: JobProfile
    value: float
    score: int
    gss: int
    floor: float
    may_restart: bool
    """Whether the guest may be started over, so that the pair can be parted."""
    waits: bool = False
    duration_s: float = 0.0

    @property
    def since_s(self) -> float:
        """Since when the guest waits."""
        return self.entry.since_s


class Comparisons:
    """Compares jobs of one plan of one partition."""

    def __init__(
        self, ledger: Ledger, predictor: Predictor, settings: PackingSettings, restarts: Restarts, now_s: float
    ) -> None:
        self._now_s = now_s
        self.changes_s = inf
        """The earliest time at which a job will have waited long enough for a slower partner that was refused."""
        self._ledger = ledger
        self._predictor = predictor
        self._settings = settings
        self._restarts: Restarts = restarts

    def outlasts(self, remaining_s: float) -> bool:
        """Whether a job has enough time left to be joined, whichever job asks."""
        return reached(remaining_s, self._settings.least_partner_remaining_s)

    def may_restart(self, job: Job) -> bool:
        """Whether this job may be started over."""
        return bool(may_restart(job, self._restarts))

    def fit(self, guest: Guest, other: Candidate) -> bool:
        """Whether both memory peaks fit on a GPU."""
        return guest.profile.gpu_mem_mib + other.mem_mib < other.capacity_mib

    def judge(self, guest: Guest, other: Candidate) -> Verdict:
        """The verdict on a start beside a job that lasts, by bare numbers; the rules are those of ``reasons``."""
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
            return _VERDICTS[SPEED]
        if guest.waits and own + its < settings.waiting_pair_work:
            work = self._work(guest, other, own, its)
            if not work:
                at_s = other.outlived_s if work.needs_s is None else guest.since_s + work.needs_s
                if at_s > self._now_s:
                    self.changes_s = min(self.changes_s, at_s)
                return _VERDICTS[_WORK]
        if not (self._parts(guest, other) or self._harm(other, own, its)):
            return _VERDICTS[_HARM]
        return Verdict(ALL_HOLD, own + its)

    def reasons(self, guest: Guest, other: Candidate) -> tuple[Reason, ...]:
        """The comparisons between two jobs as reasons, up to the first that fails."""
        made: list[Reason] = []
        for reason in self._all(guest, other):
            made.append(reason)
            if not reason:
                break
        return tuple(made)

    def _all(self, guest: Guest, other: Candidate) -> Iterator[Reason]:
        """The comparisons of all rules, in order. A rule without a limit is left out."""
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
        speeds = _speeds(found)
        # above both limits it says nothing
        if guest.waits and sum(speeds) < max(settings.waiting_pair_work, settings.least_pair_speed * 2):
            yield self._work(guest, other, *speeds)
        if not self._parts(guest, other):
            yield self._harm(other, *speeds)

    def _work(self, guest: Guest, other: Candidate, own: float, its: float) -> PairWork:
        """The comparison that says whether a waiting job takes this partner, by what the two do together, or by how
        long it has waited."""
        needs_s = self._needs_s(guest, own, its) if _ends_first(guest, other, own, its) else None
        least, waited_s = self._settings.waiting_pair_work, self._now_s - guest.since_s
        return PairWork(other.entry.job.id, own + its, least, waited_s, needs_s)

    def _parts(self, guest: Guest, other: Candidate) -> bool:
        """Whether one of the two may be started over, so that the pair can be parted."""
        return guest.may_restart or self.may_restart(other.entry.job)

    def _harm(self, other: Candidate, own: float, its: float) -> PairHarm:
        return PairHarm(other.entry.job.id, _worst(own, its), self._settings.unparted_harm)

    def _needs_s(self, guest: Guest, own: float, its: float) -> float:
        """How long the job must have waited to take this partner. At half speed each a pair saves nothing, and the
        job delays its partner by as long as it runs: that pays only if it would wait for long. What has lasted for a
        time is expected to last for as long again."""
        missing = max(self._settings.waiting_pair_work - own - its, 0.0)
        if not missing:
            return 0.0
        needs_s = _WAITS_TIMES * missing * guest.duration_s / max(own, _LEAST_SPEED)
        return ceil(needs_s / _JUDGE_AGAIN_S) * _JUDGE_AGAIN_S

    def _asks_host(self, guest: Guest) -> bool:
        return self._ledger.host_limits and (guest.entry.job.cpus > 0 or guest.entry.job.mem_mib > 0)

    def _pair_speed(self, guest: Guest, other: Candidate) -> PairSpeeds:
        return self.pair_speed(guest.profile, other.entry.profile)

    def pair_speed(self, guest: JobProfile | None, host: JobProfile | None) -> PairSpeeds:
        """The predictor's answer on two measured jobs on the same GPUs."""
        assert guest is not None
        assert host is not None
        return self._predictor.pair_speed(guest, host)


def _ends_first(guest: Guest, other: Candidate, own: float, its: float) -> bool:
    """Whether the guest is expected to end before its partner. Else at half speed both end later, and nobody
    earlier."""
    return guest.duration_s * its <= other.remaining_s * own


def _speeds(found: PairSpeeds) -> tuple[float, float]:
    """Expected speeds of a pair; full speed where the predictor has no opinion."""
    return found if isinstance(found, tuple) else (1.0, 1.0)


def _worst(own: float, its: float) -> float:
    """The lowest plausible speed of either job."""
    return max(min(own, its) - _SPEED_ERROR, 0.0)


_VERDICTS = tuple(Verdict(rule) for rule in range(ALL_HOLD))
