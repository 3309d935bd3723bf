"""``lucidd`` with a clock that can be moved: seconds in the file JUMP_FILE are added to the time of day."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from lucid.daemon import build
from lucid.daemon.process import main


class JumpingClock:
    """In place of the daemon's ``SystemClock``."""

    def now_s(self) -> float:
        try:
            jump_s = float(Path(os.environ["JUMP_FILE"]).read_text())
        except (OSError, ValueError):
            jump_s = 0.0
        return time.time() + jump_s


if __name__ == "__main__":
    build.SystemClock = JumpingClock  # type: ignore[misc, assignment]
    sys.exit(main())
