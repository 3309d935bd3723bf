"""Work in a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

import pytest

from lucid.daemon.learning.child import Children

_PARENT = """
from datetime import timedelta
import lucid.daemon.learning.child as child
child._step_back = lambda: open({path!r}, "w").write(str(__import__("os").getpid()))
child.Children().run("trace synth month-small --jobs 9000000 --out /dev/null".split(), timedelta(minutes=5))
"""


def _running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_a_child_ends_with_a_parent_that_was_killed(tmp_path: Path) -> None:
    told = tmp_path / "pid"
    with subprocess.Popen([sys.executable, "-c", _PARENT.format(path=str(told))]) as parent:
        while not (told.exists() and told.read_text()):
            assert parent.poll() is None
            time.sleep(0.05)
        child = int(told.read_text())
        assert _running(child)
        os.kill(parent.pid, signal.SIGKILL)
    for _ in range(600):
        if not _running(child):
            return
        time.sleep(0.1)
    os.kill(child, signal.SIGKILL)
    pytest.fail("the child outlived its parent by a minute")


def test_a_child_prints_what_it_prints() -> None:
    done = Children().run(["--version"], timedelta(minutes=2))
    assert done.returncode == 0
    assert "lucid" in done.stdout.lower()


_ENDS = """
import threading, time
from datetime import timedelta
import lucid.daemon.learning.child as child
children = child.Children()
def work():
    try:
        children.run("trace synth month-small --jobs 9000000 --out /dev/null".split(), timedelta(minutes=5))
    except TimeoutError as error:
        print(error, flush=True)
thread = threading.Thread(target=work)
thread.start()
while not children._running:
    time.sleep(0.05)
children.end()
thread.join()
work()
"""


def test_a_process_that_ends_waits_for_no_child() -> None:
    """A training of an hour kept lucidd from ending after SIGTERM: its thread waited for the child."""
    done = subprocess.run([sys.executable, "-c", _ENDS], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.splitlines() == ["was stopped, because lucidd ends", "was not begun, because lucidd ends"]
