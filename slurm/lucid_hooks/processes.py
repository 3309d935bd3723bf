"""Processes of a user, as root sees and ends them.

Root believes nothing that a user says about a process. It goes by what it wrote down itself (process id, start time,
uid, executable), looks at /proc again right before a signal, holds the process by a pidfd meanwhile, and sends the
signal as the process's user. So even a mistake can hit nobody else.
"""

from __future__ import annotations

import os
import pwd
import select
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

__all__ = [
    "Answer",
    "Deadline",
    "Process",
    "_give_up_rights",
    "alive",
    "below",
    "program_at",
    "run_as",
    "seen",
    "signal_as",
    "spawn_as",
]

_PROC = Path("/proc")
_MOST_BYTES = 65536


class Deadline:
    """The time that one command has in all. Every step asks it how long it may still take."""

    def __init__(self, seconds: float) -> None:
        self._until = time.monotonic() + seconds

    def left(self, most_s: float = 3600.0) -> float:
        """Seconds for the next step: at most ``most_s``, and never under 0."""
        return max(0.0, min(most_s, self._until - time.monotonic()))

    def part(self, most_s: float) -> Deadline:
        """A deadline of its own for one step, which ends no later than this one."""
        return Deadline(self.left(most_s))


@dataclass(frozen=True)
class Process:
    """One process for all time: ``started`` is in clock ticks since boot, as in /proc/PID/stat."""

    pid: int
    started: int
    uid: int
    exe: str

    def same(self, other: Process | None) -> bool:
        """Is it the same process? Its executable may have changed since; a process can do that to itself."""
        return other is not None and (self.pid, self.started, self.uid) == (other.pid, other.started, other.uid)


@dataclass(frozen=True)
class Answer:
    """What a command said, cut off after 64 KiB. ``code`` is ``None`` where it did not end in time, or said more."""

    code: int | None
    text: str


def _stat(pid: int) -> list[str]:
    # the second field is the command in brackets, and may hold spaces and brackets itself
    try:
        return (_PROC / str(pid) / "stat").read_bytes().rpartition(b")")[2].decode("ascii", "replace").split()
    except OSError:
        return []


def _real_uid(pid: int) -> int | None:
    try:
        for line in (_PROC / str(pid) / "status").read_bytes().splitlines():
            if line.startswith(b"Uid:"):
                return int(line.split()[1])
    except (OSError, ValueError, IndexError):
        pass
    return None


def seen(pid: int) -> Process | None:
    """The process as /proc shows it now; ``None`` where there is none, or where it has ended and nobody asked how."""
    stat, uid = _stat(pid), _real_uid(pid)
    if len(stat) < 20 or uid is None or stat[0] in "ZX":
        return None
    try:
        exe = str((_PROC / str(pid) / "exe").readlink())
    except OSError:
        exe = ""
    return Process(pid, int(stat[19]), uid, exe)


def alive(process: Process) -> bool:
    """Does this very process still run?"""
    return process.same(seen(process.pid))


def below(process: Process, servers: str) -> list[Process]:
    """The process's descendants that are its user's, and who stayed in its session while it runs. Once it is gone,
    only those of its session that run the program named ``servers`` (its number may be another's by then)."""
    parents: dict[int, int] = {}
    sessions: dict[int, int] = {}
    for entry in os.scandir(_PROC):
        if entry.name.isdigit():
            stat = _stat(int(entry.name))
            if len(stat) >= 20:
                parents[int(entry.name)], sessions[int(entry.name)] = int(stat[1]), int(stat[3])
    there = alive(process)
    found = []
    for pid in parents:
        line, steps = pid, 0
        while there and line not in (0, 1, process.pid) and steps < 64:
            line, steps = parents.get(line, 0), steps + 1
        related = there and line == process.pid
        if pid == process.pid or not (related or sessions[pid] == process.pid):
            continue
        other = seen(pid)
        if other is None or other.uid != process.uid or other.started < process.started:
            continue
        if there or Path(other.exe).name == servers:
            found.append(other)
    return found


