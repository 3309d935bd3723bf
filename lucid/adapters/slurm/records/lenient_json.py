"""JSON of others, read as far as it can be.

Slurm's answers hold texts of its users as they wrote them: bytes that are no UTF-8, control characters. One of them
must not make a whole answer unreadable. An answer that was cut short stays an error: half a list of jobs is not a
list of fewer jobs.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

from lucid.adapters.bounded import MOST

__all__ = ["loads"]

_DEEPEST: Final = 64
"""Slurm's answers nest about ten deep; what lies deeper is left out."""
_TOKEN: Final = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[\[\]{}]', re.DOTALL)
_ESCAPE: Final = re.compile(r'\\(u[0-9a-fA-F]{4}|["\\/bfnrt])?')
_RECORD_DEPTH: Final = 3
"""{ "jobs": [ { … } ] }: where records begin."""


def loads(content: str | bytes) -> Any:
    """The document. Bytes that are no UTF-8 become U+FFFD. Where it does not parse as it is, a careful second reading
    mends wrong escapes, takes ``null`` for what nests too deep and for records that still do not parse, and bounds
    numbers.

    Raises:
        ValueError: it is no JSON, or was cut short.
    """
    text = content.decode("utf-8", "replace") if isinstance(content, bytes) else content
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return _carefully(text)


def _carefully(text: str) -> Any:
    mended = _flattened(_ESCAPE.sub(lambda found: found[0] if found[1] else r"\\", text))
    try:
        return _parsed(mended)
    except (ValueError, RecursionError):
        try:
            return _parsed(_without_bad_records(mended))
        except RecursionError as error:
            raise ValueError(f"nests too deep ({error})") from None


def _parsed(text: str) -> Any:
    return json.loads(text, strict=False, parse_int=_whole)


def _whole(text: str) -> int | float:
    return int(text) if len(text) < 18 else float(MOST if text[0] != "-" else -MOST)


def _flattened(text: str) -> str:
    """With ``null`` in place of what nests deeper than `_DEEPEST`.

    Raises:
        ValueError: brackets do not match.
    """
    kept: list[str] = []
    depth = at = 0
    for token in _TOKEN.finditer(text):
        if token[0] in "[{":
            depth += 1
            if depth == _DEEPEST + 1:
                kept += [text[at : token.start()], "null"]
        elif token[0] in "]}":
            if depth == _DEEPEST + 1:
                at = token.end()
            depth -= 1
            if depth < 0:
                raise ValueError("closes a bracket that it did not open")
    if depth:
        raise ValueError("was cut short")
    return "".join([*kept, text[at:]])


def _without_bad_records(text: str) -> str:
    """With ``null`` in place of each record that does not parse."""
    kept: list[str] = []
    depth = at = begin = 0
    for token in _TOKEN.finditer(text):
        if token[0] in "[{":
            depth += 1
            if depth == _RECORD_DEPTH:
                begin = token.start()
        elif token[0] in "]}":
            if depth == _RECORD_DEPTH:
                record = text[begin : token.end()]
                try:
                    _parsed(record)
                except (ValueError, RecursionError):
                    kept += [text[at:begin], "null"]
                    at = token.end()
            depth -= 1
    return "".join([*kept, text[at:]])
