"""What a job waits for besides its turn: a begin time, other jobs, or the jobs held before it. Pure.

A new job is not held but *parked*: job_submit.lua gives it a begin time some minutes ahead. slurmctld judges such a
job at once, and refuses what no node can give, which it does not do for a held one. It also ends a parked job's
dependency by its own rules. The begin time is a lease: a job that no lucidd takes over in time starts by itself."""

from __future__ import annotations

import math
from functools import lru_cache

from lucid.slurm.records.fields import parse_mark, resized, says, wrong_start
from lucid.slurm.records.job import SlurmJob
from lucid.store.port import JobNote

GAVE_LESS = "its start gave less than the job asks for"
"""The reason why a job is left to Slurm whose start the task prolog sent back before the script's first line."""
LEASE_S = 300.0
"""How far ahead a parked job's begin time is set, as job_submit.lua does."""
_EARLY_S = 240.0
"""A first lease is renewed when so much of it is left, so that lucidd has time for many jobs."""
_LATE_S = 100.0
"""A later lease is renewed when so much of it is left, or a quarter of the time waited."""
_MOST_LEASE_S = 86400.0
_TURN_S = 600.0
_FAR_FROM_S = 180 * 86400.0
"""A begin time further ahead than this was set by an earlier version of Lucid."""
_REQUEUE_AHEAD_S = 125.0
"""Slurm sets a requeued job's begin time two minutes ahead."""
_JOINS_LATE = frozenset(("wait", "begin", "own"))
"""Keys in the tag of a job that came with a begin time, a dependency or a hold of its user's."""

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
"""Why a job is left to Slurm, in words, by job_submit.lua's key (``skip=``)."""


def left_to_slurm(job: SlurmJob) -> str:
    """Why Lucid changes nothing about a job that it holds and only releases it at its turn, in words; empty for
    others."""
    return _left(job.admin_comment, job.comment, job.partition)


@lru_cache(maxsize=16_384)
def _left(admin_comment: str, comment: str, partition: str) -> str:
    mark = parse_mark(admin_comment) or {}
    if "held" in mark and mark.get("skip"):
        return _words(mark["skip"])
    if mark and says(comment, "off"):
        return _WORDS["asked"]
    if mark and (wrong := wrong_start(comment)):
        return f"{GAVE_LESS}: {wrong}"
    if mark and resized(comment):
        return "its size was changed while it waited"
    return _WORDS["partitions"] if mark and "," in partition else ""


def skipped(job: SlurmJob) -> str:
    """Why a job is left to Slurm by its first request, in words, whether Lucid holds it until its turn or not; empty
    for others."""
    skip = (job.tag or {}).get("skip") or ("asked" if says(job.comment, "off") else "")
    return _words(skip) if skip else ""


def _words(skip: str) -> str:
    return _WORDS.get(skip, "only Slurm can work out what it asks for")


def joined_late(job: SlurmJob) -> bool:
    """Whether the job came with a begin time, a dependency or a hold of its user's. It then queues behind the jobs
    held before it, and is an ordinary job from there on."""
    tag = job.tag or {}
    return not _JOINS_LATE.isdisjoint(tag) and "held" in tag and not tag.get("skip")


def never_changed(job: SlurmJob) -> bool:
    """Whether job_submit.lua saw that Lucid cannot change the job's request."""
    return "skip" in (job.tag or {})


def whole_array(job: SlurmJob) -> str:
    """The id by which a job is released at its turn: an array too large to be handled task by task goes as one."""
    mark = job.tag or {}
    return job.id.partition("_")[0] if mark.get("skip") == "array" else job.id


def _set_by_lucid(job: SlurmJob, note: JobNote | None, now_s: float) -> bool:
    """Whether the job's begin time is Lucid's own."""
    return _on_lease(job, note) or job.eligible_s > now_s + _FAR_FROM_S


def _on_lease(job: SlurmJob, note: JobNote | None) -> bool:
    """Whether the job waits with a begin time with which job_submit.lua or Lucid parked it. The previous one counts,
    too: the record may be older than the note."""
    return job.leased or (note is not None and job.eligible_s > 0 and job.eligible_s in note.leases)


def in_queue(job: SlurmJob, note: JobNote | None) -> bool:
    """Whether a parked job waits for its turn alone. An array goes into the queue as a whole, by a hold; a job with a
    begin time of its user's or a dependency joins the queue later."""
    if not job.pending or job.held or job.restarts or job.dependency or "_" in job.id:
        return False
    alone = _JOINS_LATE.isdisjoint(job.tag or ()) and not (note is not None and note.depends)
    return alone and _on_lease(job, note)


def parked(job: SlurmJob, note: JobNote | None, now_s: float) -> bool:
    """Whether the job waits with a begin time that Lucid has set."""
    return job.pending and not job.held and job.eligible_s > now_s and _set_by_lucid(job, note, now_s)


def next_lease_s(job: SlurmJob, note: JobNote | None, now_s: float) -> float:
    """The end of the next lease of a parked job (Unix s); 0 while its present lease lasts. Each lease is as long as
    the job has waited, less at most a sixteenth, so that many jobs have the same: a long wait costs few writes, and
    ``squeue --start`` names no time far off."""
    waited_s = max(now_s - job.submit_s, 0.0)
    least_s = _EARLY_S if job.leased else max(_LATE_S, min(waited_s, _MOST_LEASE_S) / 4)
    if parked(job, note, now_s) and least_s <= job.eligible_s - now_s < 2 * _MOST_LEASE_S:
        return 0.0
    lease_s = min(waited_s, _MOST_LEASE_S)
    return float(round(now_s + max(lease_s - lease_s % 2.0 ** (math.frexp(lease_s)[1] - 5), LEASE_S)))


def to_come(until_s: float, now_s: float, most_s: float) -> bool:
    """Whether this moment lies ahead. Not where it is further ahead than Lucid sets it (``most_s``, and as much
    again, at most ten minutes): a clock that was ahead has set it, and nothing waits for that."""
    return now_s < until_s <= now_s + most_s + min(most_s, _TURN_S)


def begins_s(job: SlurmJob, note: JobNote | None, now_s: float) -> float:
    """The begin time ahead (Unix s) that the job's user set, or Slurm at a requeue; 0 where there is none. A job that
    Lucid itself stopped to go on elsewhere does not wait for it."""
    if job.eligible_s <= now_s:
        return 0.0
    if _set_by_lucid(job, note, now_s):
        return job.tagged_begin_s if job.tagged_begin_s > now_s else 0.0
    own = note is not None and note.requeued == job.restarts > 0
    return 0.0 if own and job.eligible_s <= now_s + _REQUEUE_AHEAD_S else job.eligible_s
