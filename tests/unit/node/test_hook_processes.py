"""How root looks at a user's processes, asks them, and ends them."""

from __future__ import annotations

import ast
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from lucid_hooks.processes import Deadline, Process, alive, below, run_as, seen, signal_as
from lucid_hooks.state import State, Unsafe

HOOKS = Path(__file__).parents[3] / "slurm" / "lucid_hooks"
ME = os.getuid()
NOBODY = 65534
root = pytest.mark.skipif(os.getuid() != 0, reason="only root can be somebody else")


def found(pid: int) -> Process:
    process = seen(pid)
    assert process is not None
    return process


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "300"])
    while Path(f"/proc/{process.pid}/exe").resolve().name == Path(sys.executable).resolve().name:
        time.sleep(0.01)
    yield process
    process.kill()
    process.wait()


def test_a_signal_reaches_the_very_process_that_was_written_down(sleeper: subprocess.Popen[bytes]) -> None:
    process = found(sleeper.pid)
    for other in (replace(process, started=process.started - 1), replace(process, uid=NOBODY - 1)):
        assert not signal_as(other, signal.SIGKILL)  # the number was used again, or is somebody else's
        assert not alive(other)
    assert sleeper.poll() is None
    assert signal_as(process, signal.SIGKILL)
    assert sleeper.wait(30) == -signal.SIGKILL
    assert not signal_as(process, signal.SIGKILL)


@root
def test_a_signal_is_sent_as_the_processs_user(
    sleeper: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even where root took a process of its own for a user's."""
    process = replace(found(sleeper.pid), uid=NOBODY)
    monkeypatch.setattr("lucid_hooks.processes.alive", lambda _: True)
    assert not signal_as(process, signal.SIGKILL)
    time.sleep(0.1)
    assert sleeper.poll() is None


def test_an_answer_is_cut_off_in_length_and_in_time() -> None:
    long = run_as(ME, ["yes", "4242"], {"PATH": os.defpath}, Deadline(20))
    assert long.code is None
    assert 65536 <= len(long.text) <= 65536 + 8192
    began = time.monotonic()
    assert run_as(ME, ["sleep", "300"], {"PATH": os.defpath}, Deadline(0.2)) == run_as(
        ME, ["sh", "-c", "exec >&-; sleep 300"], {"PATH": os.defpath}, Deadline(0.2)
    )
    assert time.monotonic() - began < 60
    assert run_as(ME, ["sh", "-c", "cat; exit 3"], {"PATH": os.defpath}, Deadline(20), "a\n").text == "a\n"
    assert run_as(ME, ["no-such-program"], {"PATH": os.defpath}, Deadline(20)).code is None


def test_servers_are_found_below_their_daemon_and_not_by_its_word() -> None:
    script = "sleep 301 & setsid sleep 302 & echo ready; wait"
    with subprocess.Popen(["sh", "-c", script], stdout=subprocess.PIPE, start_new_session=True) as daemon:
        daemon.stdout.readline()
        process = found(daemon.pid)
        deadline = Deadline(30)
        while len(children := below(process, "server")) < 2 and deadline.left():
            time.sleep(0.05)
        assert len(children) == 2, "one in its session, and one that left it"
        assert process not in children
        daemon.kill()
        daemon.wait()
        assert below(process, "server") == [], "whose number the session's was is another's by now"
        assert [Path(child.exe).name for child in below(process, Path(children[0].exe).name)] in ([], ["sleep"])
        for child in children:
            assert signal_as(child, signal.SIGKILL)


@root
def test_root_keeps_nothing_in_a_folder_that_others_can_change(tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    os.chown(theirs, NOBODY, -1)
    with pytest.raises(Unsafe, match="belongs to user 65534"):
        State(theirs / "mps").prepare()
    open_ = tmp_path / "open"
    open_.mkdir()
    open_.chmod(0o777)
    with pytest.raises(Unsafe, match="others may write"):
        State(open_ / "mps").prepare()
    (tmp_path / "link").symlink_to(theirs)
    with pytest.raises(Unsafe):
        State(tmp_path / "link/mps").prepare()
    State(tmp_path / "mine").prepare()


def test_the_hooks_run_on_an_old_and_on_a_minimal_python() -> None:
    """3.9's grammar; and no module that Debian's python3-minimal lacks."""
    lacking = {"shutil", "tempfile", "tomllib", "logging", "socket", "typing_extensions", "lucid"}
    for path in HOOKS.glob("*.py"):
        tree = ast.parse(path.read_text(), feature_version=(3, 9))
        named = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
        named |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        assert not {name.partition(".")[0] for name in named} & lacking, path