def program_at(name: str) -> str | None:
    """Where a program is, by PATH; a name with a slash is a path already. (``shutil`` is not in a minimal Python.)"""
    folders = [""] if "/" in name else os.environ.get("PATH", os.defpath).split(":")
    found = (str(Path(folder, name)) for folder in folders if folder or "/" in name)
    return next((path for path in found if os.access(path, os.X_OK) and Path(path).is_file()), None)


def _account(uid: int) -> tuple[int, list[int]]:
    try:
        entry = pwd.getpwuid(uid)
        return entry.pw_gid, os.getgrouplist(entry.pw_name, entry.pw_gid)
    except (KeyError, OSError):
        return 65534, []


def _give_up_rights(uid: int) -> None:
    """Become this user for good, without any group: for a child that only sends a signal."""
    if os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(65534, 65534, 65534)
        os.setresuid(uid, uid, uid)


def signal_as(process: Process, number: int) -> bool:
    """Send a signal to this very process, as its user. Was it sent?"""
    try:
        handle = os.pidfd_open(process.pid)
    except OSError:
        return False
    try:
        if not alive(process):  # asked after the pidfd was opened: what it holds cannot become another process
            return False
        child = os.fork()
        if child == 0:
            try:
                _give_up_rights(process.uid)
                signal.pidfd_send_signal(handle, number)
                os._exit(0)
            except BaseException:
                os._exit(1)
        return os.waitpid(child, 0)[1] == 0
    finally:
        os.close(handle)


def spawn_as(uid: int, words: Sequence[str], environ: Mapping[str, str], **pipes: int) -> subprocess.Popen[bytes]:
    """Start a command as this user in a session of its own, with this environment and nothing of ours open.

    Raises:
        OSError: it cannot be started.
        subprocess.SubprocessError: likewise.
    """
    if os.geteuid() != 0:
        if os.geteuid() != uid:
            raise PermissionError("only root may start a command for another user")
        return subprocess.Popen(words, env=environ, cwd="/", start_new_session=True, **pipes)  # type: ignore[call-overload,no-any-return]
    group, groups = _account(uid)
    return subprocess.Popen(  # type: ignore[call-overload,no-any-return]
        words, env=environ, cwd="/", start_new_session=True, user=uid, group=group, extra_groups=groups, **pipes
    )


def run_as(uid: int, words: Sequence[str], environ: Mapping[str, str], deadline: Deadline, told: str = "") -> Answer:
    """Run a command as this user and read what it says, within the deadline and 64 KiB.

    Whatever is left of it then is ended. ``told``: a line or two for its standard input.
    """
    entry, exit_ = os.pipe()
    os.write(exit_, told.encode()[:4096])
    os.close(exit_)
    try:
        child = spawn_as(uid, words, environ, stdin=entry, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    except (OSError, subprocess.SubprocessError) as error:
        return Answer(None, str(error)[:200])
    finally:
        os.close(entry)
    assert child.stdout is not None
    said = bytearray()
    code: int | None = None
    try:
        while len(said) < _MOST_BYTES and select.select([child.stdout], [], [], deadline.left())[0]:
            data = os.read(child.stdout.fileno(), 8192)
            if not data:
                code = child.wait(deadline.left())
                break
            said += data
    except subprocess.TimeoutExpired:
        pass
    finally:
        child.stdout.close()
        if code is None:
            _reap(child, uid)
    return Answer(code, said.decode("utf-8", "replace"))


def _reap(child: subprocess.Popen[bytes], uid: int) -> None:
    """End a child of ours, and do not wait for one that cannot be ended."""
    found = seen(child.pid)
    if found is not None and found.uid == uid:
        signal_as(found, signal.SIGKILL)
    with suppress(subprocess.TimeoutExpired):
        child.wait(1.0)
