"""What root remembers of MPS on a node: a folder that only root writes.

``lock``: taken for a moment to read or write what follows, never while anybody is waited for.
``locks/KEY``: taken while the daemon of one GPU set is started, asked or ended; other sets' jobs do not wait for it.
``sets/KEY/``: a GPU set in use: ``gpus``, ``uid``, ``clients/JOB``, ``daemon`` (the process that root started), and
``pipe/`` and ``log/``, which are the user's own and are never opened, listed or written by root.
``slicing/JOB``: a job that shares by time-slicing: its GPUs, and why. ``sharing/JOB``: one under MPS: its version.
``env/JOB``: what its task prolog prints. ``faults``: a line of JSON for each server that was found broken.
``trash/``: what a user's daemon left, to be emptied as that user.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from lucid_hooks.plan import Limits
from lucid_hooks.processes import Deadline, Process, alive, run_as, seen

__all__ = ["Busy", "GpuSet", "State", "Unsafe", "key_of", "overlap", "write"]

_LARGEST_FAULTS = 1 << 20


class Busy(Exception):
    """A lock was not to be had in time."""


class Unsafe(Exception):
    """A folder that root must be able to trust belongs to somebody else, or others may write there."""


def key_of(gpus: Sequence[str]) -> str:
    """The same GPUs in whatever order are the same set."""
    return hashlib.sha256("\n".join(sorted(gpus)).encode()).hexdigest()[:16]


def overlap(one: Sequence[str], other: Sequence[str]) -> bool:
    """Have two lists a GPU in common?"""
    return not set(one).isdisjoint(other)


def write(path: Path, text: str, mode: int = 0o644) -> None:
    """Replace a file of root's own, whole."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    with os.fdopen(handle, "w") as file:
        file.write(text)
        os.fchmod(file.fileno(), mode)
    fresh.replace(path)


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def _lines(path: Path) -> list[str]:
    return sorted(entry.name for entry in path.iterdir() if not entry.name.startswith(".")) if path.is_dir() else []


@dataclass(frozen=True)
class GpuSet:
    """One GPU set in use, in its folder."""

    path: Path

    @property
    def key(self) -> str:
        """As in ``key_of``."""
        return self.path.name

    @property
    def gpus(self) -> list[str]:
        """Its UUIDs, in the order that server and clients see."""
        return _read(self.path / "gpus").split(",")

    @property
    def uid(self) -> int:
        """Whose it is; -1 where that was never written down."""
        text = _read(self.path / "uid")
        return int(text) if text.isdecimal() else -1

    @property
    def clients(self) -> list[str]:
        """Jobs that are under its daemon, or are about to be."""
        return _lines(self.path / "clients")

    @property
    def pipe(self) -> Path:
        """The daemon's sockets; the user's."""
        return self.path / "pipe"

    @property
    def log(self) -> Path:
        """The daemon's log; the user's."""
        return self.path / "log"

    def half_begun(self, beside: str) -> list[str]:
        """Clients other than ``beside`` whose prolog was cut short before it told them of the daemon."""
        cut = []
        for job in self.clients:
            words = _read(self.path / "clients" / job).split()
            if job != beside and len(words) == 3 and words[0] == "starting":
                prolog = seen(int(words[1]))
                if prolog is None or prolog.started != int(words[2]):
                    cut.append(job)
        return cut

    def mark(self, job: str, ready: bool) -> None:
        """Write a client down: as one that is being started by this process, or one that was told everything."""
        own = seen(os.getpid())
        write(self.path / "clients" / job, "ready" if ready or own is None else f"starting {own.pid} {own.started}")

    def leave(self, job: str) -> None:
        """The job is no client (any more)."""
        (self.path / "clients" / job).unlink(missing_ok=True)

    @property
    def daemon(self) -> Process | None:
        """The control daemon that root started, if this very process still runs."""
        found = self.last_daemon
        return found if found is not None and alive(found) else None

    @property
    def last_daemon(self) -> Process | None:
        """The control daemon that root started last, dead or alive."""
        try:
            data = json.loads(_read(self.path / "daemon"))
            return Process(int(data["pid"]), int(data["started"]), int(data["uid"]), str(data["exe"]))
        except (ValueError, KeyError, TypeError):
            return None

    @property
    def protocol(self) -> int:
        """MPS version 2 or 3, as the daemon was started."""
        return 3 if _read(self.path / "protocol") == "3" else 2

    def started(self, daemon: Process | None, protocol: int) -> None:
        """Write down, where only root can, which process the daemon is."""
        write(self.path / "protocol", str(protocol))
        write(self.path / "daemon", json.dumps(None if daemon is None else asdict(daemon)), 0o600)


