"""The daemon's log: a line of JSON an event, for people with jq; in journald with fields to search by."""

from __future__ import annotations

import json
import logging
import os
import socket
import sys
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
    ``journalctl -u lucidd LUCID_JOB=812`` finds what was done with a job. What journald does not take goes to stderr,
    which systemd sends there, too."""

    def __init__(self, path: str = _JOURNAL) -> None:
        """``path``: journald's socket."""
        super().__init__()
        self._path = path
        self._stderr = logging.StreamHandler(sys.stderr)
        self._stderr.setFormatter(JsonLines())
        self.setFormatter(JsonLines())

    def emit(self, record: logging.LogRecord) -> None:
        """One datagram."""
        priority = next(number for level, number in _PRIORITIES if record.levelno >= level)
        fields = {"MESSAGE": self.format(record), "PRIORITY": priority, "SYSLOG_IDENTIFIER": "lucidd"}
        facts = getattr(record, "facts", {})
        fields |= {name: ascii(facts[fact]).strip("'") for fact, name in _FIELDS.items() if fact in facts}
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
                channel.sendto("".join(f"{name}={value}\n" for name, value in fields.items()).encode(), self._path)
        except OSError:
            self._stderr.emit(record)


def log_handler() -> logging.Handler:
    """journald's where systemd connected stderr with it, else stderr."""
    if os.environ.get("JOURNAL_STREAM") and os.path.exists(_JOURNAL):  # noqa: PTH110 - one question
        return JournalHandler()
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    return handler
