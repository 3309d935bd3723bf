"""The daemon's log: a line of JSON an event, for people with jq; in journald with fields to search by."""

from __future__ import annotations

import json
import logging
import os
import socket
import sys
from pathlib import Path
from typing import Final

__all__ = ["JournalHandler", "JsonLines", "log_handler"]

_JOURNAL: Final = "/run/systemd/journal/socket"
_PRIORITIES: Final = ((logging.ERROR, 3), (logging.WARNING, 4), (logging.INFO, 6), (0, 7))
"""syslog's, by the least level that has them."""
_FIELDS: Final = {"job": "LUCID_JOB", "partition": "LUCID_PARTITION", "what": "LUCID_WHAT"}
"""Facts by which people search."""


class JsonLines(logging.Formatter):
    """Time, level, the event in words, and its ``facts``."""

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        line = {"at": round(record.created, 3), "level": record.levelname.lower(), "event": record.getMessage()}
        line.update(getattr(record, "facts", {}))
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)  # in ASCII: no name gives orders to who reads the journal


class JournalHandler(logging.Handler):
    """journald's own protocol: the same line as ``MESSAGE``, ``PRIORITY``, and ``_FIELDS`` as they are known, so that
    ``journalctl -u lucidd LUCID_JOB=812`` finds what was done with a job."""

    def __init__(self, otherwise: logging.Handler, path: str = _JOURNAL) -> None:
        """``otherwise``: gets what journald does not take. ``path``: journald's socket."""
        super().__init__()
        self._otherwise, self._path = otherwise, path
        self.setFormatter(JsonLines())

    def emit(self, record: logging.LogRecord) -> None:
        """One datagram."""
        priority = next(number for level, number in _PRIORITIES if record.levelno >= level)
        fields = {"MESSAGE": self.format(record), "PRIORITY": priority, "SYSLOG_IDENTIFIER": "lucidd"}
        facts = getattr(record, "facts", {})
        fields |= {name: json.dumps(str(facts[fact]))[1:-1] for fact, name in _FIELDS.items() if fact in facts}
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
                channel.sendto("".join(f"{name}={value}\n" for name, value in fields.items()).encode(), self._path)
        except OSError:
            self._otherwise.emit(record)


def log_handler() -> logging.Handler:
    """journald's where systemd connected stderr with it, else stderr."""
    plain = logging.StreamHandler(sys.stderr)
    plain.setFormatter(JsonLines())
    connected = os.environ.get("JOURNAL_STREAM") and Path(_JOURNAL).exists()
    return JournalHandler(plain) if connected else plain
