"""The sampler as a process: one a node, started by the first prolog that needs it, or kept by systemd.

``start`` announces a job and makes sure that a sampler runs; a lock on a file decides who it is. An idle sampler
releases the lock and checks once more for jobs before it leaves, so none falls between."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pwd
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from lucid.core.ports import GpuMetrics
from lucid.errors import ConfigError, MetricsError
from lucid.node.health import HealthPolls
from lucid.node.nvml import NvmlMetrics
from lucid.node.processes import JobSpec, read_job_specs, remove_job_spec, write_job_spec
from lucid.node.sampler import Sampler
from lucid.node.spool import SampleWriter, unended

_IDLE_S: Final = 60.0
_REPEAT_S: Final = 300.0
_LARGEST_LOG: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class NodePaths:
    """Folders on a node. ``run``: announced jobs, lock, log (local, gone at reboot). ``spool``: samples (local disk).
    ``profiles``: summaries, in a folder that the daemon can read."""

    run: Path = Path("/run/lucid")
    spool: Path = Path("/var/lib/lucid/samples")
    profiles: Path = Path("/var/lib/lucid/profiles")

    @property
    def jobs(self) -> Path:
        """Files of announced jobs."""
        return self.run / "jobs"

    @property
    def lock(self) -> Path:
        """The file that the sampler locks; it contains its process id."""
        return self.run / "sampler.lock"

    @property
    def log(self) -> Path:
        """The sampler's log, when nobody else keeps it."""
        return self.run / "sampler.log"

    def make(self) -> None:
        """Create the folders that are missing.

        Raises:
            ConfigError: one cannot be created or written; the message names it."""
        for folder in (self.run, self.jobs, self.spool, self.profiles):
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise ConfigError(f"{folder}: cannot be created ({error.strerror}); see docs/nodes.md") from None
            if not os.access(folder, os.W_OK | os.X_OK):
                raise ConfigError(f"{folder}: user {os.geteuid()} may not write there; see docs/nodes.md")


def metrics_from(source: str) -> GpuMetrics:
    """The source named ``nvml``, or an exporter's page (an address or a file).

    DCGM knows no processes and NVML does, so NVML stands beside it; its GPM is left alone then, for two readers of
    profiling counters disturb each other.

    Raises: ConfigError: there is no source of this name."""
    if source == "nvml":
        return NvmlMetrics()
    if "/" in source:
        from lucid.node.dcgm import ExporterMetrics, JoinedMetrics  # urllib and ssl are 10 MiB

        return JoinedMetrics(ExporterMetrics(source), NvmlMetrics(gpm=False))
    raise ConfigError(f"source {source!r}: known are nvml and a dcgm-exporter's page (http://…, or a file)")


def become(user: str) -> None:
    """Go on as this user, if this process is root's; root is not needed for anything.

    Raises:
        ConfigError: there is no such user."""
    if os.geteuid() != 0:
        return
    try:
        entry = pwd.getpwnam(user)
    except KeyError:
        raise ConfigError(f"user {user!r} does not exist; create it (see docs/nodes.md) or name another") from None
    os.initgroups(entry.pw_name, entry.pw_gid)
    os.setgid(entry.pw_gid)
    os.setuid(entry.pw_uid)


@contextmanager
def _locked(path: Path) -> Iterator[bool]:
    """A context in which this process is the sampler, if it yields true."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        for again in (True, True, True, False):
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not again:
                    yield False
                    return
                time.sleep(0.05)  # somebody may only have asked whether a sampler runs
        os.ftruncate(file, 0)
        os.pwrite(file, f"{os.getpid()}\n".encode(), 0)
        yield True
    finally:
        os.close(file)  # and with it the lock


def running_pid(paths: NodePaths) -> int | None:
    """The process id of this node's sampler; ``None`` if none runs."""
    try:
        with paths.lock.open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return int(file.read() or b"0") or None
    except (OSError, ValueError):
        pass
    return None


