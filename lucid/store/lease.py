"""``LeasedFile``: the open store file: its lock, the lease with its token, and whether others still read it.

Every write under the lease checks its fencing token in the same transaction. Errors name the file.

SQLite itself does not notice that its files were deleted, replaced, cut or overwritten: it goes on with what it has
in memory and with files that have no name any more. So before every write three ``stat`` check which files lie at the
paths, and whether one has become shorter (then it is read whole). Once a turn a new reader reads the lease. When the
file has changed (lucidd itself changes it only at SQLite's checkpoints), and every ten minutes, SQLite's own check
reads it whole, in a thread of its own and through a connection of its own. No file of the store is opened but through
SQLite: closing one would end the locks of the whole process."""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from lucid.errors import StoreError
from lucid.left_out import LeftOut
from lucid.store.file import check_file, error_of, open_file, open_memory, reader, set_aside
from lucid.store.port import Lease, LeaseLost, StoreDamaged, StoreGone
from lucid.text import MOST, finite

CHECK_EVERY_S = 600.0
_LEAST_S = 5.0
_SHARE = 100.0
"""A check that takes a second is not repeated before so many seconds have passed: at most 1 % of the time."""


class StoreWatch:
    """Watches one open store; made anew whenever the store is opened."""

    def __init__(self, path: Path, *, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._path, self._clock_s = path, clock_s
        parts = {part: _stat(part) for part in (path.with_name(path.name + end) for end in ("", "-wal", "-shm"))}
        self._parts = {part: found[0] for part, found in parts.items() if found is not None}
        """The files as they were when the store was opened."""
        self._sizes = {part: found[1] for part, found in parts.items() if found is not None}
        self._checked_s, self._rest_s, self._checked_at = clock_s(), _LEAST_S, self._changed_at()
        self._thread: threading.Thread | None = None
        self._found: StoreDamaged | None = None

    def before_write(self) -> None:
        """Check the files before a write.

        Raises: StoreGone: a file was deleted or replaced. StoreDamaged: one was cut, or the last check found damage.
        StoreError: one was cut, and cannot be read at present."""
        self._same_file()
        if self._found is not None:
            raise self._found

    def _same_file(self) -> None:
        for part, identity in self._parts.items():
            now = _stat(part)
            if now is None or now[0] != identity:
                what = "was deleted" if now is None else "was replaced"
                raise StoreGone(f"{part}: was deleted or replaced while it was open ({what})")
            if now[1] < self._sizes[part]:
                check_file(self._path)  # sqlite3's VACUUM and TRUNCATE leave it whole; truncate does not
            self._sizes[part] = now[1]

    @property
    def only_journal_gone(self) -> bool:
        """Whether the store's own file is there and as long as it was, and only its journal was deleted, or replaced
        by an empty one. Then nothing is lost yet: all of it can still be written into the file."""
        return self._found is None and self.own_file_there and not any(map(self._lost, self._parts))

    def _lost(self, part: Path) -> bool:
        """Whether what was written into this file is no longer to be had, or is mixed with what others wrote."""
        now = _stat(part)
        if now is None:
            return part == self._path
        if now[0] == self._parts[part]:
            return now[1] < self._sizes[part]
        return now[1] > 0 and part.name.endswith("-wal")

    @property
    def own_file_there(self) -> bool:
        """Whether the path still leads to the file that was opened."""
        now = _stat(self._path)
        return now is not None and self._parts.get(self._path) == now[0]

    def read_as_others(self, wait_s: float) -> tuple[str, int] | None:
        """Holder and token of the lease as a new reader sees them.

        Raises:
            StoreDamaged, StoreError: it cannot read."""
        try:
            db = reader(self._path, wait_s)
            try:
                row = db.execute("SELECT holder, token FROM lease").fetchone()
            finally:
                db.close()
        except sqlite3.Error as error:
            raise error_of(error, f"{self._path}: cannot be read by others ({error})") from None
        return None if row is None else (str(row[0]), int(row[1]))

    def check_now_and_then(self) -> None:
        """Begin a check of the whole file, if one is due; a later ``before_write`` raises what it finds."""
        since_s = self._clock_s() - self._checked_s
        if since_s < self._rest_s or (self._thread is not None and self._thread.is_alive()):
            return
        changed_at = self._changed_at()
        if changed_at == self._checked_at and since_s < CHECK_EVERY_S:
            return
        self._checked_s, self._checked_at = self._clock_s(), changed_at
        self._thread = threading.Thread(target=self._check, name="store check", daemon=True)
        self._thread.start()

    def _changed_at(self) -> int:
        try:
            return self._path.stat().st_mtime_ns
        except OSError:
            return 0  # the next look tells it

    def _check(self) -> None:
        began_s = self._clock_s()
        try:
            check_file(self._path)
        except StoreDamaged as error:
            self._found = error
        except StoreError:
            self._checked_at = 0  # it was locked, or could not be read just now: looked at next time
        self._rest_s = max(_LEAST_S, _SHARE * (self._clock_s() - began_s))


def _stat(path: Path) -> tuple[tuple[int, int], int] | None:
    """Device and inode, and size; ``None`` where there is no such file."""
    try:
        found = os.stat(path)  # noqa: PTH116 - before every write: a third of Path.stat's time
    except OSError:
        return None
    return (found.st_dev, found.st_ino), found.st_size


IN_MEMORY = Path(":memory:")
"""Stands for a path: nothing is written anywhere, and nobody else sees the store."""


class LeasedFile:
    """An open store. With ``read_only`` the file must exist and is never written. ``left_out`` learns of rows that
    cannot be read.

    Raises:
        StoreError: the file cannot be opened, is damaged, or was written by a later version of Lucid."""

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
        """Open the store again; returns whether nothing was lost. Where only the journal is gone, its content is
        written into the file. Else a file that is still where it was is damaged, and moved aside, and so is a file
        that somebody else has put there, if it is no store. The open file is closed last: SQLite leaves the journal
        of the new file alone."""
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
        """A context for reading, one thread at a time; SQLite's errors become a ``StoreError`` that names the
        file."""
        with self._lock:
            try:
                yield self._db
            except (sqlite3.Error, ValueError, KeyError, TypeError, OverflowError) as error:
                words = f"{self.path}: cannot be read ({error}); move it away if it is damaged"
                raise error_of(error, words) from None

    @contextmanager
    def writing(self, token: int | None = None) -> Iterator[sqlite3.Connection]:
        """A context of one transaction, in which ``token`` must be the lease's; all of it or nothing.

        Raises: LeaseLost: another daemon has the lease. StoreGone, StoreDamaged, StoreError: nothing was written."""
        with self._lock:
            if self._watch is not None:
                self._watch.before_write()
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
        """The lease, new or renewed; ``None`` while another holder's has not run out. A new holder gets a
        higher token; its own renewal keeps the token. ``takeover``: the lease of a holder that is known to be dead,
        which is taken over unless it has changed since. The row that is written here is read back as another process
        would, so that every turn begins with a store that others see."""
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
        """The end of the last lease, given back since or not; ``None`` where there never was one."""
        with self.reading() as db:
            row = db.execute("SELECT until_s FROM lease").fetchone()
            return None if row is None else float(row[0])

    def lease(self) -> Lease | None:
        """The present lease; ``None`` where nobody holds one."""
        with self.reading() as db:
            row = self._lease_row(db)
        return None if row is None or not row[0] else Lease(*row)

    def _lease_row(self, db: sqlite3.Connection) -> tuple[str, int, float] | None:
        """Holder, token, and end of the lease. Without a token that rises nobody can tell who may act: the store is
        damaged."""
        row = db.execute("SELECT holder, token, until_s FROM lease").fetchone()
        if row is None:
            return None
        holder, token, until_s = row
        if not isinstance(holder, str) or not isinstance(token, int) or not 0 <= token < MOST:
            raise StoreDamaged(f"{self.path}: its lease cannot be read; move the file away")
        return holder, token, finite(until_s)

    def drop_lease(self, token: int) -> None:
        """Give the lease back. The token stays, so that the next one is higher, and the time, which says how old the
        store is."""
        with self.writing() as db:
            db.execute("UPDATE lease SET holder = '' WHERE token = ?", (token,))

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._db.close()


def _text(content: bytes) -> str:
    """The text of bytes; those that are no UTF-8 do not make a whole table unreadable."""
    return content.decode("utf-8", "replace")
