"""Where jobs stood over the last day: from the decisions that lucidd carried out, and the jobs that ended.

Rows are read once each: the first look reads a day, every later one what has come since.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace

from lucid.adapters.slurm.records.field_parsers import parse_placement
from lucid.adapters.store.sqlite import SqliteStore
from lucid.core.placement import Placement

__all__ = ["DAY_S", "History", "Span"]

DAY_S = 86400.0
_KEPT_S = 1.25 * DAY_S
_ROWS = 20_000
_MOVES = ("start", "requeue", "part", "release", "resize", "regroup")


@dataclass(frozen=True, slots=True)
class Span:
    """One stretch of a job on its GPUs; ``end_s`` is ``None`` while it lasts, as far as is known."""

    job_id: str
    partition: str
    placement: Placement
    start_s: float
    beside: str | None = None
    end_s: float | None = None


@dataclass(frozen=True, slots=True)
class _Gone:
    """A job that ended: when, and whose it was."""

    end_s: float
    user: str
    name: str


class History:
    """The spans of the last day. ``take`` reads; the rest may be asked from any thread."""

    def __init__(self) -> None:
        self._spans: dict[str, list[Span]] = {}
        self._gone: dict[str, _Gone] = {}
        self._next_id = -1
        self._ended_s = 0.0
        self._lock = threading.Lock()

    def take(self, store: SqliteStore, now_s: float) -> None:
        """What has come since the last look."""
        with store.reading() as db:
            if self._next_id < 0:
                (first,) = db.execute("SELECT min(id) FROM decisions WHERE at_s >= ?", (now_s - DAY_S,)).fetchone()
                self._next_id = 0 if first is None else int(first)
                self._ended_s = now_s - DAY_S
            marks = ", ".join("?" * len(_MOVES))
            rows = db.execute(
                "SELECT id, at_s, job_id, partition, verb, placement, beside FROM decisions "
                f"WHERE id >= ? AND mode = 'pack' AND verb IN ({marks}) ORDER BY id LIMIT ?",
                (self._next_id, *_MOVES, _ROWS),
            ).fetchall()
            ended = db.execute(
                "SELECT job_id, end_s, job FROM ended WHERE end_s > ? ORDER BY end_s LIMIT ?", (self._ended_s, _ROWS)
            ).fetchall()
        with self._lock:
            for number, at_s, job_id, partition, verb, placement, beside in rows:
                self._next_id = number + 1
                self._moved(job_id, float(at_s), partition, verb, placement, beside)
            for job_id, end_s, job in ended:
                self._ended_s = max(self._ended_s, float(end_s))
                told = json.loads(job)
                self._gone[job_id] = _Gone(float(end_s), str(told.get("user", "")), str(told.get("name", "")))
                self._close(job_id, float(end_s))
            self._forget(now_s - _KEPT_S)

    def _moved(self, job_id: str, at_s: float, partition: str, verb: str, placement: str, beside: str | None) -> None:
        self._close(job_id, at_s)
        if verb in ("start", "resize", "regroup") and placement:
            gone = self._gone.get(job_id)
            end_s = gone.end_s if gone is not None and gone.end_s >= at_s else None
            span = Span(job_id, partition, parse_placement(placement), at_s, beside, end_s)
            self._spans.setdefault(job_id, []).append(span)

    def _close(self, job_id: str, at_s: float) -> None:
        spans = self._spans.get(job_id)
        if spans and spans[-1].end_s is None:
            spans[-1] = replace(spans[-1], end_s=max(at_s, spans[-1].start_s))

    def _forget(self, before_s: float) -> None:
        old = [
            job_id
            for job_id, spans in self._spans.items()
            if spans[-1].end_s is not None and spans[-1].end_s < before_s
        ]
        for job_id in old:
            del self._spans[job_id]
        for job_id in [job_id for job_id, gone in self._gone.items() if gone.end_s < before_s]:
            del self._gone[job_id]

    def spans(self, since_s: float) -> Iterator[Span]:
        """Those that lasted beyond ``since_s``."""
        with self._lock:
            found = [span for spans in self._spans.values() for span in spans]
        return (span for span in found if span.end_s is None or span.end_s > since_s)

    def user_of(self, job_id: str) -> tuple[str, str] | None:
        """User and name of a job that ended in the last day."""
        gone = self._gone.get(job_id)
        return None if gone is None else (gone.user, gone.name)
