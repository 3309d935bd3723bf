"""``make demo-elastic`` ended in the middle leaves nothing: no lucidd, no daemon of Slurm, no mount, no file."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from testbed import cli, host
from testbed.owner import MARK, mark_of, marked
from testbed.settings import layout_from

REPO = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def nothing_left_broken() -> None:
    """The demonstration has a testbed of its own."""


def python_below(pid: int) -> int:
    """The process that make started, by way of a shell or not."""
    below = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True, check=False).stdout.split()
    return python_below(int(below[0])) if below and "make" in Path(f"/proc/{pid}/comm").read_text() else pid


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGKILL])
def test_demo_elastic_leaves_nothing_however_it_ends(number: signal.Signals, tmp_path: Path) -> None:
    name = f"{os.environ.get('LUCID_TESTBED_NAME', 'pytest')[:20]}-life"
    environ = {key: value for key, value in os.environ.items() if key != MARK} | {"LUCID_TESTBED_NAME": name}
    layout = layout_from(environ)
    if reason := cli.unfit(layout):
        pytest.skip(reason)
    with (tmp_path / "log").open("wb") as log:
        made = subprocess.Popen(
            ["make", "-s", "demo-elastic"], cwd=REPO, env=environ, stdout=log, stderr=log, start_new_session=True
        )
    try:
        until = time.monotonic() + 120
        while not (layout.root / "run/lucid/heartbeat").exists():
            assert made.poll() is None, (tmp_path / "log").read_text()[-2000:]
            assert time.monotonic() < until, (tmp_path / "log").read_text()[-2000:]
            time.sleep(0.2)
        program = python_below(made.pid)
        mark = mark_of(program)
        assert marked(mark), "lucidd runs beside it"
        if number in (signal.SIGTERM, signal.SIGINT):
            os.killpg(made.pid, number) if number is signal.SIGINT else made.send_signal(number)
        else:
            os.kill(program, number)
        made.wait(90)
        until = time.monotonic() + (30 if number is signal.SIGKILL else 0.5)
        while (layout.home.exists() or marked(mark)) and time.monotonic() < until:
            time.sleep(0.2)
        assert not marked(mark)
        assert not host.processes_in(layout.root)
        assert not host.mounts_under(layout.home)
        assert not layout.home.exists()
    finally:
        if made.poll() is None:
            os.killpg(made.pid, signal.SIGKILL)
            made.wait(10)
        cli.down(layout)
