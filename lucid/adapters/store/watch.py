"""Is what is written to the open store what others read? SQLite itself does not notice that its files were deleted,
replaced, cut or overwritten: it goes on with what it has in memory and with files that have no name any more.

Looked at before every write, with three ``stat``: which files lie at the paths, and whether one has become shorter
(then it is read whole). Once a turn a new reader reads the lease. When the file has changed (lucidd itself changes it
only at SQLite's checkpoints), and every ten minutes, SQLite's own check reads it whole, in a thread of its own and
through a connection of its own. No file of the store is opened but through SQLite: closing one would end the locks of
the whole process.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path

from lucid.adapters.store.file import error_of, look_through, reader
from lucid.adapters.store.port import StoreDamaged, StoreGone
from lucid.core.frozen import dataclass
from lucid.errors import StoreError

__all__ = ["CHECK_EVERY_S", "StoreWatch"]

CHECK_EVERY_S = 600.0
_LEAST_S = 5.0
_SHARE = 100.0
"""A check that takes a second is not repeated before so many seconds have passed: at most 1 % of the time."""


@dataclass(frozen=True, slots=True)
class _Part:
    """One file as it was when the store was opened."""

    path: Path
    identity: tuple[int, int]


class StoreWatch:
    """Over one open store; begun anew whenever the store is opened."""

    def __init__(self, path: Path, *, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._path, self._clock_s = path, clock_s
        parts = [path.with_name(path.name + suffix) for suffix in ("", "-wal", "-shm")]
        self._parts = [_Part(part, found[0]) for part in parts if (found := _stat(part)) is not None]
        self._sizes = {part: found[1] for part in parts if (found := _stat(part)) is not None}
        self._checked_s, self._rest_s, self._checked_at = clock_s(), _LEAST_S, self._changed_at()
        self._thread: threading.Thread | None = None
        self._found: StoreDamaged | None = None

    def look(self) -> None:
        """Before every write.

        Raises:
            StoreGone: a file was deleted or replaced.
            StoreDamaged: one was cut, or the last check found damage.
            StoreError: one was cut, and cannot be read at present.
        """
        self._same_file()
        if self._found is not None:
            raise self._found

    def _same_file(self) -> None:
        for part in self._parts:
            now = _stat(part.path)
            if now is None or now[0] != part.identity:
                what = "was deleted" if now is None else "was replaced"
                raise StoreGone(f"{part.path}: was deleted or replaced while it was open ({what})")
            if now[1] < self._sizes[part.path]:
                look_through(self._path)  # sqlite3's VACUUM and TRUNCATE leave it whole; truncate does not
            self._sizes[part.path] = now[1]

    @property
    def only_journal_gone(self) -> bool:
        """Is the store's own file there and as long as it was, and its journal deleted, or empty and somebody's new
        one? Then nothing is lost yet: all of it can still be written into the file."""
        return self._found is None and self.own_file_there and not any(map(self._lost, self._parts))

    def _lost(self, part: _Part) -> bool:
        """Is what was written into this file not to be had any more, or mixed with what others wrote?"""
        now = _stat(part.path)
        if now is None:
            return part.path == self._path
        if now[0] == part.identity:
            return now[1] < self._sizes[part.path]
        return now[1] > 0 and part.path.name.endswith("-wal")

    @property
    def own_file_there(self) -> bool:
        """Does the path still lead to the file that was opened?"""
        now = _stat(self._path)
        return now is not None and any(p.path == self._path and p.identity == now[0] for p in self._parts)

    def read_as_others(self, wait_s: float) -> tuple[str, int] | None:
        """Holder and token of the lease as a new reader sees them.

        Raises:
            StoreDamaged, StoreError: it cannot read.
        """
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
        """Begin a check of the whole file, if one is due; a later ``look`` tells what came of it."""
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
            look_through(self._path)
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
