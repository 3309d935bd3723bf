"""``lucidctl explain`` of a job that ended: how, why if it ended badly, and what would have helped."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from lucid.adapters.slurm.clients.ended_job import ending_of
from lucid.adapters.store.sqlite import SqliteStore
from lucid.cli.job.ask_slurm import asked
from lucid.config import Settings
from lucid.core.job import Ended
from lucid.efficiency.ending import Ending, why_ended
from lucid.explain.how_ended import plain_ending, with_readings
from lucid.explain.quantities import duration
from lucid.explain.story import Story
from lucid.explain.time_limits import earlier_of, earlier_to_dict, earlier_words

__all__ = ["with_ending"]


def with_ending(story: Story, data: dict[str, Any], ended: Ended, settings: Settings, store: SqliteStore) -> Story:
    """The same, and ``data`` too, with the end of the job, and what a time limit that fits would have brought.
    Accounting is asked about one that ended badly. If it does not answer, only the state is shown."""
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
