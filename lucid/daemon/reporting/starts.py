"""Expected starts of waiting jobs: as lucidd stored them, and as every command says them: likely, and 8 in 10."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field
from msgspec.structs import replace

from lucid.core.codec import from_json
from lucid.core.decision import Decision, Plan, Start
from lucid.core.job import Pending
from lucid.core.reason import Reason
from lucid.core.reasons.queue import Reserved
from lucid.core.snapshot import Partition, Snapshot, opens_s
from lucid.orchestrator.forecast.ranges import StartTimes, Wait
from lucid.orchestrator.forecast.run_times import RunTimes

if TYPE_CHECKING:
    from lucid.orchestrator.forecast.plan_ahead import Forecast

STARTS = "starts"
"""Name of the view of expected starts."""
START_TIMES = "start_times"
"""Name of the view of what came true of earlier forecasts (``start_log``)."""
Span = tuple[int, int, int]
"""Whole seconds until a start: early, likely, late (``expected_start``)."""
_AT_ONCE: Span = (0, 0, 0)
_MOST_OLD_S = 60.0
"""How much older than the snapshot that is shown a forecast may be."""


class StartsAhead(Struct, frozen=True):
    """Expected starts. ``starts_in_s``: by waiting job, seconds from ``at_s`` on; ``None`` where no start is
    foreseen. ``ahead_s`` and ``own_ahead_s``: as in ``Forecast``; ``None``: without end."""

    at_s: float
    starts_in_s: Mapping[str, Span | None] = field(name="starts")
    ahead_s: float | None = None
    own_ahead_s: Mapping[str, float | None] = field(default_factory=dict)
    seen: int = 0
    """How many waits had ended by then, on which the ranges rest."""

    def ahead_of(self, job_id: str) -> float:
        """How far ahead was planned for this job, s."""
        ahead_s = self.own_ahead_s.get(job_id, self.ahead_s)
        return math.inf if ahead_s is None else ahead_s

    def in_s(self, job_id: str, now_s: float) -> Span | None:
        """Seconds until the job's start as of ``now_s``; ``None`` where no start is foreseen."""
        return _later(self.starts_in_s.get(job_id), max(now_s - self.at_s, 0.0))


def starts_from_view(data: Any, snapshot: Snapshot, plan: Plan) -> StartsAhead | None:
    """The starts that lucidd foresaw, from the view, as of the snapshot that is shown. ``None`` where they do not
    hold for it: they are too old, or lack a waiting job, or the plan starts other jobs."""
    try:
        told = from_json(StartsAhead, data)
    except ValueError:
        return None  # there is none, or another version of Lucid wrote it
    later_s = snapshot.now_s - told.at_s
    if later_s > _MOST_OLD_S:
        return None
    at_once = {action.job_id for action in plan.actions if isinstance(action.decision, Start)}
    waiting = [entry.job.id for part in snapshot.partitions.values() for entry in part.pending]
    try:
        spans = dict(_as_of(told.starts_in_s, waiting, at_once, later_s))
    except KeyError:
        return None
    return StartsAhead(snapshot.now_s, spans, told.ahead_s, told.own_ahead_s, told.seen)


def dated(reasons: Sequence[Reason], starts: StartsAhead | None) -> Sequence[Reason]:
    """The reasons, in which nodes that are kept for a job are free when that job is expected to start, where that is
    foreseen: people read one date. The same object where that changes nothing."""
    spans = {} if starts is None else starts.starts_in_s
    holders = [r.holder for r in reasons if isinstance(r, Reserved) and spans.get(r.holder) is not None]
    if starts is None or not holders:
        return reasons
    at_s = {holder: starts.at_s + span[1] for holder in holders if (span := spans[holder]) is not None}
    return tuple(
        replace(r, until_s=at_s[r.holder]) if isinstance(r, Reserved) and r.holder in at_s else r for r in reasons
    )


def as_foreseen(plan: Plan, starts: StartsAhead | None) -> Plan:
    """The plan with ``dated`` reasons; the plan itself where it keeps no nodes for jobs whose starts are foreseen."""
    every = {id(one.reasons): one.reasons for part in plan.partitions.values() for one in part.decisions.values()}
    made = {number: dated(reasons, starts) for number, reasons in every.items()}  # many decisions have the same ones
    if all(made[number] is reasons for number, reasons in every.items()):
        return plan

    def of(decision: Decision) -> Decision:
        found = made[id(decision.reasons)]
        return decision if found is decision.reasons else replace(decision, reasons=tuple(found))

    parts = {
        name: replace(part, decisions={job_id: of(one) for job_id, one in part.decisions.items()})
        for name, part in plan.partitions.items()
    }
    return replace(plan, partitions=parts)


