"""Stores: where they lie, and without a file or a disk."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from fake_slurm import FakeSlurm, fake_node
from lucid.cli.main import lucidctl
from lucid.cli.site import doctor
from lucid.config.load import load_settings, settings_from
from lucid.errors import LucidError, StoreError
from lucid.setup.doctor_state import check_failover, check_state
from lucid.slurm.heartbeat import Heartbeat, write_heartbeat
from lucid.store.file import network_file_system
from lucid.store.port import JobNote
from lucid.store.sqlite import SqliteStore

ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="a small disk is a tmpfs, which only root can mount")


def config(folder: Path, state: Path | None = None) -> Path:
    path = folder / "lucid.toml"
    path.write_text(
        f'[slurm]\nprefix = ["chroot", "/srv/a b"]\n[daemon]\nstate_dir = "{state or folder / "state"}"\n'
        f'heartbeat = "{folder}/beat"\n[daemon.partitions]\nvc = "pack"\n'
    )
    return path


def ctl(*words: str | Path) -> tuple[int, str]:
    """As a shell sees it."""
    done = CliRunner().invoke(lucidctl, [str(word) for word in words])
    if isinstance(done.exception, LucidError):
        return done.exception.exit_code, f"{done.output}{done.exception}"
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.output


@pytest.mark.parametrize("written", ["[daemon\n", "[policy]\nspeed = 1\n", ""], ids=["no TOML", "wrong key", "gone"])
@pytest.mark.parametrize("command", ["pause", "uninstall"])
def test_a_broken_file_is_named_and_so_is_what_does_without(tmp_path: Path, written: str, command: str) -> None:
    path = config(tmp_path)
    path.write_text(written) if written else path.unlink()
    code, words = ctl(command, "--config", path)
    assert (code, (tmp_path / "state").exists()) == (2, False)
    without = "systemctl stop lucidd ", "/etc/slurm/lucid/lucid-release --all "
    for said in (str(path), f"Nothing is {command.removesuffix('e')}", *without):
        assert said in words


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 256 KiB."""
    folder = tmp_path / "small"
    folder.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "lucid-test", str(folder)], check=False)
    if done.returncode:
        pytest.skip("no tmpfs can be mounted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(folder: Path) -> None:
    with (folder / "filler").open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(b"x" * 512)


@ROOT_ONLY
@pytest.mark.parametrize("made", [False, True], ids=["empty", "with its store"])
def test_pause_on_a_full_disk_says_what_does_without(tmp_path: Path, small_disk: Path, made: bool) -> None:
    path = config(tmp_path, small_disk)
    if made:
        SqliteStore(small_disk / "lucid.db").close()
    fill(small_disk)
    code, words = ctl("pause", "--config", path)
    assert (code, "Nothing is paused." in words) == (6, True)
    assert "LUCID_SLURM_PREFIX='chroot /srv/a b' /etc/slurm/lucid/lucid-release --all" in words


@ROOT_ONLY
def test_a_store_that_a_full_disk_left_empty_is_told_as_that(tmp_path: Path, small_disk: Path) -> None:
    """It was told as an old schema, to be brought up to date by starting lucidd."""
    path = config(tmp_path, small_disk)
    fill(small_disk)
    with pytest.raises(StoreError, match="full"):
        SqliteStore(small_disk / "lucid.db")
    for command in ("status", "queue"):
        words = ctl(command, "--config", path)[1]
        assert ("could not write" in words, "schema" in words) == (True, False)
    findings = [item for item in check_state(load_settings(path), time.time()) if "small" in item.what]
    assert [item.level for item in findings[:2]] == ["bad", "bad"]
    assert "0 MiB are free" in findings[0].what
    assert "make room" in findings[1].remedy


class TestUninstall:
    """On a cluster in memory."""

    @pytest.fixture
    def slurm(self, monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
        slurm = FakeSlurm([fake_node("n1", "vc")], now=time.time())
        monkeypatch.setattr(doctor, "make_client", lambda settings, breaker: slurm)
        monkeypatch.setattr(slurm, "close", lambda: None, raising=False)
        slurm.submit("1", "vc", 1)
        return slurm

    @ROOT_ONLY
    @pytest.mark.parametrize("made", [False, True], ids=["empty", "with its store"])
    def test_it_does_all_of_it_without_a_disk(self, tmp_path: Path, small_disk: Path, slurm: Any, made: bool) -> None:
        path = config(tmp_path, small_disk)
        if made:
            with closing(SqliteStore(small_disk / "lucid.db")) as store:
                lease = store.take_lease("host:1:gone", 0.0, 1.0)
                store.put_notes([JobNote("1", home="vc")], lease.token)
        fill(small_disk)
        assert slurm.records["1"].held
        code, words = ctl("uninstall", "--config", path, "--wait", "5")
        assert (code, slurm.records["1"].held) == (0, False), words
        assert "going on without it" in words
        assert "Lucid holds and changes no job" in words

    def test_it_leaves_jobs_to_a_lucidd_that_beats_beside_no_store(self, tmp_path: Path, slurm: FakeSlurm) -> None:
        path = config(tmp_path)
        write_heartbeat(tmp_path / "beat", Heartbeat(time.time()))
        code, words = ctl("uninstall", "--config", path, "--wait", "5")
        assert (code, slurm.records["1"].held) == (2, True)
        assert f"lucidd runs: {tmp_path}/beat is fresh" in words

    def test_a_lucidd_that_was_stopped_a_moment_ago_is_no_hindrance(self, tmp_path: Path, slurm: FakeSlurm) -> None:
        path = config(tmp_path)
        store = SqliteStore(tmp_path / "state/lucid.db")
        lease = store.take_lease("here", time.time(), 10.0)
        store.drop_lease(lease.token)
        write_heartbeat(tmp_path / "beat", Heartbeat(time.time()))
        code, words = ctl("uninstall", "--config", path, "--wait", "5")
        assert (code, slurm.records["1"].held) == (0, False), words

    def test_a_slurm_that_does_not_answer_is_no_proof(self, tmp_path: Path, slurm: FakeSlurm) -> None:
        slurm.down = True
        code, words = ctl("uninstall", "--config", config(tmp_path), "--wait", "2.5")
        assert (code, words.count("slurmctld does not answer")) == (4, 1), "the same trouble is told once"
        assert "cannot be told" in words
        assert "lucid-release --all" in words


def test_pause_says_where_lucidd_is_down(tmp_path: Path) -> None:
    code, words = ctl("pause", "--config", config(tmp_path))
    assert (code, "lucidd is down" in words) == (0, True)
    assert SqliteStore(tmp_path / "state/lucid.db").settings() == {"paused": "1"}
    assert ctl("resume", "--config", tmp_path / "lucid.toml") == (
        0, "resumed; lucidd is down, and decides nothing until it is started\n",
    )  # fmt: skip
    assert "nothing was paused" in ctl("resume", "--config", tmp_path / "lucid.toml")[1]


MOUNTS = """\
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
30 22 0:40 / /shared rw,relatime shared:5 - nfs4 files:/export rw
31 30 0:41 / /shared/local\\040disk rw - tmpfs tmpfs rw
32 22 0:42 / /weka rw - fuse.wekafs w rw
nonsense
"""


MOUNTED = {
    "/var/lib/lucid": "", "/shared/lucid": "nfs4", "/shared": "nfs4", "/sharedlucid": "", "/shared/local disk/x": "",
    "/weka/lucid": "fuse.wekafs",
}  # fmt: skip


def test_the_innermost_mount_says_it(tmp_path: Path) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(MOUNTS)
    assert {path: network_file_system(Path(path), mounts) for path in MOUNTED} == MOUNTED
    assert {network_file_system(Path(path), tmp_path / "none") for path in MOUNTED} == {""}


def test_a_shared_store_has_no_write_ahead_log(tmp_path: Path) -> None:
    path = tmp_path / "lucid.db"
    alone = SqliteStore(path)
    assert alone.journal == "wal"
    beside = SqliteStore(path, shared=True)
    assert beside.journal == "wal", "not while it is open so elsewhere; doctor tells"
    beside.close()
    alone.close()
    one, other = SqliteStore(path, shared=True), SqliteStore(path, shared=True)
    lease = one.take_lease("one", 0.0, 10.0)
    one.put_notes([JobNote("1")], lease.token)
    assert other.note("1") == JobNote("1")
    assert other.journal == "truncate"
    assert not path.with_name("lucid.db-shm").exists()
    assert SqliteStore(path, read_only=True).note("1") == JobNote("1")


def told(folder: Path, now_s: float, shared: bool = True, **daemon: Any) -> list[str]:
    data = {"state_dir": str(folder), "heartbeat": "/shared/lucid/heartbeat", "shared_state": shared, **daemon}
    with closing(SqliteStore(folder / "lucid.db", shared=shared)) as store:
        found = check_failover(settings_from({"daemon": data}, "test"), store, store.lease(), now_s)
        return [f"{finding.level} {finding.what}" for finding in found]


def test_doctor_says_who_stands_by_and_what_is_not_shared(tmp_path: Path) -> None:
    assert told(tmp_path, 0.0, shared=False) == []
    (alone,) = told(tmp_path, 100.0)
    assert alone.startswith("warn daemon.shared_state is set and no lucidd stands by")
    with closing(SqliteStore(tmp_path / "lucid.db", shared=True)) as store:
        store.put_view("standby", {"host": "b", "pid": 7, "since_s": 100.0, "at_s": 100.0, "holder": "b:7:1"})
    (other,) = told(tmp_path, 110.0)
    assert other.startswith("ok lucidd on ")
    assert told(tmp_path, 400.0) == [alone], "it has not said so for long"
    own, _ = told(tmp_path, 110.0, heartbeat="/run/lucid/heartbeat")
    assert own.startswith("bad daemon.heartbeat = /run/lucid/heartbeat is of one host")
