"""Waiting jobs as rows, and expected starts in words and JSON, for ``lucidctl queue`` and the pages."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from msgspec import Struct

from lucid.config.load import load_settings
from lucid.core.decision import DecisionRow
from lucid.core.job import Job, Pending
from lucid.core.reasons.queue import Reserved
from lucid.daemon.reporting.last_plan import StoredPlan, stored_plan, stored_view
from lucid.daemon.reporting.public_view import Published
from lucid.daemon.reporting.starts import STARTS, StartsAhead, as_foreseen, starts_from_view
from lucid.explain.formatting import duration, gpus, when
from lucid.explain.reasons import short_words
from lucid.explain.story import row_to_dict
from lucid.orchestrator.forecast.ranges import StartRange
from lucid.places import Mode
from lucid.store.sqlite import SqliteStore

if TYPE_CHECKING:
    from lucid.orchestrator.forecast.ranges import StartForecast


class QueueRow(Struct, frozen=True):
    """One waiting job. ``position``: its place in the order in which the policy served the partition's jobs, from 1;
    ``None`` where it starts, or moves on, elsewhere. ``starts_in_s``: seconds until its next start, early, likely and
    late (``expected_start``); ``None`` where no start is foreseen."""

    partition: str
    position: int | None
    entry: Pending
    decision: DecisionRow | None
    starts_in_s: tuple[int, int, int] | None


def queue_rows(last: StoredPlan, starts: StartsAhead) -> list[QueueRow]:
    """All waiting jobs, by partition, each in the plan's order; jobs that leave the partition's queue come first."""
    rows: list[QueueRow] = []
    for name, partition in last.snapshot.partitions.items():
        made = (_row(name, entry, last, starts) for entry in partition.pending)
        rows += sorted(made, key=lambda row: row.position or 0)
    return rows


def _row(name: str, entry: Pending, last: StoredPlan, starts: StartsAhead) -> QueueRow:
    part, job_id = last.plan.partitions.get(name), entry.job.id
    position = None if part is None else part.positions.get(job_id)
    return QueueRow(name, position, entry, last.row(job_id), starts.starts_in_s[job_id])


class QueueRowDict(TypedDict):
    """A row as JSON, for commands and pages."""

    partition: str
    vc: str
    position: int | None
    job: str
    user: str
    gpus: int
    waited_s: float
    estimate_s: float | None
    estimate_by: str
    starts_in_s: tuple[int, int, int] | None
    decision: dict[str, Any] | None


def queue_row_to_dict(row: QueueRow, last: StoredPlan) -> QueueRowDict:
    """A row as JSON."""
    job = row.entry.job
    said = last.snapshot.predictions.get(job.id)
    return {
        "partition": row.partition,
        "vc": job.vc,
        "position": row.position,
        "job": job.id,
        "user": job.user,
        "gpus": job.gpus,
        "waited_s": round(last.snapshot.now_s - row.entry.since_s, 1),
        "estimate_s": None if said is None else round(said.duration_s, 1),
        "estimate_by": "" if said is None else said.duration_source,
        "starts_in_s": row.starts_in_s,
        "decision": None if row.decision is None else row_to_dict(row.decision),
    }


def line_of(row: QueueRow, last: StoredPlan) -> str:
    """The name of the job's queue: its partition. All VCs of a pool have one queue, so there it is the job's VC."""
    return row.entry.job.vc if last.snapshot.partitions[row.partition].quotas else row.partition


def reservations(last: StoredPlan) -> dict[str, list[tuple[Reserved, Job]]]:
    """The jobs for which each partition keeps nodes, as decisions there say, with the comparison that guests must
    pass. The tightest comes first."""
    jobs = {entry.job.id: entry.job for part in last.snapshot.partitions.values() for entry in part.pending}
    found: dict[str, dict[str, tuple[Reserved, Job]]] = {}
    for name, part in last.plan.partitions.items():
        for decision in {id(one.reasons): one for one in part.decisions.values()}.values():
            for reason in decision.reasons:
                if isinstance(reason, Reserved) and reason.holder in jobs:
                    found.setdefault(name, {})[reason.holder] = reason, jobs[reason.holder]
    return {name: sorted(kept.values(), key=lambda one: one[0].room_s) for name, kept in found.items()}


def kept_for(reason: Reserved, job: Job) -> str:
    """``nodes kept for job 49469 (32 GPUs, until about 2026-11-30 11:24)``."""
    return f"nodes kept for job {job.id} ({gpus(job.gpus)}, until about {_minute(reason.until_s)})"


def keepers(row: QueueRow, last: StoredPlan, kept: Sequence[tuple[Reserved, Job]]) -> str:
    """What the nodes are called that the job may not have because they are kept for others. ``kept``: the
    reservations of its partition."""
    said = last.snapshot.predictions.get(row.entry.job.id)
    barred = [one for one in kept if said is None or one[0].room_s < said.duration_s] or kept
    more = f" and {len(barred) - 1} more" if len(barred) > 1 else ""
    return kept_for(*barred[0]) + more if barred else "reserved nodes"


def reservation_words(reason: Reserved, job: Job) -> str:
    """What is kept for a job, and who may start there meanwhile."""
    others = (
        f"others start there if they should take at most {duration(reason.room_s)}" if reason else "no other starts"
    )
    return f"{reason.nodes} {kept_for(reason, job)}: {others}"


def _minute(at_s: float) -> str:
    return when(at_s).rpartition(":")[0]  # it is only expected


_NARROW = 3.0
"""A range whose end is at most so many times its begin is shown by both."""
_ROUND = (
    ("min", 60.0, (2, 5, 10, 15, 20, 30, 45)),
    ("h", 3600.0, (1, 2, 3, 4, 5, 6, 8, 10, 12, 15, 18, 20)),
    ("d", 86400.0, (1, 2, 3, 4, 5, 6, 7)),
)
"""Round lengths of time for the end of a range."""
_SOON_S = 86400.0
"""Of a start that may come at any time, the end of its range is told up to here: "within 28 d" says nothing."""
_ENOUGH = 10


def observed_words(modes: Mapping[str, str], partitions: Iterable[str]) -> str:
    """A note that starts in these partitions are those that Lucid would make, where it only observes; empty
    elsewhere."""
    names = [name for name in dict.fromkeys(partitions) if modes.get(name) == Mode.OBSERVE]
    if not names:
        return ""
    return f"Lucid only observes {', '.join(names)}: Slurm starts jobs there in its own order, and this is Lucid's"


def guess_words(seen: int) -> str:
    """A note that too few waits have ended (``seen``) to say how sure a start is; empty where there were enough."""
    if seen >= _ENOUGH:
        return ""
    waits = "no wait has" if not seen else f"only {seen} wait{'s have' if seen > 1 else ' has'}"
    return f"a first guess: {waits} ended here that could show how sure it is"


def start_words(starts_in_s: tuple[int, int, int] | None, ahead_s: float, barred: bool = False) -> str:
    """When a job starts, to be read after "starts": ``now``, ``in 12 min (8 min to 25 min)``; or for a range that is
    too wide its useful part: ``within 6 h, most likely in 2 h``, ``within a day``; else ``not known yet``.

    Args:
        starts_in_s: early, likely, late, in seconds; ``None`` where no start is foreseen.
        ahead_s: how far the policy planned ahead.
        barred: it never starts as things are."""
    if starts_in_s is None:
        return "-" if ahead_s == math.inf or barred else f"in more than {duration(ahead_s)}"
    early_s, likely_s, late_s = starts_in_s
    if not likely_s:
        return "now"
    if late_s < 60:  # nobody plans by seconds, and no forecast is that sure
        return "within a minute"
    if late_s <= _NARROW * early_s:
        return f"in {duration(likely_s)} ({duration(early_s)} to {duration(late_s)})"
    within = f"within {_at_most(late_s)}"
    if not StartRange(early_s, likely_s, late_s).tells:
        return within if late_s <= _SOON_S else "not known yet"
    return within if 1.25 * likely_s > late_s or late_s <= 600 else f"{within}, most likely in {_about(likely_s)}"


def _at_most(seconds: float) -> str:
    """The least round length of time that is no shorter."""
    for unit, size, counts in _ROUND:
        for count in counts:
            if seconds <= 1.02 * count * size:
                return {"1h": "the hour", "1d": "a day"}.get(f"{count}{unit}", f"{count} {unit}")
    return f"{math.ceil(seconds / 86400.0)} d"


def _about(seconds: float) -> str:
    """The nearest round length of time."""
    if seconds < 600:
        return "minutes"
    unit, size = ("d", 86400.0) if seconds >= 2 * 86400 else ("h", 3600.0) if seconds >= 3000 else ("min", 60.0)
    count = seconds / size if size > 60 else 5 * round(seconds / 300)
    return f"{count:.0f} {unit}"


def waiting_row(last: StoredPlan, starts: StartsAhead, job_id: str) -> QueueRow | None:
    """The row of one job; ``None`` where it does not wait."""
    waiting = ((name, entry) for name, part in last.snapshot.partitions.items() for entry in part.pending)
    return next((_row(name, entry, last, starts) for name, entry in waiting if entry.job.id == job_id), None)


def waits_words(row: QueueRow, last: StoredPlan, now_s: float) -> str:
    """Why a job waits now, in one sentence. ``now_s``: of lucidd's last poll; nothing has changed since the plan."""
    job, kept = row.entry.job, reservations(last).get(row.partition, [])
    place = f", place {row.position} in its queue" if row.position else ""
    words = f"job {job.id} waits for {duration(now_s - row.entry.since_s)} in {line_of(row, last)}{place}"
    words += f": {short_words(row.decision, keepers(row, last, kept))}"
    for reason, holder in kept:
        if holder.id == job.id:
            words += f"; {reason.nodes} nodes are kept for it, to be free by about {_minute(reason.until_s)}"
    return words


