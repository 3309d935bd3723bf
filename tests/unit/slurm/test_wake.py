"""lucidd looks at once when job_submit.lua has held a job."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from lucid.slurm.heartbeat import WakeFile


class Stop(threading.Event):
    """Counts what was waited for, and waits for none of it."""

    def __init__(self) -> None:
        super().__init__()
        self.waited: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.waited.append(timeout or 0.0)
        return self.is_set() or len(self.waited) > 3


@pytest.fixture
def wake(tmp_path: Path) -> WakeFile:
    path = tmp_path / "wake"
    path.write_text("1\n")
    os.utime(path, (1, 1))
    return WakeFile(path)


def test_a_change_since_the_mark_ends_the_wait(wake: WakeFile) -> None:
    stop = Stop()
    os.utime(wake.path, (2, 2))
    wake.wait(stop, 0.0, 60.0)
    assert stop.waited == []
    wake.mark()
    wake.wait(stop, 0.0, 60.0)
    assert stop.waited == [0.1] * 4, "what was seen before is no news"


def test_it_never_ends_sooner_than_the_least(wake: WakeFile) -> None:
    stop = Stop()
    os.utime(wake.path, (2, 2))
    wake.wait(stop, 30.0, 60.0)
    assert stop.waited[0] == pytest.approx(30.0, abs=1.0)


def test_without_the_file_time_passes(tmp_path: Path) -> None:
    stop = Stop()
    WakeFile(tmp_path / "none").wait(stop, 0.0, 60.0)
    assert len(stop.waited) == 4


def test_told_to_stop_it_stops(wake: WakeFile) -> None:
    stop = Stop()
    stop.set()
    wake.wait(stop, 0.0, 60.0)
    assert len(stop.waited) == 1
