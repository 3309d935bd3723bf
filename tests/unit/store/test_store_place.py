"""Whether the store's file lies where several hosts have it, and how it is journalled there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lucid.config.load import settings_from
from lucid.daemon.leader import Failover
from lucid.setup.doctor_state import look_over_failover
from lucid.store.file import network_file_system, set_aside
from lucid.store.port import JobNote
from lucid.store.sqlite import SqliteStore

MOUNTS = """\
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
30 22 0:40 / /shared rw,relatime shared:5 - nfs4 files:/export rw
31 30 0:41 / /shared/local\\040disk rw - tmpfs tmpfs rw
32 22 0:42 / /weka rw - fuse.wekafs w rw
nonsense
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/var/lib/lucid", ""),
        ("/shared/lucid", "nfs4"),
        ("/shared", "nfs4"),
        ("/sharedlucid", ""),
        ("/shared/local disk/x", ""),
        ("/weka/lucid", "fuse.wekafs"),
    ],
)
def test_the_innermost_mount_says_it(tmp_path: Path, path: str, kind: str) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(MOUNTS)
    assert network_file_system(Path(path), mounts) == kind
    assert network_file_system(Path(path), tmp_path / "none") == ""


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
    assert lease is not None
    one.put_notes([JobNote("1")], lease.token)
    assert other.note("1") == JobNote("1")
    assert other.journal == "truncate"
    assert not path.with_name("lucid.db-shm").exists()
    assert SqliteStore(path, read_only=True).note("1") == JobNote("1")


def test_the_journal_goes_aside_with_a_damaged_store(tmp_path: Path) -> None:
    path = tmp_path / "lucid.db"
    for name in ("lucid.db", "lucid.db-journal"):
        (tmp_path / name).write_bytes(b"x")
    aside = set_aside(path, 7.0)
    assert sorted(p.name for p in tmp_path.iterdir()) == [aside.name, f"{aside.name}-journal"]


def told(folder: Path, now_s: float, shared: bool = True, **daemon: Any) -> list[str]:
    data = {"state_dir": str(folder), "heartbeat": "/shared/lucid/heartbeat", "shared_state": shared, **daemon}
    store = SqliteStore(folder / "lucid.db", shared=shared)
    try:
        found = look_over_failover(settings_from({"daemon": data}, "test"), store, store.lease(), now_s)
        return [f"{finding.level} {finding.what}" for finding in found]
    finally:
        store.close()


def test_doctor_says_who_stands_by_and_what_is_not_shared(tmp_path: Path) -> None:
    assert told(tmp_path, 0.0, shared=False) == []
    (alone,) = told(tmp_path, 100.0)
    assert alone.startswith("warn daemon.shared_state is set and no lucidd stands by")
    store = SqliteStore(tmp_path / "lucid.db", shared=True)
    Failover("b:7:1", lambda: 0.0).wait(store, 100.0)
    store.close()
    (other,) = told(tmp_path, 110.0)
    assert other.startswith("ok lucidd on ")
    assert told(tmp_path, 400.0) == [alone], "it has not said so for long"
    own, _ = told(tmp_path, 110.0, heartbeat="/run/lucid/heartbeat")
    assert own.startswith("bad daemon.heartbeat = /run/lucid/heartbeat is of one host")
