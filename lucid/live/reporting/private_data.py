"""Slurm's ``PrivateData`` as lucidd records it for the pages (docs/decisions/0027): who may see whose jobs."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from lucid.errors import ClusterError

__all__ = ["PrivateData"]

_EVERY_S = 3600.0
_AGAIN_S = 60.0


class PrivateData:
    """``words``: as slurmctld's configuration in force has them, at most an hour old; ``None`` as long as Slurm has
    not told."""

    def __init__(self, ask: Callable[[], Mapping[str, str] | None]) -> None:
        self.words: list[str] | None = None
        self._ask = ask
        self._due_s = float("-inf")
        self._asked_s = float("-inf")

    def look(self, now_s: float) -> None:
        """Ask, if that is due. Where Slurm does not answer, what it said before stands."""
        if self._asked_s <= now_s < self._due_s:  # also where the clock was set back
            return
        self._asked_s, self._due_s = now_s, now_s + _EVERY_S
        try:
            config = self._ask()
        except ClusterError:
            self._due_s = now_s + _AGAIN_S
            return
        if config is not None:
            told = (word.strip().lower() for word in config.get("PrivateData", "").split(","))
            self.words = [word for word in told if word and word not in ("none", "(null)")]
