"""A testbed, and what was started beside it, is gone when the program that made it has ended, however that ended.

Its daemons are left out: what is tried is who takes it down. On a real testbed:
tests/e2e/test_testbed_lifetime_live.py.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from testbed import cli, host
from testbed.owner import dead, mark_of
from testbed.settings import layout_from

REPO = Path(__file__).resolve().parents[2]
PROGRAM = """
import json, os, subprocess, sys, time
sys.path[:0] = [{repo!r}, {repo!r} + "/slurm"]
from testbed.lifetime import kept
from testbed.owner import MARK
from testbed.settings import layout_from
layout = layout_from(os.environ)
try:
    with kept(layout):
        layout.root.mkdir(parents=True)
        (layout.home / "testbed.json").write_text(
            json.dumps({{"owner": os.environ[MARK], "suite": "trixie", "gpus": {{"n[1-4]": 4}}, "cgroup": "none"}}))
        beside = subprocess.Popen(["sleep", "600"], start_new_session=True, stdout=subprocess.DEVNULL)
        print(os.environ[MARK], beside.pid, flush=True)
        if sys.argv[1] == "falls":
            raise RuntimeError("as an error does")
        if sys.argv[1] == "waits":
            time.sleep(600)
finally:
    print("ended", layout.home.exists(), flush=True)
"""


class Program:
    """One that makes a testbed."""

    def __init__(self, cache: Path, how: str) -> None:
        self.environ = {"LUCID_TESTBED": str(cache), "LUCID_TESTBED_NAME": f"t-{os.getpid()}"}
        self.layout = layout_from(self.environ)
        words = [sys.executable, "-c", PROGRAM.format(repo=str(REPO)), how]
        self.process = subprocess.Popen(
            words, env={**os.environ, **self.environ}, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        assert self.process.stdout is not None
        self.mark, beside = self.process.stdout.readline().split()
        self.beside = int(beside)

    def watchers(self) -> list[int]:
        found = subprocess.run(["pgrep", "-f", f"watch {self.mark}"], capture_output=True, text=True, check=False)
        return [int(pid) for pid in found.stdout.split()]

    @property
    def left(self) -> bool:
        return self.layout.home.exists() or mark_of(self.beside) != ""


@pytest.fixture
def started(tmp_path: Path) -> Callable[[str], Program]:
    return lambda how: Program(tmp_path / how, how)


def soon(holds: Callable[[], bool]) -> bool:
    until = time.monotonic() + 10.0
    while not holds() and time.monotonic() < until:
        time.sleep(0.05)
    return holds()


@pytest.mark.parametrize(
    ("how", "number", "code"),
    [
        ("ends", None, 0),
        ("falls", None, 1),
        ("waits", signal.SIGTERM, 143),
        ("waits", signal.SIGINT, 130),
        ("waits", signal.SIGHUP, 129),
    ],
)
def test_it_is_gone_when_the_program_has_ended(
    started: Callable[[str], Program], how: str, number: signal.Signals | None, code: int
) -> None:
    program = started(how)
    if number is not None:
        program.process.send_signal(number)
        program.process.send_signal(number)  # an impatient user
    said, _ = program.process.communicate(timeout=20)
    assert not program.left, said
    assert said == "ended False\n"
    assert program.process.returncode == code
    assert soon(lambda: not program.watchers())


def test_a_watcher_takes_it_down_where_the_program_was_killed(started: Callable[[str], Program]) -> None:
    program = started("waits")
    program.process.kill()
    program.process.communicate(timeout=20)
    assert soon(lambda: not program.left)


def test_the_next_start_clears_what_is_left_where_the_watcher_was_killed_too(
    started: Callable[[str], Program],
) -> None:
    program = started("waits")
    for pid in program.watchers():
        os.kill(pid, signal.SIGKILL)
    program.process.kill()
    program.process.communicate(timeout=20)
    assert program.left
    cli.down(program.layout)
    assert not program.left


def test_a_testbed_that_is_somebody_elses_now_stays(started: Callable[[str], Program]) -> None:
    program = started("waits")
    described = json.loads((program.layout.home / "testbed.json").read_text())
    (program.layout.home / "testbed.json").write_text(json.dumps({**described, "owner": mark_of(os.getpid())}))
    program.process.kill()
    program.process.communicate(timeout=20)
    assert soon(lambda: not program.watchers())
    assert mark_of(program.beside) == ""
    assert program.layout.home.exists()
    assert not dead(mark_of(os.getpid()))


def test_a_daemon_under_its_packages_name_is_found(tmp_path: Path) -> None:
    """slurmctld executes the file behind its links when it is reconfigured, where it was started without a path."""
    program = tmp_path / "slurmctld-wlm"
    shutil.copy("/bin/sleep", program)
    with subprocess.Popen([program, "60"]) as process:
        try:
            assert host.processes_in(Path("/"))[process.pid] == "slurmctld"
        finally:
            process.kill()
