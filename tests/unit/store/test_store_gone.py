"""The store is deleted, replaced or damaged under a running lucidd: it begins another and goes on."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from daemon_site import Site
from lucid.places import Mode
from lucid.slurm.heartbeat import read_heartbeat
from lucid.store.lease import StoreWatch
from lucid.store.port import JobNote, StoreGone
from lucid.store.sqlite import SqliteStore


@pytest.fixture
def site(tmp_path: Path) -> Site:
    site = Site(tmp_path)
    for name in ("1", "2", "3"):
        site.submit(name, 4, run_s=300.0)
    site.turns(20.0)
    return site


def beat(site: Site) -> Any:
    return read_heartbeat(site.folder / "run/heartbeat")


def said(caplog: pytest.LogCaptureFixture, words: str) -> int:
    """In how many lines of the log."""
    return sum(words in f"{line.message} {getattr(line, 'facts', '')}" for line in caplog.records)


def free(site: Site) -> Path:
    """The store's path, at which there is nothing any more."""
    (site.folder / "lucid.db").unlink()
    return site.folder / "lucid.db"


def cut(site: Site, size: int) -> None:
    site.store._db.execute("PRAGMA wal_checkpoint(FULL)")
    site.turns(2.0)
    os.truncate(site.folder / "lucid.db", size)


def other_program(site: Site) -> None:
    with sqlite3.connect(free(site)) as db:
        db.execute("CREATE TABLE bookmarks (url TEXT)")
    db.close()


def delete_all(site: Site) -> None:
    for path in site.folder.glob("lucid.db*"):
        path.unlink()


def damage(site: Site) -> None:
    for path in site.folder.glob("lucid.db*"):
        with path.open("r+b") as file:
            file.write(b"\xff" * 4096)
    site.store._db.execute("PRAGMA shrink_memory")


HARMS: dict[str, Callable[[Site], object]] = {
    "deleted": free,
    "deleted with its journal": delete_all,
    "cut": lambda site: cut(site, 20_000),
    "empty": lambda site: cut(site, 0),
    "its journal cut": lambda site: os.truncate(site.folder / "lucid.db-wal", 0),
    "text": lambda site: free(site).write_text("something else"),
    "pipe": lambda site: os.mkfifo(free(site)),
    "folder": lambda site: free(site).mkdir(),
    "of another program": other_program,
    "damaged": damage,
}


@pytest.mark.parametrize("harm", HARMS)
def test_it_notices_at_its_next_turn_and_loses_no_job(site: Site, harm: str, caplog: Any) -> None:
    notes = site.store.notes()
    assert all((notes, site.slurm.starts))
    HARMS[harm](site)
    site.turns(8.0)
    assert said(caplog, "a new one begun")
    if harm == "damaged":
        assert list(site.folder.glob("lucid.db.damaged-*")), "kept for whoever wants to look at it"
    else:
        assert set(site.store.notes()) == set(notes), "what is known of jobs that are there goes over"
    assert json.loads(site.ctl("status", "--json"))["partitions"]["vc"]["running"] >= 0
    site.turns(1500.0, every_s=10.0)
    assert {record.state for record in site.slurm.records.values()} == {"COMPLETED"}
    begun = [job for _, job, place in site.slurm.starts if "p1" not in str(place)]
    assert sorted(begun) == sorted(set(begun)), "none is started twice in its VC"
    assert said(caplog, "store gone, a new one begun; its history is lost") == 1


@pytest.mark.parametrize("gone", [["-wal"], ["-shm"], ["-wal", "-shm"]])
@pytest.mark.parametrize("looked", [True, False])
def test_a_deleted_journal_costs_nothing(site: Site, gone: list[str], looked: bool, caplog: Any) -> None:
    """Nor does it where an administrator has looked into the store meanwhile, and SQLite begun a journal for him."""
    notes, decisions = site.store.notes(), site.store.decisions()
    for suffix in gone:
        (site.folder / f"lucid.db{suffix}").unlink()
    if looked:
        code = "import sqlite3, sys; sqlite3.connect(sys.argv[1]).execute('select 1 from sqlite_master')"
        words = [sys.executable, "-c", code, str(site.folder / "lucid.db")]
        subprocess.run(words, check=False, capture_output=True)
    site.turns(8.0)
    assert said(caplog, "journal gone, nothing lost")
    assert not list(site.folder.glob("*.damaged-*"))
    assert set(site.store.notes()) >= set(notes)
    assert site.store.decisions()[: len(decisions)] == decisions
    assert SqliteStore(site.folder / "lucid.db", read_only=True).decisions()[: len(decisions)] == decisions


def test_what_sqlite3_itself_makes_shorter_is_no_damage(site: Site) -> None:
    site.store._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    notes = site.store.notes()
    site.turns(8.0)
    other = sqlite3.connect(site.folder / "lucid.db")
    other.execute("VACUUM")
    other.close()
    site.turns(8.0)
    assert set(site.store.notes()) >= set(notes)
    assert not list(site.folder.glob("*.damaged-*"))


def test_bytes_overwritten_in_the_middle_are_found_though_nobody_reads_there(site: Site, caplog: Any) -> None:
    site.store._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    site.store._watch = StoreWatch(site.folder / "lucid.db", clock_s=lambda: site.slurm.now)
    with (site.folder / "lucid.db").open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * ((site.folder / "lucid.db").stat().st_size - 4096))
    os.utime(site.folder / "lucid.db", (2e9, 2e9))  # the clock of files is coarse: this may be the checkpoint's tick
    site.slurm.advance(10.0)
    site.daemon.turn()
    for check in [thread for thread in threading.enumerate() if thread.name == "store check"]:
        check.join()
    site.turns(4.0)
    assert said(caplog, "a new one begun")
    assert list(site.folder.glob("*.damaged-*"))
    assert site.store.notes()


