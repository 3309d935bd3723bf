"""``systemctl reload lucidd``: the settings are read anew. Sound ones hold from then on; of others none is taken."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from pathlib import Path

from lucid.daemon.build import checked_settings
from lucid.errors import LucidError

__all__ = ["Reload", "begin_anew"]

_LOG = logging.getLogger("lucidd")


class Reload:
    """What SIGHUP and SIGTERM come to."""

    def __init__(self, config: Path) -> None:
        """``config``: the file to read."""
        self._config = config
        self._again = threading.Event()
        self._ended = threading.Event()

    @property
    def due(self) -> bool:
        """Is lucidd to begin anew now that it has stopped?"""
        return self._again.is_set() and not self._ended.is_set()

    def end(self, stop: threading.Event) -> None:
        """SIGTERM: whatever else was asked for."""
        self._ended.set()
        stop.set()

    def asked(self, stop: threading.Event) -> None:
        """SIGHUP. The file is read beside the cycle, which goes on meanwhile."""
        threading.Thread(target=self.read, args=(stop,), name="reload", daemon=True).start()

    def read(self, stop: threading.Event) -> None:
        """Stop, to begin anew, if the file is sound."""
        try:
            checked_settings(self._config)
        except LucidError as error:
            _LOG.error("settings not read anew: the old ones hold", extra={"facts": {"why": str(error)}})
            return
        _LOG.info("settings are read anew", extra={"facts": {"file": str(self._config)}})
        self._again.set()
        stop.set()


def begin_anew() -> None:
    """The same program in the same process, as it was called. systemd sees one service that goes on."""
    # the new program inherits this: a signal that comes before it listens is lost, and does not end it
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
