"""The store is deleted, replaced or damaged under a running lucidd: it begins another and goes on."""

from __future__ import annotations

import json
import logging
import os
import shutil
import time
from pathlib import Path

import pytest
from test_daemon import Site

from lucid.adapters.store import JobNote, StoreGone
from lucid.adapters.store_sqlite import SqliteStore
from lucid.config import Mode
from lucid.errors import StoreError


@pytest.fixture
def site(tmp_path: Path) -> Site:
    site = Site(tmp_path)
    for name in ("1", "2", "3"):
        site.submit(name, 4, run_s=300.0)
    site.turns(20.0)
    return site


def delete(site: Site) -> None:
    (site.folder / "lucid.db").unlink()


def delete_all(site: Site) -> None:
    for path in site.folder.glob("lucid.db*"):
        path.unlink()


def damage(site: Site) -> None:
    for path in site.folder.glob("lucid.db*"):
        with path.open("r+b") as file:
            file.write(b"\xff" * 4096)
    site.store._db.execute("PRAGMA shrink_memory")


@pytest.mark.parametrize("harm", [delete, delete_all])
def test_it_notices_at_its_next_turn_and_loses_no_job(
    site: Site, harm: object, caplog: pytest.LogCaptureFixture
) -> None:
    notes, starts = site.store.notes(), len(site.slurm.starts)
    assert notes
    assert starts
    harm(site)
    site.turns(8.0)
    assert any("a new one begun" in record.message for record in caplog.records)
    assert set(site.store.notes()) == set(notes), "what is known of jobs that are there goes over"
    assert json.loads(site.ctl("status", "--json"))["partitions"]["vc"]["running"] >= 0
    site.turns(1500.0)
    assert {record.state for record in site.slurm.records.values()} == {"COMPLETED"}
    begun = [job for _, job, place in site.slurm.starts if "p1" not in str(place)]
    assert sorted(begun) == sorted(set(begun)), "none is started twice in its VC"
    assert sum(record.message == "store gone, a new one begun; its history is lost" for record in caplog.records) == 1


def test_switches_go_over_and_those_set_meanwhile_stay(site: Site) -> None:
    site.ctl("mode", "vc", "order")
    site.turns(8.0)
    delete_all(site)
    site.ctl("pause")
    site.turns(8.0)
    switches = site.store.settings()
    assert switches["paused"] == "1"
    assert switches["mode.vc"].startswith("order was=pack")
    assert site.daemon.modes == {"vc": Mode.OBSERVE}


def test_nothing_is_written_to_a_store_that_nobody_sees(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "lucid.db")
    lease = store.take_lease("me", 0.0, 10.0)
    assert lease is not None
    (tmp_path / "lucid.db").unlink()
    for _ in range(2):
        with pytest.raises(StoreGone, match="deleted or replaced"):
            store.begin_action(0.0, "1", "start", "", lease.token)
        SqliteStore(tmp_path / "lucid.db")
    store.renew(0.0)
    assert store.untouched()


def test_closing_the_deleted_file_leaves_the_journal_of_the_new_one_alone(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "lucid.db")
    lease = store.take_lease("me", 0.0, 10.0)
    assert lease is not None
    store.put_note(JobNote("old"), lease.token)
    (tmp_path / "lucid.db").unlink()
    other = SqliteStore(tmp_path / "lucid.db")
    lease = other.take_lease("other", 0.0, 10.0)
    assert lease is not None
    other.put_note(JobNote("new"), lease.token)
    store.renew(0.0)
    assert set(store.notes()) == set(SqliteStore(tmp_path / "lucid.db").notes()) == {"new"}
    other.put_note(JobNote("newer"), lease.token)
    assert set(store.notes()) == {"new", "newer"}


def test_a_second_daemon_waits_until_the_first_has_noticed(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    first = site.daemon
    delete_all(site)
    second = site.start("two")
    second.turn()
    assert second.cluster is None, "the first may be in the middle of a turn"
    assert any("another lucidd may still act" in str(getattr(r, "facts", "")) for r in caplog.records)
    site.turns(8.0, first)
    lease = site.store.lease()
    assert lease is not None
    assert lease.holder == "one"
    second.turn()
    assert second.cluster is None
    first.stop()
    site.turns(8.0, second)
    assert second.cluster is not None


def test_a_second_daemon_goes_on_alone_once_the_heartbeat_has_stopped(site: Site) -> None:
    first = site.daemon
    delete_all(site)
    second = site.start("two")
    second.turn()
    assert second.cluster is None
    site.slurm.advance(60.0)  # the first is gone, or hangs
    second.turn()
    assert second.cluster is not None
    starts = list(site.slurm.starts)
    first.turn()
    assert site.slurm.starts == starts, "the first wakes up, and does nothing by its old lease"
    assert first.cluster is None


def test_a_damaged_store_is_moved_aside_while_lucidd_runs(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    damage(site)
    site.turns(20.0)
    assert list(site.folder.glob("lucid.db.damaged-*"))
    assert any("a new one begun" in record.message for record in caplog.records)
    site.turns(1500.0)
    assert {record.state for record in site.slurm.records.values()} == {"COMPLETED"}


def test_where_no_new_store_can_be_begun_it_says_so_and_tries_again(
    site: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    delete_all(site)

    def refuse(now_s: float) -> None:
        raise StoreError("the folder is somebody else's")

    with monkeypatch.context() as patch:
        patch.setattr(site.store, "renew", refuse)
        site.turns(8.0)
    assert any("a new one cannot be begun" in record.message for record in caplog.records)
    site.turns(8.0)
    assert site.store.notes()


def test_doctor_and_status_say_what_is(site: Site) -> None:
    site.slurm.now = time.time()
    site.turns(8.0)
    delete_all(site)
    told = site.ctl("doctor")
    assert "lucidd runs: its heartbeat is" in told
    assert "begins a new one" in told
    assert "start lucidd" not in told
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
