"""A file that job_submit.lua rewrites when it holds a job, so that lucidd looks at once and need not ask Slurm often.

It lies beside the heartbeat and belongs to slurmctld's user (lucidd.service makes it); lucidd only looks at its time
of change. Without it lucidd finds new jobs by polling.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path

__all__ = ["WakeFile"]

_EVERY_S = 0.1


def _time_ns(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


class WakeFile:
    """Waits for a change of the file, or for time to pass."""

    def __init__(self, path: Path, *others: Path) -> None:
        """``others``: files and folders that wake lucidd, too."""
        self.path = path
        self._others = others
        self._seen = self._changed_ns()

    def _changed_ns(self) -> tuple[int, ...]:
        return tuple(map(_time_ns, (self.path, *self._others)))

    def mark(self) -> None:
        """What happens from now on is news."""
        self._seen = self._changed_ns()

    def wait(self, stop: threading.Event, least_s: float, most_s: float) -> None:
        """Return after ``most_s``, at once when ``stop`` is set, or once the file has changed since ``mark`` and
        ``least_s`` have passed."""
        began_s = time.monotonic()
        while (passed_s := time.monotonic() - began_s) < most_s:
            if passed_s >= least_s and self._changed_ns() != self._seen:
                return
            pause_s = max(least_s - passed_s, _EVERY_S)
            if stop.wait(min(pause_s, most_s - passed_s)):
                return
