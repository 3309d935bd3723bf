"""Waiting jobs as rows, and expected starts in words and JSON, for ``lucidctl queue`` and the pages."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lucid.core.decision import DecisionRow
from lucid.core.frozen import frozen_dataclass
from lucid.core.job import Pending
from lucid.core.reasons.queue import Reserved
from lucid.daemon.reporting.last_plan import StoredPlan, stored_plan, stored_snapshot_data
from lucid.daemon.reporting.public_view import Published
from lucid.daemon.reporting.settings import published_settings
from lucid.daemon.reporting.starts import STARTS, StartsAhead, as_foreseen, starts_from_view
from lucid.explain.formatting import duration
from lucid.explain.reasons import decision_text, reason_text
from lucid.explain.story import row_to_dict
from lucid.orchestrator.forecast.ranges import StartRange
from lucid.places import Mode
from lucid.store.sqlite import SqliteStore

if TYPE_CHECKING:
    from lucid.orchestrator.forecast.ranges import StartForecast


@frozen_dataclass(frozen=True, slots=True)
class QueueRow:
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
        part = last.plan.partitions.get(name)
        positions = {} if part is None else part.positions
        for entry in sorted(partition.pending, key=lambda e: positions.get(e.job.id, 0)):
            job_id = entry.job.id
            starts_in_s = starts.starts_in_s[job_id]
            rows.append(QueueRow(name, positions.get(job_id), entry, last.row(job_id), starts_in_s))
    return rows


def queue_row_to_dict(row: QueueRow, last: StoredPlan) -> dict[str, Any]:
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


def why_words(decision: DecisionRow | None) -> str:
    """The decision on a waiting job, in words."""
    if decision is None:
        return "not decided yet"
    if decision.verb != "hold":
        return decision_text(decision)
    return "; ".join(reason_text(reason) for reason in decision.reasons)


_NARROW = 3.0
"""A range whose end is at most so many times its begin is shown by both."""
_ROUND = (
    ("min", 60.0, (2, 5, 10, 15, 20, 30, 45)),
    ("h", 3600.0, (1, 2, 3, 4, 5, 6, 8, 10, 12, 15, 18, 20)),
    ("d", 86400.0, (1, 2, 3, 4, 5, 6, 7)),
)
"""Round lengths of time for the end of a range."""
_ENOUGH = 10
_SAME, _SAME_S = 0.2, 600.0
"""Two times are the same if they differ by no more than this share, or by so many seconds."""


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
    too wide its useful part: ``within 6 h, most likely in 2 h``, ``within a day, more is not known yet``.

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
        return f"{within}, more is not known yet"
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


def kept_words(row: DecisionRow | None, job_id: str, starts_in_s: tuple[int, int, int] | None, now_s: float) -> str:
    """Why a job is expected to start at another time than that until which nodes are kept for it; empty where both
    are about the same."""
    kept = [r for r in (() if row is None else row.reasons) if isinstance(r, Reserved) and r.holder == job_id and r]
    if not kept or starts_in_s is None:
        return ""
    room_s, likely_s = max(kept[0].until_s - now_s, 0.0), starts_in_s[1]
    if abs(likely_s - room_s) <= max(_SAME * room_s, _SAME_S):
        return ""
    other = "later" if likely_s > room_s else "earlier"
    return (
        f"by the estimates of the jobs there its nodes are free in {duration(room_s)}; it is expected {other}, "
        "because such forecasts were off so far"
    )


def starts_of(last: StoredPlan, starts: StartsAhead, job_id: str) -> tuple[dict[str, Any], str] | None:
    """When a waiting job is expected to start, as JSON and in words; ``None`` where it does not wait."""
    for partition in last.snapshot.partitions.values():
        for entry in partition.pending:
            if entry.job.id == job_id:
                found = starts.starts_in_s[job_id]
                return {"starts_in_s": found}, start_words(found, starts.ahead_of(job_id), bool(entry.barred))
    return None


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

    Raises: ConfigError, StoreError: as ``stored_snapshot_data`` and ``stored_plan``."""
    data = stored_snapshot_data(store)
    seen = stored_plan(store, data)
    told = starts_from_view(store.view(STARTS), seen.snapshot, seen.plan)
    if told is not None:
        return replace(seen, plan=as_foreseen(seen.plan, told)), told
    from lucid.daemon.reporting.replan import last_plan  # all that planning takes

    last = last_plan(store, data)
    told = last.starts(published_settings(config), config)
    return replace(last, plan=as_foreseen(last.plan, told)), told
