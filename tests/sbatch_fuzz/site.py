"""A testbed of its own for this, and a lucidd that has measured alice's program."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from box import Box
from daemon_box import LIGHT, Lucidd

from lucid.adapters.store.port import ProfileRow
from lucid.adapters.store.sqlite import SqliteStore
from sbatch_fuzz.lines import NAME
from testbed import cli, tree
from testbed.settings import layout_from

__all__ = ["knowing", "up"]


@contextmanager
def knowing(box: Box) -> Iterator[Lucidd]:
    """A lucidd, not started yet, that has measured Alice's program on each number of GPUs."""
    with tempfile.TemporaryDirectory() as folder:
        state = Path(folder) / "state"
        daemon = Lucidd(box, state, t_prof_s=6.0)
        store = SqliteStore(state / "lucid.db")
        lease = store.take_lease("test", time.time(), 1.0)
        assert lease is not None
        for gpus in range(1, 9):
            row = ProfileRow(f"{gpus}0000000", "alice", NAME, gpus, LIGHT, time.time())
            assert store.put_profile(row, f"before {gpus}", lease.token)
        store.drop_lease(lease.token)
        store.close()
        Path(folder).chmod(0o755)
        try:
            yield daemon
        finally:
            daemon.close()


@contextmanager
def up(environ: dict[str, str]) -> Iterator[Box]:
    """A testbed, made and taken down again.

    Raises:
        SystemExit: this machine can have none.
    """
    layout = layout_from({"LUCID_TESTBED_NAME": "sbatch-fuzz", **environ})
    if reason := cli.unfit(layout):
        raise SystemExit(f"no testbed: {reason}")
    with tree.locked(layout.cache / f"{layout.name}.session.lock"):
        tree.build(layout, print)
        cli.down(layout)
        try:
            cli.up(layout, print)
            yield Box(layout.root)
        finally:
            cli.down(layout)
