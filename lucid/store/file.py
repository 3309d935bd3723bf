"""The store's SQLite file: opening it, migrating its tables, moving a damaged one aside, its disk.

Nobody but its owner may read it: whoever can read it can also lock it, and so stop lucidd (docs/decisions/0018).
Tables are a list of migrations: each brings the file one version further, and none is ever edited once released.
``PRAGMA user_version`` says how many a file has had. SQLite's write-ahead log works through memory that all its users
share, so on one host only. Where several hosts have the file, it keeps a rollback journal instead, and locks by the
file system's own locks (NFS 4 has them)."""

from __future__ import annotations

import os
import sqlite3
import stat
from contextlib import suppress
from pathlib import Path

from lucid.errors import StoreError
from lucid.store.port import StoreDamaged, StoreGone, StoreUnreadable

MIGRATIONS: tuple[str, ...] = (
    """
    CREATE TABLE lease (one INTEGER PRIMARY KEY CHECK (one = 1), holder TEXT, token INTEGER, until_s REAL);
    CREATE TABLE notes (job_id TEXT PRIMARY KEY, data TEXT NOT NULL);
    CREATE TABLE profiles (
        job_id TEXT PRIMARY KEY, user TEXT, name TEXT, gpus INTEGER, data TEXT NOT NULL, at_s REAL
    );
    CREATE INDEX profiles_like ON profiles (user, name, gpus, at_s);
    CREATE TABLE readings (source TEXT PRIMARY KEY, at_s REAL);
    CREATE TABLE decisions (
        id INTEGER PRIMARY KEY, at_s REAL, job_id TEXT, partition TEXT, verb TEXT, reasons TEXT,
        placement TEXT, beside TEXT, mode TEXT
    );
    CREATE INDEX decisions_job ON decisions (job_id, id);
    CREATE INDEX decisions_at ON decisions (at_s);
    CREATE TABLE actions (
        id INTEGER PRIMARY KEY, at_s REAL, job_id TEXT, verb TEXT, detail TEXT, token INTEGER, result TEXT
    );
    CREATE INDEX actions_job ON actions (job_id, id);
    CREATE TABLE ended (
        job_id TEXT PRIMARY KEY, end_s REAL, ran_s REAL, state TEXT, job TEXT NOT NULL
    );
    CREATE INDEX ended_at ON ended (end_s);
    CREATE TABLE models (id INTEGER PRIMARY KEY, name TEXT, version TEXT, at_s REAL, why TEXT);
    CREATE TABLE settings (key TEXT PRIMARY KEY, value TEXT NOT NULL);
    CREATE TABLE views (name TEXT PRIMARY KEY, data TEXT NOT NULL);
    """,
    """
    CREATE TABLE predictions (job_id TEXT PRIMARY KEY, at_s REAL, user TEXT, data TEXT NOT NULL);
    """,
    """
    CREATE TABLE samples (
        folder TEXT, first INTEGER, job TEXT, node TEXT, gpus TEXT, base_s REAL, data BLOB NOT NULL, at_s REAL,
        PRIMARY KEY (folder, first)
    ) WITHOUT ROWID;
    CREATE INDEX samples_at ON samples (at_s);
    CREATE TABLE cursors (folder TEXT PRIMARY KEY, wanted INTEGER, missing INTEGER, at_s REAL);
    """,
    """
    ALTER TABLE ended ADD COLUMN profile TEXT;
    """,
    """
    DROP TABLE samples;
    DROP TABLE cursors;
    DROP TABLE models;
    DROP INDEX profiles_like;
    """,
)


_NETWORK = frozenset(
    ("9p", "acfs", "afs", "beegfs", "ceph", "cifs", "gfs", "gfs2", "glusterfs", "gpfs", "lustre", "ncpfs", "nfs",
     "nfs4", "ocfs2", "orangefs", "panfs", "pvfs2", "smb3", "smbfs", "virtiofs", "vxfs", "wekafs")
)  # fmt: skip
_FUSE = ("fuse.beegfs", "fuse.ceph", "fuse.gluster", "fuse.juicefs", "fuse.moosefs", "fuse.sshfs", "fuse.weka")
_MOUNTS = Path("/proc/self/mountinfo")


