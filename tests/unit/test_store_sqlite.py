"""What only a store in a file can do: outlive its writer, be read beside it, be damaged, be too new."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from lucid.adapters.store import JobNote
from lucid.adapters.store_file import set_aside
from lucid.adapters.store_schema import MIGRATIONS
from lucid.adapters.store_sqlite import SqliteStore
from lucid.daemon import open_store
from lucid.errors import StoreError


def test_it_outlives_its_writer_and_a_reader_may_look_on(tmp_path: Path) -> None:
    path = tmp_path / "state" / "lucid.db"
    writer = SqliteStore(path)
    lease = writer.take_lease("me", 0.0, 10.0)
    assert lease is not None
    reader = SqliteStore(path, read_only=True)
    writer.put_note(JobNote("1", where="n1:0"), lease.token)
    assert reader.note("1") == JobNote("1", where="n1:0")
    with pytest.raises(StoreError, match="cannot be written"):
        reader.set_setting("paused", "1")
    writer.close()
    assert SqliteStore(path).note("1") == JobNote("1", where="n1:0")


def test_a_writer_killed_in_the_middle_leaves_whole_rows(tmp_path: Path) -> None:
    path = tmp_path / "lucid.db"
    script = (
        "import os, sys; from pathlib import Path; from lucid.adapters.store_sqlite import SqliteStore\n"
        "store = SqliteStore(Path(sys.argv[1])); token = store.take_lease('it', 0.0, 1e9).token\n"
        "for n in range(10**6):\n"
        "    store.begin_action(float(n), str(n), 'start', 'x' * 500, token)\n"
        "    if n == 300: os.kill(os.getpid(), 9)\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(path)], check=False)
    assert done.returncode == -9
    assert [row.id for row in SqliteStore(path).actions()] == list(range(1, 302))


def test_a_missing_store_is_said_to_be_missing(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="has lucidd run here"):
        SqliteStore(tmp_path / "none.db", read_only=True)


@pytest.mark.parametrize("content", [b"no database at all" * 100, b"SQLite format 3\0" + b"\xff" * 5000])
def test_a_damaged_store_is_moved_aside_and_a_new_one_begun(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "lucid.db"
    path.write_bytes(content)
    with pytest.raises(StoreError):
        SqliteStore(path)
    store = open_store(path, 17.0)
    assert store.notes() == {}
    assert (tmp_path / "lucid.db.damaged-17").read_bytes() == content


def test_a_store_of_a_later_version_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "lucid.db"
    SqliteStore(path).close()
    with sqlite3.connect(path) as db:
        db.execute(f"PRAGMA user_version = {len(MIGRATIONS) + 1}")
    with pytest.raises(StoreError, match="later Lucid"):
        open_store(path, 0.0)


def test_an_old_store_is_brought_up_to_date_by_the_daemon_only(tmp_path: Path) -> None:
    path = tmp_path / "lucid.db"
    sqlite3.connect(path).close()
    path.touch()
    with pytest.raises(StoreError, match=r"nothing is written in it yet: .* could not write"):
        SqliteStore(path, read_only=True)
    assert SqliteStore(path).settings() == {}


def test_a_full_disk_is_an_error_that_says_so(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "lucid.db")
    store._db.execute("PRAGMA max_page_count = 30")
    store.put_view("v0", "x" * 2000)
    with pytest.raises(StoreError, match="full"):
        store.put_view("v1", "x" * 500_000)
    assert store.view("v0") == "x" * 2000


def test_moving_aside_takes_the_journal_along(tmp_path: Path) -> None:
    for suffix in ("", "-wal", "-shm"):
        (tmp_path / f"lucid.db{suffix}").write_text(suffix)
    set_aside(tmp_path / "lucid.db", 3.0)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "lucid.db.damaged-3", "lucid.db.damaged-3-shm", "lucid.db.damaged-3-wal",
    ]  # fmt: skip


def test_a_store_of_the_first_version_is_brought_up_to_date_with_what_it_holds(tmp_path: Path) -> None:
    path = tmp_path / "lucid.db"
    db = sqlite3.connect(path)
    db.executescript(f"{MIGRATIONS[0]}; PRAGMA user_version = 1; INSERT INTO settings VALUES ('paused', '1');")
    db.close()
    with pytest.raises(StoreError, match="lucidd brings it up to date"):
        SqliteStore(path, read_only=True)
    store = SqliteStore(path)
    assert store.settings() == {"paused": "1"}
    assert store.prediction("1") is None
    store.close()
    assert SqliteStore(path, read_only=True).settings() == {"paused": "1"}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_anybody_may_read_while_lucidd_is_down() -> None:
    """The journal is gone then, and a user may not make one in lucidd's folder."""
    with tempfile.TemporaryDirectory() as name:  # pytest's own folders are closed to others
        Path(name).chmod(0o755)
        _read_by_somebody_else(Path(name) / "state")


def _read_by_somebody_else(folder: Path) -> None:
    store = SqliteStore(folder / "lucid.db")
    store.set_setting("mode.main", "order")
    store.close()
    assert [path.name for path in folder.iterdir()] == ["lucid.db"]
    script = (
        "import os, sys; sys.path[:] = sys.argv[2].split(':'); from pathlib import Path\n"
        "from lucid.adapters.store_sqlite import SqliteStore\n"
        "os.setgroups([]); os.setgid(65534); os.setuid(65534); path = Path(sys.argv[1])\n"
        "assert not os.access(path.parent, os.W_OK)\n"
        "print(SqliteStore(path, read_only=True).settings())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(folder / "lucid.db"), ":".join(sys.path)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stdout == "{'mode.main': 'order'}\n", done.stderr
