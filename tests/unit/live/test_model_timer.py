"""Training beside lucidd: in children, one killed with SIGKILL, one that fails."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from lucid.config.load import settings_from
from lucid.daemon.learning.child import Children
from lucid.daemon.learning.training import Upkeep, trained
from lucid.errors import ModelError
from lucid.models.library import Library
from lucid.store.lease import IN_MEMORY
from lucid.store.sqlite import SqliteStore
from scenes.models import cluster, job_log

pytest.importorskip("apscheduler")


def until(true: Callable[[], object], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize("error", [ModelError("no data"), RuntimeError("a bug")])
def test_a_training_that_fails_is_logged(error: Exception, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def train() -> list[dict[str, Any]]:
        raise error

    daemon = {"partitions": {"vc": "pack"}, "state_dir": str(tmp_path)}
    settings = settings_from({"daemon": daemon, "models": {"jobs": "x.log"}}, "test")
    assert Upkeep(settings, SqliteStore(IN_MEMORY), train)() == []
    assert str(error) in caplog.text


def test_a_child_that_fails_says_why(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"status 2: .*nothing to train from"):
        trained(Children(), ["--library", str(tmp_path / "library")])
    with pytest.raises(ModelError, match="longer than 0 s"):
        trained(Children(), ["--library", str(tmp_path)], timedelta(seconds=0.01))


_STUCK = """
import sys, time
from pathlib import Path
from lucid.models.library import Library
with Library(Path(sys.argv[1])).training():
    Path(sys.argv[2]).write_text("training")
    time.sleep(60)
"""


def test_a_child_decides_and_says_so_after_one_killed_with_sigkill(
    tmp_path: Path,
) -> None:
    log, library, sign = (
        job_log(tmp_path / "jobs.csv", cluster(120)),
        Library(tmp_path / "library"),
        tmp_path / "sign",
    )
    tick = partial(trained, Children(), ["--jobs", str(log), "--library", str(library.root)])
    victim = subprocess.Popen([sys.executable, "-c", _STUCK, str(library.root), str(sign)], env=dict(os.environ))
    try:
        until(sign.exists)
        found, *_ = tick()
        assert f"process {victim.pid}" in found["reasons"][-1]
        assert "version" not in found
    finally:
        victim.send_signal(signal.SIGKILL)
        victim.wait()
    found, *_ = tick()
    assert (found["kind"], found["action"]) == ("duration", "train")
    assert found["promoted"]  # of so few jobs nothing is fitted: the running median, as a version
    assert library.serving("duration") == 1
