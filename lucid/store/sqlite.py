"""``SqliteStore``: the store in one SQLite file, which ``lucidctl`` reads while the daemon writes.

It uses WAL; every write under the lease checks its fencing token in the same transaction. Rows are checked by the
types that their classes name: another version, a hand or a bad disk may have written them."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

from lucid.core.codec import field_names, from_others, to_json
from lucid.core.decision import DecisionRow
from lucid.core.job import Ended
from lucid.core.reason import reason_to_dict
from lucid.store.lease import LeasedFile
from lucid.store.port import ActionRow, JobNote, PredictionRow, ProfileRow, note_of
from lucid.store.view import View, view_from
from lucid.text import finite

_R = TypeVar("_R")


class _Table(NamedTuple, Generic[_R]):
    """A table, with a column for each field of the class of its rows. ``source`` names it in reports of rows that are
    left out, ``which`` one of its rows."""

    source: str
    kind: type[_R]
    columns: str
    which: Callable[[Sequence[Any]], str]

    def read(self, row: Sequence[Any]) -> _R:
        """The value that a row holds; raises where it is none."""
        data = dict(zip(field_names(self.kind), row, strict=True))
        found = {name: json.loads(data[name]) for name in _AS_JSON & data.keys() if data[name] is not None}
        return from_others(self.kind, {**data, **found})


_AS_JSON = frozenset({"job", "prediction", "profile", "reasons"})
"""Fields whose columns hold JSON."""
_PROFILES = _Table("profiles", ProfileRow, "job_id, user, name, gpus, data, at_s", lambda row: f"job {row[0]}")
_DECISIONS = _Table(
    "decisions",
    DecisionRow,
    "at_s, job_id, partition, verb, reasons, placement, beside, mode",
    lambda row: f"a decision about job {row[1]}",
)
_PREDICTIONS = _Table("predictions", PredictionRow, "job_id, at_s, user, data", lambda row: f"{row[0]}")
_ACTIONS = _Table(
    "actions", ActionRow, "id, at_s, job_id, verb, detail, token, result", lambda row: f"action {row[0]}"
)
_ENDED = _Table("ended jobs", Ended, "job, end_s, ran_s, state, profile", lambda row: f"a job that ended at {row[1]}")


class SqliteStore(LeasedFile):
    """The daemon's memory; it holds nothing that Slurm itself could report. Rows that cannot be read are left out and
    reported to ``left_out``. Every method raises ``StoreError`` where the file cannot be read or written; those that
    take a ``token`` raise ``LeaseLost`` once another daemon has the lease. A write to a deleted or replaced file
    raises ``StoreGone``: nobody acts by a store that others do not see."""

    def _rows(self, table: _Table[_R], rest: str, values: Sequence[Any] = (), columns: str = "") -> list[_R]:
        """The rows that a query names, the last one first."""
        name = table.source.partition(" ")[0]
        with self.reading() as db:
            rows = db.execute(f"SELECT {columns or table.columns} FROM {name} {rest}", values).fetchall()
        with self.left_out.reading(table.source) as look:
            return look.each(reversed(rows), table.read, table.which)

    def _of_job(self, table: _Table[_R], job_id: str) -> _R | None:
        """The row of a job; ``None`` where there is none, or none that can be read."""
        name = table.source.partition(" ")[0]
        with self.reading() as db:
            row = db.execute(f"SELECT {table.columns} FROM {name} WHERE job_id = ?", (job_id,)).fetchone()
        return None if row is None else self._one(table.source, row[0], partial(table.read, row))

    def _put(self, into: str, rows: Iterable[Sequence[Any]], token: int) -> None:
        """Write rows; ``into``: how, and into which columns of which table."""
        written = [_writable(*row) for row in rows]
        marks = ", ".join("?" * (into.count(",") + 1))
        with self.writing(token) as db:
            db.executemany(f"INSERT {into} VALUES ({marks})", written)

    # -- jobs ------------------------------------------------------------------------------------------------

    def note(self, job_id: str) -> JobNote | None:
        """The note on one job; ``None`` where there is none."""
        with self.reading() as db:
            row = db.execute("SELECT data FROM notes WHERE job_id = ?", (job_id,)).fetchone()
        if row is None:
            return None
        return note_of(job_id, row[0], lambda error: self.left_out.one("notes", f"job {job_id}", error))

    def notes(self) -> dict[str, JobNote]:
        """All notes by job id."""
        with self.reading() as db:
            rows = db.execute("SELECT job_id, data FROM notes").fetchall()
        found = {}
        with self.left_out.reading("notes") as look:
            for job_id, data in rows:
                if isinstance(job_id, str):
                    found[job_id] = note_of(job_id, data, partial(look.add, f"job {job_id}"))
        return found

    def put_notes(self, notes: Sequence[JobNote], token: int) -> None:
        """Insert or replace these notes."""
        self._put("OR REPLACE INTO notes (job_id, data)", ((note.job_id, note) for note in notes), token)

    def forget(self, job_ids: Sequence[str], token: int) -> None:
        """Delete notes."""
        with self.writing(token) as db:
            db.executemany("DELETE FROM notes WHERE job_id = ?", [(job_id,) for job_id in job_ids])

    def put_profile(self, row: ProfileRow, source: str, token: int) -> bool:
        """Store a profile; ``source`` names the reading (file and version). Returns false if it was stored before."""
        with self.writing(token) as db:
            if db.execute("INSERT OR IGNORE INTO readings VALUES (?, ?)", (source, row.at_s)).rowcount == 0:
                return False
            db.execute("INSERT OR REPLACE INTO profiles VALUES (?, ?, ?, ?, ?, ?)", _writable(*_fields(row)))
            return True

    def profiles(self) -> dict[str, ProfileRow]:
        """The profiles by job id."""
        return {row.job_id: row for row in self._rows(_PROFILES, "ORDER BY rowid DESC")}

    def profile(self, job_id: str) -> ProfileRow | None:
        """The profile of one job."""
        return self._of_job(_PROFILES, job_id)

    # -- what was decided and done ---------------------------------------------------------------------------

    def put_decisions(self, rows: Sequence[DecisionRow], token: int) -> None:
        """Append decisions."""
        self._put(f"INTO decisions ({_DECISIONS.columns})", map(_fields, rows), token)

    def _latest(self, table: _Table[_R], job_id: str | None, limit: int) -> list[_R]:
        """The latest rows, of one job or of all, oldest first."""
        where, values = ("", []) if job_id is None else ("WHERE job_id = ?", [job_id])
        return self._rows(table, f"{where} ORDER BY id DESC LIMIT ?", [*values, limit])

    def decisions(self, job_id: str | None = None, limit: int = 1000) -> list[DecisionRow]:
        """The latest ``limit`` decisions, oldest first."""
        return self._latest(_DECISIONS, job_id, limit)

    def tasks(self, job_id: str) -> list[str]:
        """The tasks of an array that have decisions."""
        with self.reading() as db:
            rows = db.execute(
                "SELECT DISTINCT job_id FROM decisions WHERE job_id >= ? AND job_id < ?",
                _writable(f"{job_id}_", f"{job_id}`"),  # "`" comes after "_"
            ).fetchall()
        return [str(task) for (task,) in rows]

    def moves(self, since_s: float, limit: int) -> list[DecisionRow]:
        """The latest decisions that move a job, without their reasons, oldest first."""
        rest = "WHERE at_s >= ? AND verb != 'hold' ORDER BY at_s DESC, id DESC LIMIT ?"
        return self._rows(_DECISIONS, rest, (since_s, limit), _DECISIONS.columns.replace("reasons", "'[]'"))

    def joined(self, job_id: str, since_s: float = 0.0) -> list[tuple[str, float]]:
        """The jobs that came to share this one's GPUs since then, each with the time, oldest first."""
        with self.reading() as db:
            rows = db.execute(
                "SELECT job_id, at_s FROM decisions WHERE at_s >= ? AND beside = ? AND mode = 'pack' ORDER BY id",
                (since_s, job_id),
            ).fetchall()
        return [(str(other), finite(at_s)) for other, at_s in rows]

    def put_predictions(self, rows: Sequence[PredictionRow], token: int) -> None:
        """Insert or replace predictions."""
        self._put(f"OR REPLACE INTO predictions ({_PREDICTIONS.columns})", map(_fields, rows), token)

    def prediction(self, job_id: str) -> PredictionRow | None:
        """The latest prediction of one job."""
        return self._of_job(_PREDICTIONS, job_id)

    def begin_action(self, at_s: float, job_id: str, verb: str, detail: str, token: int) -> int:
        """Note that something is about to be done; returns its id."""
        with self.writing(token) as db:
            cursor = db.execute(
                "INSERT INTO actions (at_s, job_id, verb, detail, token, result) VALUES (?, ?, ?, ?, ?, '')",
                _writable(at_s, job_id, verb, detail, token),
            )
            return int(cursor.lastrowid or 0)

    def end_action(self, action_id: int, result: str, token: int) -> None:
        """Note the result of an action: ``done``, or the words of the refusal."""
        with self.writing(token) as db:
            db.execute("UPDATE actions SET result = ? WHERE id = ?", _writable(result, action_id))

    def actions(self, job_id: str | None = None, limit: int = 1000) -> list[ActionRow]:
        """The latest actions, oldest first."""
        return self._latest(_ACTIONS, job_id, limit)

    def put_ended(self, rows: Sequence[Ended], token: int) -> None:
        """Insert ended jobs, each once: a job seen ended again keeps its first entry."""
        self._put(f"OR IGNORE INTO ended (job_id, {_ENDED.columns})", ((r.job.id, *_fields(r)) for r in rows), token)

    def ended(self, since_s: float = 0.0, limit: int = 100_000) -> list[Ended]:
        """Ended jobs, oldest first."""
        return self._rows(_ENDED, "WHERE end_s >= ? ORDER BY end_s DESC LIMIT ?", (since_s, limit))

    def ended_ids(self, job_ids: Collection[str]) -> frozenset[str]:
        """The stored ended jobs, by id alone: a row that cannot be read counts all the same."""
        with self.reading() as db:
            wanted = json.dumps(list(job_ids))
            rows = db.execute("SELECT job_id FROM ended WHERE job_id IN (SELECT value FROM json_each(?))", (wanted,))
            return frozenset(job_id for (job_id,) in rows)

    def ended_job(self, job_id: str) -> Ended | None:
        """One job that ended."""
        return self._of_job(_ENDED, job_id)

    # -- models, switches, views -----------------------------------------------------------------------------

    def settings(self) -> dict[str, str]:
        """All switches."""
        with self.reading() as db:
            rows = db.execute("SELECT key, value FROM settings").fetchall()
        return {key: value for key, value in rows if isinstance(key, str) and isinstance(value, str)}

    def set_setting(self, key: str, value: str | None) -> None:
        """Set a switch, or with ``None`` take it back. Needs no lease: ``lucidctl`` does it."""
        with self.writing() as db:
            if value is None:
                db.execute("DELETE FROM settings WHERE key = ?", (key,))
            else:
                db.execute("INSERT OR REPLACE INTO settings VALUES (?, ?)", (key, value))

    def put_view(self, name: str, data: Any) -> None:
        """Replace a view for ``lucidctl`` (any JSON): ``status``, ``snapshot``."""
        with self.writing() as db:
            db.execute("INSERT OR REPLACE INTO views VALUES (?, ?)", (name, json.dumps(data)))

    def last_view(self) -> View | None:
        """What lucidd saw and decided last.

        Raises: StoreError: it cannot be read."""
        with self.reading() as db:
            row = db.execute("SELECT data FROM views WHERE name = 'snapshot'").fetchone()
            return None if row is None else view_from(row[0])

    def view(self, name: str) -> Any:
        """The view of this name, or ``None``."""
        with self.reading() as db:
            row = db.execute("SELECT data FROM views WHERE name = ?", (name,)).fetchone()
        return None if row is None else self._one("views", name, partial(json.loads, row[0]))

    def _one(self, source: str, which: Any, read: Callable[[], _R]) -> _R | None:
        """A single row; ``None`` where it cannot be read."""
        try:
            return read()
        except Exception as error:
            self.left_out.one(source, f"{which}", error)
            return None

    def prune(self, before_s: float) -> int:
        """Delete old rows, profiles and readings of that age among them; returns how many went."""
        with self.writing() as db:
            gone = 0
            for table, column in (
                ("decisions", "at_s"),
                ("predictions", "at_s"),
                ("actions", "at_s"),
                ("ended", "end_s"),
                ("profiles", "at_s"),
                ("readings", "at_s"),
            ):
                gone += db.execute(f"DELETE FROM {table} WHERE {column} < ?", (before_s,)).rowcount
            return gone


def _fields(row: Any) -> list[Any]:
    return [getattr(row, name) for name in field_names(type(row))]


def _writable(*values: Any) -> tuple[Any, ...]:
    """The values for columns: records as JSON, texts with halves of characters, which a name may hold and SQLite
    cannot, written out."""
    return tuple(map(_column, values))


def _column(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if value is None or isinstance(value, int | float):
        return value
    return json.dumps([reason_to_dict(one) for one in value] if isinstance(value, tuple) else to_json(value))
