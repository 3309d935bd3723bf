"""Work that must not touch the daemon: a ``lucidctl`` of its own, at the lowest priority."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from datetime import timedelta

__all__ = ["run_lucidctl"]

_LOWEST_PRIORITY = 19


def run_lucidctl(words: Sequence[str], timeout: timedelta) -> subprocess.CompletedProcess[str]:
    """Run ``lucidctl`` with these words to its end.

    Raises:
        TimeoutError: it took longer, and was stopped.
    """
    command = [sys.executable, "-c", "from lucid.cli.main import main; main()", *words]
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


def _step_back() -> None:
    os.nice(_LOWEST_PRIORITY)