def network_file_system(path: Path, mounts: Path = _MOUNTS) -> str:
    """The kind of file system that *path* lies on, if it is one that several hosts may have; else empty, also where
    that is unknown."""
    try:
        place = path.resolve()
        lines = mounts.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return ""
    best, kind = -1, ""
    for line in lines:
        words = line.split(" ")
        if "-" not in words[6:] or len(words) < 10:
            continue
        point = Path(words[4].replace("\\040", " ").replace("\\011", "\t").replace("\\134", "\\"))
        if (point == place or point in place.parents) and len(point.parts) >= best:
            best, kind = len(point.parts), words[words.index("-", 6) + 1]
    return kind if kind in _NETWORK or kind.startswith(_FUSE) else ""


_MODE, _FOLDER_MODE = 0o600, 0o700
_SUFFIXES = ("", "-wal", "-shm", "-journal")
_KEPT_ASIDE = 3
"""How many damaged stores are kept; older ones go, or a failing disk would fill up."""
_DAMAGE = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
_DAMAGE_WORDS = ("malformed", "not a database", "no such table", "no such column", "has no column")


def set_aside(path: Path, now_s: float) -> Path:
    """Move the files in the store's place out of the way, with the journal; returns where they went. The latest few
    stay.

    Raises: StoreError: they cannot be moved."""
    aside = path.with_name(f"{path.name}.damaged-{now_s:.0f}")
    again = 1
    while os.path.lexists(aside):
        aside = path.with_name(f"{path.name}.damaged-{now_s:.0f}.{again}")
        again += 1
    try:
        for suffix in _SUFFIXES:
            part = path.with_name(path.name + suffix)
            if os.path.lexists(part):
                part.replace(aside.with_name(aside.name + suffix))
    except OSError as error:
        raise StoreError(f"{path}: is damaged, and lucidd cannot move it aside ({error}); move it by hand") from None
    _drop_older(path)
    return aside


def _drop_older(path: Path) -> None:
    found = [p for p in path.parent.glob(f"{path.name}.damaged-*") if not p.name.endswith(_SUFFIXES[1:])]
    with suppress(OSError):  # what cannot be deleted stays
        for old in sorted(found, key=lambda p: p.lstat().st_ctime_ns)[:-_KEPT_ASIDE]:
            for suffix in _SUFFIXES:
                part = old.with_name(old.name + suffix)
                if part.is_symlink() or part.is_file():
                    part.unlink()


def error_of(error: Exception, words: str) -> StoreError:
    """The error for SQLite's *error*: damage, which calls for another file, differs from everything else."""
    code = getattr(error, "sqlite_errorcode", 0)
    damaged = isinstance(error, sqlite3.DatabaseError) and (
        code & 0xFF in _DAMAGE
        or code == sqlite3.SQLITE_IOERR_SHORT_READ
        or any(word in str(error) for word in _DAMAGE_WORDS)
    )
    if "closed database" in str(error):  # a new one could not be begun: it is tried again
        return StoreGone(words)
    return StoreDamaged(words) if damaged else StoreError(words)


def open_file(path: Path, *, read_only: bool, wait_s: float, shared: bool = False) -> sqlite3.Connection:
    """A connection to the store. With *read_only* the file must exist, be whole and up to date. A store of a later
    version is not touched. *shared*: several hosts have the file, so it is kept without a write-ahead log.

    Raises:
        StoreDamaged: the file is damaged, or is not a store of Lucid.
        StoreUnreadable: this user may not read it.
        StoreError: it cannot be opened for another reason, or was written by a later version of Lucid."""
    try:
        if read_only:
            _must_be_readable(path)
            db = reader(path, wait_s)
        else:
            if not _make_room(path):
                _check_before_writing(path, wait_s)
            db = sqlite3.connect(path, timeout=wait_s, check_same_thread=False)
        db.isolation_level = None
        if not read_only:
            journal = "TRUNCATE" if shared or network_file_system(path.parent) else "WAL"
            with suppress(sqlite3.OperationalError):  # it is open elsewhere in the other mode: lucidctl doctor tells
                db.execute(f"PRAGMA journal_mode = {journal}")
            db.execute(f"PRAGMA synchronous = {'NORMAL' if journal == 'WAL' else 'FULL'}")
        _must_be_whole(db, path)
        _migrate(db, path, read_only)
        return db
    except (sqlite3.Error, OSError) as error:
        raise error_of(
            error, f"{path}: cannot be opened ({error}); check the folder, its owner and free space"
        ) from None


def open_memory() -> sqlite3.Connection:
    """A connection to a new store in memory."""
    db = sqlite3.connect(":memory:", check_same_thread=False)
    db.isolation_level = None
    _migrate(db, Path(":memory:"), read_only=False)
    return db


