"""What may be wrong where a second lucidd stands by on another host."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from lucid.adapters.store.place import network_file_system
from lucid.adapters.store.port import Lease
from lucid.adapters.store.sqlite import SqliteStore
from lucid.config import Settings
from lucid.live.reporting.doctor_finding import Finding, bad, warn
from lucid.live.resilience.failover import standby_of

__all__ = ["look_over_failover"]


def look_over_failover(
    settings: Settings, store: SqliteStore, lease: Lease | None, now_s: float
) -> Iterator[Finding]:
    """Of the journal, the places that both hosts must have, and who stands by.

    Raises:
        StoreError: the store cannot be read.
    """
    daemon = settings.daemon
    kind = network_file_system(store.path.parent)
    if (kind or daemon.shared_state) and store.journal == "wal":
        where = f"on {kind}" if kind else "said to be shared"
        yield bad(
            f"{store.path} is {where} and has a write-ahead log, which works within one host only: a second lucidd "
            "may read what is not so",
            "stop lucidd on every host, then start it again with daemon.shared_state = true",
        )
    if not daemon.shared_state:
        if kind:
            yield warn(
                f"{store.path} is on {kind}, and daemon.shared_state is not set",
                "daemon.shared_state = true if a second lucidd stands by; else a state_dir on a disk of this host",
            )
        return
    heartbeat = Path(daemon.heartbeat)
    if heartbeat.is_relative_to("/run") or heartbeat.is_relative_to("/tmp"):
        yield bad(
            f"daemon.heartbeat = {heartbeat} is of one host, with daemon.shared_state: the other host's slurmctld "
            "sees no heartbeat, and its timer releases held jobs",
            "a path on the shared file system, in lucid.toml, lucid.plugin.conf and release.env of both hosts",
        )
    waits = standby_of(store)
    if waits is None or not waits.stands_by(lease, now_s):
        yield warn(
            "daemon.shared_state is set and no lucidd stands by: nobody takes over when this host is lost",
            "systemctl start lucidd on the other host, and read its log",
        )
    else:
        yield Finding("ok", f"lucidd on {waits.host} stands by (pid {waits.pid})")