class State:
    """The folder as a whole."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def prepare(self) -> None:
        """Create what is missing.

        Raises:
            Unsafe: somebody else could put things into the folder, or put another folder in its place.
            OSError: it cannot be created.
        """
        self.root.mkdir(mode=0o755, parents=True, exist_ok=True)
        self._trusted()
        for name in ("sets", "slicing", "sharing", "env", "locks", "trash"):
            (self.root / name).mkdir(mode=0o755, exist_ok=True)

    def _trusted(self) -> None:
        whole = Path(os.path.realpath(self.root))
        for folder in (whole, *whole.parents):
            found = folder.lstat()
            if found.st_uid not in (0, os.geteuid()):
                raise Unsafe(f"{folder} belongs to user {found.st_uid}, and root keeps nothing there")
            if found.st_mode & 0o022 and not (found.st_mode & 0o1000 and folder != whole):
                raise Unsafe(f"others may write in {folder}, and root keeps nothing there")

    @contextmanager
    def _locked(self, path: Path, deadline: Deadline) -> Iterator[None]:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            while True:
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if not deadline.left():
                        raise Busy(f"{path} is held for too long") from None
                    time.sleep(0.02)
            yield
        finally:
            os.close(handle)

    def node_lock(self, deadline: Deadline) -> AbstractContextManager[None]:
        """For reading and writing the books; nobody is waited for under it."""
        return self._locked(self.root / "lock", deadline)

    def set_lock(self, key: str, deadline: Deadline) -> AbstractContextManager[None]:
        """For everything that the daemon of one GPU set is waited for. Taken before ``node_lock``, never after."""
        return self._locked(self.root / "locks" / key, deadline)

    def sets(self) -> list[GpuSet]:
        """All GPU sets in use."""
        return [GpuSet(self.root / "sets" / name) for name in _lines(self.root / "sets")]

    def join(self, gpus: Sequence[str], uid: int, job: str) -> GpuSet:
        """Make the job a client of this GPU set, which is created where it is not there."""
        joined = GpuSet(self.root / "sets" / key_of(gpus))
        (joined.path / "clients").mkdir(mode=0o755, parents=True, exist_ok=True)
        if joined.uid != uid:
            write(joined.path / "gpus", ",".join(gpus))
            write(joined.path / "uid", str(uid))
        joined.mark(job, ready=False)
        return joined

    def sliced(self) -> dict[str, list[str]]:
        """GPUs of each job that shares by time-slicing."""
        folder = self.root / "slicing"
        return {job: (_read(folder / job).splitlines() or [""])[0].split(",") for job in _lines(folder)}

    def slice(self, job: str, gpus: Sequence[str], reason: str) -> None:
        """Write down that the job shares by time-slicing, and why."""
        write(self.root / "slicing" / job, f"{','.join(gpus)}\n{reason}\n")
        self.tell(job, [f"export CUDA_VISIBLE_DEVICES={','.join(gpus)}", "unset CUDA_MPS_PIPE_DIRECTORY"])

    def shared(self, job: str, protocol: int, limits: Limits) -> None:
        """Write down that the job is under MPS, by which version, and its limits."""
        fenced = "memory not fenced" if limits.mem_mib is None else f"{limits.mem_mib} MiB on each GPU"
        numbers = f"{limits.mem_mib or '-'} {limits.threads_percent or '-'}"
        write(self.root / "sharing" / job, f"MPS v{protocol}, {fenced}\n{numbers}\n")

    def limits_of(self, job: str) -> Limits:
        """The limits of a job under MPS."""
        words = ((_read(self.root / "sharing" / job).splitlines() or [""])[-1]).split()
        if len(words) != 2:
            return Limits()
        mem, threads = (int(word) if word.isdecimal() else None for word in words)
        return Limits(mem, threads)

    def tell(self, job: str, lines: Sequence[str]) -> None:
        """What the job's task prolog is to print."""
        write(self.root / "env" / job, "".join(f"{line}\n" for line in lines))

    def forget(self, job: str) -> None:
        """The job has ended, or begins anew."""
        for name in ("env", "slicing", "sharing"):
            (self.root / name / job).unlink(missing_ok=True)

    def fault(self, gpus: Sequence[str], server: str, jobs: Sequence[str], seen_by: str) -> None:
        """Note that a server was broken. The file is begun anew at 1 MiB."""
        path = self.root / "faults"
        if path.exists() and path.stat().st_size > _LARGEST_FAULTS:
            path.replace(path.with_name("faults.1"))
        line = {
            "at": int(time.time()),
            "gpus": ",".join(gpus),
            "server": int(server) if server.isdecimal() else server,
            "jobs": list(jobs),
            "seen_by": seen_by,
            "fate": "all clients on these GPUs were hit by the fault; their processes fail with a CUDA error",
        }
        with path.open("a") as file:
            file.write(json.dumps(line) + "\n")

    def fresh_folders(self, of: GpuSet) -> None:
        """Give the daemon that is about to start empty folders of its user's own, within root's."""
        self._away(of.pipe, of.log)
        for folder in (of.pipe, of.log):
            folder.mkdir(mode=0o700)
            if os.geteuid() == 0:
                handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
                try:
                    os.fchown(handle, of.uid, -1)
                finally:
                    os.close(handle)

    def remove(self, of: GpuSet) -> None:
        """The set is used no more. Takes a moment whatever its user left in it."""
        self._away(of.pipe, of.log)
        for name in ("gpus", "uid", "daemon", "protocol", "plan.toml"):
            (of.path / name).unlink(missing_ok=True)
        if (of.path / "clients").is_dir():
            for entry in (of.path / "clients").iterdir():  # half written when a command was ended
                entry.unlink()
        for half in of.path.glob(".*"):
            half.unlink()
        for folder in (of.path / "clients", of.path):
            if folder.is_dir():
                folder.rmdir()

    def _away(self, *folders: Path) -> None:
        for folder in folders:
            if folder.is_dir():
                folder.rename(self.root / "trash" / f"{folder.parent.name}.{folder.name}.{time.time_ns()}")

    def empty_trash(self, deadline: Deadline) -> None:
        """Empty what users left, each as its user. What takes too long is left for the next time."""
        for name in _lines(self.root / "trash"):
            folder = self.root / "trash" / name
            try:
                owner = folder.lstat().st_uid
                try:
                    folder.rmdir()
                    continue
                except OSError:
                    pass
                if owner and deadline.left():
                    words = ["find", str(folder), "-xdev", "-mindepth", "1", "-delete"]
                    run_as(owner, words, {"PATH": os.defpath}, deadline.part(3.0))
                folder.rmdir()
            except OSError:
                continue
