"""Whose process is this? From /proc alone: its control group, or its ancestors. No environment is read."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

__all__ = ["Owners"]

_CGROUP_JOB: Final = re.compile(r"/job_(\d+)(?:/|$)", re.MULTILINE)
_STEP: Final = re.compile(r"slurmstepd: \[(\d+)\.")
_DEEPEST: Final = 64
_MOST: Final = 8192


class Owners:
    """Remembers what it found out, for processes do not change their job. ``proc`` is for tests."""

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._known: dict[tuple[int, str], str | None] = {}

    def job_of(self, pid: int, given: Mapping[int, str]) -> str | None:
        """The job of a process, ``None`` if it has none or is gone.

        Asked in turn: ``given`` (job by first process) along its ancestors; Slurm's control group; a
        ``slurmstepd`` among its ancestors (where Slurm tracks processes without control groups).
        """
        started = self._started(pid)
        if started is None:
            return given.get(pid)
        key = (pid, started)
        if key not in self._known:
            if len(self._known) >= _MOST:
                self._known.clear()
            self._known[key] = self._by_cgroup(pid) or self._by_step(pid)
        if given:
            for ancestor in self._line(pid):
                if ancestor in given:
                    return given[ancestor]
        return self._known[key]

    def _read(self, pid: int, name: str) -> str:
        try:
            return (self._proc / str(pid) / name).read_bytes().decode("utf-8", "replace")
        except OSError:
            return ""

    def _stat(self, pid: int) -> list[str]:
        # the second field is the command in brackets, and may hold spaces and brackets itself
        return self._read(pid, "stat").rpartition(")")[2].split()

    def _started(self, pid: int) -> str | None:
        stat = self._stat(pid)
        return stat[19] if len(stat) > 19 else None

    def _line(self, pid: int) -> list[int]:
        """The process and its ancestors, nearest first."""
        line: list[int] = []
        while pid > 1 and len(line) < _DEEPEST:
            line.append(pid)
            stat = self._stat(pid)
            pid = int(stat[1]) if len(stat) > 1 else 0
        return line

    def _by_cgroup(self, pid: int) -> str | None:
        found = _CGROUP_JOB.search(self._read(pid, "cgroup"))
        return found[1] if found else None

    def _by_step(self, pid: int) -> str | None:
        for ancestor in self._line(pid):
            found = _STEP.search(self._read(ancestor, "cmdline").replace("\0", " "))
            if found:
                return found[1]
        return None
