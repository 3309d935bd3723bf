"""Time limits that would have fitted: what jobs of a user and name could have asked for, by how long they ran."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from math import ceil, inf
from typing import Final

from lucid.core.frozen import dataclass
from lucid.efficiency.judge import JobUse

__all__ = ["LEAST_JOBS", "FittingLimit", "fitting_limits", "round_limit_s"]

LEAST_JOBS: Final = 3
"""One short run says nothing of the next."""
_MARGIN: Final = 2.0
"""Over the longest run."""
_LEAST_CUT: Final = 0.5
"""A limit that is proposed is at most this share of what was asked: less is not worth anybody's attention."""
_STEPS: Final = ((7200.0, 900.0), (86400.0, 3600.0), (inf, 6 * 3600.0))
"""Up to so many seconds, a limit is a multiple of so many."""


@dataclass(frozen=True, slots=True)
class FittingLimit:
    """A job that ended, and the ``limit_s`` with which it would have ended as well."""

    job: JobUse
    limit_s: float


def round_limit_s(seconds: float) -> float:
    """The next limit that a person would write: quarters of an hour up to 2 h, hours up to a day, then six hours."""
    step_s = next(step_s for until_s, step_s in _STEPS if seconds <= until_s)
    return ceil(seconds / step_s) * step_s


def fitting_limits(jobs: Iterable[JobUse], limit_s: float | None = None) -> list[FittingLimit]:
    """The jobs that could have asked for a shorter limit, in order. The proposal is twice the longest run of the
    user's jobs of that name, of which there are three or more and none ended at its limit; ``limit_s``: this limit
    instead, for each job that ran within it and asked for more. A job without a limit asked for more than any."""
    groups: defaultdict[tuple[str, str], list[JobUse]] = defaultdict(list)
    ended = [job for job in jobs if not job.running and job.ran_s > 0]
    for job in ended:
        groups[job.user, job.name].append(job)
    proposed = {key: _proposed_s(members) if limit_s is None else limit_s for key, members in groups.items()}
    most = _LEAST_CUT if limit_s is None else 1.0
    found: list[FittingLimit] = []
    for job in ended:
        fits_s = proposed[job.user, job.name]
        asked_s = inf if job.time_limit_s is None else job.time_limit_s
        if fits_s is not None and job.ran_s <= fits_s <= most * asked_s and fits_s < asked_s:
            found.append(FittingLimit(job, fits_s))
    return found


def _proposed_s(likes: Sequence[JobUse]) -> float | None:
    if len(likes) < LEAST_JOBS or any(job.state in ("TIMEOUT", "DEADLINE") for job in likes):
        return None
    if not any(job.state == "COMPLETED" for job in likes):
        return None  # how long they would have taken is not known
    return round_limit_s(_MARGIN * max(job.ran_s for job in likes))
