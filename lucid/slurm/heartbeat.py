"""The heartbeat file, which shows job_submit.lua that lucidd lives, and the file by which it wakes lucidd.

job_submit.lua rewrites the wake file when it holds a job, so that lucidd polls at once and need not ask Slurm often.
The file lies beside the heartbeat and belongs to slurmctld's user (lucidd.service makes it); lucidd only reads its
time of change. Without it lucidd finds new jobs by polling."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct, field

from lucid.errors import StoreError
from lucid.files import write_public
from lucid.places import Mode

_HOST = re.compile(r"[A-Za-z0-9_.-]{1,255}")


class Heartbeat(Struct, frozen=True):
    """The content of the heartbeat file. ``at_s``: when the last good cycle ended (Unix time). ``profiling``: where
    new jobs are profiled, up to ``n_prof`` GPUs; empty where they are not. ``most``: GPUs of the largest node, by
    partition: a job that asks for more on one is Slurm's to refuse, which it does not do once the job is held.
    ``host``: of the lucidd that wrote it, ``standby``: of the one that would go on in its place; both are for
    lucid-release. ``pool``: the partition of the VCs that lend to each other; empty where there is none.
    ``unrouted``: partitions whose jobs are not profiled, or stay in them. ``uid``: of lucidd's user on the
    cluster, whose own jobs may name a single GPU; -1 where it is not known."""

    at_s: float
    modes: Mapping[str, Mode] = field(default_factory=dict)
    profiling: str = ""
    n_prof: int = 0
    most: Mapping[str, int] = field(default_factory=dict)
    host: str = ""
    standby: str = ""
    pool: str = ""
    unrouted: tuple[str, ...] = ()
    uid: int = -1


def write_heartbeat(path: Path, beat: Heartbeat) -> None:
    """Replace the heartbeat file; its words are separated by blanks, so that Lua reads it with one pattern a line.

    Raises: StoreError: the folder cannot be written."""
    lines = [f"time {beat.at_s:.0f}", *(f"mode {name} {mode}" for name, mode in sorted(beat.modes.items()))]
    lines.append("optout behind")  # a job_submit.lua of before takes a heartbeat without it for "free"
    lines += [f"most {name} {gpus}" for name, gpus in sorted(beat.most.items())]
    if beat.profiling:
        lines += [f"profiling {beat.profiling}", f"n_prof {beat.n_prof}"]
    if beat.pool:
        lines.append(f"pool {beat.pool}")
    lines += [f"unrouted {name}" for name in beat.unrouted]
    if beat.uid >= 0:
        lines.append(f"uid {beat.uid}")
    hosts = {"host": beat.host, "standby": beat.standby}
    lines += [f"{key} {name}" for key, name in hosts.items() if _HOST.fullmatch(name)]
    try:
        write_public(path, ("\n".join(lines) + "\n").encode())
    except OSError as error:
        raise StoreError(
            f"{path}: the heartbeat cannot be written ({error.strerror}); check who owns the folder"
        ) from None


def read_heartbeat(path: Path) -> Heartbeat | None:
    """The heartbeat in the file; ``None`` where there is no file, or it holds no heartbeat."""
    try:
        lines = [line.split() for line in path.read_text(encoding="utf-8").splitlines()]
        pairs = {words[0]: words[1] for words in lines if len(words) == 2}
        modes = {words[1]: Mode(words[2]) for words in lines if len(words) == 3 and words[0] == "mode"}
        most = {words[1]: int(words[2]) for words in lines if len(words) == 3 and words[0] == "most"}
        return Heartbeat(
            float(pairs["time"]), modes, pairs.get("profiling", ""), int(pairs.get("n_prof", "0")), most,
            pairs.get("host", ""), pairs.get("standby", ""),
            pairs.get("pool", ""), tuple(words[1] for words in lines if len(words) == 2 and words[0] == "unrouted"),
            int(pairs.get("uid", "-1")),
        )  # fmt: skip
    except (OSError, ValueError, KeyError, UnicodeDecodeError):
        return None


_EVERY_S = 0.1


def _time_ns(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


class WakeFile:
    """Waits until the wake file changes, or time has passed."""

    def __init__(self, path: Path, *others: Path) -> None:
        """``others``: further files and folders that wake lucidd."""
        self.path = path
        self._others = others
        self._seen = self._changed_ns()

    def _changed_ns(self) -> tuple[int, ...]:
        return tuple(map(_time_ns, (self.path, *self._others)))

    def mark(self) -> None:
        """Count only changes from now on."""
        self._seen = self._changed_ns()

    def wait(self, stop: threading.Event, least_s: float, most_s: float) -> None:
        """Return after ``most_s``; at once when ``stop`` is set; or once the file has changed since ``mark`` and
        ``least_s`` have passed."""
        began_s = time.monotonic()
        while (passed_s := time.monotonic() - began_s) < most_s:
            if passed_s >= least_s and self._changed_ns() != self._seen:
                return
            pause_s = max(least_s - passed_s, _EVERY_S)
            if stop.wait(min(pause_s, most_s - passed_s)):
                return
