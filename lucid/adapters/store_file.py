"""The store's file: opening it, bringing it up to date, and knowing whether the path still leads to it."""

from __future__ import annotations

import os
import sqlite3
from contextlib import suppress
from pathlib import Path

from lucid.adapters.store import StoreDamaged
from lucid.adapters.store_place import journal_of
from lucid.adapters.store_schema import MIGRATIONS
from lucid.errors import StoreError

__all__ = ["error_of", "identity", "open_file", "set_aside"]


def identity(path: Path) -> tuple[int, int] | None:
    """Device and inode of the file at *path*; ``None`` where there is none."""
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_dev, stat.st_ino


def set_aside(path: Path, now_s: float) -> Path:
    """Move a damaged store out of the way, with its journal; returns where it went.

    Raises:
        StoreError: it cannot be moved.
    """
    aside = path.with_name(f"{path.name}.damaged-{now_s:.0f}")
    try:
        for suffix in ("", "-wal", "-shm", "-journal"):
            part = path.with_name(path.name + suffix)
            if part.exists():
                part.replace(aside.with_name(aside.name + suffix))
    except OSError as error:
        raise StoreError(f"{path}: is damaged and cannot be moved aside ({error}); move it by hand") from None
    return aside


def error_of(error: Exception, words: str) -> StoreError:
    """What SQLite's *error* is here: damage, which calls for another file, is told from everything else."""
    damaged = isinstance(error, sqlite3.DatabaseError) and any(
        word in str(error) for word in ("malformed", "not a database")
    )
    return StoreDamaged(words) if damaged else StoreError(words)


def open_file(path: Path, *, read_only: bool, wait_s: float, shared: bool = False) -> sqlite3.Connection:
    """A connection to the store. With *read_only* the file must exist, be whole and up to date. *shared*: several
    hosts have the file, so it is kept without a write-ahead log.

    Raises:
        StoreDamaged: the file is damaged.
        StoreError: it cannot be opened for another reason, or was written by a later version of Lucid.
    """
    try:
        if read_only:
            if not path.exists():
                raise StoreError(f"{path}: there is no store; has lucidd run here, with this configuration?")
            db = _reader(path, wait_s)
        else:
            _make_room(path)
            db = sqlite3.connect(path, timeout=wait_s, check_same_thread=False)
        db.isolation_level = None
        if not read_only:
            journal = journal_of(path, shared)
            with suppress(sqlite3.OperationalError):  # it is open elsewhere in the other mode: lucidctl doctor tells
                db.execute(f"PRAGMA journal_mode = {journal}")
            db.execute(f"PRAGMA synchronous = {'NORMAL' if journal == 'WAL' else 'FULL'}")
        (state,) = db.execute("PRAGMA quick_check(1)").fetchone()
        if state != "ok":
            raise StoreDamaged(f"{path}: is damaged ({state}); move it away, lucidd starts a new one")
        _migrate(db, path, read_only)
        return db
    except (sqlite3.Error, OSError) as error:
        raise error_of(
            error, f"{path}: cannot be opened ({error}); check the folder, its owner and free space"
        ) from None


def _reader(path: Path, wait_s: float) -> sqlite3.Connection:
    """Where nobody has the file open, its journal is gone, and who may not write the folder (a user, with
    lucidd down; anybody, on a full disk) cannot make one. There is nothing in it then: the file is read as it is."""
    address = f"{path.absolute().as_uri()}?mode=ro"
    db = sqlite3.connect(address, uri=True, timeout=wait_s, check_same_thread=False)
    try:
        db.execute("SELECT 1 FROM sqlite_master").fetchone()
    except sqlite3.OperationalError:
        db.close()
        journal = path.with_name(f"{path.name}-journal")
        if path.with_name(f"{path.name}-wal").exists() or (journal.exists() and journal.stat().st_size):
            raise
        db = sqlite3.connect(f"{address}&immutable=1", uri=True, timeout=wait_s, check_same_thread=False)
    return db


def _make_room(path: Path) -> None:
    """The file of a new store belongs to whom its folder belongs to, also where root makes it (lucidctl pause)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o644))
    except FileExistsError:
        return
    if os.geteuid() == 0:
        folder = path.parent.stat()
        os.chown(path, folder.st_uid, folder.st_gid)


def _migrate(db: sqlite3.Connection, path: Path, read_only: bool) -> None:
    (version,) = db.execute("PRAGMA user_version").fetchone()
    if version > len(MIGRATIONS):
        raise StoreError(
            f"{path}: written by a later Lucid (schema {version}, this one knows {len(MIGRATIONS)}); "
            "install that version, or move the file away"
        )
    if read_only:
        if version == 0:
            raise StoreError(
                f"{path}: nothing is written in it yet: lucidd has not got that far, or could not write "
                f"(df {path.parent})"
            )
        if version < len(MIGRATIONS):
            raise StoreError(
                f"{path}: has schema {version}, this Lucid reads {len(MIGRATIONS)}: lucidd brings it up to date "
                f"when it starts, if it can write (df {path.parent})"
            )
        return
    for number, script in enumerate(MIGRATIONS[version:], start=version + 1):
        try:
            db.executescript(f"BEGIN IMMEDIATE; {script}; PRAGMA user_version = {number}; COMMIT;")
        except sqlite3.Error:
            if db.in_transaction:
                db.execute("ROLLBACK")
            raise
