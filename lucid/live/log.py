"""The daemon's log: a line of JSON an event, for journald and for people with jq."""

from __future__ import annotations

import json
import logging

__all__ = ["JsonLines"]


class JsonLines(logging.Formatter):
    """Time, level, the event in words, and its ``facts``."""

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        line = {"at": round(record.created, 3), "level": record.levelname.lower(), "event": record.getMessage()}
        line.update(getattr(record, "facts", {}))
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)  # in ASCII: no name gives orders to who reads the journal
