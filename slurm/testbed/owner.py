"""Whose testbed is it: the program that made it, and what that program has started beside it (lucidd, say).

A program that goes by `lifetime.kept` has a mark. What it starts inherits the mark in its environment, and the
testbeds that it makes bear it in their description. So whoever clears up after it finds all of it, and nothing else.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

__all__ = ["MARK", "dead", "end_marked", "mark_of", "marked"]

MARK = "LUCID_TESTBED_OWNER"


def mark_of(pid: int) -> str:
    """A process for all time: its number, and when it started. Empty where there is none (any more)."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (OSError, ValueError):
        return ""
    return f"{pid}:{fields[19]}" if fields[0] not in "ZX" else ""


def dead(mark: str) -> bool:
    """Has it ended?"""
    pid = mark.partition(":")[0]
    return not pid.isdecimal() or mark_of(int(pid)) != mark


def marked(mark: str) -> list[int]:
    """Processes that inherited the mark, this one not among them."""
    wanted, found = f"{MARK}={mark}".encode(), []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal() or int(entry.name) == os.getpid():
            continue
        try:
            if wanted in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def end_marked(mark: str, patience_s: float = 5.0) -> int:
    """End them, politely at first; returns how many there were."""
    ended: set[int] = set()
    for sign, limit_s in ((signal.SIGTERM, patience_s), (signal.SIGKILL, 10.0)):
        until = time.monotonic() + limit_s
        signalled: set[int] = set()
        while (left := marked(mark)) and time.monotonic() < until:
            for pid in set(left) - signalled:
                signalled.add(pid)
                try:
                    os.kill(pid, sign)
                except ProcessLookupError:
                    continue
            ended |= signalled
            time.sleep(0.05)
    return len(ended)
