"""The store in SQLite, memories of pairs included."""

from __future__ import annotations

import json
import os
import shutil
import socket
import sqlite3
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from builders import LIGHT, a_job, runs
from lucid.core.job import JobProfile, Running
from lucid.core.prediction import Prediction, prediction_to_dict
from lucid.daemon.build import open_store
from lucid.daemon.learning.models import WithContention
from lucid.errors import StoreError
from lucid.models.history import HistoryPredictor
from lucid.models.packing.pair_memory import PAIRS_KEPT, PairMemory, PairMemoryFile, WithMemory
from lucid.slurm.view.profiles import labelled, says_more
from lucid.store.file import MIGRATIONS, _one_further, set_aside
from lucid.store.port import JobNote, holder_is_dead
from lucid.store.sqlite import SqliteStore


def test_it_outlives_its_writer_and_a_reader_may_look_on(tmp_path: Path) -> None:
    path = tmp_path / "state" / "lucid.db"
    writer = SqliteStore(path)
    lease = writer.take_lease("me", 0.0, 10.0)
    reader = SqliteStore(path, read_only=True)
    writer.put_notes([JobNote("1", where="n1:0")], lease.token)
    assert reader.note("1") == JobNote("1", where="n1:0")
    with pytest.raises(StoreError, match="cannot be written"):
        reader.set_setting("paused", "1")
    writer.close()
    assert SqliteStore(path).note("1") == JobNote("1", where="n1:0")


def test_a_writer_killed_in_the_middle_leaves_whole_rows(tmp_path: Path) -> None:
    path = tmp_path / "lucid.db"
    script = (
        "import os, sys; from pathlib import Path; from lucid.store.sqlite import SqliteStore\n"
        "store = SqliteStore(Path(sys.argv[1])); token = store.take_lease('it', 0.0, 1e9).token\n"
        "for n in range(10**6):\n"
        "    store.begin_action(float(n), str(n), 'start', 'x' * 500, token)\n"
        "    if n == 300: os.kill(os.getpid(), 9)\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(path)], check=False)
    assert done.returncode == -9
    assert [row.id for row in SqliteStore(path).actions()] == list(range(1, 302))


@pytest.mark.parametrize("content", [b"no database at all" * 100, b"SQLite format 3\0" + b"\xff" * 5000])
def test_a_damaged_store_is_moved_aside_and_a_new_one_begun(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "lucid.db"
    path.write_bytes(content)
    with pytest.raises(StoreError):
        SqliteStore(path)
    store = open_store(path, 17.0)
    assert store.notes() == {}
    assert (tmp_path / "lucid.db.damaged-17").read_bytes() == content


@pytest.mark.parametrize("journal", ["wal", "delete"])
def test_a_store_of_a_later_version_is_refused_and_not_changed(tmp_path: Path, journal: str) -> None:
    path = tmp_path / "lucid.db"
    SqliteStore(path).close()
    later = sqlite3.connect(path)
    later.execute(f"PRAGMA journal_mode = {journal}")
    later.execute(f"PRAGMA user_version = {len(MIGRATIONS) + 1}")
    later.commit()
    copies = tmp_path / "copy"
    copies.mkdir()
    for part in tmp_path.glob("lucid.db*"):  # as it lies after its daemon was killed, the journal included
        shutil.copy(part, copies)
    later.close()

    def content() -> dict[str, bytes]:
        return {part.name: part.read_bytes() for part in copies.iterdir() if not part.name.endswith("-shm")}

    before, words = content(), r"later version of Lucid .* install that version, or move the file away"
    for again in (open_store, lambda path, _: SqliteStore(path), lambda path, _: SqliteStore(path, read_only=True)):
        with pytest.raises(StoreError, match=words):
            again(copies / "lucid.db", 0.0)
    assert content() == before


@pytest.mark.parametrize("version", range(1, len(MIGRATIONS) + 1))
def test_a_store_of_any_earlier_version_is_brought_up_to_date_with_its_rows(tmp_path: Path, version: int) -> None:
    path = tmp_path / "lucid.db"
    old = sqlite3.connect(path)
    for script in MIGRATIONS[:version]:
        old.executescript(script)
    old.execute(f"PRAGMA user_version = {version}")
    rows = {
        "lease": (1, "old:1:1", 7, 5.0),
        "notes": ("1", json.dumps({"job_id": "1", "where": "n1:0"})),
        "profiles": ("1", "ada", "train", 2, json.dumps(asdict(LIGHT)), 5.0),
        "decisions": (1, 5.0, "1", "vc", "start", "[]", "n1:0", None, "pack"),
        "actions": (1, 5.0, "1", "start", "n1:0", 7, "done"),
        "ended": ("2", 9.0, 4.0, "COMPLETED", json.dumps(asdict(a_job("2", gpus=1)))),
        "models": (1, "duration", "v1", 5.0, "first"),
        "settings": ("paused", "1"),
        "views": ("status", "{}"),
        "predictions": ("1", 5.0, "ada", json.dumps(prediction_to_dict(Prediction(60.0, "history")))),
        "cursors": ("7@n1", 3, 0, 5.0),
    }
    for table, row in rows.items():
        if old.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (table,)).fetchone():
            width = len(old.execute(f"PRAGMA table_info({table})").fetchall())
            row += (None,) * (width - len(row))
            old.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * width)})", row)
    old.commit()
    old.close()
    if version < len(MIGRATIONS):
        with pytest.raises(StoreError, match="lucidd brings the store up to date"):
            SqliteStore(path, read_only=True)
    store = SqliteStore(path)
    assert store.note("1") == JobNote("1", where="n1:0")
    assert store.profiles()["1"].profile == LIGHT
    assert [row.placement for row in store.decisions("1")] == ["n1:0"]
    assert [row.result for row in store.actions("1")] == ["done"]
    assert [(item.job.id, item.profile) for item in store.ended()] == [("2", None)]
    assert store.settings() == {"paused": "1"}
    said = store.prediction("1")
    assert (said is not None and said.prediction.duration_s == 60.0) if version >= 2 else said is None
    lease = store.take_lease("new", 100.0, 10.0)
    assert lease.token == 8, "tokens only rise, over versions too"
    with sqlite3.connect(path) as db:
        assert db.execute("PRAGMA user_version").fetchone() == (len(MIGRATIONS),)