def row_starts(row: QueueRow, starts: StartsAhead) -> str:
    """When a waiting job is expected to start, in words."""
    return start_words(row.starts_in_s, starts.ahead_of(row.entry.job.id), bool(row.entry.barred))


def forecast_outcome(known: Mapping[str, StartForecast], job_id: str) -> dict[str, Any] | None:
    """The forecast of a job's start, and what came true: seconds from the forecast on."""
    one = known.get(job_id)
    if one is None:
        return None
    said = one.said
    return {
        "at_s": one.at_s,
        "early_s": round(said.early_s, 1),
        "likely_s": round(said.likely_s, 1),
        "late_s": round(said.late_s, 1),
        "real_s": None if one.real_s is None else round(one.real_s, 1),
        "inside": one.inside,
    }


def outcome_words(told: Mapping[str, Any] | None) -> str:
    """``12 min (8 min to 25 min), was 14 min``; empty where nothing was forecast."""
    if told is None or told["real_s"] is None:
        return ""
    span = f"{duration(told['early_s'])} to {duration(told['late_s'])}"
    return f"{duration(told['likely_s'])} ({span}), was {duration(told['real_s'])}"


def read_stored_starts(store: SqliteStore | Published, config: Path) -> tuple[StoredPlan, StartsAhead]:
    """The plan, and when the waiting jobs are expected to start: as lucidd foresaw it, or planned ahead here where
    that does not hold for the stored plan. ``config``: lucidd's configuration file.

    Raises: ConfigError, StoreError: as ``stored_view``."""
    view = stored_view(store)
    seen = stored_plan(store, view)
    told = starts_from_view(store.view(STARTS), seen.snapshot, seen.plan)
    if told is not None:
        return replace(seen, plan=as_foreseen(seen.plan, told)), told
    from lucid.daemon.reporting.replan import last_plan  # all that planning takes

    last = last_plan(store, view)
    told = last.starts(load_settings(config), config)
    return replace(last, plan=as_foreseen(last.plan, told)), told
