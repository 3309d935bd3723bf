"""``Comparisons``: the rules between two jobs that would share GPUs. One list gives verdict and reasons."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
)

if TYPE_CHECKING:
    from lucid.config.policy import PackingSettings


_SPEED_ERROR: Final = 0.15
"""How much slower than expected a pair may turn out: the worst plausible error of a measured pair model."""

LEAST_WORK: Final = 1.1
"""A job that would otherwise wait takes a partner slower than ``least_pair_speed`` at once where the speeds of both
add up to this: the two then do more than one after the other. Else it must be expected to end before its partner, and
waits before for what is missing of it, times twice as long as it would run there."""
_WAITS_TIMES: Final = 2.0
_LEAST_SPEED: Final = 0.01
_JUDGE_AGAIN_S: Final = 60.0
"""The steps in which a job that waits for a slower partner is tried again."""

ORDER: Final = (GpuMemory, PartnerOutlasts, HostFits, PartnerLeaves, PairSpeed, PairWork, PairHarm)
"""The rules, in order. (Share scores are compared beforehand.)"""


class Verdict(NamedTuple):
    """The comparisons of a pair, in order, up to the first that fails; the sum of its expected speeds (2.0 where
    nothing is known); and the comparison that fails, ``None`` where all hold."""

    comparisons: Sequence[Reason]
    speed: float
    refusal: Reason | None

    @property
    def failed(self) -> int:
        """The place in ``ORDER`` of the rule that fails; that behind the last one where all hold."""
        return len(ORDER) if self.refusal is None else ORDER.index(type(self.refusal))


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

    def may_restart(self, job: Job) -> bool:
        """Whether this job may be started over."""
        return bool(may_restart(job, self._restarts))

    def fit(self, guest: Guest, other: Candidate) -> bool:
        """Whether both memory peaks fit on a GPU."""
        return guest.profile.gpu_mem_mib + other.mem_mib < other.capacity_mib

    def judge(self, guest: Guest, other: Candidate) -> Verdict:
        """The verdict on a start beside a job. A rule without a limit is left out."""
        made: list[Reason] = []
        for comparison, speed in self._rules(guest, other):
            made.append(comparison)
            if not comparison:
                return Verdict(made, speed, comparison)
        return Verdict(made, speed, None)

    def _rules(self, guest: Guest, other: Candidate) -> Iterator[tuple[Reason, float]]:
        """The comparisons, each with the sum of the speeds as far as they are known by then."""
        settings, job, other_id = self._settings, guest.entry.job, other.entry.job.id
        both = 2.0
        yield GpuMemory(other_id, guest.profile.gpu_mem_mib, other.mem_mib, other.capacity_mib), both
        yield PartnerOutlasts(other_id, other.remaining_s, settings.least_partner_remaining_s), both
        if self._ledger.host_limits and (job.cpus > 0 or job.mem_mib > 0):
            yield HostFits(job.cpus, job.mem_mib, self._ledger.host_fits(other.index, job, job.gpus)), both
        if settings.priority_ratio is not None:
            yield PartnerLeaves(other_id, guest.value, other.value, settings.priority_ratio), both
        found = self.pair_speed(guest.profile, other.entry.profile)
        own, its = found if isinstance(found, tuple) else (None, None)
        speeds = found if isinstance(found, tuple) else (1.0, 1.0)
        both = sum(speeds)
        yield PairSpeed(other_id, own, its, guest.floor, self._predictor.name, found == "failed"), both
        # above both limits it says nothing
        if guest.waits and both < max(LEAST_WORK, settings.least_pair_speed * 2):
            work = self._work(guest, other, *speeds)
            if not work:
                self._note_changes(guest, other, work)
            yield work, both
        if not (guest.may_restart or self.may_restart(other.entry.job)):
            yield PairHarm(other_id, max(min(speeds) - _SPEED_ERROR, 0.0), settings.unparted_harm), both

    def _note_changes(self, guest: Guest, other: Candidate, work: PairWork) -> None:
        at_s = other.outlived_s if work.needs_s is None else guest.since_s + work.needs_s
        if at_s > self._now_s:
            self.changes_s = min(self.changes_s, at_s)

    def _work(self, guest: Guest, other: Candidate, own: float, its: float) -> PairWork:
        """The comparison that says whether a waiting job takes this partner, by what the two do together, or by how
        long it has waited."""
        needs_s = self._needs_s(guest, own, its) if _ends_first(guest, other, own, its) else None
        waited_s = self._now_s - guest.since_s
        return PairWork(other.entry.job.id, own + its, LEAST_WORK, waited_s, needs_s)

    def _needs_s(self, guest: Guest, own: float, its: float) -> float:
        """How long the job must have waited to take this partner. At half speed each a pair saves nothing, and the
        job delays its partner by as long as it runs: that pays only if it would wait for long. What has lasted for a
        time is expected to last for as long again."""
        missing = max(LEAST_WORK - own - its, 0.0)
        if not missing:
            return 0.0
        needs_s = _WAITS_TIMES * missing * guest.duration_s / max(own, _LEAST_SPEED)
        return ceil(needs_s / _JUDGE_AGAIN_S) * _JUDGE_AGAIN_S

    def pair_speed(self, guest: JobProfile | None, host: JobProfile | None) -> PairSpeeds:
        """The predictor's answer on two measured jobs on the same GPUs."""
        assert guest is not None
        assert host is not None
        return self._predictor.pair_speed(guest, host)


def _ends_first(guest: Guest, other: Candidate, own: float, its: float) -> bool:
    """Whether the guest is expected to end before its partner. Else at half speed both end later, and nobody
    earlier."""
    return guest.duration_s * its <= other.remaining_s * own
