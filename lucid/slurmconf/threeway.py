"""Taking a change back out of a text that somebody has edited since."""

from __future__ import annotations

import re
from difflib import SequenceMatcher

__all__ = ["taken_back"]


def taken_back(before: bytes, after: bytes, now: bytes) -> bytes | None:
    """*now* without the change that made *after* of *before*; the edit that made *now* of *after* stays.

    ``None`` where both touch the same line, or lines side by side: then only a person can tell what is meant.
    """
    base, theirs = _lines(after), _lines(now)
    ours = _changes(base, _lines(before))
    edits = _changes(base, theirs)
    for first, last, _ in ours:
        if any(first <= end and start <= last for start, end, _ in edits):
            return None
    result = list(base)
    for first, last, lines in sorted([*ours, *edits], key=lambda change: change[:2], reverse=True):
        result[first:last] = lines
    return b"".join(result)


def _lines(content: bytes) -> list[bytes]:
    return re.findall(rb"[^\n]*\n|[^\n]+$", content)


def _changes(old: list[bytes], new: list[bytes]) -> list[tuple[int, int, list[bytes]]]:
    """Which lines of *old* become which lines, as (first, after the last, lines)."""
    found = SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
    return [(first, last, new[start:end]) for kind, first, last, start, end in found if kind != "equal"]
