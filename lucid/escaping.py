"""Names are data. Users choose names of jobs, and sites those of partitions: whatever is in them, a person who reads
them sees it, and no terminal, browser or spreadsheet obeys it.

Used where text leaves Lucid: ``lucid.cli.console`` for terminals, ``for_html`` in every template, ``csv_cell`` in
tables that people open. JSON, logs too, is written in ASCII, which escapes the same.
"""

from __future__ import annotations

import re
from typing import Any

__all__ = ["csv_cell", "csv_text", "for_html", "on_picture", "shown"]

# Control characters (a terminal takes orders from them), format characters (they turn text round, or hide), line and
# paragraph separators, halves of characters (nothing can write them).
_ACTIVE = (
    "\x00-\x1f\x7f-\x9f\xad\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u180e\u200b-\u200f\u2028-\u202e"
    "\u2060-\u206f\ud800-\udfff\ufeff\ufff9-\ufffb\U000110bd\U000110cd\U00013430-\U0001343f\U0001bca0-\U0001bca3"
    "\U0001d173-\U0001d17a\U000e0000-\U000e007f"
)
_ALL = re.compile(f"[{_ACTIVE}]")
_BUT_LINES = re.compile(f"(?![\n\t])[{_ACTIVE}]")
_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
_LABEL = 60
_FORMULA = re.compile(r"'*[=+\-@\t\r]")


def shown(text: str, *, lines: bool = False) -> str:
    """*text* with everything that is not a character to look at written out (``\\x1b``, ``\\u202e``). ``lines``: it
    is text that Lucid made, whose line ends and tabs stay."""
    return (_BUT_LINES if lines else _ALL).sub(_written_out, text)


def _written_out(found: re.Match[str]) -> str:
    char = found[0]
    code = ord(char)
    return _SHORT.get(char) or (
        f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
    )


def for_html(value: Any) -> Any:
    """For jinja2's ``finalize``: text is shown; Lucid's own markup, and all else, stays as it is."""
    return shown(value, lines=True) if type(value) is str else value


def on_picture(name: str) -> str:
    """For a label in a drawing, which has room for so much."""
    text = shown(name)
    return text if len(text) <= _LABEL else f"{text[: _LABEL - 1]}…"


def csv_cell(text: str) -> str:
    """A cell that no spreadsheet takes for a formula: with an apostrophe before it, where it begins like one."""
    return f"'{text}" if _FORMULA.match(text) else text


def csv_text(cell: str) -> str:
    """The inverse of ``csv_cell``."""
    return cell[1:] if cell.startswith("'") and _FORMULA.match(cell) else cell
