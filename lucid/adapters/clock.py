"""The live clock."""

from __future__ import annotations

import time

__all__ = ["SystemClock"]


class SystemClock:
    """Unix time. Slurm's own stamps are Unix time too, so both compare as they are."""

    def now_s(self) -> float:
        """Seconds since 1970."""
        return time.time()
