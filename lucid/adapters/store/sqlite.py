"""The store in one SQLite file: WAL, so that ``lucidctl`` reads while the daemon writes; every write under the
lease checks its fencing token in the same transaction."""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from lucid.adapters.bounded import MOST, finite
from lucid.adapters.checked import checked
from lucid.adapters.gpu.spool import Batch, JobSamples
from lucid.adapters.left_out import LeftOut
from lucid.adapters.store.file import error_of, open_file, set_aside
from lucid.adapters.store.port import (
    ActionRow,
    DecisionRow,
    JobNote,
    Lease,
    LeaseLost,
    PredictionRow,
    ProfileRow,
    StoreDamaged,
)
from lucid.adapters.store.rows import (
    decision_row,
    ended_of,
    note_of,
    of_job,
    prediction_row,
    profile_row,
    texts_of,
)
from lucid.adapters.store.samples import bound_samples, put_samples, samples_since
from lucid.adapters.store.watch import StoreWatch
from lucid.core.job import Ended, JobProfile
from lucid.core.prediction import prediction_to_dict
from lucid.core.reason import reason_to_dict
from lucid.errors import StoreError

__all__ = ["SqliteStore"]

_R = TypeVar("_R")


class SqliteStore:
    """See ``Store``. With ``read_only`` the file must exist and is never written. ``left_out`` learns of rows that
    cannot be read.

    Raises:
        StoreError: the file cannot be opened, is damaged, or was written by a later version of Lucid.
    """

    def __init__(
        self,
        path: Path,
        *,
        read_only: bool = False,
        wait_s: float = 5.0,
        left_out: LeftOut | None = None,
        shared: bool = False,
    ) -> None:
        """``shared``: several hosts have the file (``daemon.shared_state``)."""
        self.path = path
        self._left_out = LeftOut() if left_out is None else left_out
        self._read_only, self._wait_s, self._shared = read_only, wait_s, shared
        self._lock = threading.RLock()
        self._open()

    def _open(self) -> None:
        self._db = open_file(self.path, read_only=self._read_only, wait_s=self._wait_s, shared=self._shared)
        self._db.text_factory = _text
        self._watch = None if self._read_only else StoreWatch(self.path)

    def renew(self, now_s: float) -> bool:
        """Where only the journal is gone, what it held is written into the file. Else a file that is still where it
        was is damaged, and moved aside, and so is what somebody else has put there, if it is no store. What was open
        is closed last: SQLite leaves the journal of the new file alone."""
        with self._lock:
            watch, before = self._watch, self._db
            if watch is not None and watch.only_journal_gone and self._save_journal():
                return True
            if watch is not None and watch.own_file_there:
                set_aside(self.path, now_s)
            try:
                self._open()
            except StoreDamaged:
                set_aside(self.path, now_s)
                self._open()
            with suppress(sqlite3.Error):
                before.close()
            return False

    def _save_journal(self) -> bool:
        try:
            (busy, *_) = self._db.execute("PRAGMA wal_checkpoint(FULL)").fetchone()
            if busy:
                return False
            self._db.close()  # before the next is opened: in one process they would share the old journal's index
            self._open()
        except (sqlite3.Error, StoreError):
            return False
        return True

    @contextmanager
    def _read(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            try:
                yield self._db
            except (sqlite3.Error, ValueError, KeyError, TypeError, OverflowError) as error:
                words = f"{self.path}: cannot be read ({error}); move it away if it is damaged"
                raise error_of(error, words) from None

    @contextmanager
    def _write(self, token: int | None = None) -> Iterator[sqlite3.Connection]:
        with self._lock:
            if self._watch is not None:
                self._watch.look()
            try:
                self._db.execute("BEGIN IMMEDIATE")
                try:
                    if token is not None:
                        row = self._db.execute("SELECT token, holder FROM lease").fetchone()
                        if row is None or row[0] != token:
                            who = "nobody" if row is None else row[1]
                            raise LeaseLost(f"{self.path}: the lease is held by {who} now; this daemon must stop")
                    yield self._db
                    self._db.execute("COMMIT")
                except BaseException:
                    if self._db.in_transaction:
                        self._db.execute("ROLLBACK")
                    raise
            except (sqlite3.Error, ValueError, TypeError, OverflowError) as error:
                words = f"{self.path}: cannot be written ({error}); check free space and owner"
                raise error_of(error, words) from None

    @property
    def journal(self) -> str:
        """How the file is journalled: ``wal``, or ``delete``, ``truncate`` and the like."""
        with self._read() as db:
            return str(db.execute("PRAGMA journal_mode").fetchone()[0])

    # -- lease -----------------------------------------------------------------------------------------------

    def take_lease(self, holder: str, now_s: float, lasts_s: float, takeover: Lease | None = None) -> Lease | None:
        """New or renewed. A new holder gets a higher token; its own renewal keeps the token. What is written here is
        read back as another process would, so that every turn begins with a store that others see."""
        with self._write() as db:
            row = self._lease_row(db)
            if row is not None and row[0] == holder:
                token = int(row[1])
            elif row is None or row[2] <= now_s or not row[0] or Lease(*row) == takeover:
                token = 1 if row is None else int(row[1]) + 1
            else:
                return None
            until_s = now_s + lasts_s
            db.execute("INSERT OR REPLACE INTO lease VALUES (1, ?, ?, ?)", (holder, token, until_s))
        if self._watch is not None:
            self._must_be_seen(self._watch, (holder, token))
            self._watch.check_now_and_then()
        return Lease(holder, token, until_s)

    def _must_be_seen(self, watch: StoreWatch, written: tuple[str, int]) -> None:
        if watch.read_as_others(self._wait_s) == written:
            return
        own = self.lease()
        if own is None or (own.holder, own.token) != written:
            raise LeaseLost(f"{self.path}: the lease was taken by another daemon as it was renewed")
        if watch.read_as_others(self._wait_s) != written:
            raise StoreDamaged(f"{self.path}: others do not see the lease that was just written there")

    def leased_until_s(self) -> float | None:
        """``None`` without a row."""
        with self._read() as db:
            row = db.execute("SELECT until_s FROM lease").fetchone()
            return None if row is None else float(row[0])

    def lease(self) -> Lease | None:
        """The present one."""
        with self._read() as db:
            row = self._lease_row(db)
        return None if row is None or not row[0] else Lease(*row)

    def _lease_row(self, db: sqlite3.Connection) -> tuple[str, int, float] | None:
        """Holder, token, until when. Without a token that rises nobody can tell who may act: the store is damaged."""
        row = db.execute("SELECT holder, token, until_s FROM lease").fetchone()
        if row is None:
            return None
        holder, token, until_s = row
        if not isinstance(holder, str) or not isinstance(token, int) or not 0 <= token < MOST:
            raise StoreDamaged(f"{self.path}: its lease cannot be read; move the file away")
        return holder, token, finite(until_s)

    def drop_lease(self, token: int) -> None:
        """Keep the token, so that the next one is higher, and the time, which tells how old the store is."""
        with self._write() as db:
            db.execute("UPDATE lease SET holder = '' WHERE token = ?", (token,))

    # -- jobs ------------------------------------------------------------------------------------------------

    def note(self, job_id: str) -> JobNote | None:
        """One note."""
        with self._read() as db:
            row = db.execute("SELECT data FROM notes WHERE job_id = ?", (job_id,)).fetchone()
        if row is None:
            return None
        return note_of(job_id, row[0], lambda error: self._left_out.one("notes", f"job {job_id}", error))

    def notes(self) -> dict[str, JobNote]:
        """All notes."""
        with self._read() as db:
            rows = db.execute("SELECT job_id, data FROM notes").fetchall()
        found = {}
        with self._left_out.look("notes") as look:
            for job_id, data in rows:
                if isinstance(job_id, str):
                    found[job_id] = note_of(job_id, data, partial(look.add, f"job {job_id}"))
        return found

    def put_note(self, note: JobNote, token: int) -> None:
        """Insert or replace."""
        with self._write(token) as db:
            db.execute("INSERT OR REPLACE INTO notes VALUES (?, ?)", (note.job_id, json.dumps(asdict(note))))

    def forget(self, job_ids: Sequence[str], token: int) -> None:
        """Delete notes."""
        with self._write(token) as db:
            db.executemany("DELETE FROM notes WHERE job_id = ?", [(job_id,) for job_id in job_ids])

    def put_profile(self, row: ProfileRow, source: str, token: int) -> bool:
        """Take in once."""
        with self._write(token) as db:
            if db.execute("INSERT OR IGNORE INTO readings VALUES (?, ?)", (source, row.at_s)).rowcount == 0:
                return False
            data = json.dumps(asdict(row.profile))
            db.execute(
                "INSERT OR REPLACE INTO profiles VALUES (?, ?, ?, ?, ?, ?)",
                _writable(row.job_id, row.user, row.name, row.gpus, data, row.at_s),
            )
            return True

    def profiles(self) -> dict[str, ProfileRow]:
        """By job id."""
        with self._read() as db:
            rows = db.execute("SELECT * FROM profiles").fetchall()
        with self._left_out.look("profiles") as look:
            return {row.job_id: row for row in look.each(rows, profile_row, of_job)}

    def profile_like(self, user: str, name: str, gpus: int, since_s: float) -> ProfileRow | None:
        """Latest of that kind."""
        with self._read() as db:
            row = db.execute(
                "SELECT * FROM profiles WHERE user = ? AND name = ? AND gpus = ? AND at_s >= ? "
                "ORDER BY at_s DESC LIMIT 1",
                _writable(user, name, min(gpus, MOST), since_s),
            ).fetchone()
        return None if row is None else self._one("profiles", row, profile_row)

    # -- samples ---------------------------------------------------------------------------------------------

    def put_samples(self, batch: Batch, at_s: float, token: int) -> list[JobSamples]:
        """Samples as the records that samplers write, a row for what came at once."""
        with self._write(token) as db:
            return put_samples(db, batch, at_s)

    def sample_cursors(self) -> dict[str, int]:
        """All of them."""
        with self._read() as db:
            rows = db.execute("SELECT folder, wanted FROM cursors").fetchall()
        return {name: wanted for name, wanted in rows if isinstance(name, str) and isinstance(wanted, int)}

    def samples_missing(self) -> int:
        """Their sum."""
        with self._read() as db:
            return int(db.execute("SELECT coalesce(sum(missing), 0) FROM cursors").fetchone()[0])

    def samples(self, since_s: float = 0.0, most: int | None = None) -> list[JobSamples]:
        """Unpacked."""
        with self._read() as db:
            return samples_since(db, since_s, most, self._left_out)

    def bound_samples(self, before_s: float, most_bytes: int, token: int) -> int:
        """By age, then by size."""
        with self._write(token) as db:
            return bound_samples(db, before_s, most_bytes)

    # -- what was decided and done ---------------------------------------------------------------------------

    def put_decisions(self, rows: Sequence[DecisionRow], token: int) -> None:
        """Append."""
        with self._write(token) as db:
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
        """Oldest first."""
        where, values = ("WHERE at_s >= ?", [since_s]) if job_id is None else ("WHERE job_id = ?", [job_id])
        with self._read() as db:
            rows = db.execute(
                "SELECT at_s, job_id, partition, verb, reasons, placement, beside, mode FROM decisions "
                f"{where} ORDER BY id DESC LIMIT ?",
                [*values, limit],
            ).fetchall()
        with self._left_out.look("decisions") as look:
            return look.each(reversed(rows), decision_row, lambda row: f"a decision about job {row[1]}")

    def put_predictions(self, rows: Sequence[PredictionRow], token: int) -> None:
        """Insert or replace."""
        with self._write(token) as db:
            db.executemany(
                "INSERT OR REPLACE INTO predictions VALUES (?, ?, ?, ?)",
                [_writable(r.job_id, r.at_s, r.user, json.dumps(prediction_to_dict(r.prediction))) for r in rows],
            )

    def prediction(self, job_id: str) -> PredictionRow | None:
        """One row."""
        with self._read() as db:
            row = db.execute("SELECT * FROM predictions WHERE job_id = ?", (job_id,)).fetchone()
        return None if row is None else self._one("predictions", row, prediction_row)

    def begin_action(self, at_s: float, job_id: str, verb: str, detail: str, token: int) -> int:
        """Insert with no result."""
        with self._write(token) as db:
            cursor = db.execute(
                "INSERT INTO actions (at_s, job_id, verb, detail, token, result) VALUES (?, ?, ?, ?, ?, '')",
                _writable(at_s, job_id, verb, detail, token),
            )
            return int(cursor.lastrowid or 0)

    def end_action(self, action_id: int, result: str, token: int) -> None:
        """Set its result."""
        with self._write(token) as db:
            db.execute("UPDATE actions SET result = ? WHERE id = ?", _writable(result, action_id))

    def actions(self, job_id: str | None = None, limit: int = 1000) -> list[ActionRow]:
        """Oldest first."""
        where, values = ("", []) if job_id is None else ("WHERE job_id = ?", [job_id])
        with self._read() as db:
            rows = db.execute(
                f"SELECT id, at_s, job_id, verb, detail, token, result FROM actions {where} ORDER BY id DESC LIMIT ?",
                [*values, limit],
            ).fetchall()
        with self._left_out.look("actions") as look:
            return look.each(reversed(rows), lambda row: checked(ActionRow(*row)), lambda row: f"action {row[0]}")

    def put_ended(self, rows: Sequence[Ended], token: int) -> None:
        """Each once: a job seen ended again keeps its first entry."""
        with self._write(token) as db:
            db.executemany(
                "INSERT OR IGNORE INTO ended VALUES (?, ?, ?, ?, ?, ?)",
                [
                    _writable(r.job.id, r.end_s, r.ran_s, r.state, json.dumps(asdict(r.job)), _or_null(r.profile))
                    for r in rows
                ],
            )

    def ended(self, since_s: float = 0.0, limit: int = 100_000) -> list[Ended]:
        """Oldest first."""
        with self._read() as db:
            rows = db.execute(
                "SELECT job, end_s, ran_s, state, profile FROM ended WHERE end_s >= ? ORDER BY end_s DESC LIMIT ?",
                (since_s, limit),
            ).fetchall()
        with self._left_out.look("ended jobs") as look:
            return look.each(reversed(rows), lambda row: ended_of(*row), lambda row: f"a job that ended at {row[1]}")

    # -- models, switches, pictures --------------------------------------------------------------------------

    def put_model(self, name: str, version: str, at_s: float, why: str) -> None:
        """Append unless the same version serves already."""
        with self._write() as db:
            row = db.execute("SELECT version FROM models WHERE name = ? ORDER BY id DESC LIMIT 1", (name,)).fetchone()
            if row is None or row[0] != version:
                db.execute(
                    "INSERT INTO models (name, version, at_s, why) VALUES (?, ?, ?, ?)", (name, version, at_s, why)
                )

    def models(self) -> list[tuple[str, str, float, str]]:
        """Oldest first."""
        with self._read() as db:
            rows = db.execute("SELECT name, version, at_s, why FROM models ORDER BY id").fetchall()
        return [(row[0], row[1], row[2], row[3]) for row in rows]

    def setting(self, key: str) -> str | None:
        """One switch."""
        return self.settings().get(key)

    def settings(self) -> dict[str, str]:
        """All switches."""
        with self._read() as db:
            return texts_of(db.execute("SELECT key, value FROM settings").fetchall())

    def set_setting(self, key: str, value: str | None) -> None:
        """Set or take back."""
        with self._write() as db:
            if value is None:
                db.execute("DELETE FROM settings WHERE key = ?", (key,))
            else:
                db.execute("INSERT OR REPLACE INTO settings VALUES (?, ?)", (key, value))

    def put_view(self, name: str, data: Any) -> None:
        """Replace."""
        with self._write() as db:
            db.execute("INSERT OR REPLACE INTO views VALUES (?, ?)", (name, json.dumps(data)))

    def view(self, name: str) -> Any:
        """One picture."""
        with self._read() as db:
            row = db.execute("SELECT data FROM views WHERE name = ?", (name,)).fetchone()
        return None if row is None else self._one("views", (name, row[0]), lambda found: json.loads(found[1]))

    def _one(self, source: str, row: Sequence[Any], read: Callable[[Sequence[Any]], _R]) -> _R | None:
        """A single row; ``None`` where it cannot be read."""
        try:
            return read(row)
        except Exception as error:
            self._left_out.one(source, f"{row[0]}", error)
            return None

    def prune(self, before_s: float) -> int:
        """Old rows go; profiles and readings of that age too."""
        with self._write() as db:
            gone = 0
            for table, column in (
                ("decisions", "at_s"),
                ("predictions", "at_s"),
                ("actions", "at_s"),
                ("ended", "end_s"),
                ("profiles", "at_s"),
                ("readings", "at_s"),
                ("cursors", "at_s"),
            ):
                gone += db.execute(f"DELETE FROM {table} WHERE {column} < ?", (before_s,)).rowcount
            return gone

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._db.close()


def _or_null(profile: JobProfile | None) -> str | None:
    return None if profile is None else json.dumps(asdict(profile))


def _text(content: bytes) -> str:
    """Bytes that are no UTF-8 do not make a whole table unreadable."""
    return content.decode("utf-8", "replace")


def _writable(*values: Any) -> tuple[Any, ...]:
    """For columns: halves of characters, which a name may hold and SQLite cannot, are written out."""
    return tuple(v.encode("utf-8", "backslashreplace").decode() if isinstance(v, str) else v for v in values)
