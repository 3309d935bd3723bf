"""The store's file while it is open: one lock, reads and writes that name it in their errors, and the lease. Every
write under the lease checks its fencing token in the same transaction."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from lucid.adapters.bounded import MOST, finite
from lucid.adapters.left_out import LeftOut
from lucid.adapters.store.file import error_of, open_file, open_memory, set_aside
from lucid.adapters.store.port import Lease, LeaseLost, StoreDamaged
from lucid.adapters.store.watch import StoreWatch
from lucid.errors import StoreError

__all__ = ["IN_MEMORY", "LeasedFile"]

IN_MEMORY = Path(":memory:")
"""In place of a path: nothing is written anywhere, and nobody else sees the store."""


class LeasedFile:
    """An open store. With ``read_only`` the file must exist and is never written. ``left_out`` learns of rows that
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
        self.left_out = LeftOut() if left_out is None else left_out
        self._read_only, self._wait_s, self._shared = read_only, wait_s, shared
        self._lock = threading.RLock()
        self._open()

    def _open(self) -> None:
        if self.path == IN_MEMORY:
            self._db = open_memory()
        else:
            self._db = open_file(self.path, read_only=self._read_only, wait_s=self._wait_s, shared=self._shared)
        self._db.text_factory = _text
        self._watch = None if self._read_only or self.path == IN_MEMORY else StoreWatch(self.path)

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
    def reading(self) -> Iterator[sqlite3.Connection]:
        """For reading, one thread at a time; what SQLite says becomes a ``StoreError`` that names the file."""
        with self._lock:
            try:
                yield self._db
            except (sqlite3.Error, ValueError, KeyError, TypeError, OverflowError) as error:
                words = f"{self.path}: cannot be read ({error}); move it away if it is damaged"
                raise error_of(error, words) from None

    @contextmanager
    def writing(self, token: int | None = None) -> Iterator[sqlite3.Connection]:
        """One transaction, in which ``token`` must be the lease's; all of it or nothing.

        Raises:
            LeaseLost: another daemon has the lease.
            StoreGone, StoreDamaged, StoreError: nothing was written.
        """
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
        with self.reading() as db:
            return str(db.execute("PRAGMA journal_mode").fetchone()[0])

    def take_lease(self, holder: str, now_s: float, lasts_s: float, takeover: Lease | None = None) -> Lease | None:
        """New or renewed. A new holder gets a higher token; its own renewal keeps the token. What is written here is
        read back as another process would, so that every turn begins with a store that others see."""
        with self.writing() as db:
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
            raise StoreDamaged(
                f"{self.path}: another connection does not see the lease that was written a moment ago"
            )

    def leased_until_s(self) -> float | None:
        """``None`` without a row."""
        with self.reading() as db:
            row = db.execute("SELECT until_s FROM lease").fetchone()
            return None if row is None else float(row[0])

    def lease(self) -> Lease | None:
        """The present one."""
        with self.reading() as db:
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
        with self.writing() as db:
            db.execute("UPDATE lease SET holder = '' WHERE token = ?", (token,))

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._db.close()


def _text(content: bytes) -> str:
    """Bytes that are no UTF-8 do not make a whole table unreadable."""
    return content.decode("utf-8", "replace")
