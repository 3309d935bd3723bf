"""How soon after a look at Slurm the next one may follow, where a new job wakes lucidd.

Each look costs slurmctld a listing of its jobs, so looks are ``slurm.poll_busy_s`` apart on the average. But jobs
that come one after the other, as of ``srun`` in a loop, each meet a lucidd that has looked for the one before, and
would each wait for all of that time. So a quiet time stores looks, and while any are stored, a wake is answered at
once.
"""

from __future__ import annotations

from typing import Final

__all__ = ["STORED", "Looks"]

STORED: Final = 30
"""Most looks that a quiet time stores. A storm of submissions makes lucidd look so many times more, and no more."""
_EARLY_S: Final = 0.1
"""Jobs submitted within so short a time share a look."""


class Looks:
    """Looks stored; one that begins is paid from them."""

    def __init__(self, every_s: float) -> None:
        """``every_s``: looks are so far apart on the average."""
        self._every_s = every_s
        self._stored = float(STORED)
        self._last_s: float | None = None

    def looked(self, now_s: float) -> None:
        """A look begins."""
        passed_s = 0.0 if self._last_s is None else now_s - self._last_s
        self._stored = max(min(self._stored + passed_s / self._every_s, STORED) - 1.0, 0.0)
        self._last_s = now_s

    def forget(self) -> None:
        """The look failed, or another lucidd acts: none is worth an early look now."""
        self._stored = 0.0

    @property
    def least_s(self) -> float:
        """Seconds until the next look at the least, if something wakes lucidd."""
        return min(_EARLY_S, self._every_s) if self._stored >= 1.0 else self._every_s
