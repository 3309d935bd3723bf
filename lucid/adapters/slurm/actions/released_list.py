"""The list that lucid-release leaves of the jobs that it let go while no lucidd decided: one that comes back holds
those that wait still again. It lies in ``daemon.state_dir``, where no user writes."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

from lucid.adapters.slurm.records.jobs_and_nodes import SlurmJob

__all__ = ["Released"]

_MOST = 4 << 20
_LINE = re.compile(rb"^([0-9]{1,12}) ([0-9]{1,9}) [0-9]{1,12}$", re.MULTILINE)


class Released:
    """Reads the list when it has changed. What is in it is a number, a count of restarts and a time; all else is
    passed over, and a list that cannot be read is none."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "released"
        self._seen: tuple[int, int, int] | None = None
        self._jobs: set[tuple[int, int]] = set()
        self.settled = False
        """Has the list not changed since the look before? What Slurm shows now is newer than such a list, whereas
        lucid-release, maybe on another host, may still be at one that has changed."""

    def look(self) -> bool:
        """Is there a list?"""
        try:
            seen = self._stat()
            self.settled = seen == self._seen
            if not self.settled:
                with self.path.open("rb") as file:
                    text = file.read(_MOST)
                self._jobs = {(int(number), int(restarts)) for number, restarts in _LINE.findall(text)}
                self._seen = seen
        except OSError:
            self._jobs, self._seen, self.settled = set(), None, False
        return bool(self._jobs)

    def has(self, record: SlurmJob) -> bool:
        """Was this job, or the array that it is of, let go, and has not been started and put back since?"""
        base = record.id.partition("_")[0]
        numbers = {record.number, int(base) if base.isdecimal() else -1}
        return any((number, record.restarts) in self._jobs for number in numbers)

    def done(self) -> None:
        """Nothing of it is left to do. A list that has grown since the last look stays."""
        with suppress(OSError):
            if self._stat() == self._seen:
                self.path.unlink(missing_ok=True)
                self._jobs = set()

    def _stat(self) -> tuple[int, int, int]:
        stat = self.path.stat()
        return stat.st_ino, stat.st_mtime_ns, stat.st_size