def test_a_migration_that_another_process_has_done_meanwhile_is_not_done_again(tmp_path: Path) -> None:
    path = tmp_path / "lucid.db"
    SqliteStore(path).close()
    db = sqlite3.connect(path, isolation_level=None)
    _one_further(db, 1, MIGRATIONS[0])
    assert db.execute("PRAGMA user_version").fetchone() == (len(MIGRATIONS),)


def test_at_most_three_damaged_stores_are_kept_and_moving_one_aside_takes_the_journal_along(tmp_path: Path) -> None:
    for number in range(6):
        (tmp_path / "lucid.db").write_text(f"no database {number}")
        open_store(tmp_path / "lucid.db", 17.0).close()
    kept = [path.read_text() for path in tmp_path.glob("lucid.db.damaged-*")]
    assert sorted(kept) == ["no database 3", "no database 4", "no database 5"]
    suffixes, folder = ("", "-journal", "-shm", "-wal"), tmp_path / "fresh"
    folder.mkdir()
    for suffix in suffixes:
        (folder / f"lucid.db{suffix}").write_text(suffix)
    set_aside(folder / "lucid.db", 3.0)
    assert sorted(path.name for path in folder.iterdir()) == [f"lucid.db.damaged-3{suffix}" for suffix in suffixes]