def check_file(path: Path, wait_s: float = 5.0) -> None:
    """Read the whole file as it is now, through a connection of its own.

    Raises:
        StoreDamaged: it is damaged.
        StoreError: it cannot be read at present."""
    try:
        db = reader(path, wait_s)
        try:
            _must_be_whole(db, path)
        finally:
            db.close()
    except sqlite3.Error as error:
        raise error_of(error, f"{path}: cannot be read ({error})") from None


def _must_be_whole(db: sqlite3.Connection, path: Path) -> None:
    (state,) = db.execute("PRAGMA quick_check(1)").fetchone()
    if state != "ok":
        raise StoreDamaged(f"{path}: is damaged ({state}); move it away: lucidd starts a new store")


def _must_be_readable(path: Path) -> None:
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        raise StoreError(
            f"{path}: there is no store; check that lucidd has run here with this configuration"
        ) from None
    except PermissionError:
        mode = stat.S_IFREG
    if not stat.S_ISREG(mode):
        raise StoreDamaged(f"{path}: is not a file; move it away: lucidd starts a new store")
    if not os.access(path, os.R_OK):
        raise StoreUnreadable(f"{path}: only lucidd's user and root may read it (sudo -u lucid lucidctl …)")


def reader(path: Path, wait_s: float) -> sqlite3.Connection:
    """A connection that only reads. Where nobody has the file open, its journal is gone, and a user who may not write
    the folder (anybody, on a full disk) cannot make one. The journal would be empty then, so the file is read as it
    is."""
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


def _check_before_writing(path: Path, wait_s: float) -> None:
    """Check a file that lies there already, by reading alone: opening it for writing would change it.

    Raises: StoreDamaged: it is not a store of Lucid. StoreError: it was written by a later version."""
    _must_be_readable(path)
    db = reader(path, wait_s)
    try:
        (version,) = db.execute("PRAGMA user_version").fetchone()
        _must_be_known(version, path)
        if version == 0 and db.execute("SELECT 1 FROM sqlite_master").fetchone():
            raise StoreDamaged(f"{path}: is a database of another program; lucidd moves the file aside")
    finally:
        db.close()
    _tighten(path)


def _tighten(path: Path) -> None:
    """Close a store that an earlier version left readable for all."""
    for suffix in _SUFFIXES:
        part = path.with_name(path.name + suffix)
        with suppress(OSError):  # somebody else's file: doctor tells it
            if part.stat().st_mode & 0o077:
                part.chmod(_MODE)


def _make_room(path: Path) -> bool:
    """Make the folder and an empty file; returns whether the file is new. It belongs to its folder's owner, also
    where root makes it (lucidctl pause)."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=_FOLDER_MODE)
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, _MODE))
    except FileExistsError:
        return path.is_file() and path.stat().st_size == 0
    if os.geteuid() == 0:
        folder = path.parent.stat()
        os.chown(path, folder.st_uid, folder.st_gid)
    return True


def _must_be_known(version: int, path: Path) -> None:
    if version < 0:
        raise StoreDamaged(f"{path}: schema {version} is not a schema of Lucid; lucidd moves the file aside")
    if version > len(MIGRATIONS):
        raise StoreError(
            f"{path}: a later version of Lucid wrote it (schema {version}, this version reads {len(MIGRATIONS)}); "
            "install that version, or move the file away"
        )


def _migrate(db: sqlite3.Connection, path: Path, read_only: bool) -> None:
    (version,) = db.execute("PRAGMA user_version").fetchone()
    _must_be_known(version, path)
    if read_only:
        if version == 0:
            raise StoreError(
                f"{path}: the store is empty: lucidd has not written to it yet, or could not write (df {path.parent})"
            )
        if version < len(MIGRATIONS):
            raise StoreError(
                f"{path}: has schema {version}, this version of Lucid reads {len(MIGRATIONS)}: lucidd brings the "
                f"store up to date when it starts, if it can write (df {path.parent})"
            )
        return
    for number, script in enumerate(MIGRATIONS, start=1):
        if number > version:
            _one_further(db, number, script)


def _one_further(db: sqlite3.Connection, number: int, script: str) -> None:
    """Carry out all of one migration or nothing; nothing, too, where another process has done it meanwhile."""
    db.execute("BEGIN IMMEDIATE")
    try:
        (version,) = db.execute("PRAGMA user_version").fetchone()
        if version < number:
            for statement in script.split(";"):
                db.execute(statement)
            db.execute(f"PRAGMA user_version = {number}")
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise
