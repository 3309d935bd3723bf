"""What a job waits for besides its turn: a begin time, other jobs, or the jobs held before it. Pure.

Slurm never looks at the dependency of a held job, but it does look at that of a job whose begin time lies ahead. So
a job with a dependency is not held: it is *parked*, with a begin time about a year ahead. Slurm then ends its
dependency by its own rules, and Lucid takes the job over and holds it.
"""

from __future__ import annotations

from lucid.adapters.slurm.nouns import SlurmJob
from lucid.adapters.slurm.text import parse_mark, says

__all__ = ["FAR_S", "begins_s", "far", "joined_late", "left_to_slurm", "never_changed", "parked", "whole_array"]

FAR_S = 360 * 86400.0
"""How far ahead a parked job's begin time is set, as job_submit.lua does."""
_FAR_FROM_S = 180 * 86400.0
"""A begin time further ahead than this was set by Lucid."""
_AHEAD_S = 60.0
"""A begin time within this is none: as in job_submit.lua."""
_REQUEUE_AHEAD_S = 125.0
"""Slurm sets a requeued job's begin time two minutes ahead."""

_WORDS = {
    "asked": "its comment says lucid:off",
    "partitions": "it names several partitions",
    "het": "it is part of a heterogeneous job",
    "interactive": "it is interactive",
    "address": "it asks for GPU types that Lucid does not know",
    "socket": "it asks for GPUs by socket",
    "tasks": "its number of tasks follows from its GPUs (--ntasks-per-gpu)",
    "array": "it is an array of more than 1,000 tasks",
    "whole": "it asks for whole nodes without saying how many GPUs",
    "request": "its request cannot be read",
}
"""job_submit.lua's words (``skip=``)."""


def left_to_slurm(job: SlurmJob) -> str:
    """Why Lucid changes nothing about a job that it holds and only lets it go at its turn, in words; empty for
    others."""
    mark = parse_mark(job.admin_comment) or {}
    if "held" in mark and mark.get("skip"):
        return _WORDS.get(mark["skip"], "only Slurm can work out what it asks for")
    if mark and says(job.comment, "off"):
        return _WORDS["asked"]
    return _WORDS["partitions"] if mark and "," in job.partition else ""


def joined_late(job: SlurmJob) -> bool:
    """Did it come with a begin time, a dependency or a hold of its user's? Then it queues behind those held before
    it, and is an ordinary job from there on."""
    mark = parse_mark(job.admin_comment) or {}
    return "held" in mark and not mark.get("skip") and bool(mark.keys() & {"wait", "begin", "own"})


def never_changed(job: SlurmJob) -> bool:
    """Did job_submit.lua see that Lucid cannot change its request?"""
    return "skip" in (parse_mark(job.admin_comment) or {})


def whole_array(job: SlurmJob) -> str:
    """The id by which a job is let go at its turn: an array too large to be looked at task by task goes as one."""
    mark = parse_mark(job.admin_comment) or {}
    return job.id.partition("_")[0] if mark.get("skip") == "array" else job.id


def far(job: SlurmJob, now_s: float) -> bool:
    """Did Lucid set its begin time?"""
    return job.eligible_s > now_s + _FAR_FROM_S


def parked(job: SlurmJob, now_s: float) -> bool:
    """Does it wait for other jobs, with a begin time that Lucid has set?"""
    return job.pending and not job.held and far(job, now_s)


def begins_s(job: SlurmJob, now_s: float) -> float:
    """The begin time that its user set and that has not come (Unix s); 0 where there is none."""
    ahead_s = _AHEAD_S + (_REQUEUE_AHEAD_S if job.restarts else 0.0)  # Slurm starts nothing right after a requeue
    return job.eligible_s if job.eligible_s > now_s + ahead_s and not far(job, now_s) else 0.0