def test_a_folder_that_was_moved_away_is_made_anew(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    site = Site(tmp_path / "state")
    site.submit("1", 4, run_s=300.0)
    site.turns(20.0)
    (tmp_path / "state").rename(tmp_path / "away")
    site.turns(10.0)
    assert set(SqliteStore(tmp_path / "state/lucid.db", read_only=True).notes()) == {"1"}


def test_a_store_of_a_later_version_is_refused_not_moved_and_nothing_is_done(site: Site, caplog: Any) -> None:
    delete_all(site)
    with sqlite3.connect(site.folder / "lucid.db") as db:
        db.execute("PRAGMA user_version = 999")
    db.close()
    before = (site.folder / "lucid.db").read_bytes(), list(site.slurm.starts), beat(site)
    site.turns(60.0)
    assert ((site.folder / "lucid.db").read_bytes(), site.slurm.starts, beat(site)) == before
    assert said(caplog, "later version of Lucid")


@pytest.mark.parametrize("stopped", [True, False])
def test_a_copy_put_back_gives_no_second_daemon_the_lease(tmp_path: Path, stopped: bool) -> None:
    """Whoever starts finds a lease in it that has run out, or was given back, and a heartbeat of afterwards."""
    site = Site(tmp_path)
    site.turns(10.0)
    if stopped:
        site.daemon.stop()
    site.store._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    shutil.copy(tmp_path / "lucid.db", tmp_path / "copy")
    site.turns(100.0)
    first = site.daemon
    delete_all(site)
    (tmp_path / "copy").rename(tmp_path / "lucid.db")
    second = site.start("two")
    second.turn()
    assert second.cluster is None, "the first may be in the middle of a turn"
    site.turns(8.0, first)
    second.turn()
    assert (first.cluster is None, second.cluster) == (False, None)


def test_one_who_wakes_up_leaves_the_notes_of_the_next_as_they_are(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.submit("1", 4, run_s=3000.0)
    site.turns(20.0)
    first = site.daemon
    delete_all(site)
    site.slurm.advance(60.0)  # the first hangs
    second = site.start("two")
    second.turn()
    assert second.cluster is not None
    lease = site.store.lease()
    site.store.put_notes([replace(site.store.notes().get("1", JobNote("1")), refusal="newer")], lease.token)
    starts = list(site.slurm.starts)
    first.turn()
    first.turn()
    assert (first.cluster, site.slurm.starts) == (None, starts)
    site.store.drop_lease(lease.token)
    site.slurm.advance(60.0)
    first.turn()
    assert first.cluster is not None
    assert site.store.note("1").refusal == "newer"


def test_locked_by_another_for_long_it_waits_and_goes_on(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    site.store._db.execute("PRAGMA busy_timeout = 10")
    before = beat(site)
    other = sqlite3.connect(site.folder / "lucid.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    site.turns(60.0)
    assert beat(site) == before, "the plugin and the timer see that it is stuck"
    assert said(caplog, "locked")
    other.execute("ROLLBACK")
    site.turns(10.0)
    assert beat(site) != before
    assert not list(site.folder.glob("*.damaged-*"))


def test_switches_go_over_and_those_set_meanwhile_stay(site: Site) -> None:
    site.ctl("mode", "vc", "order")
    site.turns(8.0)
    delete_all(site)
    site.ctl("pause")
    site.turns(8.0)
    switches = site.store.settings()
    assert (switches["paused"], switches["mode.vc"][:14]) == ("1", "order was=pack")
    assert site.daemon.modes == {"vc": Mode.OBSERVE}


def test_nothing_is_written_to_a_store_that_nobody_sees(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "lucid.db")
    lease = store.take_lease("me", 0.0, 10.0)
    (tmp_path / "lucid.db").unlink()
    for _ in range(2):
        with pytest.raises(StoreGone, match="deleted or replaced"):
            store.begin_action(0.0, "1", "start", "", lease.token)
        SqliteStore(tmp_path / "lucid.db")
    store.renew(0.0)
    assert store.leased_until_s() is None


def test_closing_the_deleted_file_leaves_the_journal_of_the_new_one_alone(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "lucid.db")
    lease = store.take_lease("me", 0.0, 10.0)
    store.put_notes([JobNote("old")], lease.token)
    (tmp_path / "lucid.db").unlink()
    other = SqliteStore(tmp_path / "lucid.db")
    lease = other.take_lease("other", 0.0, 10.0)
    other.put_notes([JobNote("new")], lease.token)
    store.renew(0.0)
    assert set(store.notes()) == set(SqliteStore(tmp_path / "lucid.db").notes()) == {"new"}
    other.put_notes([JobNote("newer")], lease.token)
    assert set(store.notes()) == {"new", "newer"}


def test_doctor_and_status_say_what_is(site: Site) -> None:
    site.slurm.now = time.time()
    site.turns(8.0)
    delete_all(site)
    told, words = site.ctl("doctor"), ("lucidd runs: its heartbeat is", "begins a new one", "start lucidd")
    assert [one in told for one in words] == [True, True, False]
    shutil.rmtree(site.folder / "run")
    assert "start lucidd" in site.ctl("doctor")


def test_a_store_that_root_makes_belongs_to_whom_the_folder_belongs(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give files away")
    folder = tmp_path / "state"
    folder.mkdir()
    shutil.chown(folder, 1234, 2345)
    store = SqliteStore(folder / "lucid.db")
    store.set_setting("paused", "1")
    assert {(path.stat().st_uid, path.stat().st_gid) for path in folder.glob("lucid.db*")} == {(1234, 2345)}
