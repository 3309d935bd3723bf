"""Work that must not touch the daemon: a ``lucidctl`` of its own, at the lowest priority."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from datetime import timedelta

__all__ = ["Children", "end_with"]

_LOWEST_PRIORITY = 19
_LOOK_EVERY_S = 1.0


class Children:
    """Processes that run ``lucidctl`` beside this one, each at the lowest priority. They end with this process,
    however it ends. `end` stops them first: a process that ends waits for its threads, and these for the children."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen[str]] = set()
        self._ended = False

    def run(self, words: Sequence[str], timeout: timedelta) -> subprocess.CompletedProcess[str]:
        """Run ``lucidctl`` with these words to its end.

        Raises:
            TimeoutError: it took longer, or `end` was called; the child was stopped.
        """
        code = (
            f"from lucid.live.learning.child_process import end_with; end_with({os.getpid()}); "
            "from lucid.cli.main import main; main()"
        )
        command = [sys.executable, "-c", code, *words]
        with self._begin(command) as child:
            try:
                out, err = child.communicate(timeout=timeout.total_seconds())
            except subprocess.TimeoutExpired:
                raise TimeoutError(f"ran longer than {timeout.total_seconds():.0f} s and was stopped") from None
            finally:
                child.kill()
                with self._lock:
                    self._running.discard(child)
        if self._ended:
            raise TimeoutError("was stopped, because lucidd ends")
        return subprocess.CompletedProcess(command, child.returncode, out, err)

    def end(self) -> None:
        """Stop the children that run, and begin none from now on."""
        with self._lock:
            self._ended = True
            for child in self._running:
                child.kill()

    def _begin(self, command: Sequence[str]) -> subprocess.Popen[str]:
        with self._lock:
            if self._ended:
                raise TimeoutError("was not begun, because lucidd ends")
            child = subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                encoding="utf-8",
                errors="replace",
                preexec_fn=_step_back,
            )
            self._running.add(child)
        return child


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