def start(paths: NodePaths, spec: JobSpec, launch: Callable[[], None]) -> bool:
    """Announce a job; ``launch`` is called where no sampler runs. Returns whether it was."""
    paths.make()
    write_job_spec(paths.jobs, spec)
    if running_pid(paths) is not None:
        return False
    launch()
    return True


def stop(paths: NodePaths, job: str, node: str, wait_s: float = 3.0) -> bool:
    """End a job. Waits a little for its last summary; where no sampler runs, deletes its samples itself. Returns
    whether they are gone."""
    remove_job_spec(paths.jobs, job)
    until = time.monotonic() + wait_s
    while unended(paths.spool, job, node):
        if running_pid(paths) is None:
            with _locked(paths.lock) as mine:
                if mine:
                    SampleWriter(paths.spool, job, node, time.time()).end()
                    continue
        if time.monotonic() > until:
            return False
        time.sleep(0.05)
    return True


class _Log:
    """Writes lines with the time, the same line at most once in five minutes, to a file of at most 1 MiB."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._said: dict[str, float] = {}

    def __call__(self, text: str) -> None:
        now = time.monotonic()
        if now - self._said.get(text, -_REPEAT_S) < _REPEAT_S:
            return
        if len(self._said) > 256:
            self._said.clear()
        self._said[text] = now
        line = f"{time.strftime('%Y-%m-%dT%H:%M:%S%z')} {text}\n"
        if self._path is None:
            sys.stderr.write(line)
            return
        with contextlib.suppress(OSError):
            if self._path.exists() and self._path.stat().st_size > _LARGEST_LOG:
                self._path.replace(self._path.with_suffix(".log.1"))
            with self._path.open("a", encoding="utf-8") as file:
                file.write(line)


def run(
    paths: NodePaths,
    source: str,
    *,
    interval_s: float = 1.0,
    stay: bool = False,
    samples: int | None = None,
    node: str | None = None,
    log_to_file: bool = False,
) -> bool:
    """Be the sampler of this node until SIGTERM; unless ``stay``, also until no job has been there for a minute.

    Samples fall on whole multiples of ``interval_s``; a late one is not made up for. ``samples`` ends it after so
    many rounds. Returns ``False`` at once if another process is the sampler."""
    paths.make()
    log = _Log(paths.log if log_to_file else None)
    stopping: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda caught, _: stopping.append(caught))
    while True:
        with _locked(paths.lock) as mine:
            if not mine:
                return False
            with contextlib.suppress(OSError):
                os.nice(10)  # whatever else: the jobs come first
            name, metrics = node or socket.gethostname().partition(".")[0], metrics_from(source)
            sampler = Sampler(metrics, paths.spool, paths.profiles, name, interval_s=interval_s, log=log)
            health = HealthPolls(metrics, paths.spool, paths.profiles, name, log)
            rounds = _rounds(paths, sampler, health, interval_s, stay, samples, stopping)
            sampler.close()
        # A job announced while the lock was still held found a sampler running and did not start one.
        if stopping or (samples is not None and rounds >= samples) or not any(read_job_specs(paths.jobs)):
            return True


def _rounds(
    paths: NodePaths,
    sampler: Sampler,
    health: HealthPolls,
    interval_s: float,
    stay: bool,
    samples: int | None,
    stopping: list[int],
) -> int:
    rounds, busy_s = 0, time.monotonic()
    while not stopping and (samples is None or rounds < samples):
        now = time.time()
        delay = interval_s - now % interval_s
        time.sleep(delay)
        if stopping:
            break
        specs = {spec.job: spec for spec in read_job_specs(paths.jobs)}
        at_s = round((now + delay) / interval_s) * interval_s
        try:
            sampler.tick(specs, at_s)
            health.tick(at_s)
        except MetricsError as error:  # of one job's files; the others are sampled at the next tick
            sys.stderr.write(f"{error}\n")
        rounds += 1
        if specs or sampler.jobs:
            busy_s = time.monotonic()
        elif not stay and time.monotonic() - busy_s > _IDLE_S:
            break
    return rounds
