"""Work that must not touch the daemon: a ``lucidctl`` of its own, at the lowest priority."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from datetime import timedelta

__all__ = ["end_with", "run_lucidctl"]

_LOWEST_PRIORITY = 19
_LOOK_EVERY_S = 1.0


def run_lucidctl(words: Sequence[str], timeout: timedelta) -> subprocess.CompletedProcess[str]:
    """Run ``lucidctl`` with these words to its end, or to the end of this process, however that comes.

    Raises:
        TimeoutError: it took longer, and was stopped.
    """
    code = f"from lucid.live.child import end_with; end_with({os.getpid()}); from lucid.cli.main import main; main()"
    command = [sys.executable, "-c", code, *words]
    seconds = timeout.total_seconds()
    try:
        return subprocess.run(
            command,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=seconds,
            check=False,
            preexec_fn=_step_back,
        )
    except subprocess.TimeoutExpired:
        raise TimeoutError(f"ran longer than {seconds:.0f} s and was stopped") from None


def end_with(parent: int) -> None:
    """Watch the process ``parent`` from now on, and end this process when the parent is gone: no process reads its
    result then."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_LOOK_EVERY_S)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _step_back() -> None:
    os.nice(_LOWEST_PRIORITY)