def _as_of(
    starts_in_s: Mapping[str, Span | None], waiting: Collection[str], at_once: Collection[str], later_s: float
) -> Iterator[tuple[str, Span | None]]:
    """Each waiting job with its start, so much later.

    Raises: KeyError: nothing is known of a job; or it was to start at once, and still waits."""
    for job_id in waiting:
        span = starts_in_s[job_id]
        if job_id in at_once:
            span = _AT_ONCE
        elif span == _AT_ONCE and later_s >= 0.0:
            raise KeyError(job_id)
        else:
            span = _later(span, later_s)
        yield job_id, span


def _later(span: Span | None, later_s: float) -> Span | None:
    """The span so many seconds later. A job that was to start at once still is."""
    if span is None or span == _AT_ONCE or not later_s:
        return span
    early_s, likely_s, late_s = (max(math.ceil(at_s - later_s), 1) for at_s in span)
    return early_s, likely_s, late_s


def _finite(seconds: float) -> float | None:
    return None if seconds == math.inf else seconds


def start_times_of(data: Any) -> StartTimes:
    """The forecasts and what came true, from the view; empty where there is none, or another version of Lucid wrote
    it."""
    try:
        return StartTimes.from_dict(data)
    except (KeyError, TypeError, ValueError):
        return StartTimes()


def run_times_of(data: Any) -> RunTimes:
    """The errors of estimates, from the same view; empty likewise."""
    try:
        return RunTimes.from_dict(data["run_times"])
    except (KeyError, TypeError, ValueError, AttributeError):
        return RunTimes()


def wait_of(partition: Partition, entry: Pending, ahead: Forecast) -> Wait | None:
    """The wait of a job by planning ahead; ``None`` where the job never starts as things are."""
    planned_s = ahead.starts_s.get(entry.job.id)
    ahead_s = ahead.ahead_of(entry.job.id)
    if planned_s is None and (entry.barred or ahead_s == math.inf):
        return None
    reach_s = ahead_s if planned_s is None else planned_s
    spread = ahead.spreads.get(entry.job.id)
    return Wait(partition.name, entry.job.gpus, reach_s, planned_s is not None, partition.profiling, spread)


def expected_start(
    partition: Partition, entry: Pending, ahead: Forecast, times: StartTimes, now_s: float
) -> tuple[int, int, int] | None:
    """Whole seconds until a job's next start: early, likely, late. All 0 for a job that the plan starts now, and only
    for such a job; ``None`` where no start is foreseen.

    Planning ahead may end without a start. Then the range begins where planning ended, and is given only where starts
    of such jobs have been seen. None begins before its nodes open (``opens_s``)."""
    wait = wait_of(partition, entry, ahead)
    if wait is None:
        return None
    if wait.foreseen and wait.planned_s == 0.0:
        return 0, 0, 0
    if not wait.foreseen and not times.knows(wait):
        return None
    said = times.range_of(wait, now_s)
    opens = now_s if partition.profiling else opens_s(partition, entry.job.time_limit_s, now_s)
    least_s = 1 if opens == math.inf else max(math.ceil(opens - now_s), 1)
    early_s, likely_s, late_s = (max(math.ceil(at_s), least_s) for at_s in (said.early_s, said.likely_s, said.late_s))
    return early_s, likely_s, late_s


def starts_ahead(snapshot: Snapshot, ahead: Forecast, times: StartTimes) -> StartsAhead:
    """The expected starts of all jobs that wait in ``snapshot``. ``ahead``: planned from it; ``times``: what came
    true before."""
    spans = {
        entry.job.id: expected_start(partition, entry, ahead, times, snapshot.now_s)
        for partition in snapshot.partitions.values()
        for entry in partition.pending
    }
    own = {job_id: _finite(ahead_s) for job_id, ahead_s in ahead.own_ahead_s.items()}
    return StartsAhead(snapshot.now_s, spans, _finite(ahead.ahead_s), own, len(times.known))
