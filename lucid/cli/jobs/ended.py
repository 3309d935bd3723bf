"""``lucidctl explain`` of a job that ended or is unknown: how it ended and why, by one question to Slurm."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar

from msgspec.structs import replace

from lucid.accounting.endings import Ending, why_ended
from lucid.config.load import Settings
from lucid.core.job import Ended
from lucid.errors import ClusterError
from lucid.explain.formatting import duration
from lucid.explain.story import Story
from lucid.explain.time_limits import earlier_of, earlier_to_dict, earlier_words
from lucid.explain.waste import plain_ending, with_readings
from lucid.slurm.accounting import ending_of
from lucid.slurm.client import Breaker, checked_id
from lucid.slurm.commands import CommandClient
from lucid.slurm.own.waits import left_to_slurm, skipped
from lucid.slurm.records.job import SlurmJob
from lucid.store.sqlite import SqliteStore
from lucid.text import shown

_T = TypeVar("_T")
_PATIENCE_S = 5.0


def asked(settings: Settings, question: Callable[[CommandClient], _T]) -> _T | None:
    """Slurm's answer; ``None`` where there is none within some seconds: the command then shows what it knows."""
    try:
        return question(CommandClient(settings.slurm.prefix, Breaker(time.monotonic), _PATIENCE_S))
    except ClusterError:
        return None


def with_ending(story: Story, data: dict[str, Any], ended: Ended, settings: Settings, store: SqliteStore) -> Story:
    """The story, and ``data`` too, with the end of the job, and the effect of a time limit that fits. Accounting is
    asked about a job that ended badly. If it does not answer, only the state is shown."""
    why = None if ended.state == "COMPLETED" else why_ended(_ending(ended, settings))
    earlier = earlier_of(store, settings, ended)
    data["ended"] = {
        "at_s": ended.end_s,
        "state": ended.state,
        "ran_s": ended.ran_s,
        "cause": None if why is None else str(why.cause),
        "seen": "" if why is None else why.seen,
        "advice": "" if why is None else why.advice,
        "time_limit": None if earlier is None else earlier_to_dict(earlier),
    }
    lines = [] if why is None else [f"why it ended: {why.seen}", f"what would help: {why.advice}"]
    lines += [] if earlier is None else [f"time limit: {earlier_words(earlier)}"]
    event = ended.end_s, f"ended after {duration(ended.ran_s)}: {ended.state}"
    return replace(story, events=[*story.events, event], estimate=[*story.estimate, *lines])


def _ending(ended: Ended, settings: Settings) -> Ending:
    found = asked(settings, lambda slurm: ending_of(slurm, ended.job.id))
    return with_readings(plain_ending(ended) if found is None else found, ended, settings)


def why_unknown(settings: Settings, job_id: str) -> str:
    """Why nothing is stored about a job that does not run, in one sentence; empty where Slurm does not answer."""
    found = asked(settings, lambda slurm: slurm.some_jobs([checked_id(job_id)]))
    if found is None:
        return ""
    return shown(_words(found[0], settings) if found else _gone(settings, job_id))


def _gone(settings: Settings, job_id: str) -> str:
    return (
        f"Slurm knows no job {job_id} now, and nothing is stored of it: the number is wrong, or the job ended more "
        f"than {settings.daemon.keep_days:g} days ago (daemon.keep_days; sacct -j {job_id} may know it)"
    )


def _words(job: SlurmJob, settings: Settings) -> str:
    head = f"nothing was decided about job {job.id}"
    if not job.asks:
        return f"{head}: it asks for no GPU, and Lucid leaves such jobs to Slurm"
    looked_after = set(settings.daemon.partitions) | {settings.daemon.pool.partition}
    named = job.partition.split(",")
    if not looked_after.intersection(named):
        partitions = "partition " + named[0] if len(named) == 1 else "partitions " + " and ".join(named)
        return f"{head}: it is in {partitions}, and Lucid looks after {', '.join(settings.daemon.partitions)} alone"
    if words := left_to_slurm(job) or skipped(job):
        return f"{head}: it was left to Slurm, since {words}"
    if job.pending:
        return f"{head}: lucidd has not seen it yet. lucidctl status says when lucidd looked last"
    return f"{head}: Slurm started it before lucidd saw it wait. It is {job.state.lower()} now"
