"""The file of troubles, and processes that die."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from daemon_site import Site
from lucid.daemon import barrier as trouble
from lucid.daemon.barrier import TroubleFile, lives_in_trouble, persistently
from lucid.daemon.learning.child import Children
from lucid.errors import StoreError
from lucid.setup.doctor_state import check_state
from lucid.store.sqlite import SqliteStore

FULL = "lucid.db: cannot be written (database or disk is full)"
HERE = socket.gethostname()


@pytest.fixture
def site(tmp_path: Path) -> Site:
    site = Site(tmp_path)
    site.turns(5.0)
    return site


def full(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise StoreError(FULL)

    for name in ("take_lease", "put_view", "put_notes", "set_setting"):
        monkeypatch.setattr(SqliteStore, name, refuse)


def told(site: Site) -> list[str]:
    return [f"{item.what} → {item.remedy}" for item in check_state(site.settings, site.slurm.now) if item.remedy]


def test_doctor_tells_the_cause_of_a_lucidd_that_lives_and_cannot_write_its_store(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as broken:
        full(broken)
        site.turns(120.0)
        words = "; ".join(told(site))
        assert "is down" not in words
        assert f"lucidd runs on {HERE} (pid {os.getpid()}) and decides nothing: {FULL} → mend that" in words
        assert "systemctl start" not in words
        broken.setattr("lucid.cli.jobs.queue.time.time", lambda: site.slurm.now)
        said = site.ctl("status")
        assert f"lucidd runs on {HERE} (pid {os.getpid()}) and decides nothing: {FULL}" in " ".join(said.split())
        assert "DOWN" not in said
    site.turns(60.0)
    assert not list((site.folder / "run").glob("trouble.*")), "a good turn ends it"
    assert not [words for words in told(site) if "decides nothing" in words or "is down" in words]


def test_where_nobody_can_say_so_doctor_claims_no_more_than_it_sees(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.slurm.now += 3600.0
    site.store.take_lease(f"{HERE}:{os.getpid()}:1", site.slurm.now - 600.0, 1.0)
    assert "lives, and has not renewed its lease" in "; ".join(told(site))
    site.store.take_lease("elsewhere:1:1", site.slurm.now - 300.0, 1.0)
    assert "lucidd is down" in "; ".join(told(site))
    space = SimpleNamespace(f_bavail=3, f_frsize=4096, f_files=100, f_favail=50, f_blocks=9, f_bfree=3)
    monkeypatch.setattr(trouble.os, "statvfs", lambda _: space)
    words = "; ".join(told(site))
    assert "is down" not in words
    assert f"{site.folder} is full: a lucidd that runs cannot take it → make room there" in words


def test_a_lucidd_that_never_got_as_far_as_a_turn_says_so_too(tmp_path: Path) -> None:
    file, stop = TroubleFile(tmp_path / "heartbeat"), threading.Event()

    def make() -> None:
        raise StoreError(FULL)

    def tell(words: str) -> None:
        file.tell(words, 1000.0)
        stop.set()

    persistently(make, stop, "start failed", told=tell)
    (found,) = lives_in_trouble(tmp_path / "heartbeat", 1010.0)
    assert (found.host, found.pid, found.why) == (HERE, os.getpid(), FULL)
    assert lives_in_trouble(tmp_path / "heartbeat", 1000.0 + 600.0) == [], "it is old"
    file.over()
    assert lives_in_trouble(tmp_path / "heartbeat", 1010.0) == []


@pytest.mark.parametrize("text", ["", "[", "[]", "{}", '{"host": 1}', "[" * 100_000, '{"at_s": 1e999}', "\xff"])
def test_what_cannot_be_read_there_is_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / "trouble.x").write_text(text, encoding="latin-1")
    assert lives_in_trouble(tmp_path / "heartbeat", 1000.0) == []


def test_one_that_has_ended_is_no_longer_in_trouble(tmp_path: Path) -> None:
    said = {"host": HERE, "pid": 2**31 - 1, "at_s": 1000.0, "why": FULL}
    (tmp_path / f"trouble.{HERE}").write_text(json.dumps(said))
    assert lives_in_trouble(tmp_path / "heartbeat", 1001.0) == []
    (tmp_path / f"trouble.{HERE}").write_text(json.dumps({**said, "host": "elsewhere"}))
    assert len(lives_in_trouble(tmp_path / "heartbeat", 1001.0)) == 1, "of another host nobody can tell"


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
