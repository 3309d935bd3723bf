"""Two jobs on the same GPUs that nobody makes wait for their turn: how often they want the same resource at once.

Muri's formula (M5) is about jobs that an executor holds to one order. Jobs that call nothing overlap as chance has
it. Then each is a customer of a closed network of queues whose stations are the resources, and mean value analysis
(Reiser and Lavenberg, J. ACM 27(2), 1980) gives the time of an iteration beside the other: on resource r it takes
``1 + b_r`` times as long, where b_r is the share of time that the other spends there. Over an iteration that is
``1 + conflict``, where the conflict is the sum of ``a_r * b_r``: the chance that both want the same resource at one
moment. The other is slowed by the same factor. This holds where a resource divides itself among those who want it,
as a GPU does that switches between processes every few milliseconds; where each waits for the whole stage of the
other, the one of shorter stages is slower than this says. On one H100 under MPS 15 measured pairs ran as fast as
this says, or faster: by means of both jobs from 2 points below to 20 above (benchmarks/calibrate/measured).
"""

from __future__ import annotations

from collections.abc import Sequence

from lucid.systems.muri.stages import RESOURCES, MuriJob

__all__ = ["MOST_CONFLICT", "conflict"]

MOST_CONFLICT = 1.0 / 3.0
"""Two jobs that conflict more do not share: by the model both then run at three quarters of their speed alone at
least, and do half as much again as one. Two jobs that use three resources alike, or one more than the others,
conflict at least so much, so that no job is paired with another of its own kind."""

_STORAGE = RESOURCES.index("storage")


def conflict(a: MuriJob, b: MuriJob) -> float:
    """How often both want the same resource, as a share of the time (0-1, above 1 for jobs that use several resources
    at once). Time of an iteration in which a job uses none of the resources counts as waiting for storage, because
    nobody knows what it waits for.

    Args:
        a: a job whose stages are the four resources.
        b: another.
    """
    return sum(one * other for one, other in zip(_shares(a), _shares(b), strict=True))


def _shares(job: MuriJob) -> Sequence[float]:
    found = [time / job.solo_s for time in job.stages]
    found[_STORAGE] += max(1.0 - sum(found), 0.0)
    return found
