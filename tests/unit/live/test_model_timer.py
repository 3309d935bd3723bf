"""The models' timer: ticks in children, never two at once, a child killed with SIGKILL, a tick that fails."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from lucid.daemon.learning.training import ChildTick, ModelTimer
from lucid.errors import ModelError
from lucid.models.library import Library
from scenes.models import cluster, job_log

pytest.importorskip("apscheduler")
SOON = timedelta(seconds=0.05)


def until(true: Callable[[], object], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_ticks_come_again_but_never_two_at_once() -> None:
    running, most, ticks = 0, 0, 0
    lock = threading.Lock()

    def tick() -> list[int]:
        nonlocal running, most, ticks
        with lock:
            running += 1
            most, ticks = max(most, running), ticks + 1
        time.sleep(0.2)  # several ticks come due meanwhile
        with lock:
            running -= 1
        return [ticks]

    told: list[object] = []
    timer = ModelTimer(tick, SOON, told.append)
    timer.start()
    until(lambda: len(told) >= 3)
    timer.stop(wait=True)
    assert most == 1
    assert told[:3] == [[1], [2], [3]]


@pytest.mark.parametrize("error", [ModelError("no data"), RuntimeError("a bug")])
def test_a_tick_that_fails_is_told_and_the_next_one_comes(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    ticks: list[int] = []

    def tick() -> list[int]:
        ticks.append(len(ticks))
        if len(ticks) == 1:
            raise error
        return ticks

    told: list[object] = []
    timer = ModelTimer(tick, SOON, told.append)
    timer.start()
    until(lambda: told)
    timer.stop(wait=True)
    assert str(error) in caplog.text


def test_a_child_that_fails_says_why(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"status 2: .*nothing to train from"):
        ChildTick(["--library", str(tmp_path / "library")])()
    with pytest.raises(ModelError, match="longer than 0 s"):
        ChildTick(["--library", str(tmp_path)], timedelta(seconds=0.01))()


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
    tick = ChildTick(["--jobs", str(log), "--library", str(library.root)])
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