def test_nobody_but_its_owner_may_read_a_store_or_what_is_kept_of_it(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        path = tmp_path / "state/lucid.db"
        SqliteStore(path).close()
        path.chmod(0o644)  # as earlier versions left it
        store = SqliteStore(path)
        store.set_setting("paused", "1")
        modes = {part.name: part.stat().st_mode & 0o777 for part in path.parent.iterdir()}
        assert modes == dict.fromkeys(("lucid.db", "lucid.db-wal", "lucid.db-shm"), 0o600)
        assert path.parent.stat().st_mode & 0o777 == 0o700
    finally:
        os.umask(before)


def test_a_missing_or_empty_store_is_said_to_be_that_and_made_by_the_daemon_only(tmp_path: Path) -> None:
    path = tmp_path / "lucid.db"
    with pytest.raises(StoreError, match="there is no store; check that lucidd has run here"):
        SqliteStore(path, read_only=True)
    path.touch()
    with pytest.raises(StoreError, match=r"the store is empty: .* could not write"):
        SqliteStore(path, read_only=True)
    assert SqliteStore(path).settings() == {}


def test_a_full_disk_is_an_error_that_says_so(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "lucid.db")
    store._db.execute("PRAGMA max_page_count = 30")
    store.put_view("v0", "x" * 2000)
    with pytest.raises(StoreError, match="full"):
        store.put_view("v1", "x" * 500_000)
    assert store.view("v0") == "x" * 2000


READS = (
    "import os, sys; sys.path[:] = sys.argv[2].split(':'); from pathlib import Path\n"
    "from lucid.store.sqlite import SqliteStore\n"
    "os.setgroups([]); os.setgid(65534); os.setuid(65534); path = Path(sys.argv[1])\n"
    "assert not os.access(path.parent, os.W_OK)\n"
    "print(SqliteStore(path, read_only=True).settings())\n"
)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
@pytest.mark.parametrize("owner", [True, False])
def test_only_its_owner_reads_it_while_lucidd_is_down(owner: bool) -> None:
    """The journal is gone then, and who may not write the folder (or a full disk) cannot make one."""
    with tempfile.TemporaryDirectory() as name:  # pytest's own folders are closed to others
        folder = Path(name)
        store = SqliteStore(folder / "lucid.db")
        store.set_setting("mode.main", "order")
        store.close()
        assert [path.name for path in folder.iterdir()] == ["lucid.db"]
        folder.chmod(0o755)
        if owner:
            os.chown(folder / "lucid.db", 65534, 65534)
        words = [sys.executable, "-c", READS, str(folder / "lucid.db"), ":".join(sys.path)]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
    said = "{'mode.main': 'order'}\n" if owner else "only lucidd's user and root may read it"
    assert said in (done.stdout if owner else done.stderr), done.stderr


def test_a_holder_that_was_killed_is_dead_before_its_parent_has_noticed() -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        holder = f"{socket.gethostname()}:{process.pid}:1"
        assert not holder_is_dead(holder)
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and is still there
        assert holder_is_dead(holder)


def seen(name: str, partner: str, workload: str, speed: float | None, beside: str | None = None) -> Running:
    profile = plain(workload, seen_speed=speed, seen_beside=beside or partner)
    return runs(name, "n1:0", profile=profile, partner=partner)


def pair(one: str, first: float, other: str, second: float, number: int = 0) -> list[Running]:
    """Two jobs that were seen beside each other, with their workloads and speeds."""
    a, b = str(2 * number), str(2 * number + 1)
    return [seen(a, b, one, first), seen(b, a, other, second)]


def plain(workload: str = "", **rest: Any) -> JobProfile:
    return JobProfile(50, 20, 1000, workload=workload, **rest)


def test_a_pair_is_remembered_whichever_side_is_asked_and_after_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "pairs.json"
    PairMemoryFile(path).observe(pair("u/zebra", 0.4, "u/ape", 0.9))
    asked = ("u/zebra", "u/ape"), ("u/ape", "u/zebra"), ("u/ape", "u/ape")
    assert [PairMemoryFile(path).speeds(*names) for names in asked] == [(0.4, 0.9), (0.9, 0.4), None]


def test_the_mean_of_several_pairs_counts_and_the_latest_of_each() -> None:
    memory = PairMemory()
    for speed in (0.9, 0.5):
        memory.observe(pair("a", speed, "b", speed))
    memory.observe(pair("a", 0.7, "b", 0.9, 1))
    assert memory.speeds("a", "b") == (pytest.approx(0.6), pytest.approx(0.7))
    for number in range(10, 25):
        memory.observe(pair("a", 1.0, "b", 1.0, number))
    assert memory.speeds("a", "b") == (1.0, 1.0)


def test_what_is_not_known_of_both_is_not_noted() -> None:
    memory, other = PairMemory(), runs("2", "n1:0", partner="1")
    for second in (seen("2", "1", "b", None), seen("2", "1", "", 0.5), seen("2", "1", "b", 0.5, beside="9"), other):
        memory.observe([seen("1", "2", "a", 0.5), second])
        assert len(memory) == 0, second


def test_the_predictor_says_what_was_seen_and_else_guesses() -> None:
    memory, guesses = PairMemory(), WithContention(HistoryPredictor(3600.0))
    predictor = WithMemory(guesses, memory)
    a, b, unknown = (JobProfile(90, 50, 1, workload=name) for name in ("a", "b", ""))
    assert predictor.pair_speed(a, b) == guesses.pair_speed(a, b)
    memory.observe(pair("a", 0.3, "b", 0.6))
    assert (predictor.pair_speed(a, b), predictor.pair_speed(b, a)) == ((0.3, 0.6), (0.6, 0.3))
    assert predictor.pair_speed(a, unknown)[0] < guesses.pair_speed(a, b)[0], "this one ran slower"
    assert predictor.name == guesses.name


def test_workloads_of_which_no_pair_is_left_are_forgotten() -> None:
    memory = PairMemory()
    predictor = WithMemory(WithContention(HistoryPredictor(3600.0)), memory)
    for n in range(2 * PAIRS_KEPT):
        memory.observe(pair(f"a{n}", 0.5, f"b{n}", 0.5, n))
        predictor.pair_speed(plain("new"), plain("new"))
    assert len(predictor._misses._by) == 2 * PAIRS_KEPT


def test_a_profile_is_labelled_by_user_and_name_and_news_of_a_pair_is_news() -> None:
    for profile, user, workload in ((plain(), "ann", "ann/train"), (plain("x"), "ann", "x"), (plain(), "", "")):
        assert labelled(profile, user, "train").workload == workload
    slow = plain(seen_speed=0.6, seen_beside="2")
    assert says_more(plain(), slow)
    assert says_more(slow, plain())
    news = [says_more(slow, plain(seen_speed=v, seen_beside=by)) for v, by in ((0.62, "2"), (0.4, "2"), (0.6, "3"))]
    assert news == [False, True, True]


def test_pairs_never_seen_are_expected_as_slow_as_the_newest_came_true_after_a_restart_too(tmp_path: Path) -> None:
    """The contention model expects 0.9 of either; here pairs run at half speed."""
    path = tmp_path / "pairs.json"
    memory, guesses = PairMemoryFile(path), WithContention(HistoryPredictor(100.0))
    predictor = WithMemory(guesses, memory)
    a, b, new = plain("a"), plain("b"), plain("new")
    guess = guesses.pair_speed(new, new)
    assert predictor.pair_speed(new, new) == guess
    for number in range(20):  # jobs without a label count as well
        memory.observe(pair("a", 0.5, "" if number % 2 else "b", 0.5, number))
    expected = predictor.pair_speed(new, new)
    miss = (0.5 - guess[0]) * 40 / 45
    assert expected == pytest.approx((guess[0] + miss, guess[1] + miss))
    assert predictor.pair_speed(a, new)[0] < expected[0], "what is known of the workload counts beside that"
    assert predictor.pair_speed(a, b) == (0.5, 0.5)
    assert WithMemory(guesses, PairMemoryFile(path)).pair_speed(new, new) == expected
    for number in range(50, 50 + PAIRS_KEPT):
        memory.observe(pair("x", guess[0], "y", guess[0], number))
    assert predictor.pair_speed(new, new) == pytest.approx(guess), "the newest pairs count"
