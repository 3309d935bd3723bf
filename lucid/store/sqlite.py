"""``SqliteStore``: the store in one SQLite file, which ``lucidctl`` reads while the daemon writes.

It uses WAL; every write under the lease checks its fencing token in the same transaction."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any, TypeVar

from lucid.core.as_json import to_json
from lucid.core.checked import checked
from lucid.core.decision import DecisionRow
from lucid.core.job import Ended, JobProfile
from lucid.core.prediction import prediction_to_dict
from lucid.core.reason import reason_to_dict
from lucid.store.lease import LeasedFile
from lucid.store.port import (
    ActionRow,
    JobNote,
    PredictionRow,
    ProfileRow,
    decision_row,
    ended_of,
    note_of,
    of_job,
    prediction_row,
    profile_row,
    texts_of,
)
from lucid.store.view import view_from_text
from lucid.text import finite

_R = TypeVar("_R")


class SqliteStore(LeasedFile):
    """The ``Store`` in SQLite; rows that cannot be read are left out and reported to ``left_out``."""

    # -- jobs ------------------------------------------------------------------------------------------------

    def note(self, job_id: str) -> JobNote | None:
        """One note."""
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
        rows = [(note.job_id, json.dumps(to_json(note))) for note in notes]
        with self.writing(token) as db:
            db.executemany("INSERT OR REPLACE INTO notes VALUES (?, ?)", rows)

    def forget(self, job_ids: Sequence[str], token: int) -> None:
        """Delete notes."""
        with self.writing(token) as db:
            db.executemany("DELETE FROM notes WHERE job_id = ?", [(job_id,) for job_id in job_ids])

    def put_profile(self, row: ProfileRow, source: str, token: int) -> bool:
        """Insert a profile once."""
        with self.writing(token) as db:
            if db.execute("INSERT OR IGNORE INTO readings VALUES (?, ?)", (source, row.at_s)).rowcount == 0:
                return False
            data = json.dumps(to_json(row.profile))
            db.execute(
                "INSERT OR REPLACE INTO profiles VALUES (?, ?, ?, ?, ?, ?)",
                _writable(row.job_id, row.user, row.name, row.gpus, data, row.at_s),
            )
            return True

    def profiles(self) -> dict[str, ProfileRow]:
        """The profiles by job id."""
        with self.reading() as db:
            rows = db.execute("SELECT * FROM profiles").fetchall()
        with self.left_out.reading("profiles") as look:
            return {row.job_id: row for row in look.each(rows, profile_row, of_job)}

    def profile(self, job_id: str) -> ProfileRow | None:
        """The profile of one job."""
        with self.reading() as db:
            row = db.execute("SELECT * FROM profiles WHERE job_id = ?", (job_id,)).fetchone()
        return None if row is None else self._one("profiles", row, profile_row)

    # -- what was decided and done ---------------------------------------------------------------------------

    def put_decisions(self, rows: Sequence[DecisionRow], token: int) -> None:
        """Append decisions."""
        with self.writing(token) as db:
            db.executemany(
                "INSERT INTO decisions (at_s, job_id, partition, verb, reasons, placement, beside, mode) "
                "VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                [
                    (
                        row.at_s,
                        row.job_id,
                        row.partition,
                        row.verb,
                        json.dumps([reason_to_dict(r) for r in row.reasons]),
                        row.placement,
                        row.beside,
                        row.mode,
                    )
                    for row in rows
                ],
            )

    def decisions(self, job_id: str | None = None, since_s: float = 0.0, limit: int = 1000) -> list[DecisionRow]:
        """The latest decisions, oldest first."""
        where, values = ("WHERE at_s >= ?", [since_s]) if job_id is None else ("WHERE job_id = ?", [job_id])
        with self.reading() as db:
            rows = db.execute(
                "SELECT at_s, job_id, partition, verb, reasons, placement, beside, mode FROM decisions "
                f"{where} ORDER BY id DESC LIMIT ?",
                [*values, limit],
            ).fetchall()
        with self.left_out.reading("decisions") as look:
            return look.each(reversed(rows), decision_row, lambda row: f"a decision about job {row[1]}")

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
        with self.reading() as db:
            rows = db.execute(
                "SELECT at_s, job_id, partition, verb, '[]', placement, beside, mode FROM decisions "
                "WHERE at_s >= ? AND verb != 'hold' ORDER BY at_s DESC, id DESC LIMIT ?",
                (since_s, limit),
            ).fetchall()
        with self.left_out.reading("decisions") as look:
            return look.each(reversed(rows), decision_row, lambda row: f"a decision about job {row[1]}")

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
        with self.writing(token) as db:
            db.executemany(
                "INSERT OR REPLACE INTO predictions VALUES (?, ?, ?, ?)",
                [_writable(r.job_id, r.at_s, r.user, json.dumps(prediction_to_dict(r.prediction))) for r in rows],
            )

    def prediction(self, job_id: str) -> PredictionRow | None:
        """The latest prediction of one job."""
        with self.reading() as db:
            row = db.execute("SELECT * FROM predictions WHERE job_id = ?", (job_id,)).fetchone()
        return None if row is None else self._one("predictions", row, prediction_row)

    def begin_action(self, at_s: float, job_id: str, verb: str, detail: str, token: int) -> int:
        """Insert an action with no result."""
        with self.writing(token) as db:
            cursor = db.execute(
                "INSERT INTO actions (at_s, job_id, verb, detail, token, result) VALUES (?, ?, ?, ?, ?, '')",
                _writable(at_s, job_id, verb, detail, token),
            )
            return int(cursor.lastrowid or 0)

    def end_action(self, action_id: int, result: str, token: int) -> None:
        """Set the result of an action."""
        with self.writing(token) as db:
            db.execute("UPDATE actions SET result = ? WHERE id = ?", _writable(result, action_id))

    def actions(self, job_id: str | None = None, limit: int = 1000) -> list[ActionRow]:
        """The latest actions, oldest first."""
        where, values = ("", []) if job_id is None else ("WHERE job_id = ?", [job_id])
        with self.reading() as db:
            rows = db.execute(
                f"SELECT id, at_s, job_id, verb, detail, token, result FROM actions {where} ORDER BY id DESC LIMIT ?",
                [*values, limit],
            ).fetchall()
        with self.left_out.reading("actions") as look:
            return look.each(reversed(rows), lambda row: checked(ActionRow(*row)), lambda row: f"action {row[0]}")

    def put_ended(self, rows: Sequence[Ended], token: int) -> None:
        """Insert ended jobs, each once: a job seen ended again keeps its first entry."""
        with self.writing(token) as db:
            db.executemany(
                "INSERT OR IGNORE INTO ended VALUES (?, ?, ?, ?, ?, ?)",
                [
                    _writable(r.job.id, r.end_s, r.ran_s, r.state, json.dumps(to_json(r.job)), _or_null(r.profile))
                    for r in rows
                ],
            )

    def ended(self, since_s: float = 0.0, limit: int = 100_000) -> list[Ended]:
        """Ended jobs, oldest first."""
        with self.reading() as db:
            rows = db.execute(
                "SELECT job, end_s, ran_s, state, profile FROM ended WHERE end_s >= ? ORDER BY end_s DESC LIMIT ?",
                (since_s, limit),
            ).fetchall()
        with self.left_out.reading("ended jobs") as look:
            return look.each(reversed(rows), lambda row: ended_of(*row), lambda row: f"a job that ended at {row[1]}")

    def ended_ids(self, job_ids: Collection[str]) -> frozenset[str]:
        """The stored ended jobs, by id alone: a row that cannot be read counts all the same."""
        with self.reading() as db:
            wanted = json.dumps(list(job_ids))
            rows = db.execute("SELECT job_id FROM ended WHERE job_id IN (SELECT value FROM json_each(?))", (wanted,))
            return frozenset(job_id for (job_id,) in rows)

    def ended_job(self, job_id: str) -> Ended | None:
        """One job that ended."""
        with self.reading() as db:
            row = db.execute(
                "SELECT job, end_s, ran_s, state, profile FROM ended WHERE job_id = ?", (job_id,)
            ).fetchone()
        return None if row is None else self._one("ended jobs", row, lambda found: ended_of(*found))

    # -- models, switches, views -----------------------------------------------------------------------------

    def settings(self) -> dict[str, str]:
        """All switches."""
        with self.reading() as db:
            return texts_of(db.execute("SELECT key, value FROM settings").fetchall())

    def set_setting(self, key: str, value: str | None) -> None:
        """Set a switch, or take it back."""
        with self.writing() as db:
            if value is None:
                db.execute("DELETE FROM settings WHERE key = ?", (key,))
            else:
                db.execute("INSERT OR REPLACE INTO settings VALUES (?, ?)", (key, value))

    def put_view(self, name: str, data: Any) -> None:
        """Replace a view."""
        with self.writing() as db:
            db.execute("INSERT OR REPLACE INTO views VALUES (?, ?)", (name, json.dumps(data)))

    def snapshot_view(self) -> Any:
        """The view ``snapshot``, as ``view_from_text`` reads it, which takes less memory.

        Raises: StoreError: it cannot be read."""
        with self.reading() as db:
            row = db.execute("SELECT data FROM views WHERE name = 'snapshot'").fetchone()
            return None if row is None else view_from_text(row[0])

    def view(self, name: str) -> Any:
        """One view."""
        with self.reading() as db:
            row = db.execute("SELECT data FROM views WHERE name = ?", (name,)).fetchone()
        return None if row is None else self._one("views", (name, row[0]), lambda found: json.loads(found[1]))

    def _one(self, source: str, row: Sequence[Any], read: Callable[[Sequence[Any]], _R]) -> _R | None:
        """A single row; ``None`` where it cannot be read."""
        try:
            return read(row)
        except Exception as error:
            self.left_out.one(source, f"{row[0]}", error)
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


def _or_null(profile: JobProfile | None) -> str | None:
    return None if profile is None else json.dumps(to_json(profile))


def _writable(*values: Any) -> tuple[Any, ...]:
    """The values for columns, with halves of characters, which a name may hold and SQLite cannot, written out."""
    return tuple(v.encode("utf-8", "backslashreplace").decode() if isinstance(v, str) else v for v in values)
