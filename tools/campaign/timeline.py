"""The log of a campaign: a line of JSON for everything that happens, so that a run can be read and had again."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

__all__ = ["Timeline"]


class Timeline:
    """Lines with ``t``, seconds from the start, and ``at``, the time of day (UTC). Any thread may write."""

    def __init__(self, path: Path) -> None:
        self.began_s = time.time()
        self._lock = threading.Lock()
        self._file = path.open("w", encoding="utf-8")

    def note(self, what: str, **facts: Any) -> None:
        """One line, written at once."""
        now_s = time.time()
        at = time.strftime("%H:%M:%S", time.gmtime(now_s))
        line = json.dumps({"t": round(now_s - self.began_s, 2), "at": at, "what": what, **facts}, default=str)
        with self._lock:
            if not self._file.closed:
                self._file.write(line + "\n")
                self._file.flush()

    def close(self) -> None:
        with self._lock:
            self._file.close()
