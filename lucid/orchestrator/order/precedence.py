"""What the site and users have said of a job's place in the queue, over what a policy makes of it.

Slurm adds the priority of a job's QOS and its user's ``--nice`` to the points of age and size. A policy here has no
such points to add them to, so they go before it: jobs of a higher tier first, and among the jobs of one user in one
tier those first that are the least nice. What users say so moves none of the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import TypeVar

from lucid.core.job import Job

__all__ = ["in_precedence"]

_T = TypeVar("_T")
_TIER, _NICE = attrgetter("tier"), attrgetter("nice")


def in_precedence(queue: Iterable[_T], jobs: Sequence[Job]) -> list[_T]:
    """The rows of a queue, which are in a policy's order, in the order of who may go first. ``jobs``: one a row."""
    found = list(queue)
    if not (any(map(_TIER, jobs)) or any(map(_NICE, jobs))):  # most queues are long, and nobody has said anything
        return found
    if len({job.tier for job in jobs}) > 1:
        at = sorted(range(len(jobs)), key=lambda i: -jobs[i].tier)
        found, jobs = [found[i] for i in at], [jobs[i] for i in at]
    if not any(job.nice for job in jobs):
        return found
    places: dict[tuple[str, int], list[int]] = {}
    for i, job in enumerate(jobs):
        places.setdefault((job.user, job.tier), []).append(i)
    for mine in places.values():
        rows = [found[i] for i in sorted(mine, key=lambda i: jobs[i].nice)]
        for i, row in zip(mine, rows, strict=True):
            found[i] = row
    return found
