"""What slurmctld's log says of each job. A slurmctld that was killed gives the numbers of jobs that it has forgotten
out again, so a number may have had several owners: each is told of by itself."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import UTC, datetime

_NAMED = r"JobId=(\d+)(?:_[^ (]*\((\d+)\))?"
_TOLD = re.compile(
    r"\[([\d:.T-]+)\] (?:sched: |sched/backfill: )?"
    r"(Requeuing|_job_complete: requeue|_job_complete:|Allocate|_start_job: Started|_slurm_rpc_submit_batch_job:) "
    rf"{_NAMED}(?: SLUID=\w+)?(?: done| per| NodeList=| in | InitPrio=|$)"
)
_PREEMPTED = re.compile(rf"\[([\d:.T-]+)\] (?:\w+: )?preempted {_NAMED}")
_FORGOTTEN = re.compile(
    r"\[([\d:.T-]+)\] (?:error: Vestigial state files for|Purged files for defunct batch) JobId=(\d+)"
)
_REGISTERED = re.compile(r"\[([\d:.T-]+)\] error: Registered PENDING JobId=(\d+)")
_KINDS = {"submit": "submitted", "equeu": "requeued", "complete": "completed"}
_TOGETHER_S = 2.0


@dataclass(frozen=True)
class Told:
    """Of one job. Times are seconds since the epoch. ``since_s``: when it got its number, or was first named."""

    since_s: float = 0.0
    submitted: list[float] = field(default_factory=list)
    started: list[float] = field(default_factory=list)
    requeued: list[float] = field(default_factory=list)
    completed: list[float] = field(default_factory=list)
    preempted: list[float] = field(default_factory=list)
    forgotten: list[float] = field(default_factory=list)
    """It found the job's files when it started, and no record of the job."""
    registered: list[float] = field(default_factory=list)
    """A node said that it runs this number, and to slurmctld the job was pending."""


class Log:
    """All jobs that the log names, by number, those that had the same number in order of time."""

    def __init__(self, jobs: dict[str, list[Told]]) -> None:
        self._jobs = jobs

    def of(self, job: str, at_s: float) -> Told | None:
        """Of the job that had this number then."""
        return next((told for told in reversed(self._jobs.get(job, ())) if told.since_s <= at_s), None)


def told_by(log: str) -> Log:
    """From slurmctld's log (times of UTC). A number has a new owner from its next submission on, and where it goes
    from a job to a task of an array, or to another array's."""
    found: dict[str, list[Told]] = {}
    arrays: dict[str, str] = {}
    for line in log.splitlines():
        if match := _FORGOTTEN.match(line):
            found.setdefault(match[2], [Told(seconds(match[1]))])[-1].forgotten.append(seconds(match[1]))
        elif match := _REGISTERED.match(line):
            found.setdefault(match[2], [Told(seconds(match[1]))])[-1].registered.append(seconds(match[1]))
        elif match := _PREEMPTED.match(line):
            at_s = seconds(match[1])
            found.setdefault(match[3] or match[2], [Told(at_s)])[-1].preempted.append(at_s)
            for other in (jobs[-1] for jobs in found.values()):  # victims in slots: Lucid requeues them just before
                if other.requeued and at_s - other.requeued[-1] <= _TOGETHER_S:
                    other.preempted.append(other.requeued[-1])
        elif match := _TOLD.match(line):
            at_s, number, what = seconds(match[1]), match[4] or match[3], match[2]
            kind = next((kind for word, kind in _KINDS.items() if word in what), "started")
            owners = found.setdefault(number, [])
            if not owners or kind == "submitted" or arrays.get(number, match[3]) != match[3]:
                owners.append(Told(at_s))
            arrays[number] = match[3]
            getattr(owners[-1], kind).append(at_s)
    return Log(found)


def seconds(text: str) -> float:
    """Since the epoch, of a time in the log."""
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()
