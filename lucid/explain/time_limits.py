"""Jobs that would have started earlier with a shorter time limit, in rows and in words."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from msgspec import Struct

from lucid.config.load import Settings
from lucid.core.decision import Hold
from lucid.core.job import Ended
from lucid.core.reasons.queue import Backfill, Closes, Reserved
from lucid.core.times import DAY_S
from lucid.daemon.reporting.limit_replay import Earlier, Replayed, recorded_s, replay_limits
from lucid.daemon.reporting.waste_inputs import job_uses
from lucid.explain.formatting import duration
from lucid.explain.reasons import limit_words
from lucid.profiler.waste import DAYS, FittingLimit, fitting_limits
from lucid.store.plan_records import record_files, records_folder
from lucid.store.sqlite import SqliteStore
from lucid.text import shown

_MOST_RECORDS: Final = 200
"""Most records of one job that are read, so that nobody waits long for the answer."""


_BEFORE: Final[Mapping[str, str]] = {
    "window": "before nodes closed",
    "larger_job": "before a larger job for which nodes were reserved",
    "order": "earlier in the queue",
}
"""What kept a job waiting that a shorter limit would have avoided: the first is a reservation or a maintenance
window."""


class LimitRow(Struct, frozen=True):
    """Jobs of one user and name. ``limit_s`` would have sufficed for all of ``asked``. Records show ``waited`` of
    them waiting; ``earlier`` would have started earlier, each by ``earlier_s`` or more."""

    user: str
    name: str
    limit_s: float
    asked: tuple[FittingLimit, ...]
    waited: int
    earlier: tuple[Earlier, ...]

    @property
    def mean_earlier_s(self) -> float:
        """The mean over the jobs that would have started earlier; 0 where none would have."""
        return sum(one.earlier_s for one in self.earlier) / len(self.earlier) if self.earlier else 0.0


def limit_rows(asked: Iterable[FittingLimit], found: Replayed) -> list[LimitRow]:
    """A row for each user, name and limit, the largest total gain first."""
    groups: defaultdict[tuple[str, str, float], list[FittingLimit]] = defaultdict(list)
    for one in asked:
        groups[one.job.user, one.job.name, one.limit_s].append(one)
    rows = [
        LimitRow(
            user,
            name,
            limit_s,
            tuple(members),
            sum(one.job.job_id in found.waiting for one in members),
            tuple(found.earlier[one.job.job_id] for one in members if one.job.job_id in found.earlier),
        )
        for (user, name, limit_s), members in groups.items()
    ]
    return sorted(rows, key=lambda row: (-sum(one.earlier_s for one in row.earlier), row.user, row.name))


def earlier_of(store: SqliteStore, settings: Settings, ended: Ended) -> Earlier | None:
    """When one ended job would have started with a limit that fits jobs of its user and name. ``None`` where no such
    limit is known, or it would have started no sooner. The newest records of its wait are used."""
    begin_s, since_s = ended.end_s - ended.ran_s, ended.end_s - DAYS * DAY_S
    asked = [one for one in fitting_limits(job_uses(store, {}, settings, since_s)) if one.job.job_id == ended.job.id]
    if not asked:
        return None
    files = [
        path for path in record_files(records_folder(settings)) if ended.job.submit_s <= recorded_s(path) < begin_s
    ]
    return replay_limits(files[-_MOST_RECORDS:], asked).earlier.get(ended.job.id)


def held_back(held: Hold) -> tuple[str, str]:
    """What held a job back, and the words of a window."""
    for reason in held.reasons:
        if isinstance(reason, Closes) and not reason:
            return "window", str(reason.words)
        if isinstance(reason, Backfill | Reserved) and not reason:
            return "larger_job", ""
    return "order", ""


def earlier_words(one: Earlier) -> str:
    """``with --time 4:00:00 it would have started 2.1 h earlier, before nodes closed (maintenance)``."""
    by, window = held_back(one.held)
    why = f" ({shown(window)})" if window else ""
    limit, earlier = limit_words(one.asked.limit_s), duration(one.earlier_s)
    return f"with --time {limit} it would have started {earlier} earlier, {_BEFORE[by]}{why}"


def limits_to_dict(rows: Sequence[LimitRow], found: Replayed) -> dict[str, Any]:
    """The rows as JSON."""
    return {
        "records": found.records,
        "records_left_out": found.unlike,
        "rows": [
            {
                "user": row.user,
                "name": row.name,
                "limit_s": row.limit_s,
                "jobs": len(row.asked),
                "waited": row.waited,
                "earlier": len(row.earlier),
                "mean_earlier_s": round(row.mean_earlier_s, 3),
            }
            for row in rows
        ],
        "jobs": [earlier_to_dict(one) for row in rows for one in row.earlier],
    }


def earlier_to_dict(one: Earlier) -> dict[str, Any]:
    """One job as JSON."""
    job = one.asked.job
    by, window = held_back(one.held)
    return {
        "job": job.job_id,
        "user": job.user,
        "name": job.name,
        "asked_s": job.time_limit_s,
        "limit_s": one.asked.limit_s,
        "ran_s": job.ran_s,
        "started_s": job.begin_s,
        "would_have_started_s": one.at_s,
        "earlier_s": round(one.earlier_s, 3),
        "held_by": by,
        "why": window,
    }
